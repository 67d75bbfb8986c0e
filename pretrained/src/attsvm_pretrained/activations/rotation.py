r"""Rotary position embedding, read off the vectors themselves.

RoPE turns pairs of coordinates of queries and keys by an angle that depends on position and pair alone (arXiv
2104.09864): as complex numbers, :math:`q_p(t) = r_p(t)\,y_p(t)` with :math:`|r_p| = 1`. Given the vectors before
(:math:`y`, what a projection or norm put out) and after, the rotation is the weighted mean over sequences and heads

.. math:: r_p(t) \propto \sum \overline{y_p(t)}\,q_p(t),

and the fit is accepted if it explains every vector. The pairing of the coordinates (two halves, or neighbours) and the
number of pairs are found by trying. A constant factor (YaRN's, or a scaled query) is found from the lengths of the
vectors before. No knowledge of how a model computes or passes its angles is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

# Largest relative difference between two float32 computations of the same vector.
AGREE = 1e-4


@dataclass(frozen=True, eq=False)
class Rotation:
    """Angles of a rotary embedding.

    Attributes
    ----------
    pairs : Tensor of int, shape (P, 2)
        Coordinates of a head that are rotated together; the other coordinates do not change.
    turns : Tensor of complex128, shape (B, T, P)
        Unit numbers r_p(t) of every sequence and position.
    """

    pairs: torch.Tensor
    turns: torch.Tensor


def as_complex(vectors: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """Read pairs of coordinates as complex numbers, (..., dh) to (..., P)."""
    return torch.complex(vectors[..., pairs[:, 0]], vectors[..., pairs[:, 1]])


def relative_difference(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the largest length of a difference over the largest reference length."""
    size = float(reference.norm(dim=-1).max())
    return float((value - reference).norm(dim=-1).max()) / size if size > 0 else 0.0


def layouts(width: int) -> Iterator[torch.Tensor]:
    """Yield pairings of the first coordinates of a head: most coordinates first, halves before neighbours."""
    for size in range(width - width % 2, 0, -2):
        half = size // 2
        first = torch.arange(half)
        yield torch.stack([first, first + half], dim=1)
        if half > 1:
            yield torch.stack([2 * first, 2 * first + 1], dim=1)


def fit_turns(before: torch.Tensor, after: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """Best unit number for every sequence, position and pair, from vectors (B, T, heads, dh) each."""
    y, q = as_complex(before.double(), pairs), as_complex(after.double(), pairs)
    product = (y.conj() * q).sum(dim=2)  # (B, T, P)
    size = product.abs()
    return torch.where(size > 0, product / size.clamp_min(torch.finfo(torch.float64).tiny), torch.ones_like(product))


def turn(vectors: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Apply a rotation to vectors (B, T, heads, dh)."""
    out = vectors.double().clone()
    rotation_of_vectors = as_complex(out, rotation.pairs) * rotation.turns[:, :, None]
    out[..., rotation.pairs[:, 0]] = rotation_of_vectors.real
    out[..., rotation.pairs[:, 1]] = rotation_of_vectors.imag
    return out


def fit_rotation(before: torch.Tensor, after: torch.Tensor) -> Rotation | None:
    """Find the rotation that turns `before` into `after`, both (B, T, heads, dh) and of equal scale; None if none does.

    One head alone may fit under several pairings; then the first pairing that fits is used. For several heads, a
    pairing counts only if one rotation fits all of them.
    """
    for pairs in layouts(before.shape[-1]):
        rotation = Rotation(pairs, fit_turns(before, after, pairs))
        if relative_difference(turn(before, rotation), after.double()) < AGREE:
            return rotation
    return None
