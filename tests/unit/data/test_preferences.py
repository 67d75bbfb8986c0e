"""Ranking: preferred tokens above all others, and how large a margin embeddings can have on relevance labels."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import sqrt

import cvxpy as cp
import numpy as np
import pytest

from attsvm import SelectionProblem, solve, theory
from attsvm.core.error_free import EPS

SLOW = pytest.mark.slow


def subsets(m: int, k: int) -> np.ndarray:
    return np.array([[j in chosen for j in range(m)] for chosen in combinations(range(m), k)])


def test_preferred_tokens_win_and_need_not_tie() -> None:
    rng = np.random.default_rng(0)
    tokens, queries = rng.standard_normal((4, 6, 8)), rng.standard_normal((4, 8))
    tokens[0, 4] = 3 * tokens[0, 1]  # a tie would put both scores at zero
    preferred = np.zeros((4, 6), dtype=bool)
    preferred[[0, 0, 1, 2, 2, 3], [1, 4, 0, 2, 3, 5]] = True
    mask = np.ones((4, 6), dtype=bool)
    mask[3, 0] = False
    W = cp.Variable((8, 8))
    scores = [tokens[i] @ W @ queries[i] for i in range(4)]
    limits = [
        scores[i][r] - scores[i][s] >= 1
        for i in range(4)
        for r in np.flatnonzero(preferred[i])
        for s in np.flatnonzero(mask[i] & ~preferred[i])
    ]
    value = cp.Problem(cp.Minimize(cp.norm(W, "fro")), limits).solve(solver=cp.CLARABEL)
    solution = solve(SelectionProblem.from_preferences(tokens, queries, preferred, mask=mask))
    assert solution.objective == pytest.approx(value, rel=1e-6)  # Clarabel's tolerance is 1e-8
    assert solution.objective < 0.99 * solve(SelectionProblem(tokens, queries, preferred, mask=mask)).objective


def test_shared_tokens_and_one_list_a_query_are_the_same_problem() -> None:
    rng = np.random.default_rng(1)
    documents, queries, preferred = rng.standard_normal((5, 3)), rng.standard_normal((2, 4)), np.eye(2, 5, dtype=bool)
    shared = SelectionProblem.from_preferences(documents, queries, preferred)
    assert shared.tokens.shape == (1, 5, 3)
    for tokens in (np.stack([documents] * 2), [documents, documents]):
        W = rng.standard_normal((3, 4))
        np.testing.assert_array_equal(
            SelectionProblem.from_preferences(tokens, queries, preferred).margins(W), shared.margins(W)
        )


def test_lists_of_different_lengths_are_masked() -> None:
    problem = SelectionProblem.from_preferences(
        [np.eye(3)[:2], np.eye(3)], np.eye(2), [[True, False, False], [True, True, False]]
    )
    assert problem.mask.tolist() == [[True, True, False], [True, False, True], [False, True, True]]
    assert problem.sequence.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("preferred", "sentence"),
    [
        ([[1, 0], [0, 1]], "preferred has int64; booleans (2, 2) were expected."),
        ([[True, False]], "preferred has shape (1, 2); (2, 2) was expected of booleans."),
        ([[True, False], [False, False]], "preferred has no token for query 1; one or more were expected."),
    ],
)
def test_what_does_not_fit_is_a_sentence(preferred: list, sentence: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        SelectionProblem.from_preferences(np.eye(2), np.eye(2), preferred)
    assert str(error.value) == sentence


@pytest.mark.parametrize("m", [*range(2, 15), pytest.param(15, marks=SLOW), pytest.param(16, marks=SLOW)])
def test_the_ceiling_of_all_subsets_is_the_closed_form(m: int) -> None:
    for k in range(1, m):
        ceiling = theory.relevance_ceiling(subsets(m, k), tol=1e-10)
        exact = m / sqrt(k * (m - 1) * (m - k))
        # The bound is above the optimum by the gap, and the closed form is rounded.
        assert exact * (1 - 1e-15) <= ceiling.bound <= exact * (1 + 1e-9)


def test_a_thousand_pairs_of_46_documents_allow_a_margin_of_at_most_7316() -> None:
    pairs = subsets(46, 2)
    chosen = np.random.default_rng(0).choice(len(pairs), 1000, replace=False)
    ceiling = theory.relevance_ceiling(pairs[chosen])
    # Fewer queries allow more than all pairs do.
    assert 46 / sqrt(2 * 45 * 44) <= ceiling.bound <= 0.7316
    assert ceiling.solution.gap <= 1e-9


def test_embeddings_stay_below_the_ceiling() -> None:
    rng = np.random.default_rng(2)
    labels = rng.random((12, 7)) < 0.4
    labels = labels[labels.any(axis=1) & ~labels.all(axis=1)]
    ceiling = theory.relevance_ceiling(labels)
    # The best embeddings of any dimension have scores in the unit ball of the max norm: a semidefinite program.
    n, m = labels.shape
    gram, margin = cp.Variable((n + m, n + m), PSD=True), cp.Variable()
    scores = gram[:n, n:]
    limits = [
        scores[i, r] - scores[i, s] >= margin
        for i in range(n)
        for r in np.flatnonzero(labels[i])
        for s in np.flatnonzero(~labels[i])
    ]
    best = cp.Problem(cp.Maximize(margin), [*limits, cp.diag(gram) <= 1]).solve(solver=cp.CLARABEL)
    assert best <= ceiling.bound * (1 + 1e-6)
    assert ceiling.bound < 2.0


def test_rows_without_a_choice_are_left_out() -> None:
    labels = np.array([[True, False, False], [False, True, False], [True, True, True], [False, False, False]])
    assert theory.relevance_ceiling(labels).bound == theory.relevance_ceiling(labels[:2]).bound
    with pytest.raises(ValueError, match="labels has no query with"):
        theory.relevance_ceiling(labels[2:])


def test_the_ceiling_is_rounded_upwards() -> None:
    """Its square times that of the proved norm is at least N m, in whole numbers, and hardly more."""
    for m in range(3, 9):
        ceiling = theory.relevance_ceiling(subsets(m, 2))
        count = m * (m - 1) // 2
        square = (Fraction(ceiling.bound) * Fraction(ceiling.solution.lower_bound)) ** 2
        # The allowance of four units of rounding and three roundings, squared.
        assert count * m <= square <= count * m * (1 + Fraction(16 * EPS))


def test_without_a_proved_norm_the_ceiling_is_the_largest_margin_of_unit_vectors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unproved:
        lower_bound = 0.0

    monkeypatch.setattr("attsvm.theory.relevance.solve", lambda *args, **options: Unproved())
    assert theory.relevance_ceiling(subsets(5, 2)).bound == 2.0


@pytest.mark.parametrize(
    "labels", [np.eye(3), np.array([True, False]), np.zeros((0, 3), dtype=bool)], ids=["floats", "vector", "empty"]
)
def test_labels_that_are_no_boolean_matrix_are_refused(labels: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"^labels has .*; booleans \(N, m\) were expected\.$"):
        theory.relevance_ceiling(labels)
