"""Every number in the prose of an erratum is read by a test, and what is read as a result fails it when changed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from attsvm_paper.report.errata import ERRATA, Erratum
from errata_numbers import another, falsified, numbers, prose

UNIT = Path(__file__).parents[1]
TESTS = [UNIT / "experiments" / f"test_{name}.py" for name in ("errata_outcomes", "experiment_errata")]
TESTS += (UNIT / "theory").glob("test_*.py")
# Where something stands: places in the paper, files, and formulas, in which a number is no measurement.
PLACES = re.compile(
    r"docs/\S+|\(?p\. \d+\)?|[Pp]age \d+|(Lemma|Theorem|Section|Fig\.|Figs|[Ee]q\.|eqs\.|condition) \(?\d+\w?\)?"
    r"( and (Theorem )?\(?\d+\w?\)?)?|B\.\d|float64|1 − 2δ|γ/\(2λ\)|= 0 < Q|median 1 −|‖²|₁|‖Q‖ > 1"
)


def readings() -> Iterator[tuple[str, str]]:
    """Title and pattern of every call that reads numbers."""
    for path in TESTS:
        titles: list[tuple[str, str]] = []
        nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if hasattr(node, "lineno")]
        for node in sorted(nodes, key=lambda node: node.lineno):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                titles.append((ast.unparse(node.targets[0]), node.value.value))
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("numbers", "settings"):
                title, pattern = node.args
                name = ast.unparse(title)
                known = [text for at, text in titles if at == name]
                yield known[-1] if known else ast.literal_eval(title), ast.literal_eval(pattern)


@pytest.mark.parametrize("erratum", ERRATA, ids=lambda erratum: erratum.title)
def test_every_number_is_read(erratum: Erratum) -> None:
    text, read = prose(erratum), set[int]()
    for title, pattern in readings():
        if erratum.title.startswith(title):
            (found,) = re.finditer(pattern, text)
            for group in range(1, found.re.groups + 1):
                read.update(range(*found.span(group)))
    for place in PLACES.finditer(text):
        read.update(range(*place.span()))
    unread = [one for one in re.finditer(r"[\d⁰-⁹¹²³]", text) if one.start() not in read]
    assert not [text[max(one.start() - 30, 0) : one.end() + 10] for one in unread]


def test_a_result_that_no_assertion_holds_is_found() -> None:
    title, pattern = "A score gap", r"W at step (\d+) is (\.\d+) in print"

    @falsified()
    def held() -> None:
        assert numbers(title, pattern) == (200, 0.932)

    @falsified()
    def loose() -> None:
        assert numbers(title, pattern)[0] == 200

    held()
    with pytest.raises(AssertionError, match=r"passes with \.832 for \.932"):
        loose()


@pytest.mark.parametrize(
    ("number", "changed"), [("83", "93"), (".003", ".004"), ("10,000", "20,000"), ("7·10⁻⁵", "8·10⁻⁵")]
)
def test_the_first_digit_is_changed(number: str, changed: str) -> None:
    assert another(number) == changed
