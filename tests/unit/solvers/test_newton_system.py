"""The linear system of projected Newton, solved through a factor in single precision where that is enough."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.core import cholesky
from attsvm.solvers.frobenius import newton


def gram(size: int, smallest: float) -> np.ndarray:
    """A positive definite matrix with eigenvalues from 1 down to ``smallest``."""
    random = np.random.default_rng(0)
    basis = np.linalg.qr(random.normal(size=(size, size)))[0]
    matrix = (basis * np.geomspace(1.0, smallest, size)) @ basis.T
    return (matrix + matrix.T) / 2


@pytest.mark.parametrize("smallest", [1e-2, 1e-4, 1e-8])
def test_solution_is_as_accurate_as_a_double_factor_would_make_it(smallest: float) -> None:
    size = newton.SINGLE_ROWS + 50
    matrix = gram(size, smallest)
    exact = np.random.default_rng(1).normal(size=size)
    right = matrix @ exact
    solution = newton.proximal_solve(matrix, right)
    # Backward stability: a residual of size * eps * |K| |x|; 1e-13 of the right-hand side is what is asked for instead.
    bound = size * np.finfo(float).eps * np.linalg.norm(exact) + newton.SOLVED_RESIDUAL * np.linalg.norm(right)
    assert np.linalg.norm(matrix @ solution - right) <= bound


def test_a_well_conditioned_system_needs_no_double_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes, original = [], cholesky.cho_factor
    monkeypatch.setattr(cholesky, "cho_factor", lambda a, **_: dtypes.append(a.dtype) or original(a, **_))
    size = newton.SINGLE_ROWS
    newton.proximal_solve(gram(size, 1e-2), np.ones(size))
    assert dtypes == [np.float32]


def test_a_singular_system_falls_back_and_still_solves_what_is_consistent() -> None:
    size = newton.SINGLE_ROWS
    random = np.random.default_rng(2)
    half = random.normal(size=(size, size // 2))
    matrix = half @ half.T
    right = matrix @ random.normal(size=size)
    solution = newton.proximal_solve(matrix, right)
    # The ridge shifts by its own size at most, three proximal steps divide that by 1e13 / condition each.
    assert np.linalg.norm(matrix @ solution - right) <= 1e-9 * np.linalg.norm(right)
