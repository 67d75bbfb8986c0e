"""The words that type checkers offer are those that the functions know, and the package says that it is typed."""

from pathlib import Path
from typing import get_args

import attsvm
from attsvm.core import types
from attsvm.core.norms.lookup import BY_NAME
from attsvm.nn.losses import _BY_NAME as LOSSES
from attsvm.solvers.common.regularisation import LOSSES as SHORTFALLS
from attsvm.solvers.solving import METHODS
from attsvm.training import OPTIMIZERS
from attsvm.training.schedule import _BY_NAME as SCHEDULES


def test_words_are_those_that_are_known() -> None:
    assert set(get_args(types.NormName)) == set(BY_NAME)
    assert get_args(types.OptimizerName) == tuple(OPTIMIZERS)
    assert set(get_args(types.LossName)) == set(LOSSES)
    assert set(get_args(types.Shortfall)) == set(SHORTFALLS)
    assert set(get_args(types.ScheduleName)) == set(SCHEDULES)
    assert set(get_args(types.SolverMethod)) == {"streamed"}.union(*METHODS.values())


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(attsvm.__file__).parent / "py.typed").exists()
