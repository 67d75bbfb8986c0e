"""What does not hold as stated in arXiv 2308.16898 v1 and its code, or is useful to know, with a command and a test.

The records lie in errata.toml beside this file. ``python -m attsvm.report.errata`` prints them as the page
docs/errata.md.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files

KINDS = ("false statement", "gap in a proof", "choice not stated", "remark")


@dataclass(frozen=True)
class Erratum:
    """One statement, what holds, and how to see it.

    Attributes
    ----------
    title : str
    kind : {"false statement", "gap in a proof", "choice not stated", "remark"}
    version, page, where : str
        Of the paper, as printed; `where` names theorem, figure or code.
    quote : str
        The words in question.
    holds : str
        What is true instead, or what to know.
    stated : str
        What the authors say of it themselves; may be empty.
    changes : str
        What follows for the reader.
    abstract : str
        What the abstract of later versions says of it.
    v3 : str
        Whether version 3 still says so.
    command, shows : str
        Shows it; what of its output to look at.
    test : str
        The test that asserts it, as pytest names it.
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
    """An erratum that earlier pages of this project listed and that does not stand; a test holds the reason."""

    title: str
    why: str
    test: str


def _one_line(record: dict[str, str]) -> dict[str, str]:
    return {name: " ".join(text.split()) for name, text in record.items()}


_RECORDS = tomllib.loads(files("attsvm.report").joinpath("errata.toml").read_text(encoding="utf-8"))
HEAD: str = " ".join(_RECORDS["head"].split())
ERRATA = tuple(Erratum(**_one_line(record)) for record in _RECORDS["erratum"])
WITHDRAWALS = tuple(Withdrawal(**_one_line(record)) for record in _RECORDS["withdrawn"])


def page() -> str:
    """Return docs/errata.md."""
    lines = [
        "# Errata",
        "",
        HEAD,
        "",
        "Printed by `python -m attsvm.report.errata` from `src/attsvm/report/errata.toml`. The suite has the tests.",
        "",
        "| claim | kind | v1 | in the later abstract | v3 |",
        "|---|---|---|---|---|",
        *(f"| {one.title} | {one.kind} | p. {one.page}, {one.where} | {one.abstract} | {one.v3} |" for one in ERRATA),
    ]
    for kind in KINDS:
        lines += ["", f"## {kind[0].upper()}{kind[1:]}"]
        for one in ERRATA:
            if one.kind == kind:
                lines += ["", f"### {one.title}", "", f"{one.place}: “{one.quote}”", "", one.holds]
                lines += ["", f"*The authors*: {one.stated}"] if one.stated else []
                lines += ["", f"*For the reader*: {one.changes}", "", "```sh", one.command, "```", ""]
                lines += [f"{one.shows} Asserted by `{one.test}`."]
    lines += ["", "## Withdrawn", "", "Earlier versions of this page listed these:", ""]
    lines += [f"* **{one.title}.** {one.why} (`{one.test}`)" for one in WITHDRAWALS]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
