"""Places are counted in the text, parts of a model told apart by what they read, and layers by their own numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from attsvm.pretrained import AttentionHead, extract_head, extract_heads, fit_selection, selection_report
from attsvm_pretrained.activations.layers import absent_layers, layer_numbers
from attsvm_pretrained.activations.tracing import record
from attsvm_pretrained.heads.extract import RefusedHead, _inclusion, chosen_calls, examine_heads
from pretrained_models import batch, tiny


def _padded(side: str, lengths: tuple[int, ...] = (9, 6, 4, 7), width: int = 12) -> dict[str, torch.Tensor]:
    """The same texts with padding on one side."""
    rng = np.random.default_rng(2)
    ids, visible = np.zeros((len(lengths), width), dtype=int), np.zeros((len(lengths), width), dtype=int)
    for row, length in enumerate(lengths):
        own = slice(0, length) if side == "right" else slice(width - length, width)
        ids[row, own], visible[row, own] = rng.integers(3, 60, size=length), 1
    return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(visible)}


def _first_token_sink(head: AttentionHead) -> AttentionHead:
    """The head with all of its attention on the first token of each text."""
    probabilities = (head.text_place[head.sequence] == 0).astype(float)
    return replace(head, probabilities=probabilities)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_left_padding_moves_no_place(family: str) -> None:
    heads = {side: extract_head(tiny(family), 0, 1, _padded(side)) for side in ("left", "right")}
    for head in heads.values():
        np.testing.assert_array_equal(np.sort(np.unique(head.query_place)), np.arange(9))
        np.testing.assert_array_equal(np.unique(head.text_place), np.arange(-1, 9))
        assert (head.text_place >= 0).sum() == 9 + 6 + 4 + 7
    left, right = (_first_token_sink(heads[side]) for side in ("left", "right"))
    for head in (left, right):
        report = selection_report(head)
        assert (report.place, report.place_share) == (0, 1.0)
        assert report.rule == "100 % of queries attend most to the first token of the text"
        probe = fit_selection(head, queries=20)
        assert (probe.rule_name, probe.rule) == ("place 0 of the text", 1.0)
    np.testing.assert_array_equal(left.query_place, right.query_place)


def test_places_survive_taking_queries() -> None:
    head = extract_head(tiny("gpt2"), 0, 1, _padded("left"))
    rows = np.flatnonzero(head.query_place == 3)
    subset = head.take(rows)
    assert (subset.query_place == 3).all()
    np.testing.assert_array_equal(subset.selected_place, head.selected_place[rows])


def test_a_query_that_does_not_see_itself_keeps_its_place() -> None:
    """The places of a head end with the last of its queries and of the tokens that they see."""
    head = extract_head(tiny("gpt2"), 0, 1, _padded("right"))
    first = replace(head, mask=head.mask & (np.arange(12) == 0))
    for place, row in enumerate(np.flatnonzero(head.sequence == 0)):
        one = first.take(np.array([row]))
        assert one.query_place.tolist() == [place]
        assert one.mask.shape == (1, place + 1)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_cross_attention_of_equal_lengths(family: str) -> None:
    """Encoder and decoder texts of nine tokens each: queries are the decoder's, keys the encoder's."""
    inputs = batch(family)
    inputs["decoder_input_ids"] = torch.flip(inputs["input_ids"], dims=[1]).clamp_min(1)
    padding = torch.ones(3, 9, dtype=torch.long)
    padding[0, 7:] = 0
    inputs["decoder_attention_mask"] = padding
    heads = list(extract_heads(tiny(family), inputs, heads=[0]))
    kinds = [head.self_attention for head in heads]
    assert kinds == [True, True, True, False, True, False]
    encoder, crossing, decoder = heads[0], heads[3], heads[4]
    assert crossing.ids is not None
    np.testing.assert_array_equal(crossing.ids, inputs["input_ids"].numpy())
    np.testing.assert_array_equal(encoder.ids, crossing.ids)
    np.testing.assert_array_equal(decoder.ids, inputs["decoder_input_ids"].numpy())
    assert len(crossing.queries) == len(decoder.queries) == 9 * 3 - 2
    np.testing.assert_array_equal(crossing.sequence, decoder.sequence)
    assert selection_report(crossing).offset is None
    # Keys that the encoder padded are seen by none.
    assert not crossing.mask[:, ~inputs["attention_mask"].bool().numpy()[0]][crossing.sequence == 0].any()
    assert not (crossing.mask & (crossing.text_place < 0)[crossing.sequence]).any()


def test_the_towers_of_clip_are_told_apart() -> None:
    """Seventeen tokens of text, seventeen patches: the patches have no token ids, and all of them ask."""
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    config = tf.CLIPConfig(
        text_config={**shape, "vocab_size": 60, "max_position_embeddings": 20},
        vision_config={**shape, "image_size": 16, "patch_size": 4},
    )
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(1)
    visible = torch.ones(2, 17, dtype=torch.long)
    visible[1, 9:] = 0
    inputs = {
        "input_ids": torch.randint(3, 60, (2, 17), generator=rng),
        "attention_mask": visible,
        "pixel_values": torch.randn(2, 3, 16, 16, generator=rng),
    }
    heads = {head.name.split(".")[0]: head for head in extract_heads(tf.CLIPModel(config), inputs, heads=[0])}
    assert heads["vision_model"].ids is None
    assert len(heads["vision_model"].queries) == 34
    assert heads["text_model"].ids is not None
    assert len(heads["text_model"].queries) == 17 + 9


def _lfm2() -> Any:
    config = tf.Lfm2Config(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
        vocab_size=60, layer_types=["conv", "full_attention", "conv", "full_attention"],
    )  # fmt: skip
    torch.manual_seed(0)
    return tf.AutoModel.from_config(config)


def test_hybrids_keep_their_own_layer_numbers() -> None:
    model, inputs = _lfm2(), batch("llama")
    assert [head.layer for head in extract_heads(model, inputs, heads=[0])] == [1, 3]
    assert extract_head(model, 3, 0, inputs).name == "layers.3.self_attn"
    assert extract_head(model, -1, 0, inputs).layer == 3
    with pytest.raises(
        ValueError, match=r"one of 1, 3 was expected .* layer 2 computes no attention \(Lfm2ShortConv\)"
    ):
        extract_head(model, 2, 0, inputs)
    absent = absent_layers(model, ["layers.1.self_attn", "layers.3.self_attn"])
    assert [(layer.number, layer.kind) for layer in absent] == [(0, "Lfm2ShortConv"), (2, "Lfm2ShortConv")]


@pytest.mark.parametrize(
    ("layers", "calls"),
    [
        ([0], [0]),  # no layer has this number, but a call has
        ([3], [1]),
        ([-1], [0, 1]),  # how many there are is not known yet
        (["layers.1.self_attn"], [0]),
        (["layers.1.self_attn", 3], [0, 1]),
        (None, [0, 1]),
    ],
)
def test_only_calls_that_may_be_asked_for_are_recorded(layers: list[int | str] | None, calls: list[int]) -> None:
    recorder = record(_lfm2(), batch("llama"), _inclusion(layers))
    assert [call.index for call in recorder.calls] == calls


def test_layers_are_counted_from_the_end() -> None:
    model, paths = _lfm2(), ["layers.1.self_attn", "layers.3.self_attn"]
    assert chosen_calls(paths, [-1, -2], model) == [1, 0]
    with pytest.raises(ValueError, match="layer is -3; one of 1, 3 was expected"):
        chosen_calls(paths, [-3], model)


def test_calls_are_counted_where_numbers_are_not_unique() -> None:
    assert layer_numbers(["encoder.layers.0.attn", "decoder.layers.0.attn"]) == [0, 1]
    assert layer_numbers(["shared.0.attn", "shared.0.attn"]) == [0, 1]
    assert layer_numbers(["h.2.attn", "h.5.attn"]) == [2, 5]
    assert layer_numbers(["attention", "h.5.attn"]) == [0, 1]


def test_no_layer_is_absent_where_calls_are_counted() -> None:
    """Of three layers of an encoder and one of a decoder, the number of the first call alone is that of its path."""
    stacks = {name: torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(3)) for name in ("encoder", "decoder")}
    assert absent_layers(torch.nn.ModuleDict(stacks), ["encoder.0.attn", "decoder.0.attn"]) == ()


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_large_logits_are_no_error(family: str) -> None:
    """Logits of hundreds: float32 rounds scores by more than 1e-5, which is not held against the head."""
    heads = list(extract_heads(tiny(family, spread=150.0), batch(family)))
    largest = max(np.abs(head.scores()[head.mask]).max() for head in heads)
    assert largest > 300


def test_what_float32_blurs_is_read_in_float64() -> None:
    """Token vectors 1e4 long with differences of size one: float32 keeps three digits of the scores' differences."""
    model, inputs = tiny("gpt2"), batch("gpt2")
    norm = model.h[0].ln_1
    with torch.no_grad():
        norm.bias += 3e5
    head = extract_head(model, 0, 1, inputs)
    assert head.error < 1e-3
    assert next(model.parameters()).dtype is torch.float32
    exact = extract_head(tiny_double(model), 0, 1, inputs)
    np.testing.assert_allclose(head.attention(), exact.attention(), atol=1e-9)


def tiny_double(model: Any) -> Any:
    import copy

    return copy.deepcopy(model).double()


def test_the_place_of_a_head_is_its_own_among_equal_ones() -> None:
    model = tiny("bert")
    attention = model.encoder.layer[0].attention.self
    with torch.no_grad():
        for projection in (attention.query, attention.key):
            for values in (projection.weight, projection.bias):
                values[16:24] = values[:8]
    heads = [extract_head(model, 0, h, batch("bert")) for h in (0, 2)]
    np.testing.assert_array_equal(heads[0].K, heads[1].K)
    assert [[place.start for place in head.places] for head in heads] == [[0, 0], [16, 16]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_bad_head_does_not_end_the_others(dtype: torch.dtype) -> None:
    """Head 2 of layer 0 gets a score that no bilinear form gives; the other seven heads are read."""
    model = tiny("bert", spread=6.0 if dtype == torch.float32 else 2.0).to(dtype)
    query = model.encoder.layer[0].attention.self.query

    def bend(module: torch.nn.Module, arguments: object, output: torch.Tensor) -> torch.Tensor:
        perturbation = output.clone()
        perturbation[..., 16:24] = torch.tanh(perturbation[..., 16:24])
        return perturbation

    query.register_forward_hook(bend)
    results = list(examine_heads(model, batch("bert")))
    bad = [result for result in results if isinstance(result, RefusedHead)]
    assert [(one.layer, one.head) for one in bad] == [(0, 2)]
    assert "not supported" in bad[0].reason
    assert len(results) == 8
    with pytest.raises(ValueError, match=r"head 2 of encoder\.layer\.0"):
        list(extract_heads(model, batch("bert")))
