"""The tokens of a recorded attention call: queries, padding, positions and text."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attsvm_pretrained.activations.maps import AffineMap
from attsvm_pretrained.activations.recording import AttentionCall, Stream


def read_mask(call: AttentionCall) -> tuple[np.ndarray, np.ndarray | None]:
    """Split the mask into visible tokens and an additive term, (B, H or 1, Tq, Tk) each."""
    B, _, Tq, _ = call.query.shape
    Tk = call.key.shape[2]
    visible = torch.ones(B, 1, Tq, Tk, dtype=torch.bool)
    additive = None
    if call.bias is not None:
        additive = call.bias.detach().double().expand(B, -1, -1, -1)
    if call.mask is not None:
        call_mask = call.mask[..., :Tk].detach()
        if call_mask.dtype == torch.bool:
            visible = call_mask
        else:
            visible = call_mask > torch.finfo(call_mask.dtype).min / 2
            rest = torch.where(visible, call_mask, 0.0).double()
            if rest.any():
                additive = rest if additive is None else additive + rest
        visible = visible.expand(B, -1, Tq, -1)
    spread = None if additive is None or not additive.any() else additive.expand(B, -1, Tq, -1).cpu().numpy()
    return visible.cpu().numpy(), spread


def _padding(stream: Stream, shape: tuple[int, ...]) -> np.ndarray | None:
    """Mark tokens that are not padding, bool (B, T), if the stream has a mask."""
    if stream.padding is None or tuple(stream.padding.shape) != shape:
        return None
    return stream.padding.bool().cpu().numpy()


def query_mask(call: AttentionCall, visible: np.ndarray, *, self_attention: bool) -> np.ndarray:
    """Mark the positions of queries: no padding, and at least one visible token; bool (B, Tq)."""
    sees = np.asarray(visible.any(axis=(1, 3)))
    text = _padding(call.stream, sees.shape)
    if text is not None:
        return sees & text
    return sees & np.diagonal(visible.any(axis=1), axis1=1, axis2=2) if self_attention else sees


def key_stream(call: AttentionCall, streams: list[Stream], *, self_attention: bool) -> Stream:
    """Find the inputs of the keys; under cross-attention, of another part of the model with that number of tokens."""
    if self_attention:
        return call.stream
    shape = call.key.shape[0], call.key.shape[2]
    for stream in streams:
        if stream.ids is not None and stream.ids is not call.stream.ids and tuple(stream.ids.shape) == shape:
            return stream
    return Stream(None, None)


def text_places(visible: np.ndarray, queries: np.ndarray, stream: Stream) -> np.ndarray:
    """Count the tokens of each text from 0, with -1 for padding; int (B, Tk)."""
    shape = visible.shape[0], visible.shape[3]
    seen = (visible.any(axis=1) & queries[:, :, None]).any(axis=1)
    text = _padding(stream, shape)
    counts = seen if text is None else seen | text
    return np.where(counts, np.cumsum(counts, axis=1) - 1, -1)


def identifiers(stream: Stream, shape: tuple[int, int]) -> np.ndarray | None:
    """Return the token ids of the keys, int (B, Tk); None if they have none."""
    return stream.ids.cpu().numpy() if stream.ids is not None and tuple(stream.ids.shape) == shape else None


def token_texts(ids: np.ndarray | None, tokenizer: Any) -> tuple[tuple[tuple[str, ...], ...] | None, np.ndarray | None]:
    """Return the text of every token, and a mask of the tokens that the tokenizer adds."""
    if tokenizer is None or ids is None:
        return None, None
    texts = tuple(tuple(tokenizer.convert_ids_to_tokens(row.tolist())) for row in ids)
    return texts, np.isin(ids, list(tokenizer.all_special_ids))


class Shared:
    """Arrays of tokens and queries, made once for all heads of a layer that read the same tensor."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[int, bool], tuple[torch.Tensor, np.ndarray]] = {}
        self._queries: dict[int, np.ndarray] = {}
        self._with_null: dict[int, np.ndarray] = {}

    def tokens(self, side: AffineMap, homogeneous: bool) -> np.ndarray:
        """Return x, with a last coordinate 1 if ``homogeneous``, (B, T, d)."""
        slot = (id(side.tokens), homogeneous)
        if slot not in self._tokens:
            x = side.tokens.detach().double().cpu().numpy()
            if homogeneous:
                x = np.concatenate([x, np.ones((*x.shape[:2], 1))], axis=2)
            self._tokens[slot] = (side.tokens, x)  # a stored tensor is not freed, so its id stays unique
        return self._tokens[slot][1]

    def queries(self, side: AffineMap, homogeneous: bool, where: tuple[np.ndarray, ...]) -> np.ndarray:
        """Return the queries z, (n, dz)."""
        z = self.tokens(side, homogeneous)
        if id(z) not in self._queries:
            self._queries[id(z)] = z[where]
        return self._queries[id(z)]

    def with_null(self, tokens: np.ndarray) -> np.ndarray:
        """Return tokens with a zero vector before each sequence, (B, T + 1, d)."""
        if id(tokens) not in self._with_null:
            self._with_null[id(tokens)] = np.pad(tokens, [(0, 0), (1, 0), (0, 0)])
        return self._with_null[id(tokens)]
