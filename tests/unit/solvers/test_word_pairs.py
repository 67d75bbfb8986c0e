"""Listed margins of words: states of all margins, new lists, and their compiled passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem
from attsvm.core.norms import NUCLEAR
from attsvm.platform.kernels import interpreted
from attsvm.proofs.objective import Regularisation
from attsvm.proofs.program import Program
from attsvm.solvers.words.margins import Words
from attsvm.solvers.words.pairs import Pairs, add_pairs, advance_pairs, list_pairs
from word_problems import classes, unusual_words

PROBLEMS = pytest.mark.parametrize("problem", [classes(), unusual_words()], ids=["classes", "words"])
RELAXATION = 1.7


def pairs_of(problem: SelectionProblem) -> tuple[Pairs, Words]:
    """List all margins, with weights at random."""
    rng = np.random.default_rng(0)
    prices = rng.uniform(0.5, 2.0, len(problem.queries))
    words = Words(Program(problem, NUCLEAR, Regularisation(prices, "squared_hinge", None)))
    n, T = words.rejected.shape
    pairs = Pairs(words, rng.uniform(0.5, 2.0, n), rng.uniform(0.5, 2.0, T))
    # At zero, every margin falls short.
    pairs.renew(np.zeros(words.shape))
    assert len(pairs) == words.rejected.sum()
    return pairs, words


def margins_of(words: Words, V: np.ndarray) -> np.ndarray:
    """Evaluate A(V), (n, T), for rows of V times the entries of their tokens."""
    return words.margins(V / words.entries)


def taken_off(pairs: Pairs, words: Words, states: np.ndarray) -> np.ndarray:
    """Minimise the loss of a margin m plus its weight times (m - state)^2 / 2; return m less the state, or zero."""
    weights, prices = np.outer(pairs.rows, pairs.tokens), words.prices[:, None]
    minima = (weights * states + prices) / (weights + prices)
    return np.where(words.rejected & (states < 1.0), minima - states, 0.0)


def moved(pairs: Pairs, words: Words, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Advance through V at random; return the last average, and the states of all margins and what is taken off."""
    rng, V = np.random.default_rng(1), np.zeros(words.shape)
    states = margins_of(words, V)
    taken = taken_off(pairs, words, states)
    for _ in range(count):
        following = rng.normal(size=V.shape)
        states = RELAXATION * margins_of(words, following) + (1.0 - RELAXATION) * (states + taken) - taken
        V = V + RELAXATION * (following - V)
        taken = taken_off(pairs, words, states)
        pairs.advance(V, RELAXATION)
    return V, states, taken


def adjoint(words: Words, values: np.ndarray) -> np.ndarray:
    """Add up a_it times values (n, T)."""
    return words.choice @ (values.sum(axis=1)[:, None] * words.queries) - values.T @ words.queries


@PROBLEMS
def test_listed_margins_have_the_states_of_all(problem: SelectionProblem) -> None:
    pairs, words = pairs_of(problem)
    V, states, taken = moved(pairs, words, 4)
    weights = np.outer(pairs.rows, pairs.tokens) * words.rejected
    np.testing.assert_allclose(pairs.multipliers(), weights * taken, atol=1e-12)
    np.testing.assert_allclose(pairs.adjoint(), adjoint(words, weights * taken), atol=1e-12)
    # The states of margins that are not listed are A(V) alone, and these sums leave it out.
    expected = weights * (states + 2.0 * taken - margins_of(words, V))
    np.testing.assert_allclose(pairs.right_side(), adjoint(words, expected), atol=1e-11)


@PROBLEMS
def test_a_new_list_leaves_multipliers_and_adds_what_falls_short(problem: SelectionProblem) -> None:
    pairs, words = pairs_of(problem)
    V, states, _ = moved(pairs, words, 2)
    before, offsets = pairs.multipliers(), states - margins_of(words, V)
    margins = margins_of(words, V)
    loss = pairs.renew(V)
    short = np.where(words.rejected, np.maximum(1.0 - margins, 0.0), 0.0)
    assert loss == pytest.approx(0.5 * words.prices @ (short**2).sum(axis=1), rel=1e-12)
    np.testing.assert_array_equal(pairs.multipliers(), before)
    kept = words.rejected & ((before > 0.0) | (margins - np.abs(offsets) < 1.0))
    assert 0 < len(pairs) == kept.sum() < words.rejected.sum()
    other = np.random.default_rng(2).normal(size=V.shape)
    pairs.renew(other)
    margins = margins_of(words, other)
    fresh = words.rejected & ~kept & (margins < 1.0)
    assert fresh.any()
    expected = np.outer(pairs.rows, pairs.tokens) * taken_off(pairs, words, margins)
    np.testing.assert_allclose(pairs.multipliers()[fresh], expected[fresh], rtol=1e-12)


def test_compiled_passes_over_pairs_are_those_of_numpy() -> None:
    rng, (n, T, dz) = np.random.default_rng(5), (7, 5, 3)
    listed = rng.random((n, T)) < 0.5
    places, pointers = np.nonzero(listed)[1].astype(np.int32), np.concatenate([[0], np.cumsum(listed.sum(axis=1))])
    state = places, pointers, rng.normal(size=len(places)), -rng.random(len(places)) * (rng.random(len(places)) < 0.5)
    V, queries, reference = rng.normal(size=(T, dz)), rng.normal(size=(n, dz)), rng.integers(T, size=n)
    prices, rows, tokens, rejected = *rng.random((2, n)), rng.random(T), rng.random((n, T)) < 0.8
    # Selected tokens are never rejected, nor listed then.
    new = np.zeros(n * T, np.int32), np.zeros(n, np.int64), np.zeros(n * T), np.zeros(n * T)
    scores, chosen = rng.normal(size=(n, T)), rng.normal(size=n)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (advance_pairs, (V, queries, reference, prices, rows, tokens, 1.7, *state)),
        (add_pairs, (queries, reference, rows, tokens, 0.3, -1.2, *state, np.zeros((T, dz)))),
        (list_pairs, (scores, chosen, rejected, prices, rows, tokens, *state, *new)),
    ]
    for function, arguments in calls:
        one, two = ([part.copy() if isinstance(part, np.ndarray) else part for part in arguments] for _ in range(2))
        found, expected = function(*one), interpreted(function)(*two)
        assert (found is None) == (expected is None) == (function is not list_pairs)
        np.testing.assert_allclose(found or 0.0, expected or 0.0, rtol=1e-12)
        for first, second in zip(one, two, strict=True):
            np.testing.assert_allclose(first, second, rtol=1e-12, atol=1e-15)
