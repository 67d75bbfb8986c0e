r"""Penalties to which a squared hinge over words is added: half the squared Frobenius norm, or the nuclear norm.

Let :math:`V = PDQ^\top` be a singular value decomposition with singular values :math:`\sigma`. The nuclear norm is
replaced by :math:`\sum r_i`, :math:`r_i = \sqrt{\sigma_i^2 + \delta^2}`. Its gradient :math:`P(D/r)Q^\top` has singular
values below one, so multipliers at a stationary point prove a bound. Let a step in the coordinates of Q be
:math:`S Q^\top`, and :math:`E = S^\top PD + DP^\top S`. Its product with the Hessian is

.. math:: \bigl(S\,\mathrm{diag}(1/r) - PD\,(E_{ij}/(r_i r_j (r_i + r_j)))\bigr) Q^\top,

by the divided differences of :math:`1/\sqrt x` (Daleckii and Krein, AMS Translations 47, 1965). The first term acts on
every row alike. The second has a rank of at most :math:`d_z (d_z + 1)/2`, however many rows there are. It cancels the
first for steps inside the range of V and outside the range of :math:`V^\top`. A preconditioner without it is useless
for small :math:`\delta`, so the formula of Woodbury adds it to the inverse.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from attsvm.core.norms import FROBENIUS, Norm
from attsvm.solvers.common.control import Control
from attsvm.solvers.schedule import BLAS_RATE

# The first delta over the length of W at which norm and losses balance, its factor, and the share of the tolerance that
# delta may take of the gap.
FIRST_DELTA, DELTA_FACTOR, DELTA_SHARE = 0.1, 0.1, 1 / 3

Matrix = Callable[[np.ndarray], np.ndarray]


class Penalty:
    """A smooth convex function at one V (T, dz): half the squared Frobenius norm.

    Attributes
    ----------
    V, gradient : ndarray, shape (T, dz)
    size : float
        The function that is approximated, at V.
    basis : ndarray, shape (dz, dz), or None
        Matrix B; the first term of the Hessian is the inverse of B B^T, for every row of a step. None for a unit
        matrix.
    """

    basis: np.ndarray | None = None

    def __init__(self, V: np.ndarray) -> None:
        self.V = self.gradient = V
        self.size = 0.5 * float(np.vdot(V, V))

    def at(self, V: np.ndarray) -> Penalty:
        """Evaluate the same function at another V."""
        return Penalty(V)

    def product(self, S: np.ndarray) -> np.ndarray:
        """Multiply a step (T, dz) by the Hessian."""
        return S

    def dual_terms(self, adjoint: np.ndarray) -> tuple[float, float]:
        """Return what A^T lam (T, dz) adds to the curvature of a bound, and the largest scale of the multipliers."""
        return float(np.vdot(adjoint, adjoint)), math.inf

    def reduce_smoothing(self, decrease: float, allowed: float) -> Penalty:
        """Return a better approximation at V if the last step promised a small ``decrease``.

        ``allowed`` is the part of the gap that the approximation may take.
        """
        return self

    def full_inverse(self, inverses: np.ndarray, control: Control) -> Matrix | None:
        """Invert the Hessian plus one block a row, in the basis, given inverses (T, dz, dz) without its second term.

        Returns None if there is no second term, or no time or memory for it.
        """
        return None


class SmoothNuclear(Penalty):
    """The nuclear norm, smoothed with delta."""

    def __init__(self, V: np.ndarray, delta: float) -> None:
        self.V, self.delta = V, delta
        missing = max(0, V.shape[1] - len(V))  # rows of zeros, so that all right singular vectors are found
        P, self._sigma, self._Qt = np.linalg.svd(np.pad(V, ((0, missing), (0, 0))), full_matrices=False)
        self._roots, P = np.hypot(self._sigma, delta), P[: len(V)]
        self._left_factor = P * self._sigma
        self.size = float(self._sigma.sum())
        self.gradient = (P * (self._sigma / self._roots)) @ self._Qt
        self.basis = self._Qt.T * np.sqrt(self._roots)

    def at(self, V: np.ndarray) -> SmoothNuclear:
        """Evaluate at another V with the same delta."""
        return SmoothNuclear(V, self.delta)

    def product(self, S: np.ndarray) -> np.ndarray:
        """Multiply a step (T, dz) by both terms of the Hessian."""
        S, roots = S @ self._Qt.T, self._roots
        E = S.T @ self._left_factor
        E = (E + E.T) / (roots[:, None] * roots * (roots[:, None] + roots))
        return (S / roots - self._left_factor @ E) @ self._Qt

    def dual_terms(self, adjoint: np.ndarray) -> tuple[float, float]:
        """Keep the singular values of A^T lam up to one."""
        length = float(np.linalg.norm(adjoint, 2))
        return 0.0, 1.0 / length if length > 0 else math.inf

    @property
    def smoothing_gap(self) -> float:
        """The gap between V and the gradient, if the gradient were A^T lam."""
        return float(self._sigma @ (1.0 - self._sigma / self._roots))

    def reduce_smoothing(self, decrease: float, allowed: float) -> SmoothNuclear:
        """Let delta fall if the last step promised less than delta takes of the gap."""
        penalty = self
        while penalty.smoothing_gap > max(decrease, DELTA_SHARE * allowed):
            penalty = SmoothNuclear(self.V, DELTA_FACTOR * penalty.delta)
        return penalty

    def full_inverse(self, inverses: np.ndarray, control: Control) -> Matrix | None:
        """Subtract the second term of the Hessian, a sum of squares of inner products with pairs of columns."""
        T, k = self._left_factor.shape
        upper = np.triu_indices(k)
        all_pairs = len(upper[0])
        # A pair without a singular value above delta adds at most half the first term.
        i, j = (part[self._sigma[upper[0]] > self.delta] for part in upper)
        seconds = (2.0 * T * all_pairs**2 + len(i) ** 3 / 3.0) / BLAS_RATE
        if not control.affords(seconds, 8 * (2 * T * all_pairs + all_pairs**2 + 4 * len(i) ** 2)):
            return None
        columns = self._left_factor / np.sqrt(self._roots)
        products = (columns[:, upper[0]] * columns[:, upper[1]]).T @ inverses[:, upper[0], upper[1]]
        number = np.empty((k, k), dtype=np.intp)
        number[upper] = number.T[upper] = np.arange(all_pairs)
        weights = np.where(i == j, np.sqrt(0.5), 1.0) / np.sqrt(self._roots[i] + self._roots[j])
        matrix = np.zeros((len(i), len(i)))
        products += products.T
        for a, b in ((i, j), (j, i)):
            matrix += products[number[i[:, None], a], number[j[:, None], b]]
        matrix *= -weights[:, None] * weights
        matrix[np.diag_indices_from(matrix)] += 1.0
        try:
            factor = cho_factor(matrix, overwrite_a=True)
        except np.linalg.LinAlgError:  # rounding
            return None

        def inverse(S: np.ndarray) -> np.ndarray:
            S = times(inverses, S)
            E = S.T @ columns
            solved = np.zeros((k, k))
            solved[i, j] = weights * cho_solve(factor, weights * (E + E.T)[i, j])
            return S + times(inverses, columns @ (solved + solved.T))

        return inverse


def penalty_of(norm: Norm, V: np.ndarray, length: float) -> Penalty:
    """Return the penalty of a program at V (T, dz), given a length of W in this norm."""
    return Penalty(V) if norm is FROBENIUS else SmoothNuclear(V, FIRST_DELTA * length)


def times(matrices: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Multiply every row (T, dz) by its matrix (T, dz, dz)."""
    return np.matmul(matrices, rows[:, :, None])[:, :, 0]
