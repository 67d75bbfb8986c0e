"""The rotary lift against explicit scores, and the kernel form against the solvers that form W."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attsvm import SelectionProblem, Status, correlation, solve
from attsvm.pretrained import AttentionHead, extract_head, rope_lift, solve_kernel
from attsvm.solution.regularised import RegularisedSolution
from attsvm_pretrained.heads import sequences
from attsvm_pretrained.heads.rotary import Turns
from attsvm_pretrained.selection import inner_products
from attsvm_pretrained.selection.inner_products import hebbian_scores, scores_under
from attsvm_pretrained.selection.rope import position_features
from pretrained_models import batch, tiny


def _head(family: str, layer: int = 1, head: int = 1) -> AttentionHead:
    return extract_head(tiny(family), layer, head, batch(family))


@pytest.mark.parametrize(
    "family",
    ["llama", "mistral", "qwen2", "qwen3", "gemma3", "phi", "gpt-neox", "bert", "t5", "gpt-oss", "deepseek-v2"],
)
def test_lifted_scores_are_the_heads_scores(family: str) -> None:
    """Exactly, but for rounding: both sides use the same factors (Phi and NeoX leave some coordinates unturned)."""
    head = _head(family)
    lifted = rope_lift(head)
    scores = np.einsum("ntf,fz,nz->nt", lifted.tokens, lifted.W, head.asking_vectors())
    head_scores = np.where(head.mask, head.scores(), 0.0)
    np.testing.assert_allclose(
        np.where(head.mask, scores, 0.0), head_scores, atol=1e-11 * max(1.0, np.abs(head_scores).max())
    )


def test_coordinates_that_do_not_turn_are_lifted_however_few_they_are() -> None:
    """Three of four pairs turn, so that the unturned coordinates are fewer than the pairs."""
    head = _head("llama")
    assert head.turns is not None
    turns = Turns(head.turns.pairs[:3], head.turns.tokens[..., :3], head.turns.queries[..., :3])
    partial = replace(head, turns=turns)
    lifted = rope_lift(partial)
    scores = np.einsum("ntf,fz,nz->nt", lifted.tokens, lifted.W, partial.queries)
    size = np.abs(partial.scores()[head.mask]).max()
    np.testing.assert_allclose(scores[head.mask], partial.scores()[head.mask], atol=1e-11 * size)


def test_lifted_scores_by_hand() -> None:
    """Keys and queries turned by hand, from Llama's frequencies 10000^(-p/4), give the lift's scores."""
    head = _head("llama", 0, 3)
    theta = 10000.0 ** (-np.arange(4) / 4)
    keys = head.tokens[head.sequence] @ head.K  # (n, T, 8)
    query_rows = head.queries @ head.Q
    by_hand = np.zeros(head.mask.shape)
    for t in range(head.mask.shape[1]):
        for p in range(4):
            angle = theta[p] * (head.position - t)
            k = keys[:, t, p] + 1j * keys[:, t, p + 4]
            q = query_rows[:, p] + 1j * query_rows[:, p + 4]
            by_hand[:, t] += (k.conj() * q * np.exp(1j * angle)).real
    # The rotation is read off float32 vectors, whose angles are good to a few 1e-7.
    np.testing.assert_allclose(by_hand[head.mask], head.scores()[head.mask], rtol=1e-5, atol=1e-4)


def test_kernel_of_positions() -> None:
    """The product of features depends on the difference of distances alone: sum_p cos theta_p (D - D')."""
    head = _head("llama", 0, 0)
    rho = position_features(head)
    rows = np.flatnonzero(head.sequence == 0)
    distance = head.position[rows, None] - np.arange(head.mask.shape[1])
    theta = 10000.0 ** (-np.arange(4) / 4)
    kernel = np.cos(theta * (distance[..., None, None] - distance)[..., None]).sum(axis=-1)
    np.testing.assert_allclose(np.einsum("itf,jsf->itjs", rho[rows], rho[rows]), kernel, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi", "bert", "t5", "gpt-oss", "deberta"])
def test_kernel_solution_is_the_lifted_svm(family: str) -> None:
    head = _head(family, 0, 2)
    lifted = rope_lift(head)
    explicit = solve(lifted.problem(), tol=1e-10)
    result = solve_kernel(head, tol=1e-10)
    assert explicit.status is result.status is Status.OPTIMAL
    assert result.objective == pytest.approx(explicit.objective, rel=1e-9)
    assert result.lower_bound == pytest.approx(explicit.objective, rel=1e-9)
    W = lifted.problem().adjoint(result.dual)
    assert correlation(W, explicit.W) > 1 - 1e-8  # a direction is off by up to sqrt(2 gap)
    np.testing.assert_allclose(result.margins[head.mask], lifted.problem().margins(W)[head.mask], atol=1e-7)
    assert result.norm == pytest.approx(np.linalg.norm(W), rel=1e-8)
    assert result.product_with_trained() == pytest.approx(float((W * lifted.W).sum()), rel=1e-6)
    scores = np.einsum("ntf,fz,nz->nt", lifted.tokens, W, head.asking_vectors())
    np.testing.assert_allclose(result.scores(head)[head.mask], scores[head.mask], atol=1e-7)


def test_the_svm_of_a_single_query_scores_the_others() -> None:
    head = _head("llama", 0, 2)
    alone = head.take(np.array([8]))
    solution = solve_kernel(alone, tol=1e-10)
    W = rope_lift(alone).problem().adjoint(solution.dual)
    scores = np.einsum("ntf,fz,nz->nt", rope_lift(head).tokens, W, head.queries)
    np.testing.assert_allclose(solution.scores(head)[head.mask], scores[head.mask], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("without", ["head", "source"])
def test_scores_between_a_head_with_an_additive_term_and_one_without(without: str) -> None:
    """A head without the term counts as one whose term is zero everywhere."""
    head = _head("mpnet", 0, 1)
    assert (head.queries[:, -1] == 1).all()
    bare, zero = replace(head, bias=None), replace(head, bias=np.zeros(head.mask.shape))
    signed = np.where(head.mask, np.random.default_rng(0).standard_normal(head.mask.shape), 0.0)
    if without == "head":
        scores, expected = scores_under(bare, head, signed), scores_under(zero, head, signed)
    else:
        scores, expected = scores_under(head, bare, signed), scores_under(head, zero, signed)
    np.testing.assert_allclose(scores, expected, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize("family", ["llama", "phi"])
def test_w_of_texts_of_a_single_token(family: str) -> None:
    head = _head(family)
    head = head.take(head.position == 0)
    assert head.mask.shape[1] == 1
    lifted, signed = rope_lift(head), np.array([[1.0], [-2.0]])
    W = np.einsum("nt,ntf,nz->fz", signed, lifted.tokens, head.queries)
    expected = np.einsum("ntf,fz,nz->nt", lifted.tokens, W, head.queries)
    np.testing.assert_allclose(scores_under(head, head, signed), expected, atol=1e-12 * np.abs(expected).max())


def test_parts_of_w_are_made_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for two parts of W, and for three queries' W at once: the scores are those without limits."""
    head = _head("llama")
    signed = np.where(head.mask, np.random.default_rng(0).standard_normal(head.mask.shape), 0.0)
    expected, part_of = scores_under(head, head, signed), inner_products._part_of
    counts: list[int] = []

    def noting(source: AttentionHead, signed: np.ndarray, rows: np.ndarray) -> np.ndarray:
        counts.append(len(rows))
        return part_of(source, signed, rows)

    size = position_features(head).shape[2] * head.tokens.shape[2]
    monkeypatch.setattr(inner_products, "HELD_ENTRIES", 2 * size)
    monkeypatch.setattr(inner_products, "TEMPORARY_ENTRIES", 3 * size)
    monkeypatch.setattr(inner_products, "_part_of", noting)
    scores = scores_under(head, head, signed)
    np.testing.assert_allclose(scores, expected, atol=1e-12 * np.abs(expected).max())
    assert set(counts) == {2}


@pytest.mark.parametrize("family", ["llama", "mpnet"])
def test_hebbian_scores_are_those_of_the_lifted_direction(family: str) -> None:
    head = _head(family)
    train, test = (head.take(head.sequence == j) for j in (0, 2))
    problem = rope_lift(train).problem()
    W = problem.adjoint(problem.rejected / np.maximum(problem.rejected.sum(axis=1, keepdims=True), 1))
    scores = np.einsum("ntf,fz,nz->nt", rope_lift(test).tokens, W, test.asking_vectors())
    expected = np.where(test.mask, scores, -np.inf)
    assert not test.mask.all()
    np.testing.assert_allclose(hebbian_scores(train, test), expected, atol=1e-12 * np.abs(scores).max())


def test_constraints_hold_the_offset() -> None:
    """Margins of the trained matrix are (x_s - x_t)^T W z + c_s - c_t, and the SVM differs from the one without c."""
    head = _head("mpnet", 0, 1)
    assert head.bias is not None
    problem, choices = head.problem(), head.selected[:, None]
    plain = np.einsum("ntd,nd->nt", head.tokens[head.sequence], head.queries @ (head.K @ head.Q.T).T)
    by_hand = (np.take_along_axis(plain, choices, 1) - plain) + np.take_along_axis(head.bias, choices, 1) - head.bias
    np.testing.assert_allclose(problem.margins(head.W)[head.mask], by_hand[head.mask], atol=1e-11)
    without = replace(head, bias=None).problem(head.selected)
    assert solve(problem).objective <= solve(without).objective * (1 + 1e-9)  # it may use one more coordinate
    assert abs(solve(problem).objective / solve(without).objective - 1) > 1e-6


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_soft_margin_of_a_selection_that_no_w_makes(family: str) -> None:
    """Two copies of a query that select different tokens have no hard margin; the soft one agrees with attsvm.solve."""
    head = _head(family, 0, 0)
    row = int(np.flatnonzero(head.mask.sum(axis=1) > 2)[-1])
    twice = head.take(np.array([row, row]))
    first, second = np.flatnonzero(twice.mask[0])[:2]
    contrary = np.array([first, second])
    hard = solve_kernel(twice, contrary)
    assert hard.status is Status.UNDECIDED
    assert np.isinf(hard.objective)
    soft = solve_kernel(twice, contrary, C=0.7, tol=1e-8)
    lifted = rope_lift(twice).tokens
    problem = SelectionProblem(lifted, twice.queries, contrary, mask=twice.mask)
    explicit = solve(problem, C=0.7, loss="squared_hinge", tol=1e-8)
    assert isinstance(explicit, RegularisedSolution)
    assert soft.status is Status.OPTIMAL
    for number in (soft.objective, soft.lower_bound):
        assert number == pytest.approx(explicit.primal, rel=1e-6)  # both gaps are below 1e-8


def test_the_lift_refuses_what_does_not_fit() -> None:
    head = _head("llama").take(np.full(120_000, 8))
    with pytest.raises(ValueError, match=r"GiB; .* take fewer queries.*solve_kernel"):
        rope_lift(head)


def test_the_lift_refuses_by_the_size_of_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    head = _head("llama")
    size = rope_lift(head).tokens.nbytes
    monkeypatch.setattr(sequences, "COPIED_BYTES", size)
    assert rope_lift(head).tokens.nbytes == size
    monkeypatch.setattr(sequences, "COPIED_BYTES", size - 1)
    with pytest.raises(ValueError, match="lifted tokens of 22 queries"):
        rope_lift(head)


def test_rotary_heads_have_no_w_of_their_own() -> None:
    head = _head("llama")
    with pytest.raises(ValueError, match="rope_lift"):
        _ = head.W
    with pytest.raises(ValueError, match="rope_lift"):
        head.problem()


@pytest.mark.parametrize(
    ("selected", "sentence"),
    [
        (np.full(22, 99), "integers from 0 to 8"),
        (np.array([-1] + [0] * 21), "integers from 0 to 8"),
        (np.array([9] + [0] * 21), "integers from 0 to 8"),
        (np.full(22, 8), "tokens visible"),
    ],
)
def test_a_selection_must_fit(selected: np.ndarray, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        solve_kernel(_head("llama"), selected)
