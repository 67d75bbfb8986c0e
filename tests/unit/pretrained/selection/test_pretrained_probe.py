"""Probes of heads: the rules they learn, the words they say, and the tokens that support them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from attsvm.pretrained import SelectionProbe, extract_head, fit_selection, rope_lift
from attsvm_pretrained.selection.probe import LOGISTIC_PENALTY, _length, _logistic, distinct_contexts
from attsvm_pretrained.selection.support_tokens import support_tokens
from pretrained_models import SENTENCES, batch, minilm, synthetic_head, tiny


@pytest.mark.parametrize("method", ["svm", "logistic"])
def test_probe_learns_a_content_rule(method: str) -> None:
    """Low-rank W, many queries: held-out sequences are predicted well above every control."""
    rng = np.random.default_rng(6)
    W = 4 * rng.standard_normal((6, 2)) @ rng.standard_normal((2, 6))
    probe = fit_selection(synthetic_head(W, b=60), method=method, queries=250)  # type: ignore[arg-type]
    assert probe.agreement > 0.8
    assert probe.better_than_rule
    assert probe.shuffled < 0.4
    assert bool(probe.support) == (method == "svm")


def test_probe_of_a_rule_of_place_says_so() -> None:
    head = synthetic_head(np.eye(6), b=30)
    probabilities = np.full(head.mask.shape, 0.02)
    probabilities[:, 0] = 0.9
    probe = fit_selection(replace(head, probabilities=probabilities), queries=80)
    assert probe.rule == 1.0
    assert probe.sentence.endswith("no better than a rule that needs no fit: place 0 of the text finds 100 %.")


def test_probe_of_an_offset_says_so() -> None:
    """Every query of five selects the token before its own, which is in another place each time."""
    head = synthetic_head(np.eye(6), b=20)
    head = head.take(head.position > 0)
    before = np.arange(6) == head.position[:, None] - 1
    probe = fit_selection(replace(head, probabilities=before.astype(float)), queries=60)
    assert (probe.rule_name, probe.rule) == ("offset -1 from the query", 1.0)


def test_probe_of_the_end_of_a_text_says_so() -> None:
    """Of four queries of a text of five to eleven tokens, one selects the first token and three the last."""
    head = synthetic_head(np.eye(6), b=21, T=11)
    head = head.take(head.position < 4)
    last = 4 + head.sequence % 7
    mask = np.arange(11) <= last[:, None]
    chosen = np.where(head.position == 0, 0, last)
    probabilities = (np.arange(11) == chosen[:, None]).astype(float)
    probe = fit_selection(replace(head, mask=mask, probabilities=probabilities), queries=100)
    assert (probe.rule_name, probe.rule) == ("place 0 before the end", 0.75)


def test_a_probe_of_a_single_query() -> None:
    probe = fit_selection(synthetic_head(np.eye(5), b=4), queries=1)
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
    head = synthetic_head(np.array([[1.0, 0.5], [-0.5, 2.0]]), b=3, T=4)
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


def test_a_shared_prefix_is_in_one_half_only() -> None:
    """Five tokens that all texts begin with give one context each, however many texts there are."""
    rng = np.random.default_rng(3)
    ids = rng.integers(3, 60, size=(12, 10))
    ids[:, :5] = ids[0, :5]
    ids[:, 5] = np.arange(3, 15)  # texts differ from here on
    head = extract_head(tiny("gpt2"), 1, 0, {"input_ids": torch.from_numpy(ids)})
    subset = distinct_contexts(head, np.arange(len(head.mask)))
    assert len(subset) == 5 + 12 * 5
    assert (head.sequence[subset][head.query_place[subset] < 5] == 0).all()
    # Without ids, vectors tell contexts apart; those of the prefix are equal up to rounding.
    for size in (1e-5, 1.0, 1e5):
        bare = replace(head, ids=None, tokens=size * head.tokens)
        assert len(distinct_contexts(bare, np.arange(len(head.mask)))) == 5 + 12 * 5
    assert fit_selection(head, queries=30).repeated == 11 * 4  # the first token sees itself only and is left out before


def test_probes_of_content_and_of_distance() -> None:
    """A head that looks two back by its angles alone: distance finds it, content does not."""
    ids = torch.from_numpy(np.random.default_rng(7).integers(3, 60, size=(20, 9)))
    head = extract_head(tiny("llama"), 0, 0, {"input_ids": ids})
    assert head.turns is not None
    probabilities = (head.text_place[head.sequence] == head.query_place[:, None] - 2).astype(float)
    later = replace(head, probabilities=probabilities).take(head.query_place >= 2)
    probe = fit_selection(later, queries=60)
    assert probe.distance is not None
    assert probe.content is not None
    assert probe.distance > 0.95
    assert probe.content < 0.6
    assert not probe.better_than_rule
    assert "of distance" in probe.sentence
    assert fit_selection(extract_head(tiny("bert"), 0, 0, batch("bert")), queries=8).distance is None


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
    head = synthetic_head(np.eye(5), b=2, T=12)
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
    head = synthetic_head(np.eye(5), b=1, T=8)
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


def test_options_of_a_probe_out_of_range() -> None:
    head = synthetic_head(np.eye(5))
    with pytest.raises(ValueError, match="method is"):
        fit_selection(head, method="tree")  # type: ignore[arg-type]
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match=f"held_out is {share}"):
            fit_selection(head, held_out=share)
    with pytest.raises(ValueError, match="one to test on"):
        fit_selection(synthetic_head(np.eye(5), b=1))
    rotary = extract_head(tiny("llama"), 0, 1, batch("llama"))
    with pytest.raises(ValueError, match="'svm' was expected for a rotary head"):
        fit_selection(rotary, method="logistic")
