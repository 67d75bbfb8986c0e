"""Each class name has one owner, and each constant's name one value."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import attsvm

ROOT = Path(attsvm.__file__).parent
# Experiments share the names of their parts by design; pages have their own file names and glossary terms.
APART = {"experiments", "report", "plots"}
TREES = {
    path: ast.parse(path.read_text())
    for path in sorted(ROOT.rglob("*.py"))
    if path.relative_to(ROOT).parts[0] not in APART
}


def constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the public upper-case names that a module assigns, with the source of their values."""
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple):
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value] * len(target.elts)
                pairs = list(zip(target.elts, values, strict=True))
            for name, value in pairs:
                if isinstance(name, ast.Name) and name.id.isupper() and not name.id.startswith("_"):
                    yield name.id, ast.unparse(value)


def test_constants_are_read_from_every_form_of_assignment() -> None:
    source = "A = 1\nB, C = 2, [3]\nD: int = 4\nE, F = range(2)\n_G = 5\nh = 6\n"
    found = dict(constants(ast.parse(source)))
    assert found == {"A": "1", "B": "2", "C": "[3]", "D": "4", "E": "range(2)", "F": "range(2)"}


def test_a_class_name_has_one_owner() -> None:
    owners = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                owners[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in owners.items() if len(paths) > 1} == {}


def test_a_constants_name_has_one_value() -> None:
    values = defaultdict(set)
    for tree in TREES.values():
        for name, value in constants(tree):
            values[name].add(value)
    assert {name: sources for name, sources in values.items() if len(sources) > 1} == {}
