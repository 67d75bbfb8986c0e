"""A folder is a floor: imports point down, and the path of a module tells which floor it is on."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TypeGuard

import attsvm

# From the ground up; a module may import from its own floor and from those before it.
FLOORS = (
    *("core", "proofs", "solution", "nn", "data", "solvers", "training", "theory"),
    *("study", "pretrained", "plots", "experiments", "report", "playground", "cli"),
)
# Public modules and packages at the root, and the floor that they stand on.
ROOT = {
    "check": "core",
    "compile": "core",
    "functional": "core",
    "norms": "core",
    "estimator": "study",
    "margin_classifier": "study",
    "__init__": "core",
}
PACKAGE = Path(attsvm.__file__).parent


def _floor(module: str) -> int:
    room = module.split(".")[1] if "." in module else "__init__"
    return FLOORS.index(ROOT.get(room, room) if room in ROOT or room in FLOORS else "core")


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_lazy(call: ast.Call) -> bool:
    return getattr(call.func, "attr", getattr(call.func, "id", "")).endswith("import_module")


@cache
def _names(path: Path) -> tuple[set[str], set[str]]:
    """Modules of the package that a module imports, and those that it names in strings to import later."""
    names: tuple[set[str], set[str]] = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names[0].update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = {f"attsvm.{alias.name}" for alias in node.names} if node.module == "attsvm" else {str(node.module)}
            names[0].update(parts)
        elif isinstance(node, ast.Call) and _is_lazy(node):
            names[1].update(text.value for text in ast.walk(node.args[0]) if _is_text(text))
    imported, named = ({name for name in part if name.startswith("attsvm.")} for part in names)
    return imported, named


def _imports(path: Path) -> set[str]:
    imported, named = _names(path)
    return imported if path.name == "__init__.py" else imported | named


def test_imports_point_down() -> None:
    modules = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]
    strangers = {module.parts[0] for module in modules} - {*FLOORS, *ROOT} - {f"{name}.py" for name in ROOT}
    assert not strangers, f"no floor is named for {strangers}"
    upward = [
        f"{module} imports {name}"
        for module in modules
        for name in _imports(PACKAGE / module)
        if _floor(f"attsvm.{module.with_suffix('').as_posix().replace('/', '.')}") < _floor(name)
    ]
    assert not upward


def test_modules_of_the_package_are_named_in_strings_by_lazy_packages_only() -> None:
    strings = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if _names(path)[1]}
    assert {name for name in strings if not name.endswith("__init__.py")} == set()


def test_what_a_pass_leaves_is_read_below_the_heads() -> None:
    folder = PACKAGE / "pretrained" / "activations"
    above = {
        f"{path.name} imports {name}"
        for path in folder.glob("*.py")
        for name in _imports(path)
        if name.startswith("attsvm.pretrained") and not name.startswith("attsvm.pretrained.activations")
    }
    assert not above
