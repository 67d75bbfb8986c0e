r"""Norm balls as free variables: smooth maps V -> W onto the ball of radius R, one per kind of norm.

On separable problems the minimiser of the risk lies on the sphere, which has corners in four of the norms. In the right
variable there are no corners:

================== ================================================ =================================================
Frobenius, l_p     :math:`W = R\,V/\|V\|_p`                         the sphere is smooth for 1 < p < infinity
nuclear            :math:`W = KQ^\top`, :math:`\|K\|_F^2 +           :math:`\|W\|_* = \min\tfrac12(\|K\|_F^2+\|Q\|_F^2)`
                   \|Q\|_F^2 = 2R`                                  over all factorisations
l_1                :math:`W = R\,(A\circ A - B\circ B)`,            :math:`\|W\|_1 = \min \|A\|_F^2 + \|B\|_F^2`
                   :math:`\|A\|_F^2 + \|B\|_F^2 = 1`                over all such A and B
largest entry      :math:`W_{jk} = R\sin V_{jk}`                    an entry at its bound has a flat sine
spectral           :math:`W = R\,U\sin(\Theta)\,Y^\top` for         a singular value at its bound has a flat sine
                   :math:`V = U\Theta Y^\top`
================== ================================================ =================================================

The derivative of the last map uses divided differences of the sine (Daleckii and Krein). In the bases U, Y,
:math:`dW_{jk} = R\,(\tfrac{f^+ + f^-}{2} dV_{jk} + \tfrac{f^+ - f^-}{2} dV_{kj})` with :math:`f^\pm = (\sin\theta_j \mp
\sin\theta_k)/(\theta_j \mp \theta_k)`. These are products of a cosine and a sinc, which do not cancel. Equal singular
values, common in this norm, are handled exactly.

Such a map also has stationary points that W does not have: factors of too low rank, an entry that is zero in both A and
B, or an angle of a quarter turn with the wrong sign. :meth:`Ball.release` moves away from them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from attsvm.core.norms import FROBENIUS, MAX, NUCLEAR, SPECTRAL, Entrywise, Norm

# Relative move into the ball before each search, so that entries and singular values can leave their bounds.
_RELEASE = 0.05
# Largest entry or singular value of a first point, relative to the radius; its angles stay below a quarter turn.
_INSIDE = 0.9


class Ball(ABC):
    """A free variable V for the ball of a norm.

    ``d`` and ``dz`` are the dimensions of W.
    """

    def __init__(self, norm: Norm, d: int, dz: int) -> None:
        self.norm, self.d, self.dz = norm, d, dz

    def size(self, W: Tensor) -> float:
        """Return the norm of W."""
        return self.norm.value(W.numpy())

    def stationarity(self, W: Tensor, gradient: Tensor) -> float:
        """Return 1 - <-G, W> / (||G||_dual ||W||): 0 if no direction inside the ball descends, at most 2."""
        slope = self.norm.dual(gradient.numpy()) * self.size(W)
        return 1 + float((gradient * W).sum()) / slope if slope > 0 else 0.0

    @abstractmethod
    def encode(self, W: Tensor) -> Tensor:
        """Return a V for the direction of W, inside the ball if its surface has corners."""

    @abstractmethod
    def decode(self, V: Tensor, radius: float) -> Tensor:
        """Return W."""

    @abstractmethod
    def pull_back(self, V: Tensor, gradient: Tensor, radius: float) -> tuple[Tensor, float]:
        """Convert the gradient in W to the gradient in V; return it and the relative size of its tangential part."""

    def release(self, V: Tensor, gradient: Tensor) -> Tensor:
        """Return a V near the given one from which every direction of descent is available."""
        return V


def ball_of(norm: Norm, d: int, dz: int, rank: int | None) -> Ball:
    """Return the variable for a norm; `rank` bounds the rank of W and is only for the nuclear norm.

    Raises ValueError if a rank is given for another norm, or is not positive, or the norm has no such variable.
    """
    if rank is not None and (norm != NUCLEAR or isinstance(rank, bool) or not isinstance(rank, int) or rank < 1):
        raise ValueError(f"rank is {rank!r} for norm={norm.name!r}; a positive integer with norm='nuclear' expected.")
    if norm == NUCLEAR:
        return FactorBall(norm, d, dz, min(d, dz) if rank is None else rank)
    kind = {SPECTRAL: SpectralBall, Entrywise(1): EntryFactorBall, MAX: BoxBall}.get(norm, SmoothBall)
    if kind is SmoothBall and norm.power is None and norm != FROBENIUS:
        raise ValueError(f"norm is {norm.name}; a named norm or an exponent p >= 1 was expected.")
    return kind(norm, d, dz)


class SmoothBall(Ball):
    """W = R V / ||V||_p for 1 < p < infinity."""

    def encode(self, W: Tensor) -> Tensor:
        """Return a V for the direction of W."""
        return W / self.size(W) if bool(W.any()) else W

    def decode(self, V: Tensor, radius: float) -> Tensor:
        """Return W."""
        return V * (radius / self.size(V))

    def pull_back(self, V: Tensor, gradient: Tensor, radius: float) -> tuple[Tensor, float]:
        """Convert the gradient in W to the gradient in V; return it and the relative size of its tangential part."""
        p = 2.0 if self.norm.power is None else self.norm.power
        normal = V.sign() * (V.abs() / V.abs().max()).pow(p - 1)
        tangent = gradient - normal * ((gradient * V).sum() / (normal * V).sum())
        length = float(gradient.norm())
        return tangent * (radius / self.size(V)), float(tangent.norm()) / length if length > 0 else 0.0


class FactorBall(Ball):
    """W = K Q^T with K above Q in V, ||V||_F^2 = 2 R after scaling; the nuclear norm of W is at most R."""

    def __init__(self, norm: Norm, d: int, dz: int, width: int) -> None:
        super().__init__(norm, d, dz)
        self.width = width

    def encode(self, W: Tensor) -> Tensor:
        """Return balanced factors of W."""
        U, S, Vh = torch.linalg.svd(W, full_matrices=False)
        roots = S.sqrt()[: self.width]
        factors = torch.cat([U[:, : self.width] * roots, Vh[: self.width].mT * roots])
        factors = torch.nn.functional.pad(factors, (0, self.width - factors.shape[1]))
        return factors / factors.norm() if bool(W.any()) else factors

    def decode(self, V: Tensor, radius: float) -> Tensor:
        """Return W."""
        V = V * (math.sqrt(2 * radius) / V.norm())
        return V[: self.d] @ V[self.d :].mT

    def pull_back(self, V: Tensor, gradient: Tensor, radius: float) -> tuple[Tensor, float]:
        """Convert the gradient in W to the gradient in V; return it and the relative size of its tangential part."""
        scale = math.sqrt(2 * radius) / float(V.norm())
        K, Q = V[: self.d] * scale, V[self.d :] * scale
        return _tangent(torch.cat([gradient @ Q, gradient.mT @ K]), V, scale)

    def release(self, V: Tensor, gradient: Tensor) -> Tensor:
        """Put the steepest rank-one direction into the shortest columns of the factors."""
        V = V / V.norm()
        U, _, Vh = torch.linalg.svd(gradient)
        shortest = int(V.square().sum(0).argmin())
        boundary = V.clone()
        boundary[:, shortest] += 0.1 * torch.cat([-U[:, 0], Vh[0]])
        return boundary


class EntryFactorBall(Ball):
    """W = A o A - B o B with A above B in V, ||V||_F^2 = R after scaling; the l_1 norm of W is at most R."""

    def encode(self, W: Tensor) -> Tensor:
        """Return positive roots of the positive part and of the negative part of W."""
        parts = torch.cat([W.clamp(min=0.0), (-W).clamp(min=0.0)])
        total = float(parts.sum())
        return (parts / (total if total > 0 else 1.0) + _RELEASE / parts.numel()).sqrt()

    def decode(self, V: Tensor, radius: float) -> Tensor:
        """Return W."""
        squares = V.square()
        return (squares[: self.d] - squares[self.d :]) * (radius / float(squares.sum()))

    def pull_back(self, V: Tensor, gradient: Tensor, radius: float) -> tuple[Tensor, float]:
        """Convert the gradient in W to the gradient in V; return it and the relative size of its tangential part."""
        scale = math.sqrt(radius) / float(V.norm())
        return _tangent(2 * torch.cat([gradient, -gradient]) * V * scale, V, scale)

    def release(self, V: Tensor, gradient: Tensor) -> Tensor:
        """Give every entry of A and B a small value."""
        squares = V.square() / V.square().sum()
        return (squares + _RELEASE / V.numel()).sqrt()


class BoxBall(Ball):
    """W = R sin V, entry by entry."""

    def encode(self, W: Tensor) -> Tensor:
        """Return angles for W, its largest entry inside the box."""
        return torch.asin(_INSIDE * W / self.size(W)) if bool(W.any()) else W

    def decode(self, V: Tensor, radius: float) -> Tensor:
        """Return W."""
        return radius * V.sin()

    def pull_back(self, V: Tensor, gradient: Tensor, radius: float) -> tuple[Tensor, float]:
        """Convert the gradient in W to the gradient in V; return it and its size relative to a ball without bounds."""
        return _against_bounds(radius * V.cos() * gradient, radius * gradient)

    def release(self, V: Tensor, gradient: Tensor) -> Tensor:
        """Move every entry off its bound."""
        return torch.asin((1 - _RELEASE) * V.sin())


class SpectralBall(Ball):
    """W = R U sin(Theta) Y^T for V = U Theta Y^T."""

    def encode(self, W: Tensor) -> Tensor:
        """Return angles for W, its largest singular value inside the ball."""
        return self._angles(W, _INSIDE / self.size(W)) if bool(W.any()) else W

    def _angles(self, W: Tensor, factor: float) -> Tensor:
        U, S, Vh = torch.linalg.svd(W, full_matrices=False)
        return (U * torch.asin((factor * S).clamp(max=1.0))) @ Vh

    def decode(self, V: Tensor, radius: float) -> Tensor:
        """Return W."""
        U, theta, Vh = torch.linalg.svd(V, full_matrices=False)
        return radius * (U * theta.sin()) @ Vh

    def pull_back(self, V: Tensor, gradient: Tensor, radius: float) -> tuple[Tensor, float]:
        """Convert the gradient in W to the gradient in V; return it and its size relative to a ball without bounds."""
        U, theta, Vh = torch.linalg.svd(V)
        rank = len(theta)
        coordinates = U.mT @ gradient @ Vh.mT  # (d, dz)
        left = torch.nn.functional.pad(theta, (0, self.d - rank)).unsqueeze(1)
        right = torch.nn.functional.pad(theta, (0, self.dz - rank)).unsqueeze(0)
        half_sum, half_difference = (left + right) / 2, (left - right) / 2
        minus = half_sum.cos() * torch.sinc(half_difference / math.pi)
        plus = half_difference.cos() * torch.sinc(half_sum / math.pi)
        slope = (minus + plus) / 2 * coordinates
        transpose = coordinates[:rank, :rank].mT
        slope[:rank, :rank] += ((minus - plus) / 2)[:rank, :rank] * transpose
        return _against_bounds(radius * U @ slope @ Vh, radius * gradient)

    def release(self, V: Tensor, gradient: Tensor) -> Tensor:
        """Move every singular value off its bound."""
        return self._angles(self.decode(V, 1.0), 1 - _RELEASE)


def _tangent(slope: Tensor, V: Tensor, scale: float) -> tuple[Tensor, float]:
    """Project a gradient on the sphere of V, since W does not depend on the length of V."""
    tangent = slope - V * ((slope * V).sum() / V.square().sum())
    length = float(slope.norm())
    return tangent * scale, float(tangent.norm()) / length if length > 0 else 0.0


def _against_bounds(slope: Tensor, free: Tensor) -> tuple[Tensor, float]:
    length = float(free.norm())
    return slope, float(slope.norm()) / length if length > 0 else 0.0
