r"""The minimised objective: a norm at margin one, optionally with losses or a prior.

Let :math:`V = W - W_0`, :math:`c = 1 - A(W_0)` on rejected tokens and :math:`c = -A(W_0)` on tied ones. Every problem
of this family reads

.. math:: \min_V \; f(V) + \sum_{it} \ell(c_{it} - A(V)_{it}), \qquad A(V) = c \text{ on ties},

where f is the norm, or half the square of a Euclidean norm (Frobenius, or Mahalanobis over it), and :math:`\ell(u)` is
C max(0, u), C max(0, u)^2, or infinite for u > 0 (hard margin). Fenchel duality (Rockafellar, *Convex Analysis*,
section 31) gives the bound, for :math:`\lambda \ge 0` on rejected tokens,

.. math:: c^\top\lambda - f^*(A^\top\lambda) - \tfrac{\epsilon}{2}\sum\lambda_{it}^2, \qquad \lambda \le C_{max}.

C may differ between queries. The hinge has :math:`C_{max} = C, \epsilon = 0`. Its square has :math:`C_{max} = \infty,
\epsilon = 1/(2C)` (Cortes and Vapnik, Machine Learning 20, 1995). The hard margin has :math:`C_{max} = \infty, \epsilon
= 0`. :math:`f^*(M)` is half the squared Frobenius norm, or zero on the unit ball of the dual norm. Multipliers are
scaled to the largest bound before it is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from attsvm.core.norms import FROBENIUS, Norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import Reduced
from attsvm.core.rounding import LENIENT
from attsvm.platform.paging import rows_in_chunk

# Shortfall below which W is also tried after scaling to margin one, which avoids a loss of C times the rounding error.
SEPARATION_TOL = 1e-4

Number = TypeVar("Number", float, Fraction)


def admissible(
    dual: np.ndarray, rejected: np.ndarray, tied: np.ndarray, upper: float | np.ndarray = math.inf
) -> np.ndarray:
    """Clip multipliers (n, T) of rejected tokens to [0, ``upper``]; zero where there is no constraint.

    ``upper`` is a number or an array (n, 1).
    """
    admitted = np.maximum(dual, 0.0)
    np.minimum(admitted, upper, out=admitted)
    admitted[~rejected] = 0.0
    np.copyto(admitted, dual, where=tied)
    return admitted


@dataclass(eq=False, slots=True)
class Terms:
    """Terms of the objective, in the coordinates of the margins.

    Attributes
    ----------
    squared : bool
        Half the square of the norm (Frobenius, soft margin) instead of the norm.
    rejected, tied : ndarray of bool, shape (n, T)
    cost : ndarray of float or bool, shape (n, T)
        The margins that V must reach: c of the module's derivation, zero where unconstrained.
    upper : float
        Largest multiplier: C for the hinge, the smallest C if it differs between queries; otherwise infinite.
    shift : float
        1/(2C) for the squared hinge, else zero; its largest value if C differs between queries.
    prices : ndarray, shape (n, 1), or None
        C of every query; None if all queries have one C.
    hard : bool
        Whether a margin below one is forbidden rather than penalised.
    """

    norm: Norm
    squared: bool
    rejected: np.ndarray
    tied: np.ndarray
    cost: np.ndarray
    upper: float
    shift: float
    prices: np.ndarray | None = None
    hard: bool = field(init=False)

    def __post_init__(self) -> None:
        self.hard = math.isinf(self.upper) and self.shift == 0.0

    @property
    def uppers(self) -> float | np.ndarray:
        """Largest multiplier, or the largest per query, (n, 1), if C differs between queries."""
        return self.upper if self.prices is None or self.shift > 0 else self.prices

    @property
    def shifts(self) -> float | np.ndarray:
        """1/(2C) for the squared hinge, else zero; one per query, (n, 1), if C differs between queries."""
        return 0.5 / self.prices if self.prices is not None and self.shift > 0 else self.shift

    def size(self, V: np.ndarray) -> float:
        """Evaluate f(V)."""
        return self.of_length(self.norm.value(V))

    def of_length(self, length: Number) -> Number:
        """Evaluate f at a V of the given norm, a float or a fraction."""
        return length * length / 2 if self.squared else length

    def loss(self, shortfall: np.ndarray) -> float:
        """Sum the losses of c - A(V), (n, T), over rejected tokens; zero for the hard margin."""
        if self.prices is None:
            return sum(self.charge(shortfall[rows][self.rejected[rows]]) for rows in self._pieces())
        deficit = np.where(self.rejected, np.maximum(shortfall, 0.0), 0.0)
        return float((self.prices * (deficit * deficit if self.shift > 0 else deficit)).sum())

    def _pieces(self) -> Iterator[slice]:
        """Slices of the queries, so that copies of selected entries stay small."""
        n, T = self.rejected.shape
        step = rows_in_chunk(8 * T)
        return (slice(start, start + step) for start in range(0, n, step))

    def charge(self, shortfall: np.ndarray) -> float:
        """Sum the losses of the shortfalls (k,) of some rejected tokens, if all queries have one C."""
        deficit = np.maximum(shortfall, 0.0)
        return self.price(float(deficit.sum()), float(deficit @ deficit) if self.shift > 0 else 0.0)

    def price(self, total: Number, square: Number) -> Number:
        """Loss of shortfalls with this sum and this sum of squares, floats or fractions."""
        unit: Any = Fraction if isinstance(total, Fraction) else float
        if self.shift > 0:
            return square / (2 * unit(self.shift))
        return unit(0) if self.hard else unit(self.upper) * total

    def slope(self, shortfall: np.ndarray) -> np.ndarray:
        """Differentiate the loss at c - A(V), (n, T), which gives the multipliers of V; zero for the hard margin."""
        if self.hard:
            return np.zeros(shortfall.shape)
        deficit = np.where(self.rejected, np.maximum(shortfall, 0.0), 0.0)
        return deficit / self.shifts if self.shift > 0 else np.where(deficit > 0, self.uppers, 0.0)

    def central(self, shortfall: np.ndarray, mu: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Slack s, multiplier lam, loss xi and its multiplier C - lam on the central path at c - A(V), each (n, T).

        All queries have one C. Let u = c - A(V), negative for the hard margin. The equations are xi - s = u and s lam =
        mu. The hinge adds xi (C - lam) = mu, its square xi = lam/(2C). They leave one quadratic equation per token. If
        the loss has no variable xi, the last two results are 0 and 1.
        """
        half, nothing = 0.5 * shortfall, np.zeros(shortfall.shape)
        if np.isfinite(self.upper):
            # mu/s + mu/(s + u) = C, and the two roots are the distances from e = mu/C.
            e = mu / self.upper
            up = np.hypot(e, half) + np.abs(half)
            down = e * (e / up)
            slack, loss = e + np.where(half > 0, down, up), e + np.where(half > 0, up, down)
            return slack, mu / slack, loss, mu / loss
        if self.shift > 0:
            # shift lam - mu / lam = u
            root = np.hypot(half, np.sqrt(mu * self.shift)) + np.abs(half)
            dual = np.where(half > 0, root / self.shift, mu / root)
            return mu / dual, dual, nothing, nothing + 1.0
        return -shortfall, -mu / shortfall, nothing, nothing + 1.0

    def may_stay(self, adjoint: np.ndarray) -> bool:
        """Whether V = 0 may be optimal: the adjoint (d, dz) of its multipliers has a dual norm of at most one."""
        square = float(np.vdot(adjoint, adjoint))
        if self.squared:
            # The bound is at most g^2 / (2 |M|^2 + 2 eps |lam|^2), g the gain: at most half the loss at V = 0.
            return self.norm is not FROBENIUS or not square > 2.0 * self.loss(self.cost)
        # <M, M> / |M| bounds the dual norm of M from below and costs less than the dual norm.
        return not square > 2.0 * self.norm.value(adjoint)

    def clip(self, dual: np.ndarray) -> np.ndarray:
        """Clip multipliers (n, T) to their signs and upper bounds."""
        return admissible(dual, self.rejected, self.tied, self.uppers)

    def curvature(self, dual: np.ndarray) -> float:
        """Sum the squares of rejected tokens' multipliers (n, T), each times its shift."""
        if self.prices is None:
            values = (dual[rows][self.rejected[rows]] for rows in self._pieces())
            return sum(float((self.shift * some) @ some) for some in values)
        return float((self.shifts * np.where(self.rejected, dual, 0.0) * dual).sum())

    def largest_scale(self, dual: np.ndarray, top: float = 0.0) -> float:
        """Largest factor that keeps multipliers (n, T), and one of size ``top``, within their bounds."""
        if self.prices is None or self.shift > 0:
            top = float(dual.max(where=self.rejected, initial=top))
            return self.upper / top if top > 0 else math.inf
        share = float((dual / self.prices).max(where=self.rejected, initial=0.0))
        return 1.0 / share if share > 0 else math.inf

    def bound(
        self, dual: np.ndarray, adjoint: np.ndarray, size: float | None = None, *, gain: float = 0.0, top: float = 0.0
    ) -> tuple[float, float]:
        """Scale admissible multipliers (n, T), with adjoint A^T dual, to the largest bound; return (scale, bound).

        ``size`` is the dual norm of the adjoint, or a bound on it, if the caller has one. ``gain`` and ``top`` are the
        gain and the largest of multipliers that are part of the adjoint but not listed.
        """
        gain += float((self.cost * dual).sum())
        if gain <= 0:
            return 0.0, 0.0
        size = self.norm.dual(adjoint) if size is None else size
        # Squares of multipliers may leave the range of floats although their products with the shift do not.
        curvature = self.curvature(dual) + (size * size if self.squared else 0.0)
        limit = self.largest_scale(dual, top)
        if not self.squared:
            limit = min(limit, 1.0 / size if size > 0 else np.inf)
        scale = min(limit, gain / curvature if curvature > 0 else np.inf)
        value = scale * gain - 0.5 * scale * (scale * curvature)
        return (scale, value) if np.isfinite(value) else (0.0, 0.0)


@dataclass(frozen=True)
class Regularisation:
    """Losses and a prior in addition to the norm.

    Attributes
    ----------
    C : float, ndarray of shape (n,), or None
        Weight of the loss, one per query if it differs between queries; None for the hard margin.
    loss : str
        "hinge" or "squared_hinge".
    prior : ndarray, shape (d, dz), or None
        The W0 that W stays near; None for zero.
    """

    C: float | np.ndarray | None
    loss: str
    prior: np.ndarray | None

    @property
    def hard(self) -> bool:
        """Whether every margin must reach one."""
        return self.C is None

    @property
    def plain(self) -> bool:
        """Whether the norm alone is minimised."""
        return self.C is None and self.prior is None

    @property
    def hinge(self) -> bool:
        """Whether multipliers have an upper bound."""
        return self.C is not None and self.loss == "hinge"

    @property
    def least(self) -> float | None:
        """The smallest C of any query."""
        return None if self.C is None else float(np.min(self.C))

    @property
    def prices(self) -> np.ndarray | None:
        """C of each query, (n, 1), if it differs between queries; otherwise None."""
        return self.C[:, None] if isinstance(self.C, np.ndarray) else None

    def origin(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return the prior, or zero, of shape (d, dz)."""
        return np.zeros(shape) if self.prior is None else self.prior

    def terms(self, problem: SelectionProblem | Reduced, norm: Norm) -> Terms:
        """Terms of the objective in the coordinates of the problem; the prior is in the same coordinates."""
        cost = problem.rejected  # an array of numbers would take as much memory as the multipliers
        if self.prior is not None:
            with np.errstate(**LENIENT):
                cost = cost - problem.apply(self.prior)
        least = self.least
        return Terms(
            norm=norm,
            squared=norm.euclidean and not self.hard,
            rejected=problem.rejected,
            tied=problem.tied,
            cost=cost,
            upper=least if least is not None and self.hinge else np.inf,
            shift=0.0 if least is None or self.hinge else 0.5 / least,
            prices=self.prices,
        )


# The norm alone: the plain hard margin.
HARD_MARGIN = Regularisation(None, "hinge", None)
