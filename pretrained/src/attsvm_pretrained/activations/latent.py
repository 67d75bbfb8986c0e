r"""Queries and keys that consist of two parts, the second rotated by position.

Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) makes the first coordinates of a key from a normalised
latent vector c. The last coordinates, which carry the rotary positions, come from the hidden state h itself, for all
heads at once. For tokens :math:`x = (c, h)` this is one map again,

.. math:: K = \begin{pmatrix} W_{UK} & 0\\ 0 & W_{KR} \end{pmatrix},

and the first rows of :math:`K Q^\top` are the matrix :math:`W_{UK} W_{UQ}^\top` that inference of such models absorbs.
Queries are made in one piece, or from another latent.

The parts are found like other maps. The first coordinates of a key equal columns of some output. The last coordinates
have the lengths of columns: both differ by a rotation that queries and keys share, and by the order of the coordinates.
(A model may first separate neighbouring coordinates into two halves.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from attsvm_pretrained.activations.maps import SAMPLE, AffineMap, ColumnBlock, affine
from attsvm_pretrained.activations.recording import AttentionCall, ModuleCall
from attsvm_pretrained.activations.rotation import AGREE, Rotation, fit_rotation


def explain_parts(call: AttentionCall, head: int, group: int) -> tuple[AffineMap, AffineMap, Rotation] | None:
    """Find the maps behind queries and keys of two parts, and their rotation; None if there are none.

    ``head`` and ``group`` are the numbers of the query head and of the key head.
    """
    if call.query.shape != call.key.shape:
        return None
    calls = call.shared.setdefault("sequences", [_as_sequences(one) for one in call.calls])
    q, k = call.query[:, head].double(), call.key[:, group].double()  # (B, T, dh)
    width = k.shape[-1]
    for first_key in _equal(calls, k):
        cut = first_key.width
        if not 0 < cut < width - 1:
            continue
        for first_query in _equal(calls, q[..., :cut]):
            if first_query.width != cut:
                continue
            for last_query in _equally_long(calls, q[..., cut:]):
                for last_key in _equally_long(calls, k[..., cut:]):
                    match = _order_and_rotation(last_query, last_key, torch.stack([q, k], dim=2)[..., cut:])
                    if match is None:
                        continue
                    order, rotation = match
                    maps = [
                        _union(call, first, last, order)
                        for first, last in ((first_query, last_query), (first_key, last_key))
                    ]
                    if maps[0] is not None and maps[1] is not None:
                        return maps[0], maps[1], Rotation(rotation.pairs + cut, rotation.turns)
    return None


def _as_sequences(call: ModuleCall) -> ModuleCall:
    """Read vectors of a single head, (B, 1, T, d), as (B, T, d)."""
    if call.input.ndim == call.output.ndim == 4 and call.input.shape[1] == call.output.shape[1] == 1:
        return replace(call, input=call.input[:, 0], output=call.output[:, 0])
    return call


def _outputs(calls: list[ModuleCall], vectors: torch.Tensor) -> Iterator[tuple[ModuleCall, torch.Tensor]]:
    """Yield outputs (B, T, columns) that fit vectors (B, T, ...)."""
    for call in calls:
        if call.output.ndim == 3 and call.output.shape[:2] == vectors.shape[:2]:
            yield call, call.output[SAMPLE].detach().double()


def _equal(calls: list[ModuleCall], vectors: torch.Tensor) -> Iterator[ColumnBlock]:
    """Yield the columns that equal the first coordinates of vectors (B, T, dh)."""
    sample = vectors[SAMPLE]
    size = AGREE * float(sample.abs().max())
    for call, columns in _outputs(calls, vectors):
        for start in torch.nonzero((columns - sample[..., :1]).abs().amax(dim=(0, 1)) < size).flatten().tolist():
            most = min(sample.shape[-1], columns.shape[-1] - start)
            same = (columns[..., start : start + most] - sample[..., :most]).abs().amax(dim=(0, 1)) < size
            yield ColumnBlock(call, start, int(same.long().cumprod(dim=0).sum()), 1.0, heads_first=False)


def _equally_long(calls: list[ModuleCall], vectors: torch.Tensor) -> Iterator[ColumnBlock]:
    """Yield r columns with the lengths of vectors (B, T, r), up to one factor."""
    sample = vectors[SAMPLE]
    width, lengths = sample.shape[-1], sample.norm(dim=-1)
    for call, columns in _outputs(calls, vectors):
        if columns.shape[-1] < width:
            continue
        windows = columns.square().unfold(-1, width, 1).sum(dim=-1).sqrt()  # (B, T, starts)
        factors = (lengths[..., None] * windows).sum(dim=(0, 1)) / windows.square().sum(dim=(0, 1)).clamp_min(1e-300)
        wrong = (lengths[..., None] - factors * windows).abs().amax(dim=(0, 1))
        for start in torch.nonzero(wrong < AGREE * lengths.max()).flatten().tolist():
            factor = float(factors[start])
            yield ColumnBlock(call, start, width, 1.0 if abs(factor - 1.0) < AGREE else factor, heads_first=False)


def _order_and_rotation(
    query: ColumnBlock, key: ColumnBlock, after: torch.Tensor
) -> tuple[torch.Tensor, Rotation] | None:
    """Find the order of coordinates and the rotation that turn two blocks into vectors (B, T, 2, r)."""
    before = torch.stack([query.vectors(), key.vectors()], dim=2)
    identity = torch.arange(before.shape[-1])
    for order in (identity, torch.cat([identity[::2], identity[1::2]])):
        rotation = fit_rotation(before[..., order], after)
        if rotation is not None:
            return order, rotation
    return None


def _union(call: AttentionCall, first: ColumnBlock, last: ColumnBlock, order: torch.Tensor) -> AffineMap | None:
    """Join the maps of two parts; their tokens are concatenated unless both read the same."""
    one, two = affine(first, call.calls), affine(last, call.calls)
    if one is None or two is None:
        return None
    A, B = one.weight, two.weight[:, order]
    tokens = one.tokens
    if one.tokens is two.tokens:
        weight = torch.cat([A, B], dim=1)
    else:
        names = ("tokens", id(one.tokens), id(two.tokens))
        tokens = call.shared.setdefault(names, torch.cat([one.tokens, two.tokens], dim=-1))
        weight = torch.block_diag(A, B)
    bias = None
    if one.bias is not None or two.bias is not None:
        parts = (one.bias, A), (None if two.bias is None else two.bias[order], B)
        bias = torch.cat([A.new_zeros(A.shape[1]) if b is None else b for b, A in parts])
    place = replace(one.place, kind="parts")
    # A cache copies the source of a key's first part, but not the source of its last part.
    return AffineMap(tokens, weight, bias, place, _origin(two.source, call.calls))


def _origin(states: torch.Tensor, calls: tuple[ModuleCall, ...]) -> torch.Tensor:
    """Follow vectors back through the recorded calls that made them, the latest first; views share their storage."""
    for call in calls:
        if call.output.untyped_storage().data_ptr() == states.untyped_storage().data_ptr():
            states = call.input
    return states
