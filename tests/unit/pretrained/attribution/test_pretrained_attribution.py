"""Contrastive attribution: exact sums in every architecture, parts by hand, flips in the model where predicted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertModel, LlamaConfig, LlamaModel

from attsvm.pretrained import Attribution, attribute, extract_head
from attsvm_pretrained.activations.image import origin
from attsvm_pretrained.activations.maps import Place
from attsvm_pretrained.activations.residual import Component, parts
from attsvm_pretrained.activations.tape import Tape, VectorIndex, record_tape
from attsvm_pretrained.attribution.ablation import (
    RANKINGS,
    AttributionCheck,
    ComponentChange,
    check,
    flips,
    logits_with,
)
from attsvm_pretrained.heads.rotary import rotate
from pretrained_models import SENTENCES, batch, minilm, tiny

FAMILIES = ["gpt2", "gpt2-scales", "opt", "vit", "bert", "distilbert", "llama", "mistral", "qwen2", "cohere", "phi",
            "gpt-neox", "t5", "bart", "gptj", "bloom", "falcon", "gpt-oss", "albert"]  # fmt: skip
# With a norm of queries and keys, or latents, between the hidden state and the score.
NORMED = ["qwen3", "gemma3", "olmo2", "llama4", "deepseek-v2", "deepseek-v3", "persimmon"]
SEQUENCE = {"vit": 1}  # of the others 2, which is padded on the left
# Float32 logits and hidden states of two layers are wrong by some roundings, of 6e-8 each, of the sizes summed.
ROUNDING = 100 * 6e-8


def _split(family: str, model: Any = None, **options: Any) -> Attribution:
    model = tiny(family) if model is None else model
    return attribute(model, 1, 2, batch(family), sequence=SEQUENCE.get(family, 2), **options)


def _size(split: Attribution) -> float:
    """What is summed, without cancellation."""
    source = split.source
    query, best, rival = (
        np.linalg.norm(one.vectors(split.components) @ one.factor, axis=1).sum()
        for one in (source.query, source.chosen, source.rival)
    )
    return float(query * (best + rival))


@pytest.mark.parametrize("family", FAMILIES + NORMED)
def test_sums_are_the_models_own_margin(family: str) -> None:
    """Of both sides and of pairs; the margin is that of the model's probabilities, log p_j - log p_k."""
    model = tiny(family)
    split, head = _split(family, model), extract_head(model, 1, 2, batch(family))
    rows = np.flatnonzero(head.text_place[SEQUENCE.get(family, 2)] >= 0)
    (n,) = np.flatnonzero((head.sequence == SEQUENCE.get(family, 2)) & (head.position == rows[split.query]))
    logs = np.log(np.where(head.mask[n, rows], head.probabilities[n, rows], 1e-300))
    assert (split.chosen, split.rival) == tuple(np.argsort(-logs, kind="stable")[:2])
    tolerance = ROUNDING * (_size(split) + 1.0)  # the logarithms of probabilities are wrong by a rounding of 1
    assert split.margin == pytest.approx(logs[split.chosen] - logs[split.rival], abs=tolerance)
    for part in (split.keys, split.queries, split.pairs):
        assert part.sum() + split.bias == pytest.approx(split.margin, abs=tolerance)
    assert split.keys.shape == split.queries.shape == (len(split.components), len(rows))
    np.testing.assert_allclose(split.pairs.sum(axis=1), split.keys.sum(axis=1), atol=tolerance)
    np.testing.assert_allclose(split.pairs.sum(axis=0), split.queries.sum(axis=1), atol=tolerance)
    assert (split.bias != 0) == (
        family in ("t5", "bloom") or (head.sink is not None and 0 in (split.chosen, split.rival))
    )
    heads = [one for one in split.components if one.kind == "head"]
    assert [(one.layer, one.head) for one in heads] == [(0, h) for h in range(4)]
    assert len({one.name for one in split.components}) == len(split.components)
    assert sum(one.kind == "mlp" for one in split.components) == 1
    assert any(one.kind == "embedding" for one in split.components)
    # ALBERT adds positions before a projection, behind which they are no summand of the stream.
    has_positions = family in (
        "gpt2",
        "gpt2-scales",
        "opt",
        "vit",
        "bert",
        "distilbert",
        "bart",
    )  # ALBERT adds before a projection
    assert sum(one.kind == "position" for one in split.components) == has_positions


def test_parts_of_gpt2_by_hand() -> None:
    """Each component followed through the frozen layer norm in float64, from the weights and the model's own pass."""
    model = tiny("gpt2").eval().double()
    ids = batch("gpt2")["input_ids"][:1]
    split = attribute(model, 1, 2, {"input_ids": ids}, query=7, chosen=3, rival=5)
    first, second = model.h[0], model.h[1]
    with torch.no_grad():
        token, place = model.wte(ids)[0], model.wpe.weight[:9]
        q, k, v = (first.attn.c_attn(first.ln_1(token + place))).view(9, 3, 4, 8).permute(1, 2, 0, 3)
        hidden = torch.full((9, 9), -torch.inf, dtype=torch.float64).triu(1)
        mix = torch.softmax(q @ k.mT / 8**0.5 + hidden, dim=-1)  # (4, 9, 9)
        weight = first.attn.c_proj.weight.view(4, 8, 32)
        contributions = torch.einsum("hts,hsc,hcd->htsd", mix, v, weight)  # by head, place, place read
        middle = token + place + contributions.sum(dim=(0, 2)) + first.attn.c_proj.bias
        mlp = first.mlp(first.ln_2(middle))
        stream = middle + mlp
        sigma = (stream.var(dim=-1, unbiased=False) + second.ln_1.eps).sqrt()

        def through(part: torch.Tensor) -> torch.Tensor:
            return (part - part.mean(dim=-1, keepdim=True)) / sigma[:, None] * second.ln_1.weight

        own = slice(16, 24)
        Q, K = second.attn.c_attn.weight[:, :32][:, own], second.attn.c_attn.weight[:, 32:64][:, own]
        query = second.attn.c_attn(second.ln_1(stream))[7, own] / 8**0.5
        keys = second.ln_1(stream) @ K
        parts = {"wte": token, "wpe": place, "h.0.mlp": mlp, "h.0.attn[1]": contributions[1].sum(dim=1)}
        for name, part in parts.items():
            c = next(c for c, one in enumerate(split.components) if one.name == name)
            lifted = through(part)
            by_keys = (lifted[3] - lifted[5]) @ K @ query
            by_query = (lifted[7] @ Q) @ (keys[3] - keys[5]) / 8**0.5
            assert split.keys[c].sum() == pytest.approx(float(by_keys), rel=1e-9)
            assert split.queries[c].sum() == pytest.approx(float(by_query), rel=1e-9)
        # By place: what head 1 brought to token 7 from each token it read.
        c = next(c for c, one in enumerate(split.components) if one.name == "h.0.attn[1]")
        for s in range(9):
            part = torch.zeros_like(stream)
            part[7] = contributions[1, 7, s]
            by_place = (through(part)[7] @ Q) @ (keys[3] - keys[5]) / 8**0.5
            assert split.queries[c, s] == pytest.approx(float(by_place), rel=1e-9, abs=1e-12)
        assert np.flatnonzero(split.queries[0]).tolist() == [7]
        scores = (keys + second.attn.c_attn.bias[32:64][own]) @ query
        np.testing.assert_allclose(split.scores, np.where(np.arange(9) < 8, scores.numpy(), -np.inf), rtol=1e-9)
    assert split.error < 1e-12


class Doubled(nn.Module):
    """An embedding added to itself, and an MLP's output added in place, behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mlp = nn.Embedding(10, 6), nn.Linear(6, 6, bias=False)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 10)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        states = x + x
        states += self.mlp(x)
        return self.head(self.norm(states))


def test_a_component_that_is_added_twice_counts_twice() -> None:
    torch.manual_seed(0)
    model, ids = Doubled().double(), torch.tensor([[3, 1, 4, 1, 5]])
    direction = np.random.default_rng(0).normal(size=6)
    with record_tape(model) as tape, torch.no_grad():
        model(ids)
    with torch.no_grad():
        embedding = model.embed(ids)[0, 3]
        stream = 2 * embedding + model.mlp(embedding)
        sigma = (stream.var(unbiased=False) + model.norm.eps).sqrt()
        doubled = 2 * embedding
        through = ((doubled - doubled.mean()) / sigma * model.norm.weight).numpy()
    row, visible = VectorIndex((0, 3), (1, 5)), np.ones(5, dtype=bool)
    split = parts(tape, tape.inputs["head"][0], row, direction, visible, spread=True)
    assert {one.name for one in split} == {"embed", "mlp", "norm.bias"}
    part = split[Component("embedding", "embed")]
    np.testing.assert_allclose(part.vector, through, rtol=1e-9)
    assert part.before is not None
    np.testing.assert_allclose(part.before, doubled.numpy(), rtol=1e-12)
    np.testing.assert_allclose(part.places, np.where(np.arange(5) == 3, through @ direction, 0.0), rtol=1e-9)


def test_values_without_coordinates_are_no_attention() -> None:
    with Tape(nn.Identity()) as tape:
        out = torch.mm(torch.bmm(torch.ones(1, 3, 2), torch.ones(1, 2, 0)).view(3, 0), torch.ones(0, 4))
    assert tape.projection(out) is not None
    assert tape.attended(out) is None


def test_heads_may_be_no_share_of_the_width() -> None:
    """Four heads of eight in a stream of 36."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=36, num_hidden_layers=2, num_attention_heads=4, head_dim=8, intermediate_size=48, vocab_size=60
    )
    split = attribute(LlamaModel(config).eval(), 1, 2, batch("llama"), sequence=0)
    assert [(one.layer, one.head) for one in split.components if one.kind == "head"] == [(0, h) for h in range(4)]


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("gpt2", {"h.1.attn.c_attn.bias"}),
        ("persimmon", {"layers.1.self_attn biases of query", "layers.1.self_attn biases of keys"}),
    ],
)
def test_constants_of_projections_are_named(family: str, names: set[str]) -> None:
    """By their parameter; by their side where a norm is behind them."""
    own = {one.name for one in _split(family).components if one.kind == "bias" and one.layer == 1}
    assert names <= own
    assert len(own) == len(names) + 1  # of the norm before the projection


def test_the_summary_names_the_largest_parts() -> None:
    split = _split("gpt2")
    table = split.to_frame().set_index("name")
    keys, query = (table[side].abs().idxmax() for side in ("keys", "queries"))
    text = f"most of keys {keys} {table['keys'][keys]:+.3g}, most of query {query} {table['queries'][query]:+.3g}"
    assert text in repr(split)


@pytest.mark.parametrize("family", ["gpt2", "bert", "llama"])
def test_features_and_their_remainder(family: str) -> None:
    """Features of the hidden state that enters the layer; by hand where the parts are linear in them."""
    model, inputs = tiny(family), batch(family)
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(40, 32))
    activations = rng.exponential(size=(9, 40)) * (rng.random((9, 40)) < 0.1)
    options = {"query": 8, "chosen": 1, "rival": 4, "sequence": 0}
    split = attribute(model, 1, 2, inputs, dictionary=directions, activations=activations, **options)
    whole = attribute(model, 1, 2, inputs, **options)
    tolerance = ROUNDING * _size(split)
    for part in (split.keys, split.queries, split.pairs):
        assert part.sum() == pytest.approx(split.margin, abs=tolerance)
    assert {one.kind for one in split.components} <= {"feature", "remainder", "bias"}
    active = np.flatnonzero(activations[[1, 4, 8]].any(axis=0))
    assert {one.name for one in split.components if one.kind == "feature"} == {f"feature {f}" for f in active}
    # A feature that is twice as active brings twice as much, and the remainder gives it back.
    more = activations.copy()
    f = int(np.flatnonzero(activations[8])[0])
    more[8, f] *= 2
    twice = attribute(model, 1, 2, inputs, dictionary=directions, activations=more, **options)
    c = [one.name for one in split.components].index(f"feature {f}")
    assert twice.queries[c].sum() == pytest.approx(2 * split.queries[c].sum(), rel=1e-9)
    # The stream's own components, as a dictionary that explains everything, bring what they bring without one.
    if family == "gpt2":
        streams = np.array([whole.source.readings(side)[0].norm[1] for side in ("query", "keys")])  # type: ignore[index]
        exact = attribute(model, 1, 2, inputs, dictionary=streams[:1], activations=np.eye(9)[:, [8]], **options)
        remainder = [one.name for one in exact.components].index("remainder")
        assert abs(exact.queries[remainder].sum()) < tolerance


def test_a_component_of_one_key_is_checked_too() -> None:
    model, inputs = tiny("gpt2"), batch("gpt2")
    top = attribute(model, 1, 2, inputs, sequence=0)
    activations = np.zeros((9, 2))
    activations[[top.chosen, top.rival], [0, 1]] = 1.0
    directions = np.random.default_rng(0).normal(size=(2, 32))
    split = attribute(model, 1, 2, inputs, sequence=0, dictionary=directions, activations=activations)
    names = {one.name for one in split.check("keys").components}
    assert names == {"feature 0", "feature 1", "remainder", "h.1.ln_1.bias"}


def test_without_a_predicted_flip_the_lead_is_left() -> None:
    """Of two components one has no part; the control takes the effect of the other."""
    split = _split("gpt2")
    components = [split.components[0], Component("mlp", "none")]
    checks = check(split.source, split.scores, split.chosen, components, "query", tolerance=0.1)
    assert np.isfinite(checks.factors["attribution"]).tolist() == [True, False]
    assert np.isfinite(checks.factors["random"]).tolist() == [False, True]
    for norms in ("frozen", "live"):
        for method, without in (("attribution", 1), ("gradient", 1), ("random", 0)):
            assert checks.left[norms][method][without] == 1.0
            assert not checks.flipped[norms][method][without]


def test_the_sentence_of_a_check() -> None:
    """Shares of four components, and the tolerance in percent."""
    shares = {"frozen": (4, 2, 0), "live": (3, 1, 2)}
    flipped = {
        norms: {name: np.arange(4) < count for name, count in zip(RANKINGS, counts, strict=True)}
        for norms, counts in shares.items()
    }
    one = AttributionCheck("keys", (Component("mlp", "h.0.mlp"),) * 4, 0.8, {}, flipped, {})
    assert one.sentence == (
        "With norms live the top token flips within 80 % of the predicted change of 4 components of the keys: "
        "attribution 75 %, gradient 25 %, random 50 %. With norms frozen, where the attribution is an identity: "
        "attribution 100 %, gradient 50 %, random 0 %."
    )


def test_flips_by_hand() -> None:
    """Scores 3, 1, 0: a part of 2 in the first alone is level with the second when it vanishes: 3 - 2 = 1."""
    assert flips(np.array([3.0, 1.0, 0.0]), np.array([2.0, 0.0, 0.0]), 0) == (0.0, 1)
    # A part of -4 in the third, taken away by three quarters, brings it level; for the second it takes 5/2 more.
    assert flips(np.array([3.0, 1.0, 0.0]), np.array([0.0, 0.8, -4.0]), 0) == (0.25, 2)
    assert flips(np.array([3.0, 1.0, -np.inf]), np.array([1.0, 1.0, 9.0]), 0) == (np.inf, -1)


@pytest.mark.parametrize("side", ["query", "keys"])
@pytest.mark.parametrize(
    "family", ["gpt2", "llama", "bert", "gpt-neox", "t5", "gpt-oss", "albert", "gptj", "falcon", *NORMED]
)
def test_the_top_token_flips_where_predicted(family: str, side: Any) -> None:
    """In the model with norms frozen, every component: 1e-3 of a lead is a thousand roundings of the logits here."""
    split = _split(family, query=5)
    checks = split.check(side)
    assert len(checks.components) >= 5
    assert checks.flipped["frozen"]["attribution"].all()
    assert checks.left["frozen"]["attribution"].max() < 1e-3
    assert checks.flipped["frozen"]["random"].mean() <= 0.2
    for c, component in enumerate(checks.components):
        factor, token = split.flip(split.components.index(component), side)
        assert factor == pytest.approx(checks.factors["attribution"][c])
        assert token != split.chosen
    if family in ("llama", "t5", "qwen3", "gemma3", "llama4") and side == "query":
        # An RMS norm only scales the query, and with it all logits alike: level stays level.
        assert checks.flipped["live"]["attribution"].mean() >= (0.8 if family == "t5" else 1.0)


def test_gradient_times_input_can_win() -> None:
    """A near tie is decided by a small change, which the derivative of the live norm predicts and a frozen norm not.

    Not where norms are frozen, of which it knows nothing.
    """
    split = attribute(tiny("gpt2"), 1, 1, batch("gpt2"), query=8)
    assert split.margin < 0.2 * np.abs(split.keys.sum(axis=1)).max()
    checks = split.check("keys")
    live, frozen = checks.flipped["live"], checks.flipped["frozen"]
    assert live["gradient"].mean() >= 0.75 > 0.5 >= live["attribution"].mean()
    assert frozen["attribution"].all()
    assert frozen["gradient"].mean() <= 0.5


def test_the_model_is_left_as_it_was() -> None:
    model = tiny("gpt2")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    implementation = model.config._attn_implementation
    split = _split("gpt2", model)
    many = [0, 1, 2] * 12  # more than run at once
    checks = check(
        split.source, split.scores, split.chosen, [split.components[c] for c in many], "query", tolerance=0.1
    )
    np.testing.assert_allclose(checks.factors["attribution"][:3], checks.factors["attribution"][-3:])
    remainder = checks.left["live"]["attribution"]
    np.testing.assert_allclose(remainder[:3], remainder[-3:], atol=1e-4)  # float32 logits over their lead
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.config._attn_implementation == implementation
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


@pytest.mark.slow
def test_a_real_model_and_what_it_shows() -> None:
    """Layer 5 of MiniLM, whose stream passes eleven norms."""
    model, tokenizer = minilm()
    split = attribute(model, 5, 3, SENTENCES[0], tokenizer=tokenizer, query=5)
    assert split.error < ROUNDING * _size(split)
    assert split.texts[0] == "report"
    assert repr(split).startswith("Attribution(head 3 of layer 5, query 5 'report', chosen ")
    table = split.to_frame()
    assert len(table) == len(split.components) > 60
    assert table["keys"].sum() == pytest.approx(split.margin, abs=ROUNDING * _size(split))
    checks = split.check(most=12)
    assert checks.flipped["frozen"]["attribution"].all()
    live = 100 * checks.flipped["live"]["attribution"].mean()
    assert checks.sentence.startswith("With norms live the top token flips within 10 % of the predicted change of ")
    assert f"of the query: attribution {live:.0f} %" in checks.sentence
    assert "With norms frozen, where the attribution is an identity: attribution 100 %" in checks.sentence
    assert len(checks.to_frame()) == 12 * 3 * 2
    axes = split.plot("keys", most=6)
    assert axes.get_yticklabels()[-1].get_text() == f"{len(split.components) - 5} others"
    widths = [bar.get_width() for bar in axes.containers[0]]
    assert sum(widths) == pytest.approx(split.margin, abs=ROUNDING * _size(split))


def test_what_cannot_be_split_is_refused() -> None:
    model, inputs = tiny("gpt2"), batch("gpt2")
    with pytest.raises(ValueError, match="query is 9; a place from 0 to 8"):
        attribute(model, 1, 0, inputs, query=9)
    with pytest.raises(ValueError, match="sequence is 3; a number from 0 to 2"):
        attribute(model, 1, 0, inputs, sequence=3)
    with pytest.raises(ValueError, match="query 3 is to choose between tokens 2 and 7; two tokens that it sees"):
        attribute(model, 1, 0, inputs, query=3, chosen=2, rival=7)
    with pytest.raises(ValueError, match=r"dictionary has shape \(3, 5\)"):
        attribute(model, 1, 0, inputs, dictionary=np.ones((3, 5)), activations=np.ones((9, 3)))
    with pytest.raises(ValueError, match="dictionary and activations go together"):
        attribute(model, 1, 0, inputs, dictionary=np.ones((3, 32)))
    split = attribute(model, 1, 0, inputs)
    with pytest.raises(ValueError, match="which has the largest logit, was expected"):
        attribute(model, 1, 0, inputs, chosen=split.rival, rival=split.chosen).check()
    with pytest.raises(ValueError, match="query is 0; a place from 1 to 7 was expected"):  # the null token asks nothing
        attribute(tiny("gpt-oss"), 1, 0, batch("gpt-oss"), query=0, sequence=2)


def test_parts_of_a_query_with_a_norm_by_hand() -> None:
    """Qwen3: the embedding through two frozen norms, in float64; the model's own norms compute in float32.

    Products of five numbers rounded to 6e-8 are wrong by less than 1e-6 of what is summed.
    """
    model = tiny("qwen3").eval().double()
    ids = batch("qwen3")["input_ids"][:1]
    split = attribute(model, 1, 3, {"input_ids": ids}, query=7, chosen=3, rival=5)
    layer, head = model.layers[1], extract_head(model, 1, 3, {"input_ids": ids})
    with torch.no_grad():
        stream = model(ids, output_hidden_states=True).hidden_states[1][0]
        embedding = model.embed_tokens(ids)[0]
        length = (stream.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
        gain = layer.input_layernorm.weight
        W = layer.self_attn.q_proj.weight[24:32].T
        query = (stream / length * gain @ W)[7]
        inner = (query.square().mean() + 1e-6).sqrt()
        part = (embedding / length * gain @ W)[7] / inner * layer.self_attn.q_norm.weight
    assert head.turns is not None
    key = rotate(head.tokens[0] @ head.K, head.turns.pairs, head.turns.tokens[0])
    part = rotate(part.numpy() * head.scale, head.turns.pairs, head.turns.tokens[0, 7])
    c = [one.name for one in split.components].index("embed_tokens")
    assert split.queries[c].sum() == pytest.approx(float(part @ (key[3] - key[5])), abs=1e-6 * _size(split))


@pytest.mark.parametrize("family", ["qwen3", "deepseek-v2", "persimmon"])
def test_the_gradient_control_is_the_derivative_of_the_model(family: str) -> None:
    """A part grown by 1e-2 changes the logits, through live norms, by what the derivative says.

    Norms compute in float32: a difference of logits of size 1 is wrong by some 1e-6, 1e-4 of it over the step; the
    central difference is wrong by the square of the step.
    """
    inputs = {"input_ids": batch(family)["input_ids"][:1]}  # eager attention has no numbers for padding in float64
    split = attribute(tiny(family).double(), 1, 2, inputs, query=5)
    components = [one for one in split.components if one.kind in ("embedding", "head", "mlp")]
    for side in ("query", "keys"):
        parts = [ComponentChange(one, components, split.source.model) for one in split.source.readings(side)]
        step = np.full(len(components), 1e-2)
        up, down = (logits_with(split.source, parts, size * step, side, "live") for size in (1.0, -1.0))
        slopes = split.source.effects([one.derivatives for one in parts], side, live=True)
        visible = np.isfinite(up)
        changes = (up[visible] - down[visible]) / 2e-2
        np.testing.assert_allclose(changes, slopes[visible], atol=2e-3 * np.abs(slopes).max())


def test_the_gradient_control_predicts_flips_by_the_derivative() -> None:
    """Which a norm of queries behind the projection changes."""
    split = _split("qwen3")
    components = split.components[:2]
    checks = check(split.source, split.scores, split.chosen, components, "query", tolerance=0.1)
    part = ComponentChange(split.source.query, components, split.source.model)
    for live in (True, False):
        slopes = split.source.effects([part.derivatives], "query", live=live)
        expected = [flips(split.scores, slope, split.chosen)[0] for slope in slopes]
        assert np.allclose(checks.factors["gradient"], expected, rtol=1e-9) is live


@pytest.mark.parametrize("family", ["llama", "qwen3", "deepseek-v2"])
def test_models_in_half_precision(family: str) -> None:
    """Sums to a few roundings of bfloat16, 2^-8, of what is summed; heads name the modules of the model."""
    model, inputs = tiny(family, 2.0).bfloat16(), batch(family)
    split = attribute(model, 1, 2, inputs, sequence=0)
    for part in (split.keys, split.queries, split.pairs):
        assert part.sum() == pytest.approx(split.margin, abs=2**-8 * _size(split))
    checks = split.check(tolerance=0.2)
    assert checks.flipped["frozen"]["attribution"].all()
    precise = extract_head(tiny(family, 2.0), 1, 2, inputs)
    assert [place.path for place in extract_head(model, 1, 2, inputs).places] == [one.path for one in precise.places]


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_cross_attention(family: str) -> None:
    """The query's components are the decoder's, those of the keys the encoder's, by places of its text."""
    model, inputs = tiny(family), batch(family)
    layer = 5
    split = attribute(model, layer, 1, inputs, query=3, sequence=2)
    head = extract_head(model, layer, 1, inputs)
    (n,) = np.flatnonzero((head.sequence == 2) & (head.position == 3))
    logs = np.log(head.probabilities[n, head.mask[n]])
    tolerance = ROUNDING * (_size(split) + 1.0)
    assert split.margin == pytest.approx(logs[split.chosen] - logs[split.rival], abs=tolerance)
    for part in (split.keys, split.queries, split.pairs):
        assert part.sum() + split.bias == pytest.approx(split.margin, abs=tolerance)
    assert split.keys.shape[1] == 7  # of nine tokens of the encoder, two are padding
    assert split.queries.shape[1] == 5
    for side, part in (("encoder", split.keys), ("decoder", split.queries)):
        own = [c for c, one in enumerate(split.components) if one.name.startswith(side)]
        other = np.setdiff1d(np.arange(len(part)), [*own, [one.name for one in split.components].index("shared")])
        assert np.abs(part[own]).max() > 0
        assert not part[other].any()
    checks = {side: split.check(side) for side in ("query", "keys")}
    for one in checks.values():
        assert one.flipped["frozen"]["attribution"].all()
        assert one.flipped["frozen"]["random"].mean() <= 0.2


def test_padding_of_a_decoder_is_no_place_of_a_query() -> None:
    """Nor of a feature: each of the three queries of the last text has activations."""
    inputs = batch("t5")
    inputs["decoder_attention_mask"] = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [1, 1, 1, 0, 0]])
    split = attribute(tiny("t5"), 5, 1, inputs, query=2, sequence=2)
    assert split.queries.shape[1] == 3
    rng = np.random.default_rng(0)
    directions, activations = rng.normal(size=(2, 32)), rng.random((3, 2))
    options: dict[str, Any] = {"query": 2, "sequence": 2, "dictionary": directions}
    features = attribute(tiny("t5"), 5, 1, inputs, activations=activations, **options)
    assert [one.name for one in features.components if one.kind == "feature"] == ["feature 0", "feature 1"]
    with pytest.raises(ValueError, match=r"\(3, n\) were expected"):
        attribute(tiny("t5"), 5, 1, inputs, activations=np.ones((5, 2)), **options)
    for part in (split.keys, split.queries, split.pairs):
        assert part.sum() + split.bias == pytest.approx(split.margin, abs=ROUNDING * (_size(split) + 1.0))


def test_kinds_of_tokens_are_no_positions() -> None:
    """Two segments: the numbers rise by one once, and those of positions at every token."""
    inputs = batch("bert")
    inputs["token_type_ids"] = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1]).expand(3, 9)
    split = attribute(tiny("bert"), 1, 2, inputs, sequence=0)
    kinds = {one.name: one.kind for one in split.components}
    assert kinds["embeddings.token_type_embeddings"] == "embedding"
    assert kinds["embeddings.position_embeddings"] == "position"


def test_a_null_token_is_an_additive_term() -> None:
    """Its score is the bias of the margin, and what is left the chosen token's whole logit."""
    model, inputs = tiny("gpt-oss"), batch("gpt-oss")
    head = extract_head(model, 1, 2, inputs)
    split = attribute(model, 1, 2, inputs, query=5, chosen=4, rival=0, sequence=0)
    assert head.sink is not None
    assert split.bias == pytest.approx(-head.sink)
    assert split.keys.sum() == pytest.approx(split.scores[4], abs=ROUNDING * _size(split))
    assert split.scores[0] == pytest.approx(head.sink)
    assert not split.keys[:, 0].any()  # it is no place that anything comes from
    top = attribute(model, 1, 2, inputs, query=5, sequence=0)
    for side in ("query", "keys"):
        assert top.check(side).flipped["frozen"]["attribution"].all()


def test_layers_that_share_their_weights_are_told_apart() -> None:
    """Three layers of ALBERT are three calls of one module; each attribution is of its own."""
    config = AlbertConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, vocab_size=60,
        max_position_embeddings=64, embedding_size=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AlbertModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 4.0
    inputs = batch("albert")
    for layer in range(3):
        split = attribute(model, layer, 1, inputs, sequence=0)
        head = extract_head(model, layer, 1, inputs)
        logs = np.log(head.probabilities[8, [split.chosen, split.rival]])
        assert split.margin == pytest.approx(logs[0] - logs[1], abs=ROUNDING * (_size(split) + 1.0))
        heads = [(one.layer, one.head) for one in split.components if one.kind == "head"]
        assert heads == [(n, h) for n in range(layer) for h in range(4)]
        assert len({one.name for one in split.components}) == len(split.components)
        assert split.check(most=8).flipped["frozen"]["attribution"].all()


def test_heads_without_projections_as_modules_are_refused() -> None:
    """A tensor of weights that an attention module holds itself is read by no module."""
    tape, call = Tape(torch.nn.Linear(2, 2)), SimpleNamespace(
        query=torch.zeros(1, 1, 3, 2), key=torch.zeros(1, 1, 3, 2), calls=(), path="attn"
    )  # fmt: skip
    place = Place("attn", 0, 2, rows=False, factor=1.0, kind="weights")
    with pytest.raises(ValueError, match=r"are made by no module that reads a hidden state \(attn\)"):
        origin(tape, call, place, "query", None)  # type: ignore[arg-type]
