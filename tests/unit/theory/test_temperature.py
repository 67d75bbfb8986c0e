"""Temperatures of mean one: a closed form, bounds, and what they leave alone."""

import re

import numpy as np
import pytest

from attsvm import SelectionProblem, solve
from attsvm.solution.solution import UnsolvedError
from attsvm.theory import temperature_saving


def two_queries(a, b):
    """One margin a W_11 and one b W_12: with u = (1/a, 1/b), ||W||^2 = sum (u_i / tau_i)^2."""
    tokens = np.array([[[a], [0.0]], [[b], [0.0]]])
    return SelectionProblem(tokens, np.eye(2), [0, 0])


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (1.0, 8.0), (27.0, 1.0)])
@pytest.mark.slow
def test_two_queries_have_the_closed_form(a, b):
    # Of sum (u_i / tau_i)^2 under tau_1 + tau_2 = 2: tau_i like u_i^(2/3), least norm (sum u_i^(2/3))^(3/2) / 2.
    u = np.array([1 / a, 1 / b])
    thirds = u ** (2 / 3)
    saving = temperature_saving(two_queries(a, b), tol=1e-8)
    least = thirds.sum() ** 1.5 / 2
    assert saving.lower_bound <= least <= saving.solution.objective * (1 + 1e-12)
    assert saving.solution.objective == pytest.approx(least, rel=1e-8)
    # The norm is quadratic about its least: half the digits.
    np.testing.assert_allclose(saving.temperatures, 2 * thirds / thirds.sum(), rtol=1e-3)
    exact = 1 - least / np.linalg.norm(u)
    assert saving.low - 1e-12 <= exact <= saving.high + 1e-12


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "max"])
def test_temperatures_are_those_of_a_smaller_problem(norm):
    rng = np.random.default_rng(4)
    problem = SelectionProblem(rng.standard_normal((4, 5, 6)), rng.standard_normal((4, 6)), [0, 1, 2, 0])
    saving = temperature_saving(problem, norm, tol=1e-3)
    assert saving.temperatures.mean() == pytest.approx(1)
    assert saving.lower_bound <= saving.solution.objective <= saving.plain.objective
    assert saving.high - saving.low <= 1.1e-3
    # W of the scaled problem keeps the margins tau_i A_i(W) >= 1.
    margins = problem.apply(saving.solution.W) * saving.temperatures[:, None]
    assert margins[problem.rejected].min() >= 1 - 1e-7
    # Other temperatures do no better than the bound.
    for _ in range(5):
        tau = rng.dirichlet(np.full(4, 20.0)) * 4
        other = solve(SelectionProblem(problem.tokens, problem.queries * tau[:, None], [0, 1, 2, 0]), norm)
        assert other.objective >= saving.lower_bound


def test_the_bound_is_that_of_the_best_mixture_of_all_multipliers() -> None:
    rng = np.random.default_rng(4)
    tokens, queries = rng.standard_normal((3, 5, 6)), rng.standard_normal((3, 6))

    def cut(tau: np.ndarray) -> np.ndarray:
        """Multipliers of the temperatures on the original margins, with a sum of matrices of norm one."""
        solution = solve(SelectionProblem(tokens, queries * tau[:, None], [0, 1, 2]))
        dual = np.asarray(solution.dual) * tau[:, None]
        return dual.sum(axis=1) / np.linalg.norm(SelectionProblem(tokens, queries, [0, 1, 2]).adjoint(dual))

    first = cut(np.ones(3))
    second = cut(np.sqrt(first) / np.sqrt(first).mean())
    mixtures = np.linspace(0, 1, 10_001)[:, None]
    best = (np.sqrt((1 - mixtures) * first + mixtures * second).sum(axis=1) ** 2 / 3).max()
    for count, bound in ((1, np.sqrt(first).sum() ** 2 / 3), (2, best)):
        saving = temperature_saving(SelectionProblem(tokens, queries, [0, 1, 2]), tol=1e-12, max_iter=count)
        assert saving.lower_bound == pytest.approx(bound, rel=1e-6)


def test_the_saving_is_told_in_percent() -> None:
    # The closed form of two queries, u = (1, 1/8) and least norm (1 + 1/4)^(3/2) / 2.
    saved = 1 - 1.25**1.5 / 2 / np.hypot(1, 1 / 8)
    sentence = temperature_saving(two_queries(1.0, 8.0), tol=1e-6).sentence
    words = re.fullmatch(
        r"A temperature for each query saves between (.*) and (.*) % of the frobenius norm\.", sentence
    )
    assert words is not None
    assert [float(word) for word in words.groups()] == pytest.approx([100 * saved] * 2, rel=5e-3)


def test_a_query_that_sees_one_token_only_has_no_part():
    tokens = np.array([[[1.0], [0.0]], [[8.0], [0.0]], [[5.0], [3.0]]])
    mask = np.array([[True, True], [True, True], [True, False]])
    problem = SelectionProblem(tokens, np.eye(3), [0, 0, 0], mask=mask)
    saving, pair = temperature_saving(problem), temperature_saving(two_queries(1.0, 8.0))
    assert saving.temperatures[2] == 1
    assert saving.solution.objective == pytest.approx(pair.solution.objective, rel=1e-4)


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(ValueError, match="tol is 0"):
        temperature_saving(two_queries(1.0, 1.0), tol=0)
    with pytest.raises(ValueError, match="max_iter is 0"):
        temperature_saving(two_queries(1.0, 1.0), max_iter=0)
    tokens = np.array([[[1.0], [1.0]]])
    with pytest.raises(UnsolvedError):
        temperature_saving(SelectionProblem(tokens, np.ones((1, 1)), [0]))


def test_without_rejected_tokens_nothing_is_saved():
    saving = temperature_saving(SelectionProblem(np.ones((2, 1, 2)), np.eye(2), [0, 0]))
    assert (saving.low, saving.high) == (0, 0)
    assert saving.temperatures.tolist() == [1, 1]
