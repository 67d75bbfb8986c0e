r"""Split the logit of an answer over the components of the residual stream: first over heads, then over tokens.

The logit of token a at a position is :math:`w_a^\top h + b_a` with h the hidden state that the output embedding reads.
h is a sum of components (:mod:`attsvm_pretrained.activations.residual`), with a frozen denominator of the last norm.
The *direct effect* of a component is its product with :math:`w_a`, or with :math:`w_a - w_r` for the answer over a
rival. The output of a head is a sum over the tokens it reads, :math:`\sum_s p_{ts} v_s W_{O}`, and so is its direct
effect. :meth:`LogitAttribution.attend` then splits the margin by which a head attends to one token rather than another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from attsvm.platform.extras import frame
from attsvm.platform.summary import Worded
from attsvm_pretrained.activations.recording import recording
from attsvm_pretrained.activations.residual import Component, parts
from attsvm_pretrained.activations.tape import VectorIndex, record_tape
from attsvm_pretrained.attribution.attribution import Attribution
from attsvm_pretrained.attribution.contrast import attribute, component_order
from attsvm_pretrained.attribution.readings import rounding
from attsvm_pretrained.heads.extract import inner_model
from attsvm_pretrained.heads.inputs import on_device, tokenize

# Number of heads that a summary names.
MOST_HEADS = 3


@dataclass(frozen=True, eq=False, repr=False)
class LogitAttribution(Worded):
    """The logit of an answer, or its difference from the logit of a rival, split over components.

    Attributes
    ----------
    place : int
        Position in the text after which the answer comes.
    answer : int
        Token id.
    rival : int or None
    logit : float
        Result of the output embedding for the answer, minus its result for the rival, before any scale or cap.
    bias : float
        Part of the logit from a bias of the output embedding.
    components : tuple of Component
        C components.
    effects : ndarray, shape (C,)
        Direct effects; their sum is logit - bias.
    tokens : ndarray, shape (C, T)
        Direct effects by the position in the text that they come from; a head counts at the positions that it reads.
    vectors : ndarray, shape (C, d)
        Parts of the state that the output embedding reads; the part of a head is its output (OV).
    error : float
        Difference of the sum from logit - bias.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> model, inputs = pretrained.example_model("gpt2")
    >>> split = pretrained.attribute_logit(model, inputs, answer=9, rival=2)
    >>> bool(abs(split.effects.sum() + split.bias - split.logit) < 1e-6), split.by_head().shape
    (True, (2, 2))
    """

    place: int
    answer: int
    rival: int | None
    logit: float
    bias: float
    components: tuple[Component, ...]
    effects: np.ndarray
    tokens: np.ndarray
    vectors: np.ndarray
    error: float
    model: Any = field(repr=False)
    inputs: dict[str, Any] = field(repr=False)
    tokenizer: Any = field(repr=False)
    sequence: int = field(repr=False)

    @property
    def sentence(self) -> str:
        """State the logit and the heads with the largest direct effects."""
        what = f"token {self.answer}" if self.rival is None else f"token {self.answer} over token {self.rival}"
        heads = sorted((c for c, one in enumerate(self.components) if one.kind == "head"), key=self._size)[:MOST_HEADS]
        named = ", ".join(f"{self.components[c].layer}.{self.components[c].head} {self.effects[c]:+.3g}" for c in heads)
        total = sum(self.effects[c] for c, one in enumerate(self.components) if one.kind == "head")
        return (
            f"The logit of {what} at place {self.place} is {self.logit:.4g}; heads add {total:+.3g} directly, most of "
            f"all {named}."
            if named
            else f"The logit of {what} at place {self.place} is {self.logit:.4g}; no head adds to it directly."
        )

    def _size(self, c: int) -> float:
        return -abs(float(self.effects[c]))

    def by_head(self) -> np.ndarray:
        """Return the direct effects of heads, (layers, heads); nan for missing heads.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> split = pretrained.attribute_logit(model, inputs, answer=9)
        >>> split.by_head().shape
        (2, 2)
        """
        effects = {
            (one.layer, one.head): effect
            for one, effect in zip(self.components, self.effects, strict=True)
            if one.layer is not None and one.head is not None
        }
        out = np.full([max((at[axis] for at in effects), default=-1) + 1 for axis in range(2)], np.nan)
        for at, effect in effects.items():
            out[at] = effect
        return out

    def component(self, layer: int, head: int) -> int:
        """Return the number of a head among `components`.

        Raises
        ------
        ValueError
            If the head is no component.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> split = pretrained.attribute_logit(model, inputs, answer=9)
        >>> split.components[split.component(1, 0)].name
        'transformer.h.1.attn[0]'
        """
        for c, one in enumerate(self.components):
            if (one.kind, one.layer, one.head) == ("head", layer, head):
                return c
        raise ValueError(f"head {layer}.{head} is no component of the logit; a head of by_head() was expected.")

    def writes(self, layer: int, head: int) -> np.ndarray:
        """Return the direct effects of a head on the logits of all tokens of the vocabulary, (V,).

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> split = pretrained.attribute_logit(model, inputs, answer=9)
        >>> bool(abs(split.writes(1, 0)[9] - split.effects[split.component(1, 0)]) < 1e-9)
        True
        """
        weight = self.model.get_output_embeddings().weight.detach().double().cpu().numpy()
        return weight @ self.vectors[self.component(layer, head)]

    def attend(self, layer: int, head: int, *, chosen: int | None = None, rival: int | None = None) -> Attribution:
        """Split the margin by which a head attends at this position, as :func:`attsvm.pretrained.attribute` does.

        Parameters
        ----------
        layer, head : int
        chosen, rival : int, optional
            Positions in the text. Default: the two tokens that the head attends to most.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> split = pretrained.attribute_logit(model, inputs, answer=9, place=3)
        >>> split.attend(1, 0).query
        3
        """
        return attribute(
            self.model, layer, head, self.inputs, query=self.place, chosen=chosen, rival=rival,
            sequence=self.sequence, tokenizer=self.tokenizer,
        )  # fmt: skip

    def to_frame(self) -> Any:
        """List the components.

        Returns
        -------
        pandas.DataFrame
            Columns kind, name, layer, head and effect.

        Raises
        ------
        ImportError
            Without pandas.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> split = pretrained.attribute_logit(model, inputs, answer=9)
        >>> list(split.to_frame().columns)
        ['kind', 'name', 'layer', 'head', 'effect']
        """
        columns = {name: [getattr(one, name) for one in self.components] for name in ("kind", "name", "layer", "head")}
        return frame("LogitAttribution.to_frame", columns | {"effect": self.effects})


def attribute_logit(
    model: Any,
    inputs: Mapping[str, Any] | Sequence[str] | str,
    *,
    answer: int,
    rival: int | None = None,
    place: int = -1,
    sequence: int = 0,
    tokenizer: Any = None,
) -> LogitAttribution:
    """Split the logit of an answer exactly into the direct effects of embeddings, heads and MLPs.

    The whole forward pass is stored in memory: give it a text, not a corpus.

    Parameters
    ----------
    model : PreTrainedModel
        With an output embedding, such as AutoModelForCausalLM loads. It does not change. A TransformerBridge of
        TransformerLens or an nnsight wrapper of a model is accepted too.
    inputs : mapping, str or sequence of str
        Keyword arguments of the model, or texts, which need `tokenizer`.
    answer, rival : int
        Token ids. If a rival is given, the answer's logit minus the rival's logit is split.
    place : int
        Position in the text after which the answer comes; a negative position counts from the end.
    sequence : int
        Number of the text, if there are several.
    tokenizer : PreTrainedTokenizerBase, optional

    Returns
    -------
    LogitAttribution

    Raises
    ------
    ValueError
        If the model has no output embedding, there is no such token or position, or the hidden state is not the sum of
        its components.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> model, inputs = pretrained.example_model("gpt2")
    >>> split = pretrained.attribute_logit(model, inputs, answer=9, rival=2)
    >>> [component.name for component in split.components][3:6]
    ['transformer.h.0.attn[0]', 'transformer.h.0.attn[1]', 'transformer.h.0.mlp']
    """
    model = inner_model(model)
    batch = on_device(tokenize(inputs, tokenizer), model)
    unembedding = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if unembedding is None:
        raise ValueError(
            f"{type(model).__name__} has no output embedding; a model with a language-model head was expected."
        )
    weight = unembedding.weight.detach()
    for name, token in (("answer", answer), ("rival", rival)):
        if token is not None and not 0 <= token < len(weight):
            raise ValueError(f"{name} is {token}; a token id from 0 to {len(weight) - 1} was expected.")
    path = next(path for path, module in model.named_modules() if module is unembedding)
    with recording(model, lambda index, name: False), record_tape(model) as tape, torch.no_grad():
        model(**batch)
    states = tape.inputs[path][-1]  # (B, T, d)
    rows = visible_rows(batch, states, sequence)
    visible = np.flatnonzero(rows)
    if not -len(visible) <= place < len(visible):
        raise ValueError(f"place is {place}; a place from 0 to {len(visible) - 1} was expected.")
    row = VectorIndex((sequence, int(visible[place])), tuple(states.shape[:2]))
    direction = weight[answer].double() - (0.0 if rival is None else weight[rival].double())
    direction = direction.cpu().numpy()
    spread = not getattr(
        getattr(model, "config", None), "is_encoder_decoder", False
    )  # where tokens of another sequence would be read
    split = parts(tape, states, row, direction, rows, spread=spread)
    state = row.of(states, states.shape[-1])
    components = tuple(sorted(split, key=component_order))
    vectors = np.array([split[one].vector for one in components])
    wrong, size = np.linalg.norm(vectors.sum(axis=0) - state), np.linalg.norm(vectors, axis=1).sum()
    if not wrong <= rounding(states.dtype) * size:
        raise ValueError(
            f"the hidden state that {path} reads differs by {wrong / np.linalg.norm(state):.1e} of its norm from the "
            "sum of what additions and norms explain, so its parts would not add up."
        )
    constant, bias = getattr(unembedding, "bias", None), 0.0
    if constant is not None:
        constant = constant.detach()
        bias = float(constant[answer]) - (0.0 if rival is None else float(constant[rival]))
    logit, effects = float(state @ direction) + bias, vectors @ direction
    return LogitAttribution(
        place=int(np.flatnonzero(visible == visible[place])[0]),
        answer=answer,
        rival=rival,
        logit=logit,
        bias=bias,
        components=components,
        effects=effects,
        tokens=np.array([split[one].places[visible] for one in components]),
        vectors=vectors,
        error=abs(float(effects.sum()) + bias - logit),
        model=model,
        inputs=batch,
        tokenizer=tokenizer,
        sequence=sequence,
    )


def visible_rows(batch: Mapping[str, Any], states: torch.Tensor, sequence: int) -> np.ndarray:
    """Mark the rows of a sequence that are no padding, bool (T,); raise ValueError if there is no such sequence."""
    if not 0 <= sequence < states.shape[0]:
        raise ValueError(f"sequence is {sequence}; a number from 0 to {states.shape[0] - 1} was expected.")
    for name in ("decoder_attention_mask", "attention_mask"):
        mask = batch.get(name)
        if isinstance(mask, torch.Tensor) and mask.shape == states.shape[:2]:
            return mask[sequence].bool().cpu().numpy()
    return np.ones(states.shape[1], dtype=bool)
