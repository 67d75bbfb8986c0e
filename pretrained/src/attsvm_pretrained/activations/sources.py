r"""Find the affine maps that made the queries and keys of a head, and the tokens that the maps read.

Attention receives finished queries and keys. In every supported model, one affine map per head, :math:`y = Ax + b`,
leads from the hidden state to them; a rotation by position and a constant factor may follow. The map is identified by
its output among the calls recorded inside the attention module. There are four cases.

* The module of a call has a weight matrix, and its output *is* input times weight plus bias. (torch's Linear and
  GPT-2's Conv1D differ only by a transpose.) The head's queries are a block of consecutive columns of the output, so
  fused and interleaved projections need no special case. x is the input of the call. A bias that is a separate
  parameter (DeBERTa) is found as the constant difference between the vectors and the columns.
* The module is a normalisation with elementwise gain (query/key norm). The head is then not bilinear in the hidden
  state: x is the *normalised* vector and A the diagonal gain.
* The vectors consist of parts (:mod:`attsvm_pretrained.activations.latent`).
* The attention module stores its weights as tensors (:mod:`attsvm_pretrained.activations.weights`).

The latest call that explains a head is used. The block is found by the lengths of its vectors, which no rotation
changes. It is accepted if the vectors are equal up to one rotation that queries and keys share.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attsvm_pretrained.activations.latent import explain_parts
from attsvm_pretrained.activations.maps import SAMPLE, AffineMap, ColumnBlock, affine, as_columns
from attsvm_pretrained.activations.recording import AttentionCall, ModuleCall
from attsvm_pretrained.activations.rotation import AGREE, Rotation, fit_rotation, relative_difference
from attsvm_pretrained.activations.weights import explain_weights


def _readings(output: torch.Tensor, vectors: torch.Tensor) -> Iterator[bool]:
    """Yield the ways to read an output as vectors (B, heads, T, dh): whether heads come before positions."""
    B, _, T, width = vectors.shape
    if output.ndim > 2 and output.shape[:2] == (B, T):
        yield False
    if output.ndim == 4 and output.shape[0] == B and output.shape[2:] == (T, width):
        yield True


def _blocks(
    calls: tuple[ModuleCall, ...], vectors: torch.Tensor, head: int, *, centred: bool = False
) -> Iterator[ColumnBlock]:
    """Yield blocks of recorded outputs whose lengths equal the lengths of a head's vectors, up to one factor.

    ``centred`` subtracts the mean over all tokens first, so that block and vectors may also differ by a constant.
    """
    width = vectors.shape[-1]
    target = vectors[SAMPLE, head].float()  # (B, T, dh)
    mean = target.mean(dim=(0, 1))
    target_lengths = (target - mean if centred else target).norm(dim=-1).flatten()  # (B*T,)
    for call_inside in calls:
        for heads_first in _readings(call_inside.output, vectors):
            columns = as_columns(call_inside.output[SAMPLE], heads_first).float()
            count = columns.shape[-1] // width
            if count * width != columns.shape[-1]:
                continue
            means = columns.mean(dim=(0, 1))
            columns = columns - means if centred else columns
            lengths = columns.unflatten(-1, (count, width)).norm(dim=-1).flatten(0, 1)  # (B*T, count)
            factors = (target_lengths @ lengths) / lengths.square().sum(dim=0).clamp_min(
                torch.finfo(torch.float32).tiny
            )
            wrong = (target_lengths[:, None] - factors * lengths).abs().amax(dim=0)
            near = torch.nonzero(wrong <= AGREE * target_lengths.max()).flatten().tolist()
            for j in sorted(near, key=lambda j: abs(j - head)):
                factor = float(factors[j])
                factor = 1.0 if abs(factor - 1.0) < AGREE else factor
                offset = (mean - factor * means[j * width : (j + 1) * width]).double() if centred else None
                yield ColumnBlock(call_inside, j * width, width, factor, heads_first, offset)


def _plain(block: ColumnBlock, vectors: torch.Tensor) -> bool:
    """Tell whether a block equals vectors (B, T, dh)."""
    return relative_difference(block.vectors(SAMPLE), vectors[SAMPLE].double()) < AGREE


def _candidate_pairs(
    call: AttentionCall, head: int, group: int
) -> Iterator[tuple[ColumnBlock, ColumnBlock, Rotation | None]]:
    """Yield query and key blocks that explain a head, with the rotation that they share."""
    q, k = call.query[:, head].double(), call.key[:, group].double()  # (B, T, dh)
    for query_block in _blocks(call.calls, call.query, head):
        plain = _plain(query_block, q)
        is_rotation = (
            not plain and fit_rotation(query_block.vectors(SAMPLE)[:, :, None], q[SAMPLE, :, None]) is not None
        )
        if not plain and (not is_rotation or q.shape != k.shape):
            continue
        for key_block in _blocks(call.calls, call.key, group):
            if plain:
                if _plain(key_block, k):
                    yield query_block, key_block, None
                continue
            before = torch.stack([query_block.vectors(), key_block.vectors()], dim=2)  # (B, T, 2, dh)
            rotation = fit_rotation(before, torch.stack([q, k], dim=2))
            if rotation is not None:
                yield query_block, key_block, rotation


def explain_vectors(calls: tuple[ModuleCall, ...], vectors: torch.Tensor, head: int) -> AffineMap | None:
    """Find the affine map behind vectors (B, heads, T, dh) of a head that are not rotated; None if there is none."""
    for centred in (False, True):
        for block in _blocks(calls, vectors, head, centred=centred):
            side = affine(block, calls) if _plain(block, vectors[:, head]) else None
            if side is not None:
                return side
    return None


def explain(call: AttentionCall, head: int) -> tuple[AffineMap, AffineMap, Rotation | None]:
    """Find the affine maps behind a head's queries and keys, and their rotation.

    Parameters
    ----------
    call : AttentionCall
    head : int

    Returns
    -------
    query, key : AffineMap
    rotation : Rotation or None

    Raises
    ------
    ValueError
        If no recorded call explains them; the message names the recorded modules.
    """
    group = head * call.key.shape[1] // call.query.shape[1]
    for query_block, key_block, rotation in _candidate_pairs(call, head, group):
        query, key = affine(query_block, call.calls), affine(key_block, call.calls)
        if query is not None and key is not None:
            return query, key, rotation
    query, key = explain_vectors(call.calls, call.query, head), explain_vectors(call.calls, call.key, group)
    if query is not None and key is not None:
        return query, key, None
    for other_way in (explain_parts, explain_weights):
        maps = other_way(call, head, group)
        if maps is not None:
            return maps
    names = ", ".join(
        dict.fromkeys(f"{inner.path.rpartition('.')[2]} ({type(inner.module).__name__})" for inner in call.calls)
    )
    raise ValueError(
        f"head {head} of {call.path} ({type(call.module).__name__}) is not supported: no linear map or norm, with or "
        f"without a rotation by position, gives the queries and keys that reached attention; found "
        f"{names or 'no call'}."
    )
