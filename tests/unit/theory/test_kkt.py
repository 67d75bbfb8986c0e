"""The KKT residual of K and Q: closed forms, balanced factors of the nuclear SVM, and what is refused."""

import numpy as np
import pytest

from attsvm import SelectionProblem, solve
from attsvm.theory import kkt_residual

LINE = SelectionProblem(np.array([[[1.0], [0.0]]]), np.ones((1, 1)), [0])


@pytest.mark.parametrize(("norm", "residual"), [("frobenius", 1 / 5), ("max", 1 / 3), ("spectral", 1 / 3)])
def test_of_two_numbers(norm, residual):
    # g = (2, 1) and theta = (1, 2): <g, theta> = 4, Euclidean norms sqrt 5, else 3 and 2.
    assert kkt_residual(LINE, np.array([[1.0]]), np.array([[2.0]]), norm) == pytest.approx(residual)
    assert kkt_residual(LINE, np.array([[3.0]]), np.array([[3.0]]), norm) == pytest.approx(0, abs=1e-12)


def test_balanced_factors_of_the_nuclear_svm_are_a_kkt_point():
    rng = np.random.default_rng(1)
    problem = SelectionProblem(rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 5)), [0, 1, 2])
    K, Q = solve(problem, "nuclear").factors()
    # A bound from a descent of 150 steps, not an exact minimum.
    assert kkt_residual(problem, K, Q) < 1e-3
    assert kkt_residual(problem, 2 * K, 2 * Q) == pytest.approx(kkt_residual(problem, K, Q), abs=1e-6)
    assert kkt_residual(problem, 3 * K, Q) > 0.3
    assert kkt_residual(problem, K, Q, "max") > 0.1


@pytest.mark.parametrize("seed", [0, 1])
def test_balanced_factors_of_the_spectral_svm_are_a_kkt_point_of_muon(seed):
    rng = np.random.default_rng(seed)
    problem = SelectionProblem(rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 5)), [0, 1, 2])
    # The last smoothing moves the dual norm by 1e-4 of its size at most.
    assert kkt_residual(problem, *solve(problem, "spectral").factors(), "spectral") < 1e-4


def test_what_does_not_fit_is_refused():
    one = np.ones((1, 1))
    with pytest.raises(ValueError, match="norm is 'nuclear'"):
        kkt_residual(LINE, one, one, "nuclear")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"K and Q have shapes \(2, 1\)"):
        kkt_residual(LINE, np.ones((2, 1)), one)
    with pytest.raises(ValueError, match="least margin of -1"):
        kkt_residual(LINE, -one, one)
