"""Reports and audits of heads: known answers on built heads, and plain words where there is nothing to say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax

from attsvm import Status, solve
from attsvm.pretrained import (
    MarginAudit,
    Standing,
    extract_head,
    extract_heads,
    margin_audit,
    rope_lift,
    selection_report,
)
from attsvm_pretrained.selection.audit import holding
from attsvm_pretrained.selection.selectivity import MOSTLY
from attsvm_pretrained.selection.span import SPAN_GAP, Direction, span
from pretrained_models import SENTENCES, batch, minilm, synthetic_head, tiny


def test_report_of_a_head_that_looks_at_the_token_before() -> None:
    head = synthetic_head(np.eye(5))
    before = np.maximum(head.position - 1, 0)
    probabilities = np.full(head.mask.shape, 0.01)
    probabilities[np.arange(len(before)), before] = 0.95
    report = selection_report(replace(head, probabilities=probabilities))
    assert report.verdict == "hard"
    assert report.top1 == pytest.approx(0.95)
    assert report.offset == (-1, pytest.approx(5 / 6))
    assert report.sentence.startswith("Hard: the token that a query attends to most has 95 % of its attention")
    assert report.rule == "83 % of queries attend most to the token before"
    assert report.set99 == 5  # 0.95 + 4 x 0.01


def test_report_of_uniform_attention_and_special_tokens() -> None:
    head = synthetic_head(np.eye(5))
    special = np.zeros((12, 6), dtype=bool)
    special[:, [0, 5]] = True
    report = selection_report(replace(head, probabilities=np.full(head.mask.shape, 1 / 6), special=special))
    assert report.verdict == "soft"
    assert report.set99 == 6
    assert report.special == pytest.approx(1 / 3)
    assert report.special_uniform == pytest.approx(1 / 3)


def test_the_most_common_place_is_named() -> None:
    """Of six queries of a text one attends most to the last token, the others to the third."""
    head = synthetic_head(np.eye(5))
    probabilities = np.full(head.mask.shape, 0.1)
    probabilities[np.arange(len(head.mask)), np.where(head.position == 1, 5, 2)] = 0.5
    report = selection_report(replace(head, probabilities=probabilities))
    assert report.place == 2
    assert report.place_share == pytest.approx(5 / 6)
    assert report.rule == "83 % of queries attend most to place 2 of the text"
    exactly = replace(report, special=MOSTLY)
    assert exactly.rule == "60 % of the attention lies on special tokens"
    assert replace(exactly, special=np.nextafter(MOSTLY, 0.0)).rule == report.rule


def test_queries_that_see_one_token_say_nothing() -> None:
    head = extract_head(tiny("gpt2"), 0, 0, batch("gpt2"))
    assert selection_report(head).queries == 22 - 3
    subset = head.take(head.mask.sum(axis=1) == 1)
    with pytest.raises(ValueError, match="3 queries that see one token each"):
        selection_report(subset)


def test_audit_of_a_head_that_is_its_svm() -> None:
    """The SVM of a selection, put in place of W, has all of the margin and cosine one; the controls do not."""
    W = np.random.default_rng(3).standard_normal((8, 8))
    head = synthetic_head(W, b=6)
    solution = solve(head.problem())
    U, sigma, Vt = np.linalg.svd(np.asarray(solution.W))
    ideal = replace(head, K=U * sigma, Q=Vt.T)
    audit = margin_audit(ideal, queries=1000)
    assert audit.efficiency == pytest.approx(1.0, abs=1e-5)
    assert audit.cosine > 1 - 1e-5
    assert audit.better_than_null
    assert audit.directions["nuclear"].cosine > 0.8
    assert "above all 20 heads with rotated weights" in audit.sentence
    assert audit.null["cosine"].added > 0.1


def test_audit_of_a_w_that_has_nothing_to_do_with_the_selection() -> None:
    rng = np.random.default_rng(4)
    head = synthetic_head(rng.standard_normal((8, 8)), b=6)
    foreign = replace(head, probabilities=softmax(rng.standard_normal(head.mask.shape), axis=1))
    audit = margin_audit(foreign, queries=60, norms=())
    assert not audit.better_than_null
    assert "no more than an untrained head does" in audit.sentence


def test_a_negative_margin_is_said_in_words() -> None:
    """One query attends most to a token that W ranks second, as rounding of a near tie may have it."""
    head = synthetic_head(np.random.default_rng(8).standard_normal((12, 12)), b=4)
    probabilities = head.probabilities.copy()
    first, second = np.argsort(-probabilities[3])[:2]
    probabilities[3, [first, second]] = probabilities[3, [second, first]]
    audit = margin_audit(replace(head, probabilities=probabilities), queries=len(head.mask), norms=(), draws=0)
    assert audit.efficiency is not None
    assert audit.efficiency < 0
    assert "does not make this selection: in a near tie" in audit.sentence
    assert "-" not in audit.sentence.split("cosine")[0]


@pytest.mark.parametrize(("efficiency", "share"), [(0.5, "50.0 %"), (0.004, "0.4 %"), (0.0004, "less than 0.1 %")])
@pytest.mark.parametrize(("hebbian", "words"), [(0.6, "nearer, 0.600"), (0.4, "less near, 0.400")])
def test_an_audit_says_its_share_of_the_margin_and_how_near_the_hebbian_direction_is(
    efficiency: float, share: str, hebbian: float, words: str
) -> None:
    direction = Direction(0.5, 1.0, 0.0, Status.OPTIMAL, soft=False)
    null = {"cosine": Standing(0.5, np.array([0.1, 0.12, 0.14]), np.zeros(0))}
    sentence = MarginAudit(8, None, efficiency, {"frobenius": direction}, null, (), hebbian).sentence
    assert sentence.startswith(f"The trained W has {share} of the largest margin of its norm.")
    assert sentence.endswith(f"The Hebbian direction is {words}.")


def test_a_bias_that_makes_the_selection_is_part_of_the_margins() -> None:
    head = synthetic_head(np.random.default_rng(8).standard_normal((12, 12)), b=4)
    bias = np.zeros(head.mask.shape)
    bias[:, 2] = 50.0
    biased = replace(head, bias=bias)
    audit = margin_audit(replace(biased, probabilities=biased.attention()), queries=12, norms=(), draws=0)
    assert audit.efficiency is not None
    assert audit.efficiency > 0


def test_long_contexts_are_thinned_without_regard_to_attention() -> None:
    head = synthetic_head(np.random.default_rng(9).standard_normal((6, 6)), b=3, T=80)
    audit = margin_audit(head, queries=60, norms=(), draws=2)
    assert audit.among == 1024 // 60 + 1
    assert len(audit.null["top1"].draws) == 1


def test_gen_svm_ties_the_tokens_that_keep_attention() -> None:
    head = synthetic_head(np.random.default_rng(5).standard_normal((8, 8)), b=3)
    ties = holding(head, 0.9)
    mass = (head.probabilities * ties).sum(axis=1)
    assert (mass >= 0.9 - 1e-12).all()
    least = np.where(ties, head.probabilities, np.inf).min(axis=1)
    assert (mass - least < 0.9).all()  # none could be left out
    assert margin_audit(head, queries=18, norms=("gen",), draws=0).directions["gen"].objective > 0


@pytest.mark.parametrize(("mass", "count"), [(0.5, 1), (0.6, 2), (0.75, 2), (0.8, 3), (1.0, 4)])
def test_a_set_that_holds_exactly_the_share_is_large_enough(mass: float, count: int) -> None:
    head = synthetic_head(np.eye(4), b=1, T=4)
    ties = holding(replace(head, probabilities=np.tile([0.125, 0.25, 0.5, 0.125], (4, 1))), mass)
    assert (ties.sum(axis=1) == count).all()
    assert ties[:, 2].all()


def test_the_svm_of_the_span_is_solved_to_its_gap() -> None:
    """Of a size at which the solver stops earlier if a larger gap is requested."""
    head = synthetic_head(np.random.default_rng(8).standard_normal((30, 30)), b=40, T=8)
    assert span(head).svm(head.selected, "frobenius", None).gap <= SPAN_GAP


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_soft_margin_does_not_depend_on_the_size_of_the_tokens(scale: float) -> None:
    """C is 50 over the squared mean length of the constraints (selected token - other) z^T."""
    rng = np.random.default_rng(1)
    head = synthetic_head(rng.standard_normal((5, 5)), b=6)
    foreign = replace(head, probabilities=softmax(rng.standard_normal(head.mask.shape), axis=1))
    problem, rows = foreign.problem(), np.arange(len(foreign.mask))
    tokens = foreign.tokens[foreign.sequence]
    differences = np.linalg.norm(tokens[rows, foreign.selected][:, None] - tokens, axis=2)
    lengths = differences * np.linalg.norm(foreign.queries, axis=1)[:, None]
    soft = solve(problem, C=50.0 / lengths[differences > 0].mean() ** 2, loss="squared_hinge", tol=1e-9)
    cosine = (head.W * soft.W).sum() / (np.linalg.norm(head.W) * np.linalg.norm(soft.W))
    scaled = replace(foreign, tokens=scale * foreign.tokens, K=foreign.K / scale)
    direction = span(scaled).svm(foreign.selected, "frobenius", None)
    assert direction.soft
    assert direction.cosine == pytest.approx(float(cosine), abs=1e-5)


def test_rotary_soft_margin_is_that_of_the_lifted_matrices() -> None:
    """The same queries select different tokens; C is 50 over the mean square of the differences and of the queries.

    No query sees more than four tokens, so that the first working set has every constraint.
    """
    head = extract_head(tiny("llama"), 1, 2, batch("llama"))
    head = head.take(np.array([3, 3, 12, 12, 18, 18, 2, 1]))
    selected = np.array([np.flatnonzero(visible)[k % 2] for k, visible in enumerate(head.mask)])
    lifted = rope_lift(head)
    differences = [
        lifted.tokens[i, s] - lifted.tokens[i, t]
        for i, s in enumerate(selected)
        for t in np.flatnonzero(head.mask[i])
        if t != s
    ]
    squared = np.square(differences).sum(axis=1).mean() * np.square(head.queries).sum(axis=1).mean()
    soft = solve(lifted.problem(selected), C=50.0 / squared, loss="squared_hinge", tol=1e-9)
    space = span(head)
    direction = space.svm(selected, "frobenius", None)
    assert direction.soft
    assert direction.objective == np.inf
    assert direction.status is Status.UNDECIDED
    cosine = (lifted.W * soft.W).sum() / (space.norm * np.linalg.norm(soft.W))
    assert direction.cosine == pytest.approx(float(cosine), abs=1e-5)


def test_a_faint_query_spans_as_much_as_a_strong_one() -> None:
    """Two queries at right angles have one span, whatever their lengths are."""
    head = extract_head(tiny("llama"), 0, 1, batch("llama")).take(np.array([8, 7]))
    strong, faint = np.eye(2, head.queries.shape[1]), np.diag([1.0, 5e-12])
    norm = span(replace(head, queries=strong)).norm
    assert span(replace(head, queries=faint @ strong)).norm == pytest.approx(norm, rel=1e-9)
    assert span(replace(head, queries=strong[[0, 0]])).norm < 0.9 * norm


def test_rotary_audit_of_a_single_query() -> None:
    """The part of W inside the span is v z^T / |z|, with v the part of W z / |z| in the span of the differences."""
    head = extract_head(tiny("llama"), 0, 1, batch("llama"))
    lifted = rope_lift(head.take(np.array([8])))
    (z,), s, problem = lifted.head.queries, lifted.head.selected[0], lifted.problem()
    differences = np.delete(lifted.tokens[0, s] - lifted.tokens[0], s, axis=0)
    inside = np.linalg.lstsq(differences, differences @ lifted.W @ z, rcond=1e-6)[0] / np.linalg.norm(z)
    svm = np.asarray(solve(problem, tol=1e-10).W)
    space = span(lifted.head)
    assert space.norm == pytest.approx(float(np.linalg.norm(inside)), rel=1e-3)
    cosine = (lifted.W * svm).sum() / (np.linalg.norm(inside) * np.linalg.norm(svm))
    assert space.svm(lifted.head.selected, "frobenius", None).cosine == pytest.approx(float(cosine), abs=2e-3)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_rotary_audit_is_that_of_the_lifted_matrices(family: str) -> None:
    head = extract_head(tiny(family), 0, 1, batch(family))
    head = head.take(head.mask.sum(axis=1) > 1)
    lifted = rope_lift(head)
    problem = lifted.problem()
    # Inside the span, up to the ridge: a direction of extent s counts by s^2 / (s^2 + 1e-10 s_1^2).
    differences = [
        tokens[visible] - tokens[visible.argmax()] for tokens, visible in zip(lifted.tokens, head.mask, strict=True)
    ]
    _, sigma, basis = np.linalg.svd(np.concatenate(differences), full_matrices=False)
    counts = np.sqrt(sigma**2 / (sigma**2 + 1e-10 * sigma[0] ** 2))
    _, sigma, right = np.linalg.svd(head.queries, full_matrices=False)
    norm = np.linalg.norm((counts[:, None] * (basis @ lifted.W)) @ right[sigma > 1e-10 * sigma[0]].T)
    solution = solve(problem, tol=1e-10)
    space = span(head)
    svm = space.svm(head.selected, "frobenius", None)
    # Directions within gap 1e-6 of the SVM differ by 1e-3 at most.
    cosine = (lifted.W * solution.W).sum() / (norm * np.linalg.norm(solution.W))
    assert svm.cosine == pytest.approx(float(cosine), abs=2e-3)
    assert svm.objective == pytest.approx(solution.objective, rel=2e-6)
    assert not svm.soft
    margin = problem.apply(lifted.W)[problem.rejected].min() / norm
    assert space.trained_margin() == pytest.approx(float(margin), rel=1e-3)
    hebbian = problem.adjoint(problem.rejected / np.maximum(problem.rejected.sum(axis=1, keepdims=True), 1))
    cosine = (lifted.W * hebbian).sum() / (norm * np.linalg.norm(hebbian))
    assert space.hebbian() == pytest.approx(float(cosine), rel=1e-3)


@pytest.mark.slow
def test_minilm_audit_with_other_heads() -> None:
    model, tokenizer = minilm()
    heads = list(extract_heads(model, SENTENCES, layers=[3], heads=[0, 1, 2], tokenizer=tokenizer))
    audit = margin_audit(heads[0], others=heads, queries=32, draws=0)
    assert len(audit.others) == 2
    assert set(audit.directions) == {"frobenius", "nuclear", "gen"}
    assert audit.efficiency is not None
    assert 0 < audit.efficiency <= 1
    with pytest.raises(ValueError, match="the queries of layer 3"):
        margin_audit(heads[0], others=[synthetic_head(np.eye(5))])


def test_norms_of_an_audit_out_of_range() -> None:
    with pytest.raises(ValueError, match="norms has"):
        margin_audit(synthetic_head(np.eye(5)), norms=("max",))
