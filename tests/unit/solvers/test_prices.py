"""C a query: against a reference solver, repetition and removal, in every method, bound and file."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

from attsvm import SelectionProblem, ShardedProblem, Solution, check, solve
from attsvm.core.norms import get_norm
from attsvm.solvers.common.regularisation import read_regularisation

NORMS = ("frobenius", "nuclear", "spectral", "max", 3.0)
LOSSES = ("hinge", "squared_hinge")


def overlapping(n: int = 24, d: int = 3, k: int = 3) -> SelectionProblem:
    """Classes that no W separates."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((n, d))
    y = (X @ rng.standard_normal((d, k)) + rng.standard_normal((n, k))).argmax(axis=1)
    return SelectionProblem.from_classes(X, y, classes=k)


def repeated(problem: SelectionProblem, count: np.ndarray) -> SelectionProblem:
    rows = np.repeat(np.arange(len(count)), count)
    return SelectionProblem(
        problem.tokens, problem.queries[rows], problem.reference[rows], sequence=problem.sequence[rows]
    )


def least(problem: SelectionProblem, C: np.ndarray, norm: str | float, loss: str, prior: np.ndarray | None) -> float:
    """Least objective by Clarabel."""
    W = cp.Variable(problem.shape[2:])
    V = W if prior is None else W - prior
    measure = {
        "frobenius": lambda: cp.sum_squares(V) / 2,
        "nuclear": lambda: cp.normNuc(V),
        "spectral": lambda: cp.sigma_max(V),
        "max": lambda: cp.max(cp.abs(V)),
        3.0: lambda: cp.pnorm(cp.vec(V, order="C"), 3),
    }[norm]()
    scores = problem.queries @ W.T
    losses = []
    for t in range(problem.shape[1]):
        short = cp.pos(
            1 - (cp.sum(cp.multiply(np.eye(problem.shape[1])[problem.reference], scores), axis=1) - scores[:, t])
        )
        losses.append((C * problem.rejected[:, t]) @ (short if loss == "hinge" else short**2))
    return float(cp.Problem(cp.Minimize(measure + sum(losses))).solve(solver=cp.CLARABEL))


@pytest.mark.parametrize("with_prior", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("norm", NORMS)
def test_the_objective_is_that_of_a_reference_solver(norm: str | float, loss: str, with_prior: bool) -> None:
    problem = overlapping()
    rng = np.random.default_rng(0)
    C = 10.0 ** rng.uniform(-2, 1, len(problem.queries))
    prior = rng.standard_normal(problem.shape[2:]) if with_prior else None
    solution = solve(problem, norm, C=C, loss=loss, prior=prior)
    assert solution.gap <= 1e-9
    value = get_norm(norm).value(solution.W - (0 if prior is None else prior))
    short = np.where(problem.rejected, np.maximum(1 - problem.apply(solution.W), 0), 0)
    size = value**2 / 2 if norm == "frobenius" else value
    objective = size + float((C[:, None] * short ** (1 if loss == "hinge" else 2)).sum())
    assert solution.primal == pytest.approx(objective, rel=1e-12)
    # Clarabel stops at a relative gap of 1e-8.
    assert objective == pytest.approx(least(problem, C, norm, loss, prior), rel=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("norm", NORMS)
def test_whole_weights_are_repetitions(norm: str | float, loss: str) -> None:
    problem = overlapping()
    count = np.random.default_rng(1).integers(1, 5, len(problem.queries))
    weighted = solve(problem, norm, C=0.3 * count, loss=loss)
    copies = solve(repeated(problem, count), norm, C=0.3, loss=loss)
    # Each is within its gap of the least objective.
    assert weighted.gap <= 1e-9
    assert copies.gap <= 1e-9
    assert weighted.primal == pytest.approx(copies.primal, rel=4e-9)


def test_equal_prices_are_one_price() -> None:
    problem = overlapping()
    one, all_equal = solve(problem, C=0.5), solve(problem, C=np.full(len(problem.queries), 0.5))
    assert all_equal.primal == pytest.approx(one.primal, rel=2e-9)


@pytest.mark.parametrize("loss", LOSSES)
def test_queries_that_no_matrix_moves_cost_their_price(loss: str) -> None:
    queries = np.array([[1.0], [0.0], [0.0]])
    problem = SelectionProblem(np.eye(2)[None], queries, [0, 0, 0], sequence=[0, 0, 0])
    solution = solve(problem, C=[1.0, 2.0, 5.0], loss=loss)
    alone = solve(SelectionProblem(np.eye(2)[None], queries[:1], [0]), C=1.0, loss=loss)
    assert solution.gap <= 1e-9
    assert solution.primal == pytest.approx(7.0 + alone.primal, rel=4e-9)


@pytest.mark.parametrize("loss", LOSSES)
def test_multipliers_stay_below_the_price_of_their_query(loss: str) -> None:
    problem = overlapping()
    C = np.random.default_rng(2).uniform(0.01, 1, len(problem.queries))
    solution = solve(problem, C=C, loss=loss)
    if loss == "hinge":
        assert (solution.dual <= C[:, None]).all()
        assert (solution.dual == C[:, None]).any()
    warm = solve(problem, C=2 * C, loss=loss, warm_start=solution)
    assert warm.primal == pytest.approx(solve(problem, C=2 * C, loss=loss).primal, rel=4e-9)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_files_prove_the_objective_exactly(norm: str, loss: str, tmp_path) -> None:
    problem = overlapping(n=9)
    C = np.random.default_rng(3).uniform(0.1, 3, len(problem.queries))
    solution = solve(problem, norm, C=C, loss=loss)
    assert solution.verify()
    solution.save(tmp_path / "solution.json")
    assert check.main([str(tmp_path / "solution.json")]) == 0
    again = Solution.load(tmp_path / "solution.json")
    np.testing.assert_array_equal(again.regularisation.C, C)
    assert again.primal == solution.primal


def test_a_file_whose_prices_are_others_is_rejected(tmp_path) -> None:
    problem = overlapping(n=9)
    C = np.linspace(0.5, 1.0, 9)
    path = tmp_path / "solution.json"
    solve(problem, C=C).save(path)
    # Multipliers at their bound are above half of it.
    path.write_text(path.read_text().replace('"C": ["1/2"', '"C": ["1/4"').replace('"C":["1/2"', '"C":["1/4"'))
    assert check.main([str(path)]) == 1


def test_large_problems_need_no_rounds() -> None:
    problem = overlapping(n=6000)
    C = np.where(np.arange(6000) % 2, 0.5, 0.25)
    solution = solve(problem, C=C, tol=1e-6)
    assert solution.gap <= 1e-6


def test_bad_prices_are_refused() -> None:
    problem = overlapping(n=4)
    for C in ([1.0, 2.0], np.ones((4, 1))):
        with pytest.raises(ValueError, match=r"C has .* of shape .*; one number, or 4, one per query, were expected"):
            solve(problem, C=C)
    for C in ([1.0, 0.0, 1.0, 1.0], [1.0, np.nan, 1.0, 1.0]):
        with pytest.raises(ValueError, match="positive, finite numbers were expected"):
            solve(problem, C=C)
    with pytest.raises(ValueError, match="one was expected with shards or method='streamed'"):
        solve(problem, C=np.ones(4), method="streamed")
    pieces = ShardedProblem.from_arrays(problem.tokens[problem.sequence], problem.queries, problem.reference)
    prices: Any = np.ones(4)
    with pytest.raises(ValueError, match="one was expected with shards or method='streamed'"):
        solve(pieces, C=prices)


def test_arrays_of_an_answer_are_copies_that_cannot_be_written() -> None:
    C, prior = np.ones(4), np.zeros((3, 2))
    regularisation = read_regularisation((4, 5, 3, 2), C, "hinge", prior)
    for given, kept in ((C, regularisation.C), (prior, regularisation.prior)):
        assert isinstance(kept, np.ndarray)
        given += 7.0
        assert not (kept == given).any()
        with pytest.raises(ValueError, match="read-only"):
            kept += 1.0
