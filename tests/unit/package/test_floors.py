"""A folder is a floor: imports point down, and the path of a module tells which floor it is on."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import TypeGuard

import pytest

from sources import FILES, PACKAGES, place

# From the ground up; a module may import from its own floor and from those before it.
FLOORS = (
    *("platform", "core", "proofs", "solution", "nn", "data", "solvers", "training", "theory"),
    *("study", "plots", "report", "playground", "cli"),
)
# Those of the other distributions stand on all of attsvm.
PRETRAINED = (
    *("activations", "heads", "selection", "attribution", "monitoring", "inspection"),
    *("plots", "report", "cli"),
)
PAPER = ("published", "judging", "engine", "plots", "figures", "beyond", "registry", "report", "cli")
# Public modules and packages at the root, and the floor that they stand on.
ROOT = {
    "check": "core",
    "compile": "platform",
    "functional": "core",
    "norms": "core",
    "attention_classifier": "study",
    "estimator": "study",
    "margin_classifier": "study",
    "token_scaler": "study",
    "experiments": "cli",
    "pretrained": "cli",
    "__init__": "platform",
}
PACKAGE, _, PAPER_PACKAGE = PACKAGES
FLOORS_OF = {"attsvm": FLOORS, "attsvm_pretrained": PRETRAINED, "attsvm_paper": PAPER}
# Modules of attsvm that lead into the other distributions, where these are installed.
ENTRANCES = {"attsvm/experiments.py", "attsvm/pretrained.py", "attsvm/plots/__init__.py", "attsvm/cli/study.py"}
# Folders inside a floor, from the ground up.
ROOMS = {"training": ("risk", "optimisers", "run", "paths")}
# Modules of the solvers that floors above them may use.
DOORS = {"solving", "batching", "soft_margin_path", "gram", "tie_equations"}


def _floor(module: str) -> int:
    package, room = module.split(".")[:2] if "." in module else (module, "__init__")
    if package != "attsvm":
        floors = FLOORS_OF[package]
        return len(FLOORS) + (floors.index(room) if room in floors else 0)
    return FLOORS.index(ROOT.get(room, room) if room in ROOT or room in FLOORS else "platform")


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_lazy(call: ast.Call) -> bool:
    return getattr(call.func, "attr", getattr(call.func, "id", "")).endswith(("import_module", "resolve_name"))


@cache
def _names(path: Path) -> tuple[set[str], set[str]]:
    """Modules of the packages that a module imports, and those that it names in strings to import later."""
    names: tuple[set[str], set[str]] = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names[0].update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            root = node.module in FLOORS_OF
            names[0].update({f"{node.module}.{alias.name}" for alias in node.names} if root else {str(node.module)})
        elif isinstance(node, ast.Call) and _is_lazy(node):
            names[1].update(text.value for text in ast.walk(node.args[0]) if _is_text(text))
    imported, named = ({name for name in part if name.split(".")[0] in FLOORS_OF and "." in name} for part in names)
    return imported, named


def _imports(path: Path) -> set[str]:
    imported, named = _names(path)
    return imported if path.name == "__init__.py" else imported | named


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_imports_point_down(package: Path) -> None:
    modules = [path for path in FILES if package in path.parents and path != package / "__init__.py"]
    floors = {*FLOORS, *ROOT} if package == PACKAGE else {*FLOORS_OF[package.name]}
    strangers = {module.relative_to(package).parts[0].removesuffix(".py") for module in modules} - floors
    assert not strangers, f"no floor is named for {strangers}"
    upward = [
        f"{place(module)} imports {name}"
        for module in modules
        for name in _imports(module)
        if _floor(place(module).removesuffix(".py").replace("/", ".")) < _floor(name)
    ]
    assert {line.split(" imports ")[0] for line in upward} == (ENTRANCES if package == PACKAGE else set())


def test_no_distribution_but_attsvm_is_imported_by_another() -> None:
    strangers = [
        f"{place(path)} imports {name}"
        for path in FILES
        for name in _names(path)[0]
        if name.split(".")[0] not in ("attsvm", place(path).split("/")[0]) and place(path) not in ENTRANCES
    ]
    assert not strangers


def test_modules_of_the_package_are_named_in_strings_by_lazy_packages_only() -> None:
    strings = {place(path) for path in FILES if _names(path)[1]}
    assert {name for name in strings if not name.endswith("__init__.py")} == set()


@pytest.mark.parametrize("folder", ROOMS)
def test_imports_inside_a_floor_point_down(folder: str) -> None:
    rooms = ROOMS[folder]
    assert {path.name for path in (PACKAGE / folder).iterdir() if path.is_dir() and path.name[0] != "_"} == {*rooms}
    upward = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for number, room in enumerate(rooms)
        for path in (PACKAGE / folder / room).rglob("*.py")
        for name in _imports(path)
        if name.startswith(f"attsvm.{folder}.") and name.split(".")[2] not in rooms[: number + 1]
    ]
    assert not upward


def test_solvers_are_entered_by_their_doors() -> None:
    above = FLOORS[FLOORS.index("solvers") + 1 : FLOORS.index("cli")]
    outside = [
        f"{place(path)} imports {name}"
        for path in FILES
        if PACKAGE not in path.parents or place(path).split("/")[1].removesuffix(".py") in (*above, *ROOT)
        for name in _imports(path)
        if name.startswith("attsvm.solvers.") and name.split(".", 2)[2] not in DOORS
    ]
    # Names of the package, which checkers read.
    assert {line for line in outside if not line.startswith("attsvm/__init__.py ")} == set()


def _folders(package: Path) -> set[str]:
    return {f"{path.parent.relative_to(package).as_posix()}/" for path in package.rglob("*.py")} - {"./"}


@pytest.mark.parametrize("number", range(3), ids=[package.name for package in PACKAGES])
def test_the_map_names_every_folder_once(number: int) -> None:
    text = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = text.split("| Floor | Holds |")[number + 1].split("\n\n")[0].splitlines()[2:]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    modules = {path.name for path in PACKAGES[number].glob("*.py")} - {"__init__.py"}
    assert sorted(named) == sorted(_folders(PACKAGES[number]) | modules)


def test_contributing_names_what_exists() -> None:
    text = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    dotted = set(re.findall(r"`((?:[a-z_]+\.)+[A-Za-z_]+)`", text)) - {"attsvm.solve"}
    names = sorted(name for name in dotted if name.rsplit(".", 1)[1] not in ("py", "toml", "md", "txt"))
    sources = {path.with_suffix("").as_posix(): path for path in FILES}
    for name in names:
        module, attribute = name.rsplit(".", 1)
        ends = f"/{module.replace('.', '/')}"
        texts = [path.read_text(encoding="utf-8") for place, path in sources.items() if place.endswith(ends)]
        folders = [path for path in FILES if path.parent.as_posix().endswith(ends) and path.stem == attribute]
        defined = rf"^(?: *(?:def|class) )?{attribute}\b"
        assert folders or any(re.search(defined, one, re.MULTILINE) for one in texts), name
    assert len(names) > 15


def _graph(package: Path) -> dict[str, set[str]]:
    """Modules of a package and those that each imports; imports for types and inside functions count."""
    root = package.parent
    names = {".".join(path.relative_to(root).with_suffix("").parts): path for path in FILES if package in path.parents}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                found.update({str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)})
            elif isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
        graph[name] = found & names.keys()
    return graph


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_modules_import_each_other_in_a_circle(package: Path) -> None:
    graph = _graph(package)
    while leaves := {name for name, found in graph.items() if not found}:
        graph = {name: found - leaves for name, found in graph.items() if name not in leaves}
    assert not graph


def test_modules_of_the_reproduction_import_at_their_top() -> None:
    inside = {
        place(path)
        for path in FILES
        if PAPER_PACKAGE in path.parents
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        and any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(function))
    }
    # The command waits for what draws only when it runs.
    assert inside == {"attsvm_paper/cli/reproduce.py"}
