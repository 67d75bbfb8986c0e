"""Errata of arXiv 2308.16898 v1 and its code, and useful remarks, each with a command and a test.

The records are in errata.toml in this folder. ``python -m attsvm_paper.report.errata`` prints them as the
section Errata of docs/paper.md.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files

KINDS = ("false statement", "gap in a proof", "choice not stated", "remark")


@dataclass(frozen=True)
class Erratum:
    """One statement, a correction, and how to verify it.

    Attributes
    ----------
    title : str
    kind : {"false statement", "gap in a proof", "choice not stated", "remark"}
    version, page, where : str
        In the paper, as printed; `where` names theorem, figure or code.
    quote : str
        The quoted words.
    holds : str
        The correct statement, or the remark.
    stated : str
        The authors' statement about it; may be empty.
    changes : str
        Consequence for the reader.
    abstract : str
        What the abstract of later versions says about it.
    v3 : str
        Whether version 3 still makes the statement.
    command, shows : str
        A command that verifies it, and the part of its output to read.
    test : str
        The test that asserts it, in pytest's notation.
    """

    title: str
    kind: str
    version: str
    page: str
    where: str
    quote: str
    holds: str
    stated: str
    changes: str
    abstract: str
    v3: str
    command: str
    shows: str
    test: str

    @property
    def place(self) -> str:
        """Version, page and theorem or figure, in words."""
        return f"{self.version}, p. {self.page}, {self.where}"


@dataclass(frozen=True)
class Withdrawal:
    """A former erratum of this project that was wrong; a test holds the reason."""

    title: str
    why: str
    test: str


def _one_line(record: dict[str, str]) -> dict[str, str]:
    return {name: " ".join(text.split()) for name, text in record.items()}


_RECORDS = tomllib.loads(files("attsvm_paper.report").joinpath("errata.toml").read_text(encoding="utf-8"))
HEAD: str = " ".join(_RECORDS["head"].split())
ERRATA = tuple(Erratum(**_one_line(record)) for record in _RECORDS["erratum"])
WITHDRAWALS = tuple(Withdrawal(**_one_line(record)) for record in _RECORDS["withdrawn"])


def section() -> str:
    """Return the section Errata of docs/paper.md."""
    lines = [
        "## Errata",
        "",
        HEAD,
        "",
        "Printed by `python -m attsvm_paper.report.errata` from `paper/src/attsvm_paper/report/errata.toml`. "
        "The suite has the tests.",
        "",
        "| claim | kind | v1 | in the later abstract | v3 |",
        "|---|---|---|---|---|",
        *(f"| {one.title} | {one.kind} | p. {one.page}, {one.where} | {one.abstract} | {one.v3} |" for one in ERRATA),
    ]
    for kind in KINDS:
        lines += ["", f"### {kind[0].upper()}{kind[1:]}"]
        for one in ERRATA:
            if one.kind == kind:
                lines += ["", f"#### {one.title}", "", f"{one.place}: “{one.quote}”", "", one.holds]
                lines += ["", f"*The authors*: {one.stated}"] if one.stated else []
                lines += ["", f"*For the reader*: {one.changes}", "", "```sh", one.command, "```", ""]
                lines += [f"{one.shows} Asserted by `{one.test}`."]
    lines += ["", "### Withdrawn", "", "Earlier versions of this section listed these:", ""]
    lines += [f"* **{one.title}.** {one.why} (`{one.test}`)" for one in WITHDRAWALS]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(section(), end="")
