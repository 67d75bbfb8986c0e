"""Read the heads of one attention call, and check them against the recorded attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from attsvm_pretrained.activations import tokens
from attsvm_pretrained.activations.maps import AffineMap
from attsvm_pretrained.activations.recording import AttentionCall, Stream
from attsvm_pretrained.activations.relative import RelativeForm, relative_forms
from attsvm_pretrained.activations.repetition import in_float64, too_coarse
from attsvm_pretrained.activations.sources import explain
from attsvm_pretrained.heads.head import AttentionHead
from attsvm_pretrained.heads.rotary import Turns

# Difference between the model's probabilities and the head's up to which the head always passes.
PROBABILITY_TOLERANCE = 1e-5
# Largest rounding error of a score q.k, in units of eps |q||k|; half of it reaches a probability.
SCORE_ROUNDINGS = 8.0
# Tolerance of probabilities above which a check does not decide; the module then runs again in float64.
LOOSEST = 1e-3
# Arguments of an attention function that a head stores: a soft cap, and the scores of null tokens.
_SOFT_CAP, SINKS = "softcap", "s_aux"
NULL_TOKEN = "[null]"


class OutsideForm(ValueError):
    """Raised for attention that is not bilinear in any precision."""


class HeadReader:
    """Reads the heads of one attention call."""

    def __init__(self, call: AttentionCall, layer: int, model: Any, streams: list[Stream], tokenizer: Any) -> None:
        self.call = call
        self.layer = layer
        self._model = model
        self._streams = streams
        self._tokenizer = tokenizer
        self._visible, self._additive = tokens.read_mask(call)  # (B, H or 1, Tq, Tk) each
        self._shared = tokens.Shared()

    def heads(self, numbers: list[int] | None) -> list[int]:
        """Check numbers of heads; negative numbers count from the end."""
        count = self.call.query.shape[1]
        for head in numbers or ():
            if not -count <= head < count:
                raise ValueError(f"head is {head}; a number from 0 to {count - 1} was expected in layer {self.layer}.")
        return list(range(count)) if numbers is None else [head % count for head in numbers]

    @property
    def short(self) -> bool:
        """Whether the call's own dtype is too coarse to check a head to 1e-5."""
        return too_coarse(self.call)

    def in_float64(self) -> Iterator[HeadReader]:
        """Yield readers of the call, repeated in float64 on the same hidden states; none if that does not run."""
        for call in in_float64(self.call):
            yield HeadReader(call, self.layer, self._model, self._streams, self._tokenizer)

    def rounding(self, head: AttentionHead) -> float:
        """Largest difference of the model's own probabilities from a head's."""
        recorded = self.call.probabilities[:, head.head].double().cpu().numpy()[head.sequence, _rows(head)]
        return float(np.abs(recorded - head.probabilities[:, -recorded.shape[1] :]).max())

    def read(self, h: int) -> AttentionHead:
        """Explain a head and check it against the model."""
        call, shared = self.call, self._shared
        _refuse_extras(call)
        query, key, rotation = explain(call, h)
        self_attention = query.reads_like(key)
        query_mask = tokens.query_mask(call, self._visible, self_attention=self_attention)
        where = np.nonzero(query_mask)
        stream = tokens.key_stream(call, self._streams, self_attention=self_attention)
        ids = tokens.identifiers(stream, (call.key.shape[0], call.key.shape[2]))
        texts, special = tokens.token_texts(ids, self._tokenizer)
        query_bias = query.bias is not None
        # A key bias adds one number to all scores of a query, except under rotary positions.
        key_bias = key.bias is not None and (rotation is not None or bool(call.relative))
        turns = None
        if rotation is not None:
            table = rotation.turns.cpu().numpy()
            turns = Turns(rotation.pairs.cpu().numpy(), table, table[where])
        mask = self._visible[:, min(h, self._visible.shape[1] - 1)][where]
        bias = None
        if self._additive is not None:
            bias = np.where(mask, self._additive[:, min(h, self._additive.shape[1] - 1)][where], 0.0)
        sinks = call.extras.get(SINKS)
        result = AttentionHead(
            model=type(self._model).__name__,
            name=call.path,
            layer=self.layer,
            head=h,
            tokens=shared.tokens(key, key_bias),
            queries=shared.queries(query, query_bias, where),
            sequence=where[0],
            position=where[1],
            text_place=tokens.text_places(self._visible, query_mask, stream),
            mask=mask,
            K=_factor(key, key_bias),
            Q=_factor(query, query_bias) * call.scaling,
            turns=turns,
            bias=bias,
            probabilities=call.probabilities[:, h].double().cpu().numpy()[where],
            scale=call.scaling,
            error=0.0,
            places=(key.place, query.place),
            self_attention=self_attention,
            ids=ids,
            texts=texts,
            special=special,
            softcap=call.extras.get(_SOFT_CAP),
        )
        if call.relative:
            result = with_relative_forms(result, relative_forms(call, h, where))
        if sinks is not None:
            result = with_null_token(result, float(sinks.detach().flatten()[h]), shared)
        error = float(np.abs(result.attention() - result.probabilities).max())
        tolerance = _tolerance(call, h)
        if not error <= min(tolerance, LOOSEST):
            raise ValueError(
                f"head {h} of {call.path} was extracted with an error of {error:.1e} against the model's own "
                f"attention, above {min(tolerance, LOOSEST):.0e}: there is more to it than a (rotated) bilinear form "
                "and a bias."
            )
        return replace(result, error=error)


def _tolerance(call: AttentionCall, h: int) -> float:
    """Return the largest error of rounding: of scores in the call's dtype, and of a softmax computed in float32."""
    query, key = call.query[:, h].double(), call.key[:, h * call.key.shape[1] // call.query.shape[1]].double()
    lengths = query.norm(dim=-1).amax(dim=1) * key.norm(dim=-1).amax(dim=1) * abs(call.scaling)
    largest = ((query @ key.mT).abs().amax() * abs(call.scaling)).item()
    of_scores = SCORE_ROUNDINGS * torch.finfo(call.query.dtype).eps * float(lengths.max())
    return max(PROBABILITY_TOLERANCE, 0.5 * (of_scores + torch.finfo(torch.float32).eps * largest))


def _refuse_extras(call: AttentionCall) -> None:
    strangers = [name for name in call.extras if name not in (_SOFT_CAP, SINKS)]
    if strangers:
        raise OutsideForm(
            f"{call.path} ({type(call.module).__name__}) computes attention with an argument {strangers[0]!r}, which "
            "is outside the bilinear form x^T W z that an attention SVM speaks of."
        )


def with_relative_forms(head: AttentionHead, forms: tuple[RelativeForm, ...]) -> AttentionHead:
    """Add forms of content and relative position to the additive term."""
    keys, queries = head.tokens @ head.K, head.queries @ head.Q
    relative = sum(form.scores(keys, queries, head.sequence) for form in forms)
    bias = np.where(head.mask, relative, 0.0) + (0.0 if head.bias is None else head.bias)
    return replace(head, bias=bias, relative=forms)


def with_null_token(head: AttentionHead, score: float, shared: tokens.Shared) -> AttentionHead:
    """Put a token of vector 0 and a fixed score before each sequence; it gets the remaining attention."""

    def before(array: np.ndarray, value: float) -> np.ndarray:
        return np.pad(array, [(0, 0), (1, 0)], constant_values=value)

    n, T = head.mask.shape
    turns = head.turns
    if turns is not None:
        turns = Turns(turns.pairs, np.pad(turns.tokens, [(0, 0), (1, 0), (0, 0)], constant_values=1.0), turns.queries)
    bias = np.zeros((n, T)) if head.bias is None else head.bias
    null_attention = np.maximum(1.0 - head.probabilities.sum(axis=1), 0.0)
    return replace(
        head,
        tokens=shared.with_null(head.tokens),
        position=head.position + head.self_attention,
        text_place=before(np.where(head.text_place < 0, -1, head.text_place + 1), 0),
        mask=before(head.mask, value=True),
        turns=turns,
        bias=before(bias, score),
        probabilities=np.concatenate([null_attention[:, None], head.probabilities], axis=1),
        ids=None if head.ids is None else before(head.ids, -1),
        texts=None if head.texts is None else tuple((NULL_TOKEN, *text) for text in head.texts),
        special=None if head.special is None else before(head.special, value=False),
        sink=score,
    )


def _rows(head: AttentionHead) -> np.ndarray:
    """Return the rows of the queries in their sequences, without counting a null token."""
    return head.position - (head.self_attention and head.sink is not None)


def _factor(side: AffineMap, homogeneous: bool) -> np.ndarray:
    """Return A with the bias as a last row if there is one and ``homogeneous`` is set, (d, dh)."""
    factor = side.weight.cpu().numpy()
    if homogeneous and side.bias is not None:
        factor = np.concatenate([factor, side.bias.cpu().numpy()[None]])
    return factor
