"""Mutation testing has tests for every module of the packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from mutants import install, mutants
from mutation import TESTS, arguments_of, equivalent, modules_of

ROOT = Path(__file__).parents[3]
DISTRIBUTIONS = ("attsvm", "attsvm_paper", "attsvm_pretrained")
MODULES = [module for package in DISTRIBUTIONS for module in modules_of(package)]


def test_every_module_of_the_package_is_covered() -> None:
    files = {
        ".".join(path.relative_to(source).with_suffix("").parts)
        for source in (ROOT / "src", ROOT / "paper" / "src", ROOT / "pretrained" / "src")
        for path in source.rglob("attsvm*/**/*.py")
    }
    assert set(MODULES) == {name for name in files if not name.endswith("__init__")}
    assert set(TESTS) == {package for package in TESTS if any(f"{name}.".startswith(f"{package}.") for name in MODULES)}


@pytest.mark.parametrize("tests", sorted({tuple(arguments_of(name)) for name in MODULES}), ids=lambda tests: tests[0])
def test_the_tests_of_a_module_exist(tests: tuple[str, ...]) -> None:
    paths = [one for one in tests if one.startswith("tests/")]
    assert paths
    assert all((ROOT / path).exists() for path in paths)


@pytest.mark.slow
def test_mutants_that_change_nothing_are_mutants() -> None:
    keys = set(equivalent())
    sources = {name: Path(importlib.util.find_spec(name).origin) for name, *_ in keys}  # type: ignore[union-attr, arg-type]
    made = {(name, *one.key) for name, path in sources.items() for one in mutants(path.read_text(encoding="utf-8"))}
    assert keys <= made


def test_compiled_kernels_are_left_out() -> None:
    source = "@kernel(int64)\ndef a(x):\n    return x + 1\n\n\ndef b(x):\n    return x + 1\n"
    assert {one.function for one in mutants(source)} == {"b"}


def test_a_mutant_names_the_lines_of_its_statement() -> None:
    source = "def a(x):\n    if (\n        x > 1\n    ):\n        return (\n            x + 2\n        )\n    return 3"
    assert {(one.was, one.statement.start, one.statement.stop) for one in mutants(source)} >= {
        ("x > 1", 2, 5), ("1", 2, 5), ("x + 2", 5, 8), ("2", 5, 8), ("3", 8, 9),
    }  # fmt: skip


def test_lambdas_in_a_table_are_exchanged_each_for_its_own_change() -> None:
    """All lambdas have one name, so their places tell them apart, two in a line among them."""
    source = "TABLE = {'a': lambda x: x + 1, 'b': lambda x: x + 2}\n"
    module = ModuleType("of_lambdas")
    exec(compile(source, "of_lambdas.py", "exec"), module.__dict__)
    changes = {one.was: one for one in mutants(source)}
    install(compile(changes["2"].make(), "of_lambdas.py", "exec"), module)
    assert {name: function(10) for name, function in module.TABLE.items()} == {"a": 11, "b": 13}
