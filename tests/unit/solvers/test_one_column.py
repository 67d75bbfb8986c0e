"""Norms of singular values of a matrix with one column or one row: all are its Euclidean length."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from attsvm import SelectionProblem, Status, norms, solve
from attsvm.core.norms import NUCLEAR, SPECTRAL, get_norm
from attsvm.solvers.common.regularisation import LOSSES
from clocks import least_seconds
from settings import setting_of

# Seconds of the processor for one soft margin; the semidefinite cone of the nuclear norm takes several.
SECONDS = 1.0
NORMS = ("nuclear", "spectral", norms.Schatten(1.5), norms.KyFan(2), norms.Largest("nuclear", "spectral"))


def bags(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw bags of nine digits, (count, 9, 64), and a random digit of each."""
    pixels, random = load_digits().data / 16.0, np.random.default_rng(3)
    return pixels[random.integers(0, len(pixels), (count, 9))], random.integers(0, 9, count)


@pytest.mark.parametrize("loss", LOSSES)
def test_random_selections_under_one_query_take_less_than_a_second(loss: str) -> None:
    tokens, selected = bags(400)
    problem = SelectionProblem(tokens, np.ones((400, 1)), selected)
    solve(problem, "spectral", C=1.0, loss=loss, tol=1e-2)  # compiles
    seconds, solution = least_seconds(lambda: solve(problem, "nuclear", C=100.0, loss=loss), SECONDS)
    assert seconds <= SECONDS
    assert solution.status is Status.OPTIMAL
    assert solution.norm is get_norm("nuclear")


def test_a_single_singular_value_is_that_of_the_spectral_norm() -> None:
    """Of a row or a column; a factor of the norm would be lost."""
    tokens = np.random.default_rng(0).standard_normal((4, 3, 5))
    for queries, is_single in ((np.ones((4, 1)), True), (np.eye(4), False)):
        setting = setting_of(SelectionProblem(tokens, queries, [0, 0, 0, 0]), NUCLEAR)
        assert setting.terms.norm is (SPECTRAL if is_single else NUCLEAR)


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_all_norms_agree_with_the_length(norm: str | norms.Norm, transposed: bool) -> None:
    """Hard and soft margins; a relative gap g leaves values of the objective within g of each other."""
    tokens, selected = bags(20)
    queries = np.ones((20, 1))
    if transposed:
        random = np.random.default_rng(5)
        tokens, queries = random.normal(size=(20, 2, 1)), random.normal(size=(20, 40))
        selected = np.zeros(20, dtype=int)
    problem = SelectionProblem(tokens, queries, selected)
    hard = solve(problem, norm)
    assert hard.status is Status.OPTIMAL
    assert hard.norm is get_norm(norm)
    assert hard.objective == pytest.approx(solve(problem).objective, rel=2e-9)
    for loss in LOSSES:
        soft = solve(problem, norm, C=10.0, loss=loss)
        assert soft.status is Status.OPTIMAL
        length = float(np.linalg.norm(soft.W))
        assert soft.objective == pytest.approx(length, rel=1e-12)
        short = np.maximum(1.0 - np.where(problem.rejected, soft.margins, 1.0), 0.0)
        price = 10.0 * float((short if loss == "hinge" else short**2).sum())
        other = solve(problem, "schatten:3", C=10.0, loss=loss)
        assert soft.primal == pytest.approx(length + price, rel=1e-9)
        assert soft.primal == pytest.approx(other.primal, rel=2e-9)
