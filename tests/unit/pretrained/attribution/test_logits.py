"""From the logit of an answer to heads to tokens, and what replacing a head's attention does, against plain hooks."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from attsvm import pretrained, solve
from attsvm_pretrained.activations.interface import attending_by, eager_attention, patched
from attsvm_pretrained.attribution.effects import HeadEffects, _patterns
from attsvm_pretrained.selection.audit import sampled
from attsvm_pretrained.selection.null import redrawn
from attsvm_pretrained.selection.span import span
from attsvm_pretrained.selection.types import HeadTypes
from induction import SMALL, train
from pretrained_models import batch

_SIZES = {"vocab_size": 60, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
_LLAMA = {
    **_SIZES, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "num_key_value_heads": 2,
}  # fmt: skip
MODELS = {
    "gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(**_SIZES, n_embd=32, n_layer=2, n_head=4)),
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**_LLAMA)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**_LLAMA, head_dim=8)),
    "gemma2": lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(**_LLAMA, head_dim=8)),
    "olmo": lambda: tf.OlmoForCausalLM(tf.OlmoConfig(**{**_LLAMA, "num_key_value_heads": 4})),  # norms without gains
    "phi": lambda: tf.PhiForCausalLM(tf.PhiConfig(**{**_LLAMA, "num_key_value_heads": 4})),
}
WIDTH = 8


def _model(family: str) -> Any:
    torch.manual_seed(0)
    model = MODELS[family]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn_like(parameter)
            else:
                parameter *= 5.0
    return model.double().eval()


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("sequence", [0, 1, 2])
def test_the_parts_add_up_to_the_models_own_logits(family: str, sequence: int) -> None:
    """With padding on either side; Gemma 2 caps its logits after the output embedding, which the parts precede."""
    model, inputs = _model(family), batch(family)
    split = pretrained.attribute_logit(model, inputs, answer=7, rival=11, sequence=sequence, place=2)
    row = np.flatnonzero(inputs["attention_mask"][sequence])[2]
    with torch.no_grad(), attending_by(model, eager_attention):
        logits = model(**inputs).logits[sequence, row].double()
    cap = getattr(model.config, "final_logit_softcapping", None)
    logits = logits if cap is None else cap * torch.atanh(logits / cap)
    # Rounding of the float32 norms that the models use even in float64.
    scale = np.abs(split.effects).sum()
    assert split.logit == pytest.approx(float(logits[7] - logits[11]), abs=1e-6 * scale)
    assert split.effects.sum() + split.bias == pytest.approx(split.logit, abs=1e-6 * scale)
    np.testing.assert_allclose(split.tokens.sum(axis=1), split.effects, atol=1e-9 * scale)
    assert split.error == pytest.approx(0.0, abs=1e-6 * scale)
    assert split.by_head().shape == (2, 4)
    assert np.isfinite(split.by_head()).all()


def test_a_long_state_is_rounded_by_a_share_of_its_length() -> None:
    """A float32 state a thousand times as long: its parts are too, to some roundings of 6e-8 of their lengths."""
    model, inputs = _model("llama").float(), batch("llama")
    split = pretrained.attribute_logit(model, inputs, answer=7)
    with torch.no_grad():
        model.model.norm.weight *= 1000
    longer = pretrained.attribute_logit(model, inputs, answer=7)
    np.testing.assert_allclose(longer.vectors / 1000, split.vectors, atol=1e-5 * np.abs(split.vectors).max())


def test_the_sentence_of_a_logit_sums_the_heads() -> None:
    model, inputs = _model("gpt2"), batch("gpt2")
    split = pretrained.attribute_logit(model, inputs, answer=7, rival=11, place=2)
    heads = split.by_head()
    order = np.argsort(-np.abs(heads), axis=None)[:3]
    names = ", ".join(f"{n // 4}.{n % 4} {heads.ravel()[n]:+.3g}" for n in order)
    assert split.sentence == (
        f"The logit of token 7 over token 11 at place 2 is {split.logit:.4g}; heads add {heads.sum():+.3g} directly, "
        f"most of all {names}."
    )


def test_the_sentence_of_effects_has_the_range_of_the_null() -> None:
    """Means of two answers: +1 and -2 under replacements, and -0.5, 0.25 and 1.5 under rotated weights."""
    effects = HeadEffects(
        layer=1,
        head=3,
        types=HeadTypes({}, None, "previous", np.zeros(0, dtype=int)),
        measure="log-probability",
        before=np.array([-3.0, -1.0]),
        changes={"rule": np.array([0.0, 2.0]), "removed": np.array([-1.0, -3.0])},
        null={"rotated": np.array([[0.0, 0.5], [-1.0, 0.0], [1.0, 2.0]]), "permuted": np.array([[9.0, 9.0]])},
    )
    assert effects.sentence == (
        "Head 1.3: the log-probability of 2 answers, -2 on average, changes with its rule (previous) +1, no output -2; "
        "3 heads with rotated weights in its place: -0.5 to +1.5."
    )


def test_a_rule_is_uniform_attention_on_its_tokens() -> None:
    """The second and third token of each text, of which its first query sees none and keeps its attention."""
    head = pretrained.extract_head(_model("gpt2"), 1, 1, batch("gpt2"))
    places = head.text_place[head.sequence]
    tokens = head.mask & ((places == 1) | (places == 2))
    types = HeadTypes({}, None, "early", np.zeros(0, dtype=int))
    patterns = dict(_patterns(head, types, {"early": tokens}, 12, np.random.default_rng(0), 10.0))
    assert list(patterns) == ["uniform", "svm", "rule", "removed"]
    rule = patterns["rule"]
    assert rule is not None
    for i, place in enumerate(head.query_place):
        expected = head.probabilities[i] if place == 0 else tokens[i] / min(place, 2)
        np.testing.assert_array_equal(rule[i], expected)


def _input_of_output_map(model: Any, inputs: dict[str, torch.Tensor], layer: int, change: Any) -> torch.Tensor:
    """The logits with a plain hook that changes what the output map of attention reads, (B, T, H dv)."""
    attention = model.model.layers[layer].self_attn if hasattr(model, "model") else model.transformer.h[layer].attn
    projection = getattr(attention, "o_proj", None) or getattr(attention, "dense", None) or attention.c_proj
    handle = projection.register_forward_pre_hook(lambda module, arguments: (change(arguments[0].clone()),))
    with torch.no_grad(), attending_by(model, eager_attention):
        logits = model(**inputs).logits
    handle.remove()
    return logits


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_what_a_head_writes_is_its_output_through_the_frozen_norm(family: str) -> None:
    """By hand: the head's slice of the output map, then gain over the denominator of the last norm, then the logits."""
    model, inputs = _model(family), batch(family)
    seen: dict[str, torch.Tensor] = {}
    attention = model.model.layers[1].self_attn if family == "llama" else model.transformer.h[1].attn
    projection = attention.o_proj if family == "llama" else attention.c_proj
    norm = model.model.norm if family == "llama" else model.transformer.ln_f
    handles = [
        projection.register_forward_pre_hook(lambda module, arguments: seen.update(read=arguments[0])),
        norm.register_forward_pre_hook(lambda module, arguments: seen.update(stream=arguments[0])),
    ]
    with torch.no_grad(), attending_by(model, eager_attention):
        model(**inputs)
    for handle in handles:
        handle.remove()
    split = pretrained.attribute_logit(model, inputs, answer=7, place=4)
    for head in range(4):
        own = slice(WIDTH * head, WIDTH * head + WIDTH)
        read, stream = seen["read"][0, 4, own], seen["stream"][0, 4]
        if family == "llama":
            written = read @ projection.weight[:, own].T
            denominator = (stream.square().mean() + norm.variance_epsilon).sqrt()
        else:
            written = read @ projection.weight[own]
            written = written - written.mean()
            denominator = (stream.var(correction=0) + norm.eps).sqrt()
        expected = ((written / denominator * norm.weight) @ model.get_output_embeddings().weight.T).detach().numpy()
        np.testing.assert_allclose(split.writes(1, head), expected, atol=1e-5)
        assert split.effects[split.component(1, head)] == pytest.approx(expected[7], abs=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama", "phi"])
@pytest.mark.parametrize("layer", [0, 1])
def test_replaced_attention_has_the_effect_of_plain_hooks(family: str, layer: int) -> None:
    """Uniform attention, its SVM, no output and re-drawn weights, by hooks on the output map; with padding."""
    model, inputs = _model(family), batch(family)
    answers = torch.randint(3, 60, (3, 9), generator=torch.Generator().manual_seed(5))
    answers[inputs["attention_mask"] == 0] = -100
    rivals = (answers + 1) % 60
    at = np.nonzero(answers.numpy() != -100)
    ours = pretrained.head_effects(model, layer, 2, inputs, answers=answers, draws=4, queries=12)
    difference = pretrained.head_effects(model, layer, 2, inputs, answers=answers, rivals=rivals, draws=4, queries=12)
    head = pretrained.extract_head(model, layer, 2, inputs)
    values = _values(model, inputs, layer)  # (B, T, dv) of the group of head 2
    patterns = {"uniform": np.where(head.mask, 1.0, 0.0) / head.mask.sum(axis=1, keepdims=True)}
    rng = np.random.default_rng((0, 4))
    patterns["svm"] = head.attention(span(sampled(head, 12, rng)[2]).svm_scores(head, 10.0))
    ((_, rotated), *_) = redrawn(head, 4, rng)
    patterns["rotated"] = rotated.probabilities
    given = ours.changes | {"rotated": ours.null["rotated"][0]}
    of_rivals = difference.changes | {"rotated": difference.null["rotated"][0]}
    for name in ("uniform", "svm", "removed", "rotated"):

        def change(read: torch.Tensor, name: str = name) -> torch.Tensor:
            own = slice(2 * WIDTH, 3 * WIDTH)
            if name == "removed":
                read[..., own] = 0.0
                return read
            for i, (j, t) in enumerate(zip(head.sequence, head.position, strict=True)):
                read[j, t, own] = torch.from_numpy(patterns[name][i]) @ values[j]
            return read

        before = _input_of_output_map(model, inputs, layer, lambda read: read)
        after = _input_of_output_map(model, inputs, layer, change)
        change_of = [one[at].log_softmax(dim=1).numpy() for one in (after.double(), before.double())]
        each = np.arange(len(at[0])), answers.numpy()[at]
        np.testing.assert_allclose(given[name], change_of[0][each] - change_of[1][each], atol=1e-9)
        of_rival = each[0], rivals.numpy()[at]
        moved = (after - before)[at].numpy()
        np.testing.assert_allclose(of_rivals[name], moved[each] - moved[of_rival], atol=1e-9)
    table = ours.to_frame().set_index("replacement")
    for name, one in ours.changes.items():
        assert table["mean"][name] == one.mean()
        assert table["largest"][name] == max(one, key=abs)
    assert ours.null["rotated"].shape == (2, len(at[0]))
    assert np.abs(ours.changes["uniform"]).max() > 1e-3


def test_attention_functions_may_return_more_than_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = _model("gpt2"), batch("gpt2")
    file = sys.modules[type(model).__module__]
    own = file.eager_attention_forward

    def logits() -> torch.Tensor:
        with torch.no_grad(), patched(model, "transformer.h.1.attn", 2, None):
            return model(**inputs).logits

    expected = logits()
    monkeypatch.setattr(file, "eager_attention_forward", lambda *given, **keywords: (*own(*given, **keywords), None))
    assert torch.equal(logits(), expected)


def _values(model: Any, inputs: dict[str, torch.Tensor], layer: int) -> torch.Tensor:
    """Values of the third head, by the model's own projection."""
    seen = {}
    attention = model.model.layers[layer].self_attn if hasattr(model, "model") else model.transformer.h[layer].attn
    projection = attention.v_proj if hasattr(attention, "v_proj") else attention.c_attn
    handle = projection.register_forward_hook(lambda module, arguments, output: seen.update(out=output))
    with torch.no_grad(), attending_by(model, eager_attention):
        model(**inputs)
    handle.remove()
    out = seen["out"]
    if not hasattr(attention, "v_proj"):
        out = out[..., 64:]
    group = 2 * out.shape[-1] // (4 * WIDTH)
    return out[..., WIDTH * group : WIDTH * group + WIDTH]


def test_the_models_own_pattern_changes_nothing_and_the_svm_selects_alike() -> None:
    """The SVM that replaces W has W's norm in the span of the data, and makes the selection of the queries it has."""
    model, inputs = _model("gpt2"), batch("gpt2")
    head = pretrained.extract_head(model, 1, 1, inputs)
    space = span(head)
    scores = space.svm_scores(head, None)
    problem = head.problem()
    solution = solve(problem, tol=1e-6)
    factor = space.norm / np.linalg.norm(solution.W)
    np.testing.assert_allclose(scores[head.mask], factor * problem.scores(solution.W)[head.mask], rtol=1e-9)
    if np.isfinite(solution.objective):
        assert (np.where(head.mask, scores, -np.inf).argmax(axis=1) == head.selected).all()
    np.testing.assert_array_equal(head.pattern()[0], head.probabilities[head.sequence == 0])


@pytest.mark.slow
def test_an_induction_head_carries_the_answer_and_its_rule_does_the_same() -> None:
    """On repeats the answer is what followed: no output or uniform attention lose more than the rule does."""
    model, ids = train(SMALL)
    answers = torch.full_like(ids, -100)
    answers[:, 16:-1] = ids[:, 17:]
    inputs = {"input_ids": ids}
    effects = pretrained.head_effects(model, 1, 1, inputs, answers=answers, draws=8)
    print(effects.sentence)
    assert effects.types.name == "induction"
    losses = {name: -values.mean() for name, values in effects.changes.items()}
    assert losses["rule"] < 0.2 * losses["uniform"]
    assert losses["rule"] < losses["svm"]
    assert losses["uniform"] > 0.5
    split = pretrained.attribute_logit(model, inputs, answer=int(ids[0, -1]), place=-2)
    heads = split.by_head()
    assert heads[1].sum() > 0.5 * heads.sum()
    margin = split.attend(1, int(heads[1].argmax()))
    assert margin.query == ids.shape[1] - 2
    assert ids[0, margin.chosen - 1] == ids[0, margin.query]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"answer": 60}, "answer is 60; a token id from 0 to 59 was expected"),
        ({"answer": 1, "rival": -1}, "rival is -1; a token id from 0 to 59"),
        ({"answer": 1, "place": 9}, "place is 9; a place from 0 to 8 was expected"),
        ({"answer": 1, "sequence": 3}, "sequence is 3; a number from 0 to 2"),
    ],
)
def test_what_is_no_token_or_place_is_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pretrained.attribute_logit(_model("gpt2"), batch("gpt2"), **arguments)


def test_models_and_answers_that_do_not_fit_are_refused() -> None:
    inputs = batch("gpt2")
    model = _model("gpt2")
    with pytest.raises(ValueError, match="GPT2Model has no output embedding; a model with a language-model head"):
        pretrained.attribute_logit(model.transformer, inputs, answer=1)
    with pytest.raises(ValueError, match="returns no logits by place; a model with a language-model head"):
        pretrained.head_effects(model.transformer, 0, 0, inputs, answers=np.ones(3, dtype=int), draws=2)
    with pytest.raises(ValueError, match=r"answers has float64 of shape \(3,\); integers \(3,\) or \(3, 9\)"):
        pretrained.head_effects(model, 0, 0, inputs, answers=np.ones(3), draws=2)
    with pytest.raises(ValueError, match="answers range from 60 to 60; token ids from 0 to 59 were expected"):
        pretrained.head_effects(model, 0, 0, inputs, answers=np.full(3, 60), draws=2)
    with pytest.raises(ValueError, match="answers range from -1 to 4; token ids from 0 to 59 were expected"):
        pretrained.head_effects(model, 0, 0, inputs, answers=np.array([3, -1, 4]), draws=2)
    with pytest.raises(ValueError, match="answers are all -100"):
        pretrained.head_effects(model, 0, 0, inputs, answers=np.full((3, 9), -100), draws=2)
    tracing = tf.GPTJForCausalLM(tf.GPTJConfig(**_SIZES, n_embd=32, n_layer=2, n_head=4, rotary_dim=4)).eval()
    with pytest.raises(ValueError, match="computes attention by itself; a model that uses transformers' attention"):
        pretrained.head_effects(tracing, 0, 0, inputs, answers=np.ones(3, dtype=int), draws=2)
