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


@pytest.mark.parametrize("scale", [4.0**-100, 4.0**100])
def test_the_scale_of_the_tokens_is_no_part_of_the_residual(scale: float) -> None:
    rng = np.random.default_rng(2)
    tokens, queries = rng.standard_normal((3, 3, 4)), rng.standard_normal((3, 4))
    K, Q = solve(SelectionProblem(tokens, queries, [0, 1, 2]), "spectral").factors()
    scaled = SelectionProblem(scale * tokens, queries, [0, 1, 2])
    assert kkt_residual(scaled, K / np.sqrt(scale), Q / np.sqrt(scale), "spectral") < 1e-4


def test_a_token_at_the_margin_may_have_no_multiplier() -> None:
    """Both margins are one, and the gradient of the last token alone is (K, Q)."""
    problem = SelectionProblem([[[0.0, 0.0], [-1.0, -1.0], [-1.0, 0.0]]], [[1.0]], [0])
    assert kkt_residual(problem, np.array([[1.0], [0.0]]), np.array([[1.0]])) == pytest.approx(0, abs=1e-9)


def test_tied_tokens_have_no_multiplier() -> None:
    """The gradient of the rejected token, ((1, 0), 1), is (K, Q); the tie has the margin zero."""
    problem = SelectionProblem([[[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]], [[1.0]], [[True, True, False]])
    assert kkt_residual(problem, np.array([[1.0], [0.0]]), np.array([[1.0]])) == pytest.approx(0, abs=1e-9)
