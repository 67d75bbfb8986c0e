r"""Which affine map, of which tokens, made the queries and keys of a head.

Attention receives finished queries and keys. Between the hidden state and them every supported model has one affine map
a head, :math:`y = Ax + b`, then perhaps a rotation by position, and perhaps a constant factor. The map is found among
the calls recorded inside the attention module by what it put out:

* a call whose module holds a weight matrix and whose output *is* input times weight plus bias (torch's Linear and
  GPT-2's Conv1D differ by a transpose only): the head's queries are a block of consecutive columns of its output, so
  fused and interleaved projections need no special case, and x is the call's input; a bias that is a parameter beside
  the module (DeBERTa) is the constant that all vectors differ by;
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

# Sequences that a block is recognised by; the probabilities check all of them in the end.
SAMPLE = slice(0, 4)


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive columns of a recorded output that are the vectors of a head, up to scale and rotation.

    Attributes
    ----------
    call : ModuleCall
    start, width : int
        First column and their number.
    factor : float
        What the vectors that reached attention are longer by.
    heads_first : bool
        Whether the output is (B, heads, T, dh) and not (B, T, ...).
    offset : Tensor of float64, shape (dh,), or None
        What is added to the columns beside.
    """

    call: ModuleCall
    start: int
    width: int
    factor: float
    heads_first: bool
    offset: torch.Tensor | None = None

    @property
    def columns(self) -> slice:
        """Where the block is."""
        return slice(self.start, self.start + self.width)

    def vectors(self, sequences: slice = slice(None)) -> torch.Tensor:
        """Return the columns, times the factor, plus the offset, of some sequences: (B, T, dh), float64."""
        columns = _as_columns(self.call.output[sequences], self.heads_first)
        scaled = columns[..., self.columns].double() * self.factor
        return scaled if self.offset is None else scaled + self.offset


@dataclass(frozen=True)
class Place:
    """Where in the model a head's map is written.

    Attributes
    ----------
    path : str
        Its module.
    start, width : int
        First of the dh columns of the module's output, and dh.
    rows : bool
        Whether output columns are rows of its weight (Linear) and not columns (Conv1D).
    factor : float
        What the map is larger by than the module's weight.
    kind : {"linear", "norm"}
    """

    path: str
    start: int
    width: int
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
    source : Tensor
        The hidden states that were projected: x itself, or, behind a norm, what its projection read.
    """

    tokens: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    place: Place
    source: torch.Tensor

    def reads_like(self, other: AffineMap) -> bool:
        """Tell whether both read the same hidden states, as queries and keys of self-attention do."""
        a, b = self.source, other.source
        return a is b or (a.shape == b.shape and torch.equal(a, b))


def _as_columns(output: torch.Tensor, heads_first: bool) -> torch.Tensor:
    """Read an output as (B, T, columns)."""
    return (output.transpose(1, 2) if heads_first else output).flatten(2)


def _readings(output: torch.Tensor, vectors: torch.Tensor) -> Iterator[bool]:
    """Tell in which ways an output can be read as vectors of this shape, (B, heads, T, dh)."""
    B, _, T, width = vectors.shape
    if output.ndim > 2 and output.shape[:2] == (B, T):
        yield False
    if output.ndim == 4 and output.shape[0] == B and output.shape[2:] == (T, width):
        yield True


def _blocks(
    calls: tuple[ModuleCall, ...], vectors: torch.Tensor, head: int, *, centred: bool = False
) -> Iterator[Block]:
    """Blocks of recorded outputs whose lengths are those of a head's vectors, up to one factor.

    Centred, the mean over all tokens is taken off first, so that a constant may lie between.
    """
    width = vectors.shape[-1]
    target = vectors[SAMPLE, head].float()  # (B, T, dh)
    mean = target.mean(dim=(0, 1))
    target_lengths = (target - mean if centred else target).norm(dim=-1).flatten()  # (B*T,)
    for call_inside in calls:
        for heads_first in _readings(call_inside.output, vectors):
            columns = _as_columns(call_inside.output[SAMPLE], heads_first).float()
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
                yield Block(call_inside, j * width, width, factor, heads_first, offset)


def _plain(block: Block, vectors: torch.Tensor) -> bool:
    """Tell whether a block is vectors (B, T, dh) themselves."""
    return relative_difference(block.vectors(SAMPLE), vectors[SAMPLE].double()) < AGREE


def _candidate_pairs(call: AttentionCall, head: int, group: int) -> Iterator[tuple[Block, Block, Rotation | None]]:
    """Query and key blocks that explain a head, with the rotation that they share."""
    q, k = call.query[:, head].double(), call.key[:, group].double()  # (B, T, dh)
    for query_block in _blocks(call.calls, call.query, head):
        plain = _plain(query_block, q)
        is_rotation = (
            not plain and fit_rotation(query_block.vectors(SAMPLE)[:, :, None], q[SAMPLE, :, None]) is not None
        )
        if not plain and (not is_rotation or q.shape != k.shape):
            continue
        for read in _blocks(call.calls, call.key, group):
            if plain:
                if _plain(read, k):
                    yield query_block, read, None
                continue
            before = torch.stack([query_block.vectors(), read.vectors()], dim=2)  # (B, T, 2, dh)
            rotation = fit_rotation(before, torch.stack([q, k], dim=2))
            if rotation is not None:
                yield query_block, read, rotation


def explain_vectors(calls: tuple[ModuleCall, ...], vectors: torch.Tensor, head: int) -> AffineMap | None:
    """Find the affine map behind vectors (B, heads, T, dh) of a head that are not rotated; None if there is none."""
    for centred in (False, True):
        for block in _blocks(calls, vectors, head, centred=centred):
            found = _affine(block, calls) if _plain(block, vectors[:, head]) else None
            if found is not None:
                return found
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
        If no recorded call explains them; the sentence says what was found.
    """
    group = head * call.key.shape[1] // call.query.shape[1]
    for query_block, read, rotation in _candidate_pairs(call, head, group):
        query, key = _affine(query_block, call.calls), _affine(read, call.calls)
        if query is not None and key is not None:
            return query, key, rotation
    asked, seen = explain_vectors(call.calls, call.query, head), explain_vectors(call.calls, call.key, group)
    if asked is not None and seen is not None:
        return asked, seen, None
    names = ", ".join(
        dict.fromkeys(f"{inner.path.rpartition('.')[2]} ({type(inner.module).__name__})" for inner in call.calls)
    )
    raise ValueError(
        f"head {head} of {call.path} ({type(call.module).__name__}) is not supported: no linear map or norm, with or "
        f"without a rotation by position, gives the queries and keys that reached attention; found "
        f"{names or 'no call'}."
    )


def _affine(block: Block, calls: tuple[ModuleCall, ...]) -> AffineMap | None:
    """Read the module behind a block as an affine map; None when it is neither linear nor a norm."""
    module = block.call.module
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
        return _norm(block, calls)
    for rows in (True, False):
        matrix = weight.T if rows else weight
        if matrix.shape != (block.call.input.shape[-1], block.call.output.shape[-1]):
            continue
        A, own = matrix[:, block.columns].detach().double(), getattr(module, "bias", None)
        b = A.new_zeros(block.width) if own is None else own[block.columns].detach().double()
        image = block.call.input[SAMPLE].detach().double() @ A + b
        # The output recorded may have been scaled in place since; what reached attention is the image times this.
        vectors = block.vectors(SAMPLE) - (0.0 if block.offset is None else block.offset)
        factor = float((vectors * image).sum() / image.square().sum().clamp_min(torch.finfo(torch.float64).tiny))
        factor = block.factor if abs(factor - block.factor) < AGREE * abs(factor) else factor
        if relative_difference(factor * image, vectors) < AGREE:
            place = Place(block.call.path, block.start, block.width, rows, factor, "linear")
            bias = factor * b + (0.0 if block.offset is None else block.offset)
            has_bias = own is not None or block.offset is not None
            return AffineMap(block.call.input, factor * A, bias if has_bias else None, place, block.call.input)
    return None


def _projected(normalised: torch.Tensor, calls: tuple[ModuleCall, ...]) -> torch.Tensor:
    """Follow what a norm read back to the input of the call that put it out; views share its storage."""
    storage = normalised.untyped_storage().data_ptr()
    makers = (call.input for call in calls if call.output.untyped_storage().data_ptr() == storage)
    return next(makers, normalised)


def _norm(block: Block, calls: tuple[ModuleCall, ...]) -> AffineMap | None:
    """Divide the gain out of a normalisation's output."""
    module = block.call.module
    if (
        block.offset is not None
        or block.call.input.shape != block.call.output.shape
        or any(p.ndim != 1 for p in module.parameters())
    ):
        return None
    states, out = block.call.input[SAMPLE].double(), block.call.output[SAMPLE].double()
    centred = states - states.mean(dim=-1, keepdim=True)
    gain, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    shift = torch.zeros(out.shape[-1], dtype=torch.float64) if bias is None else bias.detach().double()
    one = torch.ones_like(shift)
    # A norm multiplies by its gain, or by one plus it (Gemma): the right reading is parallel to what went in.
    for scale in (one,) if gain is None else (gain.detach().double(), 1.0 + gain.detach().double()):
        if not (scale != 0).all():
            continue
        normalised = (out - shift) / scale
        if _parallel(normalised, states) or _parallel(normalised, centred):
            index = torch.arange(block.start, block.start + block.width) % len(one)  # one head's gain serves all
            A = scale[index] * block.factor
            b = None if bias is None else shift[index] * block.factor
            tokens = (block.vectors() - (0.0 if b is None else b)) / A
            place = Place(block.call.path, block.start, block.width, True, block.factor, "norm")
            return AffineMap(tokens, torch.diag(A), b, place, _projected(block.call.input, calls))
    return None


def _parallel(these: torch.Tensor, those: torch.Tensor) -> bool:
    """Tell whether vectors point the same way, those of length zero apart (the embedding of padding may be zero)."""
    lengths = those.norm(dim=-1)
    cosines = nn.functional.cosine_similarity(these, those, dim=-1)[lengths > AGREE * lengths.max()]
    return bool((cosines > 1.0 - AGREE).all())
