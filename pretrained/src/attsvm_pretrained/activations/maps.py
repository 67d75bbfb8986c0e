"""Affine maps of a head, from recorded calls: blocks of a module's output, and the map from its input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from attsvm_pretrained.activations.recording import ModuleCall
from attsvm_pretrained.activations.rotation import AGREE, relative_difference

# Sequences by which a block is identified; all sequences are checked later, by their probabilities.
SAMPLE = slice(0, 4)


@dataclass(frozen=True, eq=False)
class ColumnBlock:
    """Consecutive columns of a recorded output that are the vectors of a head, up to scale and rotation.

    Attributes
    ----------
    start, width : int
        First column and number of columns.
    factor : float
        Length of the vectors that reached attention over the length of the columns.
    heads_first : bool
        Whether the output is (B, heads, T, dh) and not (B, T, ...).
    offset : Tensor of float64, shape (dh,), or None
        Vector that is added to the columns by a parameter outside the module.
    """

    call: ModuleCall
    start: int
    width: int
    factor: float
    heads_first: bool
    offset: torch.Tensor | None = None

    @property
    def columns(self) -> slice:
        """Columns of the block."""
        return slice(self.start, self.start + self.width)

    def vectors(self, sequences: slice = slice(None)) -> torch.Tensor:
        """Return the columns, times the factor, plus the offset, of some sequences: (B, T, dh), float64."""
        columns = as_columns(self.call.output[sequences], self.heads_first)
        scaled = columns[..., self.columns].double() * self.factor
        return scaled if self.offset is None else scaled + self.offset


@dataclass(frozen=True)
class Place:
    """Location of a head's map in the model.

    Attributes
    ----------
    path : str
        Path of its module.
    start, width : int
        First of the dh columns of the module's output, and dh.
    rows : bool
        Whether output columns are rows of its weight (Linear) and not columns (Conv1D).
    factor : float
        Ratio of the map to the module's weight.
    kind : {"linear", "norm", "parts", "weights"}
        "parts": a map of two parts; the other attributes locate the first part. "weights": tensors of the attention
        module `path`.
    """

    path: str
    start: int
    width: int
    rows: bool
    factor: float
    kind: Literal["linear", "norm", "parts", "weights"]


@dataclass(frozen=True, eq=False)
class AffineMap:
    """y = x A + b, the vectors of a head before any rotation.

    Attributes
    ----------
    tokens : Tensor, shape (B, T, d)
        x.
    weight : Tensor of float64, shape (d, dh)
        A, including the constant factor.
    bias : Tensor of float64, shape (dh,), or None
    source : Tensor
        The hidden states that were projected: x itself, or the input of the projection before a norm.
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


def as_columns(output: torch.Tensor, heads_first: bool) -> torch.Tensor:
    """Read an output as (B, T, columns)."""
    return (output.transpose(1, 2) if heads_first else output).flatten(2)


def affine(block: ColumnBlock, calls: tuple[ModuleCall, ...]) -> AffineMap | None:
    """Read the module behind a block as an affine map; None when it is neither linear nor a norm."""
    module = block.call.module
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
        return _norm(block, calls)
    for rows in (True, False):
        matrix = weight.T if rows else weight
        if matrix.shape != (block.call.input.shape[-1], block.call.output.shape[-1]):
            continue
        A, module_bias = matrix[:, block.columns].detach().double(), getattr(module, "bias", None)
        b = A.new_zeros(block.width) if module_bias is None else module_bias[block.columns].detach().double()
        image = block.call.input[SAMPLE].detach().double() @ A + b
        # The recorded output may have been scaled in place since; attention received the image times this factor.
        vectors = block.vectors(SAMPLE) - (0.0 if block.offset is None else block.offset)
        factor = float((vectors * image).sum() / image.square().sum().clamp_min(torch.finfo(torch.float64).tiny))
        factor = block.factor if abs(factor - block.factor) < AGREE * abs(factor) else factor
        if relative_difference(factor * image, vectors) < AGREE:
            place = Place(block.call.path, block.start, block.width, rows, factor, "linear")
            bias = factor * b + (0.0 if block.offset is None else block.offset)
            has_bias = module_bias is not None or block.offset is not None
            return AffineMap(block.call.input, factor * A, bias if has_bias else None, place, block.call.input)
    return None


def _projection(block: ColumnBlock, calls: tuple[ModuleCall, ...]) -> torch.Tensor:
    """Follow the input of a norm back to the input of the call that made it.

    Views share its storage; a rotation before the norm (Llama 4) copies it and keeps the lengths.
    """
    normalised = block.call.input
    storage = normalised.untyped_storage().data_ptr()
    for call in calls:
        if call.output.untyped_storage().data_ptr() == storage:
            return call.input
    lengths = as_columns(normalised[SAMPLE], block.heads_first)[..., block.columns].norm(dim=-1)  # (B, T)
    for call in calls:
        columns = call.output[SAMPLE]
        if columns.ndim == 3 and columns.shape[:2] == lengths.shape and columns.shape[2] >= block.width:
            parts = columns.unfold(-1, block.width, block.width).norm(dim=-1)  # (B, T, blocks)
            if bool(((parts - lengths[..., None]).abs().amax(dim=(0, 1)) < AGREE * lengths.max()).any()):
                return call.input
    return normalised


def _norm(block: ColumnBlock, calls: tuple[ModuleCall, ...]) -> AffineMap | None:
    """Divide the gain out of a normalisation's output."""
    module = block.call.module
    if (
        block.offset is not None
        or block.call.input.shape != block.call.output.shape
        or any(p.ndim != 1 for p in module.parameters())
    ):
        return None
    states, out = block.call.input[SAMPLE].double(), block.call.output[SAMPLE].double()
    if torch.equal(states, out):  # a hook, a dropout, or a norm that the configuration turns off
        return None
    centred = states - states.mean(dim=-1, keepdim=True)
    gain, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    shift = torch.zeros(out.shape[-1], dtype=torch.float64) if bias is None else bias.detach().double()
    one = torch.ones_like(shift)
    # A norm multiplies by its gain, or by 1 + gain (Gemma). Divided by the right one, outputs are parallel to inputs.
    for scale in (one,) if gain is None else (gain.detach().double(), 1.0 + gain.detach().double()):
        if not (scale != 0).all():
            continue
        normalised = (out - shift) / scale
        if _parallel(normalised, states) or _parallel(normalised, centred):
            index = torch.arange(block.start, block.start + block.width) % len(one)  # all heads may share one gain
            A = scale[index] * block.factor
            b = None if bias is None else shift[index] * block.factor
            tokens = (block.vectors() - (0.0 if b is None else b)) / A
            place = Place(block.call.path, block.start, block.width, True, block.factor, "norm")
            return AffineMap(tokens, torch.diag(A), b, place, _projection(block, calls))
    return None


def _parallel(vectors: torch.Tensor, reference: torch.Tensor) -> bool:
    """Tell whether vectors have the same directions, except vectors of length zero (such as embeddings of padding)."""
    lengths = reference.norm(dim=-1)
    cosines = nn.functional.cosine_similarity(vectors, reference, dim=-1)[lengths > AGREE * lengths.max()]
    return bool((cosines > 1.0 - AGREE).all())
