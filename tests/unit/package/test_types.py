"""The words that type checkers offer are those that the functions know, and the package says that it is typed."""

import ast
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

import attsvm
from attsvm import plots, pretrained
from attsvm.core import types
from attsvm.core.norms.lookup import BY_NAME
from attsvm.nn.losses import _BY_NAME as LOSSES
from attsvm.solvers.common.regularisation import LOSSES as SHORTFALLS
from attsvm.solvers.options import METHODS
from attsvm.training import OPTIMIZERS
from attsvm.training.optimisers.registry import OptimizerName
from attsvm.training.optimisers.schedule import _BY_NAME as SCHEDULES


def test_words_are_those_that_are_known() -> None:
    assert set(get_args(types.NormName)) == set(BY_NAME)
    assert set(get_args(OptimizerName)) == set(OPTIMIZERS)
    assert set(get_args(types.LossName)) == set(LOSSES)
    assert set(get_args(types.Shortfall)) == set(SHORTFALLS)
    assert set(get_args(types.ScheduleName)) == set(SCHEDULES)
    assert set(get_args(types.SolverMethod)) == {"streamed"}.union(*METHODS.values())


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(attsvm.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("package", [attsvm, plots, pretrained], ids=lambda package: package.__name__)
def test_names_that_load_on_first_use_are_those_that_checkers_see(package: ModuleType) -> None:
    tree = ast.parse(Path(package.__file__ or "").read_text(encoding="utf-8"))
    seen = next(node for node in tree.body if isinstance(node, ast.If)).body
    froms = [node for node in seen if isinstance(node, ast.ImportFrom)]
    imports = {(node.module, alias.name) for node in froms for alias in node.names}
    table = next(ast.literal_eval(node) for node in ast.walk(tree) if isinstance(node, ast.Dict))
    assert {(home, name) for home, names in table.items() for name in names} == imports
    # A checker takes an import without "as" for the package's own.
    assert all(alias.asname == alias.name for node in froms for alias in node.names)
    assert {name for _, name in imports} == set(package.__all__) - {"__version__"} <= set(dir(package))
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nonsense'"):
        _ = package.nonsense
