"""Named types: by hand on built attention, and on a model trained here until its second layer does induction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as tf

from attsvm.pretrained import AttentionHead, HeadTypes, Standing, TypeScore, extract_head, extract_heads, head_types
from attsvm_pretrained.selection.type_sets import MOST_OFFSET, type_sets, visible_offsets
from attsvm_pretrained.selection.types import named_tokens
from induction import induction_model
from pretrained_models import SENTENCES, batch, minilm, tiny


@pytest.mark.slow
def test_a_model_trained_to_induction_shows_its_heads() -> None:
    """A uniform guess among 40 words has loss 3.7; at 0.35 something copies, and it is the second layer."""
    model, ids = induction_model()
    types = {(head.layer, head.head): head_types(head) for head in extract_heads(model, {"input_ids": ids})}
    names = {place: one.name for place, one in types.items()}
    assert "induction" in [names[1, head] for head in range(4)]
    assert "previous" in [names[0, head] for head in range(4)]
    assert "induction" not in [names[0, head] for head in range(4)]
    for head in range(4):  # docs/pretrained.md quotes these
        one = types[1, head].scores["induction"]
        redrawn = one.standing.draws.max()
        print(f"head 1.{head}: {one.score:.2f}, uniform {one.uniform:.2f}, re-drawn at most {redrawn:.2f}")
    best = max((types[1, head] for head in range(4)), key=lambda one: one.scores["induction"].score)
    own = best.scores["induction"]
    assert own.score > 0.6
    assert own.standing.outstanding
    assert own.standing.draws.max() < 0.2
    assert best.sentence.startswith("Induction head: ")
    assert len(best.shows) == 6


@pytest.mark.slow
def test_redrawing_the_weights_of_an_induction_head_ends_it() -> None:
    model, ids = induction_model()
    fresh = tf.AutoModelForCausalLM.from_config(model.config)
    assert {head_types(head).name for head in extract_heads(fresh, {"input_ids": ids}, layers=[1])} == {None}


def _attending(head: AttentionHead, tokens: np.ndarray, share: float = 0.9) -> AttentionHead:
    """The head with a share of its attention spread on a set of tokens, where there are any, and the rest anywhere."""
    marks = tokens & head.mask
    uniform = head.mask / head.mask.sum(axis=1, keepdims=True)
    on = marks / np.maximum(marks.sum(axis=1, keepdims=True), 1)
    return replace(
        head, probabilities=np.where(marks.any(axis=1)[:, None], share * on + (1 - share) * uniform, uniform)
    )


def _sets(head: AttentionHead) -> dict[str, np.ndarray]:
    """What each name means, token by token, from the definitions."""
    assert head.ids is not None
    assert head.texts is not None
    sets = {
        name: np.zeros(head.mask.shape, dtype=bool)
        for name in ("previous", "offset", "duplicate", "induction", "first", "delimiter")
    }
    for i, (j, p) in enumerate(zip(head.sequence, head.position, strict=True)):
        for t in range(head.mask.shape[1]):
            sets["previous"][i, t] = t == p - 1
            sets["offset"][i, t] = t == p + 2
            sets["first"][i, t] = t == 0
            sets["duplicate"][i, t] = t != p and head.ids[j, t] == head.ids[j, p]
            sets["induction"][i, t] = t > 0 and t not in (p, p + 1) and head.ids[j, t - 1] == head.ids[j, p]
            sets["delimiter"][i, t] = t > 0 and head.texts[j][t] in ("[SEP]", ".", ",")
    return sets


@pytest.mark.parametrize("name", ["previous", "offset", "duplicate", "induction", "first", "delimiter"])
def test_each_type_is_named(name: str) -> None:
    """Attention built by the definition gets that name, at the share it was built with."""
    model, tokenizer = minilm()
    texts = [f"{text} {text}" for text in SENTENCES[:6]]
    head = extract_head(model, 0, 5, texts, tokenizer=tokenizer)
    tokens = _sets(head)[name]
    example = _attending(head, tokens)
    types = head_types(example, queries=10_000, draws=8)
    assert types.name == name
    assert types.offset == 2 if name == "offset" else True
    expected = tokens & head.mask & ((head.position > 0)[:, None] | (name != "first"))
    np.testing.assert_array_equal(named_tokens(example, types), expected)
    own = types.scores[name]
    has = (tokens & head.mask & ((head.position > 0)[:, None] | (name != "first"))).any(axis=1)
    if name != "offset":
        assert own.queries == has.sum()
    uniform = (tokens & head.mask).sum(axis=1)[has] / head.mask.sum(axis=1)[has]
    assert own.uniform == pytest.approx(uniform.mean(), rel=0.05 if name == "offset" else 1e-9)
    assert own.score == pytest.approx(0.9 + 0.1 * uniform.mean(), rel=1e-6)
    mass = example.probabilities[types.shows] * tokens[types.shows]
    assert (mass.sum(axis=1) > 0.9).all()


def test_a_head_of_content() -> None:
    """Each query attends to one token of its own liking: no rule of place, and more than fresh weights concentrate."""
    head = extract_head(
        tiny("bert"), 0, 0, {"input_ids": torch.randint(3, 60, (60, 9), generator=torch.Generator().manual_seed(0))}
    )
    liking = np.argmax(head.ids[head.sequence], axis=1)  # the largest token id of the text
    types = head_types(_attending(head, np.arange(9) == liking[:, None], 0.98))
    assert types.name == "content"
    assert types.scores["content"].score > 0.6
    assert types.sentence.startswith("Content head: ")


def test_induction_follows_an_occurrence_of_the_first_token_too() -> None:
    """Both texts begin with a word that comes again, one of them behind padding."""
    ids = torch.tensor([[5, 6, 5, 7, 5, 6], [0, 0, 5, 8, 5, 7]])
    head = extract_head(tiny("bert"), 0, 0, {"input_ids": ids, "attention_mask": (ids > 0).long()})
    expected = np.zeros(head.mask.shape, dtype=bool)
    for i, (j, p) in enumerate(zip(head.sequence, head.position, strict=True)):
        for t in range(1, 6):
            expected[i, t] = head.mask[i, t] and ids[j, t - 1] == ids[j, p] and t not in (p, p + 1)
    np.testing.assert_array_equal(type_sets(head)["induction"], expected)
    assert expected[:, 1].any()


def test_a_word_with_an_apostrophe_is_no_delimiter() -> None:
    words = ("[CLS]", "don't", "...", "##,", "▁(", "Ġ", "x.", "[SEP]")
    head = extract_head(tiny("bert"), 0, 0, {"input_ids": torch.arange(3, 11)[None]})
    special = np.array([[word.endswith("]") for word in words]])
    delimiters = type_sets(replace(head, texts=(words,), special=special))["delimiter"]
    assert (delimiters == [word in ("...", "##,", "▁(", "Ġ", "[SEP]") for word in words]).all()


@pytest.mark.parametrize(("family", "length"), [("bert", 10), ("bert", 24), ("gpt2", 10), ("gpt2", 24)])
def test_an_offset_counts_if_half_of_the_queries_see_a_token_there(family: str, length: int) -> None:
    """Of a text of n tokens, n - |k| queries have a token at offset k; under a causal mask there is none after them."""
    head = extract_head(tiny(family), 0, 0, {"input_ids": torch.arange(3, 3 + length)[None]})
    last = 0 if family == "gpt2" else MOST_OFFSET
    expected = [k for k in range(-MOST_OFFSET, last + 1) if k != -1 and length - abs(k) >= length / 2]
    offsets = visible_offsets(head)
    assert list(offsets) == expected
    for k, (rows, columns) in offsets.items():
        assert len(rows) == length - abs(k)
        assert (columns - head.position[rows] == k).all()


def test_the_sentence_has_the_median_and_the_largest_of_the_draws() -> None:
    standing = Standing(0.8, np.array([0.25, 0.31, 0.12]), np.array([0.9]))
    types = HeadTypes({"first": TypeScore(24, 0.17, standing)}, None, "first", np.arange(3))
    assert types.sentence == (
        "First head: 24 queries pay 80 % of their attention to the first token of the text; uniform attention would pay"
        " 17 %, 3 heads with rotated weights pay 25 % (median), 31 % at most."
    )


def test_what_cannot_be_known_is_left_out() -> None:
    inputs = batch("bart")
    crossing = next(head for head in extract_heads(tiny("bart"), inputs, heads=[0]) if not head.self_attention)
    assert set(head_types(crossing, draws=2).scores) == {"first", "content"}
    with pytest.raises(ValueError, match="draws is 1; at least 2"):
        head_types(crossing, draws=1)
