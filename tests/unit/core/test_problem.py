"""The linear map of a selection problem and the ways to pose one, against one Python iteration a token."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import oracle
from attsvm import SelectionProblem
from attsvm.core import margin_map
from attsvm.core import problem as statement
from problems import FAMILIES, NAMED


def instances() -> list[SelectionProblem]:
    random_problems = [next(family.instances())[1] for family in FAMILIES.values()]
    return random_problems + [make().problem for make in NAMED.values()]


def test_the_map_its_adjoint_and_the_lengths() -> None:
    rng = np.random.default_rng(0)
    for problem in instances():
        full = oracle.dense(problem)
        n, T, d, dz = problem.shape
        W, dual = rng.standard_normal((d, dz)), rng.standard_normal((n, T))
        margins = np.zeros((n, T))
        margins[full.where] = np.einsum("md,de,me->m", full.left, W, full.right)
        size = max(float(full.lengths.max(initial=0.0)), 1e-300) * np.linalg.norm(W)
        np.testing.assert_allclose(np.where(problem.constrained, problem.apply(W), 0.0), margins, atol=1e-14 * size)
        constraint_dual = np.where(problem.constrained, dual, 0.0)
        expected = np.einsum("m,md,me->de", constraint_dual[full.where], full.left, full.right)
        np.testing.assert_allclose(
            problem.adjoint(constraint_dual), expected, rtol=0, atol=1e-14 * np.abs(full.rows).sum() + 1e-300
        )
        both = problem.evaluate(W, constraint_dual)
        np.testing.assert_allclose(both[0], problem.apply(W), rtol=0, atol=1e-14 * size)
        np.testing.assert_allclose(
            both[1], problem.adjoint(constraint_dual), rtol=0, atol=1e-14 * np.abs(full.rows).sum() + 1e-300
        )
        empty, nothing = problem.evaluate(None, None)
        assert empty.size == 0
        assert nothing.size == 0
        true = np.zeros((n, T))
        true[full.where] = full.lengths
        assert (problem.lengths >= true).all()
        lengths = problem.lengths[problem.constrained]
        assert (lengths <= true[problem.constrained] * (1 + 1e-12) + 1e-90 * lengths.max(initial=0.0) + 1e-98).all()


def test_what_is_rejected_and_tied() -> None:
    for problem in instances():
        for i in range(len(problem.queries)):
            choice = np.flatnonzero(problem.selected[i])
            assert problem.reference[i] == choice[0]
            for t in range(problem.shape[1]):
                assert problem.rejected[i, t] == (problem.mask[i, t] and not problem.selected[i, t])
                assert problem.tied[i, t] == (problem.selected[i, t] and t != choice[0])
                assert problem.constrained[i, t] == (problem.rejected[i, t] or problem.tied[i, t])
        assert problem.has_rejected == problem.rejected.any()
        assert problem.has_ties == problem.tied.any()
        assert not problem.tokens.flags.writeable or isinstance(problem.tokens, np.memmap)


def test_scores_and_margins_of_what_is_seen() -> None:
    rng = np.random.default_rng(1)
    for problem in instances():
        W = rng.standard_normal(problem.shape[2:])
        scores, margins = problem.scores(W), problem.margins(W)
        for i, z in enumerate(problem.queries):
            x = problem.tokens[problem.sequence[i]]
            for t in range(problem.shape[1]):
                if not problem.mask[i, t]:
                    assert scores[i, t] == -np.inf
                    assert margins[i, t] == np.inf
                    continue
                size = np.linalg.norm(x) * np.linalg.norm(W) * np.linalg.norm(z)
                assert scores[i, t] == pytest.approx(float(x[t] @ W @ z), abs=1e-14 * size + 1e-300)
                lead = float((x[problem.reference[i]] - x[t]) @ W @ z)
                assert margins[i, t] == pytest.approx(lead, abs=1e-14 * size + 1e-300)


def test_chunks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    for name in ("masked", "shared", "several"):
        problem = FAMILIES[name].make(np.random.default_rng(3), 7, 5, 4)
        W, dual = rng.standard_normal(problem.shape[2:]), rng.standard_normal(problem.mask.shape)
        whole = problem.apply(W), problem.adjoint(dual), problem.scores(W), problem.lengths
        for step in (1, 3):
            for module in (margin_map, statement):
                monkeypatch.setattr(module, "rows_in_chunk", lambda size, step=step: step)
            variant = SelectionProblem(
                problem.tokens, problem.queries, problem.selected, mask=problem.mask, sequence=problem.sequence
            )
            parts = variant.apply(W), variant.adjoint(dual), variant.scores(W), variant.lengths
            for one, other in zip(whole, parts, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-14)
            assert [len(delta) for _, delta in variant.differences()] == [step] * (7 // step) + [7 % step] * (
                7 % step > 0
            )
            both = variant.evaluate(W, dual)
            np.testing.assert_allclose(both[0], whole[0], rtol=1e-13, atol=1e-14)
            monkeypatch.undo()


def test_lengths_that_squares_would_lose() -> None:
    """Tokens near 1e-200 and 1e200: lengths by the largest entry, from above, whichever way they are asked for."""
    for scale in (1e-200, 1e200):
        source = FAMILIES["planted"].make(np.random.default_rng(4), 3, 4, 3)
        problem, other = (
            SelectionProblem(scale * source.tokens, 3 * source.queries, source.reference) for _ in range(2)
        )
        with np.errstate(over="ignore", under="ignore"):
            other.evaluate(np.ones((3, 3)), np.ones((3, 4)))
        for lengths in (problem.lengths, other.lengths):
            for i in range(3):
                for t in range(4):
                    x = problem.tokens[i]
                    delta = [
                        Fraction(float(a)) - Fraction(float(b))
                        for a, b in zip(x[source.reference[i]], x[t], strict=True)
                    ]
                    square = sum(a * a for a in delta) * sum(Fraction(float(a)) ** 2 for a in problem.queries[i])
                    assert Fraction(float(lengths[i, t])) ** 2 >= square
                    assert Fraction(float(lengths[i, t])) ** 2 <= square * (1 + Fraction(1, 10**11))


# --- ways to pose a problem ---


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("lengths", [None, [4, 2, 1]])
def test_every_position_of_a_sequence_asks(causal: bool, lengths: list[int] | None) -> None:
    rng = np.random.default_rng(5)
    tokens = rng.standard_normal((3, 4, 2))
    size = [4, 4, 4] if lengths is None else lengths
    selected = np.array([[rng.integers(0, (k if causal else size[b] - 1) + 1) for k in range(4)] for b in range(3)])
    selected = np.minimum(selected, np.array(size)[:, None] - 1)
    queries = rng.standard_normal((3, 4, 3))
    for query_rows in (None, queries):
        problem = SelectionProblem.from_sequences(tokens, selected, causal=causal, queries=query_rows, lengths=lengths)
        pairs = [(b, k) for b in range(3) for k in range(size[b])]
        assert problem.shape[0] == len(pairs)
        for row, (b, k) in enumerate(pairs):
            np.testing.assert_array_equal(problem.queries[row], (tokens if query_rows is None else queries)[b, k])
            assert problem.sequence[row] == b
            assert problem.reference[row] == selected[b, k]
            visible = [t < size[b] and (not causal or t <= k) for t in range(4)]
            np.testing.assert_array_equal(problem.mask[row], visible)
    table = np.zeros((3, 4, 4), dtype=bool)
    table[np.arange(3)[:, None], np.arange(4), selected] = True
    by_table = SelectionProblem.from_sequences(tokens, table, causal=causal, lengths=lengths)
    np.testing.assert_array_equal(by_table.selected, SelectionProblem.from_sequences(
        tokens, selected, causal=causal, lengths=lengths).selected)  # fmt: skip


def test_classes_are_unit_vectors() -> None:
    X, y = [[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], [0, 2, 0]
    problem = SelectionProblem.from_classes(X, y)
    np.testing.assert_array_equal(problem.tokens, np.eye(3)[None])
    np.testing.assert_array_equal(problem.reference, y)
    assert SelectionProblem.from_classes(X, y, classes=5).shape == (3, 5, 5, 2)
    W = np.arange(6.0).reshape(3, 2)
    np.testing.assert_allclose(problem.margins(W)[1], (W[2] - W) @ [0.0, 1.0])
    assert isinstance(SelectionProblem.from_classes(torch.tensor(X), y).scores(W), torch.Tensor)


def test_contexts_tie_the_words_that_follow() -> None:
    support = np.array([[True, True, False], [False, False, True]])
    words = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    problem = SelectionProblem.from_contexts(np.eye(2), support, embeddings=words)
    np.testing.assert_array_equal(problem.tokens, words[None])
    np.testing.assert_array_equal(problem.selected, support)
    assert problem.tied.sum() == 1
    np.testing.assert_array_equal(SelectionProblem.from_contexts(np.eye(2), support).tokens, np.eye(3)[None])


@pytest.mark.parametrize("axes", [[0, 1, 2, 3], [3, 0, 3, 1]])
def test_one_hot_queries_in_a_sparse_matrix_are_the_same_problem(axes: list[int]) -> None:
    rng = np.random.default_rng(0)
    entries = np.array([1.0, -2.0, 0.5, 3.0])
    support = rng.random((4, 5)).argsort(axis=1) < 2
    sparse = csr_array((entries, (np.arange(4), axes)), shape=(4, 6))
    given, dense = (SelectionProblem.from_contexts(rows, support) for rows in (sparse, sparse.toarray()))
    W, dual = rng.standard_normal((5, 6)), rng.random((4, 5))
    assert given.shape == dense.shape
    for ours, theirs in zip(given.evaluate(W, dual), dense.evaluate(W, dual), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-14, atol=1e-14)
    assert "queries" not in vars(given)
    tokens = np.einsum("it,itd->id", dense.constrained * dual, dense.tokens[0][dense.reference][:, None] - dense.tokens)
    np.testing.assert_allclose(given.adjoint(dual), tokens.T @ sparse.toarray(), atol=1e-14)
    np.testing.assert_allclose(given.apply(W)[given.constrained], dense.margins(W)[given.constrained], atol=1e-14)
    np.testing.assert_array_equal(given.queries, sparse.toarray())
    assert not given.queries.flags.writeable


def test_axes_of_one_hot_tokens_that_no_token_has_stay_zero() -> None:
    rng = np.random.default_rng(2)
    words = np.zeros((3, 5))
    words[[0, 1, 2], [4, 0, 2]] = [1.0, -2.0, 0.5]
    problem = SelectionProblem(words[None], rng.standard_normal((4, 2)), [0, 2, 1, 0], sequence=[0] * 4)
    assert problem.one_hot is not None
    dual = np.where(problem.constrained, rng.random((4, 3)), 0.0)
    differences = words[problem.reference][:, None] - words
    np.testing.assert_allclose(
        problem.adjoint(dual), np.einsum("it,itd,ie->de", dual, differences, problem.queries), atol=1e-14
    )


def test_other_sparse_queries_are_read_as_arrays() -> None:
    rows = csr_array(np.array([[1.0, 2.0], [0.0, 1.0]]))
    problem = SelectionProblem.from_contexts(rows, np.eye(2, dtype=bool))
    assert problem.one_hot_queries is None
    np.testing.assert_array_equal(problem.queries, rows.toarray())
    # A stored zero is no entry.
    np.testing.assert_array_equal(
        SelectionProblem.from_contexts(csr_array(([0.0], [0], [0, 1]), shape=(1, 2)), [[True, False]]).queries, [[0, 0]]
    )
    with pytest.raises(ValueError, match="NaN or infinity"):
        SelectionProblem.from_contexts(csr_array(np.diag([1.0, np.inf])), np.eye(2, dtype=bool))


def test_many_unit_vectors_share_their_memory() -> None:
    count = 1200
    words = SelectionProblem.from_contexts(csr_array(np.eye(1, 2)), np.eye(1, count, dtype=bool)).tokens
    np.testing.assert_array_equal(words[0], np.eye(count))
    assert words.strides[1:] == (-8, 8)


def test_ragged_sequences_are_padded_and_hidden() -> None:
    parts = [np.ones((2, 3)), np.ones((4, 3)), np.ones((1, 3))]
    problem = SelectionProblem(parts, np.ones((3, 2)), [1, 3, 0])
    np.testing.assert_array_equal(problem.mask.sum(axis=1), [2, 4, 1])
    shared = SelectionProblem(parts, np.ones((2, 2)), [1, 1], sequence=[1, 0], mask=np.array([[True, True, False, True],
                                                                                            [True] * 4]))  # fmt: skip
    np.testing.assert_array_equal(shared.mask, [[True, True, False, True], [True, True, False, False]])


def test_preferred_tokens_of_ragged_sequences_compete_with_none_that_are_padded() -> None:
    parts = [np.ones((2, 3)), np.ones((3, 3))]
    problem = SelectionProblem.from_preferences(parts, np.eye(2), [[True, False, False], [True, True, False]])
    # One query for each preferred token; the other preferred token is hidden.
    np.testing.assert_array_equal(problem.mask, [[True, True, False], [True, False, True], [False, True, True]])
    np.testing.assert_array_equal(problem.reference, [0, 0, 1])
    np.testing.assert_array_equal(problem.sequence, [0, 1, 1])


def test_documents_as_a_list_of_rows_are_shared_by_all_queries() -> None:
    documents, preferred = np.random.default_rng(3).standard_normal((3, 2)), np.eye(2, 3, dtype=bool)
    shared = SelectionProblem.from_preferences(documents, np.eye(2), preferred)
    for rows in (documents.tolist(), list(documents)):
        problem = SelectionProblem.from_preferences(rows, np.eye(2), preferred)
        np.testing.assert_array_equal(problem.tokens, documents[None])
        np.testing.assert_array_equal(problem.sequence, shared.sequence)
        np.testing.assert_array_equal(problem.mask, shared.mask)


@pytest.mark.parametrize(("several", "hides"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_card_counts_tied_and_masked_tokens_where_there_are_any(several: bool, hides: bool) -> None:
    selected = np.array([[True, several, several, False], [False, True, False, False]])
    mask = np.array([[True] * 4, [True, True, not hides, not hides]])
    problem = SelectionProblem(np.ones((2, 4, 3)), np.ones((2, 2)), selected, mask=mask)
    facts = dict(problem._summary().facts)
    assert facts.get("tied tokens") == ("2" if several else None)
    assert facts.get("masked tokens") == ("2" if hides else None)


def test_lengths_are_measured_on_the_way_where_both_sides_are_asked_for() -> None:
    source = FAMILIES["planted"].make(np.random.default_rng(4), 3, 4, 3)
    dual = np.ones((3, 4))
    for arguments, measured in (((np.eye(3), dual), True), ((np.eye(3), None), False), ((None, dual), False)):
        problem = SelectionProblem(source.tokens, source.queries, source.reference)
        margins, adjoint = problem.evaluate(*arguments)
        assert ("lengths" in vars(problem)) == measured
        assert margins.shape == ((3, 4) if arguments[0] is not None else (0, 4))
        assert adjoint.shape == ((3, 3) if arguments[1] is not None else (0, 3))


def test_labels_and_words_that_do_not_fit() -> None:
    X = [[1.0, 0.0], [0.0, 1.0]]
    assert SelectionProblem.from_classes(X, [0, 1], classes=2).shape[1] == 2
    for classes in (1, True, 2.0):
        with pytest.raises(ValueError, match=r"^classes is .*\.$"):
            SelectionProblem.from_classes(X, [0, 1], classes=classes)  # type: ignore[arg-type]
    for supports in (np.ones(3, dtype=bool), np.ones((2, 3))):
        with pytest.raises(ValueError, match=r"^supports has .*\.$"):
            SelectionProblem.from_contexts(X, supports)
    with pytest.raises(ValueError, match=r"^X .*\.$"):
        SelectionProblem.from_classes([1.0, 2.0], [0, 1])
    with pytest.raises(ValueError, match=r"^contexts .*\.$"):
        SelectionProblem.from_contexts([1.0, 2.0], np.ones((2, 3), dtype=bool))


def test_a_problem_says_its_sizes() -> None:
    several = NAMED["several_selected"]().problem
    assert repr(several) == "SelectionProblem(n=1, T=5, d=5, dz=1, 3 constraints, 1 tied)"
    assert "tied" not in repr(NAMED["counterexample"]().problem)
    with pytest.raises(ValueError, match=r"^W has shape \(2, 2\); \(d, dz\) = \(5, 1\) was expected\.$"):
        several.margins(np.zeros((2, 2)))
    assert math.prod(several.shape) == 25
