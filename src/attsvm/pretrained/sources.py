r"""Which affine map, of which tokens, made the queries and keys of a head.

Attention receives finished queries and keys. Between the hidden state and them every supported model has one affine map
a head, :math:`y = Ax + b`, then perhaps a rotation by position, and perhaps a constant factor. The map is found among
the calls recorded inside the attention module by what it put out:

* a call whose module holds a weight matrix and whose output *is* input times weight plus bias (torch's Linear and
  GPT-2's Conv1D differ by a transpose only): the head's queries are a block of consecutive columns of its output, so
  fused and interleaved projections need no special case, and x is the call's input;
* or a normalisation with elementwise gain (query/key norm): then the head is not bilinear in the hidden state, and x is
  the *normalised* vector, A the diagonal gain.

The latest call that explains a head is taken. The lengths of the vectors, which no rotation changes, single out the
block; equality of the vectors, up to one rotation for all heads, proves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from attsvm.pretrained.recording import AttentionCall, ModuleCall
from attsvm.pretrained.rotation import AGREE, Rotation, fit_rotation, relative_difference

Side = Literal["query", "key"]
# Sequences that a block is recognised by; the probabilities check all of them in the end.
SAMPLE = 4


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive columns of a recorded output that are the vectors of a head, up to scale and rotation.

    Attributes
    ----------
    call : ModuleCall
    start : int
        First column.
    vectors : Tensor, shape (B, T, dh)
        The columns, times `factor`.
    factor : float
        What the vectors that reached attention are longer by.
    """

    call: ModuleCall
    start: int
    vectors: torch.Tensor
    factor: float


@dataclass(frozen=True)
class Place:
    """Where in the model a head's map is written.

    Attributes
    ----------
    path : str
        Its module.
    start : int
        First of the dh columns of the module's output.
    rows : bool
        Whether output columns are rows of its weight (Linear) and not columns (Conv1D).
    factor : float
        What the map is larger by than the module's weight.
    kind : {"linear", "norm"}
    """

    path: str
    start: int
    rows: bool
    factor: float
    kind: Literal["linear", "norm"]


@dataclass(frozen=True, eq=False)
class AffineMap:
    """y = x A + b, the vectors of a head before any rotation.

    Attributes
    ----------
    tokens : Tensor, shape (B, T, d)
        x.
    weight : Tensor of float64, shape (d, dh)
        A, with the constant factor in it.
    bias : Tensor of float64, shape (dh,), or None
    place : Place
    """

    tokens: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    place: Place


def _as_columns(output: torch.Tensor, vectors: torch.Tensor) -> Iterator[torch.Tensor]:
    """Read an output as (B, T, columns), for vectors (B, heads, T, dh)."""
    B, _, T, width = vectors.shape
    if output.shape[:2] == (B, T):
        yield output.reshape(B, T, -1)
    if output.ndim == 4 and output.shape[0] == B and output.shape[2] == T and output.shape[3] == width:
        yield output.transpose(1, 2).reshape(B, T, -1)


def _blocks(call: AttentionCall, side: Side, head: int) -> Iterator[Block]:
    """Blocks of recorded outputs whose lengths are those of the head's vectors, up to one factor."""
    vectors = getattr(call, side)
    width = vectors.shape[-1]
    wanted = vectors[:, head].float().norm(dim=-1).flatten()  # (B*T,)
    for made in call.calls:
        for columns in _as_columns(made.output, vectors):
            count = columns.shape[-1] // width
            if count * width != columns.shape[-1]:
                continue
            lengths = columns.float().unflatten(-1, (count, width)).norm(dim=-1).flatten(0, 1)  # (B*T, count)
            factors = (wanted @ lengths) / lengths.square().sum(dim=0).clamp_min(torch.finfo(torch.float32).tiny)
            wrong = (wanted[:, None] - factors * lengths).abs().amax(dim=0)
            near = torch.nonzero(wrong <= AGREE * wanted.max()).flatten().tolist()
            for j in sorted(near, key=lambda j: abs(j - head)):
                start, factor = j * width, float(factors[j])
                factor = 1.0 if abs(factor - 1.0) < AGREE else factor
                yield Block(made, start, columns[..., start : start + width] * factor, factor)


def _candidate_pairs(call: AttentionCall, head: int, group: int) -> Iterator[tuple[Block, Block, Rotation | None]]:
    """Query and key blocks that explain a head, with the rotation that they share."""
    q = call.query[:SAMPLE, head].double()  # (B, Tq, dh)
    k = call.key[:SAMPLE, group].double()
    same = q.shape == k.shape
    for asked in _blocks(call, "query", head):
        plain = relative_difference(asked.vectors[:SAMPLE].double(), q) < AGREE
        if not plain and (not same or fit_rotation(asked.vectors[:SAMPLE, :, None], q[:, :, None]) is None):
            continue
        for read in _blocks(call, "key", group):
            if plain:
                if relative_difference(read.vectors[:SAMPLE].double(), k) < AGREE:
                    yield asked, read, None
                continue
            before = torch.stack([asked.vectors, read.vectors], dim=2)  # (B, T, 2, dh)
            rotation = fit_rotation(before, torch.stack([call.query[:, head], call.key[:, group]], dim=2))
            if rotation is not None:
                yield asked, read, rotation


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
        If no recorded call explains them; the sentence says what was found.
    """
    group = head * call.key.shape[1] // call.query.shape[1]
    for asked, read, rotation in _candidate_pairs(call, head, group):
        query, key = _affine(asked), _affine(read)
        if query is not None and key is not None:
            return query, key, rotation
    found = ", ".join(
        dict.fromkeys(f"{made.path.rpartition('.')[2]} ({type(made.module).__name__})" for made in call.calls)
    )
    raise ValueError(
        f"head {head} of {call.path} ({type(call.module).__name__}) is not supported: no linear map or norm, with or "
        f"without a rotation by position, gives the queries and keys that reached attention; found "
        f"{found or 'no call'}."
    )


def _affine(block: Block) -> AffineMap | None:
    """Read the module behind a block as an affine map; None when it is neither linear nor a norm."""
    module, width = block.call.module, block.vectors.shape[-1]
    weight = getattr(module, "weight", None)
    columns = slice(block.start, block.start + width)
    if isinstance(weight, torch.Tensor) and weight.ndim == 2:
        for rows in (True, False):
            matrix = weight.T if rows else weight
            if matrix.shape != (block.call.input.shape[-1], block.call.output.shape[-1]):
                continue
            bias = getattr(module, "bias", None)
            A = matrix[:, columns].detach().double() * block.factor
            b = None if bias is None else bias[columns].detach().double() * block.factor
            made = block.call.input.double() @ A + (0.0 if b is None else b)
            if relative_difference(made, block.vectors.double()) < AGREE:
                place = Place(block.call.path, block.start, rows, block.factor, "linear")
                return AffineMap(block.call.input, A, b, place)
        return None
    return _norm(block, columns)


def _norm(block: Block, columns: slice) -> AffineMap | None:
    """Divide the gain out of a normalisation's output."""
    module = block.call.module
    if any(parameter.ndim != 1 for parameter in module.parameters()):
        return None
    entered = block.call.input.double()
    if entered.shape != block.call.output.shape:
        return None
    gain, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    out = block.call.output.double()
    centred = entered - entered.mean(dim=-1, keepdim=True)
    shift = torch.zeros(out.shape[-1], dtype=torch.float64) if bias is None else bias.detach().double()
    one = torch.ones_like(shift)
    # A norm multiplies by its gain, or by one plus it (Gemma): the right reading is parallel to what went in.
    for scale in (one,) if gain is None else (gain.detach().double(), 1.0 + gain.detach().double()):
        if not (scale != 0).all():
            continue
        normalised = (out - shift) / scale
        if _parallel(normalised, entered) or _parallel(normalised, centred):
            index = torch.arange(columns.start, columns.stop) % len(one)  # a gain of one head serves all of them
            A = torch.diag(scale[index]) * block.factor
            b = None if bias is None else shift[index] * block.factor
            tokens = (block.vectors.double() - (0.0 if b is None else b)) / torch.diagonal(A)
            return AffineMap(tokens, A, b, Place(block.call.path, block.start, True, block.factor, "norm"))
    return None


def _parallel(these: torch.Tensor, those: torch.Tensor) -> bool:
    """Tell whether vectors point the same way, those of length zero apart (the embedding of padding may be zero)."""
    lengths = those.norm(dim=-1)
    cosines = nn.functional.cosine_similarity(these, those, dim=-1)[lengths > AGREE * lengths.max()]
    return bool((cosines > 1.0 - AGREE).all())
