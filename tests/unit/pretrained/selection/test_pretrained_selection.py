"""Reports, audits and probes of heads: known answers on built heads, and plain words where there is nothing to say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from attsvm import Status, solve
from attsvm.pretrained import (
    AttentionHead,
    MarginAudit,
    SelectionProbe,
    Standing,
    extract_head,
    extract_heads,
    fit_selection,
    margin_audit,
    rope_lift,
    selection_report,
)
from attsvm_pretrained.selection.audit import holding
from attsvm_pretrained.selection.probe import LOGISTIC_PENALTY, _length, _logistic
from attsvm_pretrained.selection.selectivity import MOSTLY
from attsvm_pretrained.selection.span import SPAN_GAP, Direction, span
from attsvm_pretrained.selection.support_tokens import support_tokens
from pretrained_models import SENTENCES, batch, minilm, tiny


def _synthetic_head(W: np.ndarray, *, b: int = 12, T: int = 6, seed: int = 0) -> AttentionHead:
    """A self-attention head with random tokens of dimension len(W) and the given W."""
    rng = np.random.default_rng(seed)
    d = len(W)
    base = extract_head(tiny("bert"), 0, 0, batch("bert"))
    tokens = rng.standard_normal((b, T, d))
    U, sigma, Vt = np.linalg.svd(W)
    head = replace(
        base,
        tokens=tokens,
        queries=tokens.reshape(-1, d),
        sequence=np.repeat(np.arange(b), T),
        position=np.tile(np.arange(T), b),
        text_place=np.tile(np.arange(T), (b, 1)),
        ids=None,
        mask=np.ones((b * T, T), dtype=bool),
        K=U * sigma,
        Q=Vt.T,
        texts=None,
        special=None,
        probabilities=np.zeros((b * T, T)),
    )
    return replace(head, probabilities=head.attention())


def test_report_of_a_head_that_looks_at_the_token_before() -> None:
    head = _synthetic_head(np.eye(5))
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
    head = _synthetic_head(np.eye(5))
    special = np.zeros((12, 6), dtype=bool)
    special[:, [0, 5]] = True
    report = selection_report(replace(head, probabilities=np.full(head.mask.shape, 1 / 6), special=special))
    assert report.verdict == "soft"
    assert report.set99 == 6
    assert report.special == pytest.approx(1 / 3)
    assert report.special_uniform == pytest.approx(1 / 3)


def test_the_most_common_place_is_named() -> None:
    """Of six queries of a text one attends most to the last token, the others to the third."""
    head = _synthetic_head(np.eye(5))
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
    head = _synthetic_head(W, b=6)
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
    head = _synthetic_head(rng.standard_normal((8, 8)), b=6)
    foreign = replace(head, probabilities=softmax(rng.standard_normal(head.mask.shape), axis=1))
    audit = margin_audit(foreign, queries=60, norms=())
    assert not audit.better_than_null
    assert "no more than an untrained head does" in audit.sentence


def test_a_negative_margin_is_said_in_words() -> None:
    """One query attends most to a token that W ranks second, as rounding of a near tie may have it."""
    head = _synthetic_head(np.random.default_rng(8).standard_normal((12, 12)), b=4)
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
    head = _synthetic_head(np.random.default_rng(8).standard_normal((12, 12)), b=4)
    bias = np.zeros(head.mask.shape)
    bias[:, 2] = 50.0
    biased = replace(head, bias=bias)
    audit = margin_audit(replace(biased, probabilities=biased.attention()), queries=12, norms=(), draws=0)
    assert audit.efficiency is not None
    assert audit.efficiency > 0


def test_long_contexts_are_thinned_without_regard_to_attention() -> None:
    head = _synthetic_head(np.random.default_rng(9).standard_normal((6, 6)), b=3, T=80)
    audit = margin_audit(head, queries=60, norms=(), draws=2)
    assert audit.among == 1024 // 60 + 1
    assert len(audit.null["top1"].draws) == 1


def test_gen_svm_ties_the_tokens_that_keep_attention() -> None:
    head = _synthetic_head(np.random.default_rng(5).standard_normal((8, 8)), b=3)
    ties = holding(head, 0.9)
    mass = (head.probabilities * ties).sum(axis=1)
    assert (mass >= 0.9 - 1e-12).all()
    least = np.where(ties, head.probabilities, np.inf).min(axis=1)
    assert (mass - least < 0.9).all()  # none could be left out
    assert margin_audit(head, queries=18, norms=("gen",), draws=0).directions["gen"].objective > 0


@pytest.mark.parametrize(("mass", "count"), [(0.5, 1), (0.6, 2), (0.75, 2), (0.8, 3), (1.0, 4)])
def test_a_set_that_holds_exactly_the_share_is_large_enough(mass: float, count: int) -> None:
    head = _synthetic_head(np.eye(4), b=1, T=4)
    ties = holding(replace(head, probabilities=np.tile([0.125, 0.25, 0.5, 0.125], (4, 1))), mass)
    assert (ties.sum(axis=1) == count).all()
    assert ties[:, 2].all()


def test_the_svm_of_the_span_is_solved_to_its_gap() -> None:
    """Of a size at which the solver stops earlier if a larger gap is requested."""
    head = _synthetic_head(np.random.default_rng(8).standard_normal((30, 30)), b=40, T=8)
    assert span(head).svm(head.selected, "frobenius", None).gap <= SPAN_GAP


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_soft_margin_does_not_depend_on_the_size_of_the_tokens(scale: float) -> None:
    """C is 50 over the squared mean length of the constraints (selected token - other) z^T."""
    rng = np.random.default_rng(1)
    head = _synthetic_head(rng.standard_normal((5, 5)), b=6)
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


@pytest.mark.parametrize("method", ["svm", "logistic"])
def test_probe_learns_a_content_rule(method: str) -> None:
    """Low-rank W, many queries: held-out sequences are predicted well above every control."""
    rng = np.random.default_rng(6)
    W = 4 * rng.standard_normal((6, 2)) @ rng.standard_normal((2, 6))
    probe = fit_selection(_synthetic_head(W, b=60), method=method, queries=250)  # type: ignore[arg-type]
    assert probe.agreement > 0.8
    assert probe.better_than_rule
    assert probe.shuffled < 0.4
    assert bool(probe.support) == (method == "svm")


def test_probe_of_a_rule_of_place_says_so() -> None:
    head = _synthetic_head(np.eye(6), b=30)
    probabilities = np.full(head.mask.shape, 0.02)
    probabilities[:, 0] = 0.9
    probe = fit_selection(replace(head, probabilities=probabilities), queries=80)
    assert probe.rule == 1.0
    assert probe.sentence.endswith("no better than a rule that needs no fit: place 0 of the text finds 100 %.")


def test_probe_of_an_offset_says_so() -> None:
    """Every query of five selects the token before its own, which is in another place each time."""
    head = _synthetic_head(np.eye(6), b=20)
    head = head.take(head.position > 0)
    before = np.arange(6) == head.position[:, None] - 1
    probe = fit_selection(replace(head, probabilities=before.astype(float)), queries=60)
    assert (probe.rule_name, probe.rule) == ("offset -1 from the query", 1.0)


def test_probe_of_the_end_of_a_text_says_so() -> None:
    """Of four queries of a text of five to eleven tokens, one selects the first token and three the last."""
    head = _synthetic_head(np.eye(6), b=21, T=11)
    head = head.take(head.position < 4)
    last = 4 + head.sequence % 7
    mask = np.arange(11) <= last[:, None]
    chosen = np.where(head.position == 0, 0, last)
    probabilities = (np.arange(11) == chosen[:, None]).astype(float)
    probe = fit_selection(replace(head, mask=mask, probabilities=probabilities), queries=100)
    assert (probe.rule_name, probe.rule) == ("place 0 before the end", 0.75)


def test_a_probe_of_a_single_query() -> None:
    probe = fit_selection(_synthetic_head(np.eye(5), b=4), queries=1)
    assert (probe.train, probe.held_out, probe.train_agreement) == (1, 1, 1.0)


def test_the_noise_and_the_words_of_a_probe() -> None:
    """Of 48 queries, shares around p = 0.6 differ by a standard deviation of sqrt(2 p (1 - p) / 48) = 0.1."""
    probe = SelectionProbe("svm", 0.8, 1.0, 0.4, "place 0 of the text", 0.3, 0.2, 0.1, 0.75, 1.0, 60, 48, 0, None, ())
    assert probe.noise == pytest.approx(0.2)
    assert replace(probe, agreement=1.0, rule=1.0).noise == pytest.approx(2 * np.sqrt(2 * 0.25) / 48)
    assert probe.sentence == (
        "A probe fitted to 60 queries finds the token of 80 % of 48 others, no better than a rule that needs no fit: "
        "place 0 of the text finds 40 %, a probe of content alone 75 %, of distance 100 %."
    )


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_length_of_a_constraint_is_a_mean_over_rejected_tokens(family: str) -> None:
    head = extract_head(tiny(family), 0, 1, batch(family))
    lifted, rejected = rope_lift(head), head.mask.copy()
    rejected[np.arange(len(rejected)), head.selected] = False
    chosen = lifted.tokens[np.arange(len(rejected)), head.selected]
    squares = np.square(lifted.tokens - chosen[:, None]).sum(axis=2) * np.square(head.queries).sum(axis=1)[:, None]
    assert _length(head, head.selected) == pytest.approx(np.sqrt(squares[rejected].mean()), rel=1e-6)


def test_the_logistic_probe_minimises_the_penalised_cross_entropy() -> None:
    """W is read off the probe's scores, and a minimum is sought from there with differences for derivatives."""
    head = _synthetic_head(np.array([[1.0, 0.5], [-0.5, 2.0]]), b=3, T=4)
    scores = _logistic(head, head.selected, None)[0](head)
    products = np.einsum("ntx,nz->ntxz", head.tokens[head.sequence], head.queries).reshape(-1, 4)
    W = np.linalg.lstsq(products, scores.ravel())[0]

    def loss(flat: np.ndarray) -> float:
        logits = log_softmax((products @ flat).reshape(scores.shape), axis=1)
        penalty = 0.5 * LOGISTIC_PENALTY * float(flat @ flat) * _length(head, head.selected) ** 2
        return penalty - float(logits[np.arange(len(logits)), head.selected].mean())

    assert loss(W) == pytest.approx(minimize(loss, W).fun, rel=1e-3)


def test_rotary_probe_finds_a_head_that_looks_two_back() -> None:
    """Keys and queries that are the same for all tokens, turned against each other by two places."""
    ids = torch.from_numpy(np.random.default_rng(7).integers(3, 60, size=(20, 9)))
    head = extract_head(tiny("llama"), 0, 0, {"input_ids": ids})
    assert head.turns is not None
    d, dh = head.K.shape
    # Contents are faint beside the last coordinate: with nine tokens, a probe could learn them by heart instead.
    ones = (np.ones((*x.shape[:-1], 1)) for x in (head.tokens, head.queries))
    sides = zip((head.tokens, head.queries), ones, strict=True)
    tokens, queries = (np.concatenate([0.01 * x, one], axis=-1) for x, one in sides)
    K, Q = np.zeros((d + 1, dh)), np.zeros((d + 1, dh))
    two_back = head.turns.tokens[0, 0] * head.turns.tokens[0, 2].conj()
    K[d, head.turns.pairs[:, 0]] = 5.0
    Q[d, head.turns.pairs[:, 0]], Q[d, head.turns.pairs[:, 1]] = two_back.real, two_back.imag
    head_two_back = replace(head, tokens=tokens, queries=queries, K=K, Q=Q)
    head_two_back = replace(head_two_back, probabilities=head_two_back.attention())
    later = head_two_back.take(head_two_back.position >= 2)
    assert (later.selected == later.position - 2).all()
    assert fit_selection(later, queries=60).agreement > 0.9
    assert fit_selection(replace(later, turns=None), queries=60).agreement < 0.5


def test_support_tokens_carry_their_text() -> None:
    model, tokenizer = minilm()
    head = extract_head(model, 4, 3, SENTENCES, tokenizer=tokenizer)
    probe = fit_selection(head, queries=60)
    first = probe.support[0]
    assert head.texts is not None
    words = head.texts[first.sequence]
    assert first.texts == (words[first.query], words[first.selected], words[first.token])
    assert first.selected != first.token
    assert words[first.query] in first.context
    assert sum(token.multiplier for token in probe.support) <= 1


def test_support_tokens_have_their_share_and_four_tokens_on_each_side() -> None:
    head = _synthetic_head(np.eye(5), b=2, T=12)
    texts = tuple(tuple(f"{j}.{t}" for t in range(12)) for j in range(2))
    head = replace(head, texts=texts)
    dual = np.zeros(head.mask.shape)
    dual[5, 7], dual[12 + 1, 3] = 3.0, 1.0
    first, second = support_tokens(head, np.arange(24), head, dual)
    assert [(one.multiplier, one.sequence, one.query, one.token) for one in (first, second)] == [
        (0.75, 0, 5, 7),
        (0.25, 1, 1, 3),
    ]
    assert first.context == texts[0][1:10]
    assert second.context == texts[1][:6]


@pytest.mark.parametrize("self_attention", [True, False])
def test_support_tokens_are_counted_without_padding(self_attention: bool) -> None:
    """Two tokens of padding precede the text; the number of a query of another text does not count them."""
    head = _synthetic_head(np.eye(5), b=1, T=8)
    texts = (("[PAD]", "[PAD]", *"abcdef"),)
    places = np.array([[-1, -1, *range(6)]])
    mask = np.tile(places >= 0, (8, 1))
    probabilities = np.tile(np.arange(8) == 6, (8, 1)).astype(float)
    head = replace(
        head, texts=texts, text_place=places, mask=mask, probabilities=probabilities, self_attention=self_attention
    )
    dual = np.zeros(mask.shape)
    dual[5, 3] = 1.0
    (one,) = support_tokens(head, np.arange(8), head, dual)
    assert (one.query, one.selected, one.token) == (3 if self_attention else 5, 4, 1)
    assert one.texts == ("d" if self_attention else "", "e", "b")
    assert one.context == (tuple("abcdef") if self_attention else ())


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
        margin_audit(heads[0], others=[_synthetic_head(np.eye(5))])


def test_options_out_of_range() -> None:
    head = _synthetic_head(np.eye(5))
    with pytest.raises(ValueError, match="norms has"):
        margin_audit(head, norms=("max",))
    with pytest.raises(ValueError, match="method is"):
        fit_selection(head, method="tree")  # type: ignore[arg-type]
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match=f"held_out is {share}"):
            fit_selection(head, held_out=share)
    with pytest.raises(ValueError, match="one to test on"):
        fit_selection(_synthetic_head(np.eye(5), b=1))
    rotary = extract_head(tiny("llama"), 0, 1, batch("llama"))
    with pytest.raises(ValueError, match="'svm' was expected for a rotary head"):
        fit_selection(rotary, method="logistic")
