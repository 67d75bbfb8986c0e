"""Newton systems over few constraints beside many entries of W: as accurate as those over the entries."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import Status, solve
from attsvm.core.reduction import reduce
from attsvm.solvers.common.diagonal_normal import DiagonalNormal
from problems import FAMILIES, HELD_OUT

SIZE = (8, 4, 24)


def test_steps_over_constraints_are_those_over_entries() -> None:
    reduced = reduce(FAMILIES["several"].draw(*SIZE))
    rng = np.random.default_rng(1)
    h, theta = rng.uniform(0.1, 1.0, reduced.shape), np.where(reduced.rejected, 10.0 ** rng.uniform(-2.0, 2.0), 0.0)
    r, g = rng.standard_normal(reduced.shape), np.where(reduced.rejected, rng.standard_normal(theta.shape), 0.0)
    few, many = DiagonalNormal(reduced, least=1), DiagonalNormal(reduced, fewer=np.inf)
    assert few.few
    assert not many.few
    # The condition of both systems is below 1e6, so no part of a step is off by more than 1e6 eps times a small factor.
    for one, other in zip(few.factor(h, theta)(r, g), many.factor(h, theta)(r, g), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8 * float(np.abs(other).max()))


@pytest.mark.parametrize("norm", [1, "max", 1.1, 1.5, 3.0, 10.0])
@pytest.mark.parametrize("family", ["planted", "several", "badly_scaled", "clustered", "low_rank"])
def test_wide_problems_end_without_the_smoothing_path(family: str, norm: float | str) -> None:
    make = HELD_OUT.get(family) or FAMILIES[family].make
    solution = solve(make(np.random.default_rng([3, *SIZE]), *SIZE), norm)
    assert solution.status is Status.OPTIMAL
    assert solution.verify()
    assert "smoothing path" not in solution.method
    if norm not in (1, "max"):
        assert "interior point" not in solution.method.split(", barrier")[1]
