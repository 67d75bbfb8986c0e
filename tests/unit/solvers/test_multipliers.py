"""The method of multipliers on a working set."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers.frobenius.multipliers import proximal_step
from problems import FAMILIES
from settings import setting_of


@pytest.mark.parametrize("patience", [0, 1, 5, 40])
def test_a_step_ends_where_time_is_over(patience: int) -> None:
    problem = FAMILIES["planted"].make(np.random.default_rng(0), 40, 8, 6)
    setting = setting_of(problem)
    asked = 0

    def is_over() -> bool:
        nonlocal asked
        asked += 1
        return asked > patience

    start, dual = np.zeros(setting.reduced.shape), np.zeros(setting.reduced.rejected.shape)
    V, values, products = proximal_step(setting, start, dual, 100.0, 1e-12, is_over)
    # Every product is asked for, as is every system; nothing is computed once the answer is yes.
    assert products <= patience
    assert asked <= patience + 2
    assert np.isfinite(V).all()
    assert np.isfinite(values).all()
    assert (values[setting.reduced.rejected] >= 0).all()
    # A step minimises: each of its parts leaves less than there was at V = 0.
    price = (
        0.5 * np.vdot(V, V)
        + 50.0 * (np.maximum(1.0 - setting.reduced.apply(V), 0.0)[setting.reduced.rejected] ** 2).sum()
    )
    assert price <= 50.0 * setting.reduced.rejected.sum()
