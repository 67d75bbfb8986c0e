"""The table of choices in attsvm.solvers.schedule is complete, and every line of it says what it decides."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import attsvm
from attsvm.solvers import schedule

ROOT = Path(attsvm.__file__).parent / "solvers"
TABLE = ROOT / "schedule.py"
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != TABLE)
# Integers that are not sizes: limits on steps and rounds, length of a history, number of names in a sentence.
COUNTS = {
    *("STALLED", "STALLED_STEPS", "STALLED_STAGES", "STALLED_UPDATES", "CAREFUL_STEPS", "STAGE_NEWTON_STEPS"),
    *("MOST_PATH_STEPS", "MANY_STEPS"),
    *("PRODUCTS", "ROUNDS", "SHRINKING", "EXTRAPOLATED", "MOST_NAMES", "SHARE", "COPIES", "MOST_ROOMS"),
}
MOST_WORDS = 30


def constants(tree: ast.Module) -> dict[str, object]:
    """Values of the module's names that stand for numbers, or tuples of them."""
    names: dict[str, object] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        try:
            value = eval(compile(ast.Expression(node.value), "constants", "eval"), {"__builtins__": {}}, dict(names))
        except (NameError, TypeError, AttributeError):
            continue
        for target in node.targets:
            each = target.elts if isinstance(target, ast.Tuple) else [target]
            values = value if isinstance(target, ast.Tuple) else [value]
            names |= {one.id: v for one, v in zip(each, values, strict=True) if isinstance(one, ast.Name)}
    return names


@cache
def parsed(path: Path) -> tuple[ast.Module, dict[str, object]]:
    """Tree and constants of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tree, constants(tree)


def test_every_choice_has_a_sentence() -> None:
    body, names = parsed(TABLE)[0].body, parsed(TABLE)[1]
    known, unexplained = set(names) - {"Steps", "Method", "Answer"}, []
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign):
            continue
        here = {one.id for one in ast.walk(node.targets[0]) if isinstance(one, ast.Name)} & known
        if not here:
            continue
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        fine = re.fullmatch(r"[A-Z][^;]+\.", str(text)) and len(str(text).split()) <= MOST_WORDS
        unexplained += [] if fine else sorted(here)
        known -= here
    assert not unexplained
    assert not known
    assert len(names) > 80


def test_every_choice_is_made_somewhere() -> None:
    words = Counter(word for path in [*MODULES, TABLE] for word in re.findall(r"\w+", path.read_text(encoding="utf-8")))
    names = parsed(TABLE)[1]
    assert [name for name in names if words[name] < 2] == []
    assert names["SMALL"] == schedule.SMALL


def compared(tree: ast.Module, numbers: dict[str, object]) -> set[str]:
    """Names of integers that an order is taken with: sizes are integers, tolerances are not."""
    orders = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and any(isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for op in node.ops)
    ]
    inside = {name.id for node in orders for name in ast.walk(node) if isinstance(name, ast.Name)}
    return {name for name in inside if isinstance(numbers.get(name), int)}


def imported(tree: ast.Module) -> dict[str, object]:
    """Numbers that a module takes from another one of the solvers, not from the table."""
    names: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("attsvm.solvers."):
            path = ROOT.joinpath(*str(node.module).split(".")[2:]).with_suffix(".py")
            if path != TABLE and path.exists():
                theirs = parsed(path)[1]
                names |= {alias.name: theirs[alias.name] for alias in node.names if alias.name in theirs}
    return names


@cache
def compared_in(path: Path) -> set[str]:
    tree, numbers = parsed(path)
    return compared(tree, numbers | imported(tree))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_compares_a_size_with_a_number_of_its_own(path: Path) -> None:
    assert compared_in(path) - COUNTS == set()


def test_the_comparison_finds_a_size_of_its_own() -> None:
    tree = ast.parse("LIMIT, TOL = 1 << 10, 1e-3\ndef f(rows, gap):\n    return len(rows) <= LIMIT and gap < TOL")
    assert compared(tree, constants(tree)) == {"LIMIT"}


def test_no_count_is_left_over() -> None:
    assert set().union(*map(compared_in, MODULES)) >= COUNTS
