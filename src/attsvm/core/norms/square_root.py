r"""The square root of a positive definite matrix in twice the working precision, with a proven error.

Newton's step for :math:`X^2 = A` solves :math:`XE + EX = A - X^2`, with the eigenvectors of A as floats and a residual
from error-free products (:func:`attsvm.core.error_free.product`). X, a sum of two floats per entry, comes within about
:math:`10^{-30}` of :math:`A^{1/2}`. The remaining error is proven: for positive definite X and S,

.. math:: \|S - X\| \le \|S^2 - X^2\| / (\sigma_{min}(S) + \sigma_{min}(X))

(Bhatia, *Matrix Analysis*, theorem X.3.8 and its proof). A successful Cholesky factorisation of :math:`X - \mu I`
proves :math:`\sigma_{min}(X) \ge \mu` up to its rounding (Rump, Acta Numerica 19, 2010, section 10).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attsvm.core.error_free import Pair, gamma, product, two_sum
from attsvm.platform.interop import to_numpy

# Eigenvalue, relative to the largest, below which the matrix counts as not definite.
DEFINITE = 1e-14
# Number of Newton steps; each reduces the error at least 100 times if the smallest eigenvalue is DEFINITE.
MATRIX_ROOT_STEPS = 24
# Fraction of the root's smallest eigenvalue that its Cholesky factorisation must prove.
DEFINITE_SHARE = 0.9
# Largest relative error of the root as a sum of two floats; it exceeds the rounding of every matrix norm here.
ROOT_DRIFT = 1e-9


@dataclass(frozen=True, eq=False)
class SquareRoot:
    """Floating-point approximations of the root S of a symmetric positive definite matrix, and of its inverse.

    Attributes
    ----------
    form : ndarray, shape (d, d)
        The matrix; only its symmetric part is used.
    root, inverse : Pair, shape (d, d)
        Symmetric approximations of S and S^-1.
    floor, ceiling : float
        Bounds on the eigenvalues of S.
    drift, inverse_drift : float
        Upper bounds on the Frobenius norms of ``root S^-1 - I`` and of ``inverse S - I``.
    """

    form: np.ndarray
    root: Pair
    inverse: Pair
    floor: float
    ceiling: float
    drift: float
    inverse_drift: float

    def factor(self, dual: bool) -> Pair:
        """Return the factor of a matrix: the root, or its inverse for the dual norm."""
        return self.inverse if dual else self.root

    def reach(self, dual: bool) -> float:
        """Bound the spectral norm of :meth:`factor` from above."""
        return (1.0 + ROOT_DRIFT) / self.floor if dual else self.ceiling

    def drift_of(self, dual: bool, *, rounded: bool) -> float:
        """Bound the relative error of :meth:`factor`, or of its ``high`` part alone."""
        drift = self.inverse_drift if dual else self.drift
        if not rounded:
            return drift
        low = float(np.linalg.norm(self.factor(dual).low)) * (1 + ROOT_DRIFT)
        return drift + low * self.reach(not dual)

    @classmethod
    def of(cls, name: str, matrix: object) -> SquareRoot:
        """Compute the root of a matrix (d, d); errors call the matrix ``name``.

        Raises ValueError if it is not symmetric, or its root cannot be proven positive definite.
        """
        form = to_numpy(name, matrix).astype(np.float64)
        square = form.ndim == 2 and 0 < form.shape[0] == form.shape[1] and bool(np.isfinite(form).all())
        symmetric = square and bool(np.abs(form - form.T).max() <= 1e-10 * np.abs(form).max())
        out = _proven_root(form) if symmetric and form.any() else None
        if out is None:
            raise ValueError(f"{name} has shape {form.shape}; a symmetric positive definite matrix was expected.")
        return out

    @cached_property
    def evidence(self) -> list[Any]:
        """Root, inverse and a Cholesky factor of the root, from which :mod:`attsvm.check` proves the error."""
        return [self.root, self.inverse, np.linalg.cholesky(self.root.high)]


def _proven_root(form: np.ndarray) -> SquareRoot | None:
    # The matrix is divided by a power of four, the root by a power of two, both exactly.
    unit = math.ldexp(1.0, math.frexp(float(np.abs(form).max()))[1] // 2)
    scaled = form / unit / unit
    part = Pair(*two_sum(0.5 * scaled, 0.5 * scaled.T))
    values, vectors = np.linalg.eigh(part.high)
    if not values[0] > DEFINITE * values[-1]:
        return None
    roots = np.sqrt(values)
    root, residual = _refined(part, roots, vectors)
    distance = float(np.linalg.norm(residual.rounded())) * (1 + gamma(form.size)) + _product_error(root)
    floor = _smallest(root, DEFINITE_SHARE * float(roots[0]))
    if not (floor > 0 and distance < 0.5 * floor * floor):
        return None
    miss = distance / floor
    lowest, ceiling = floor - miss, float(np.linalg.norm(root.high, 2)) * (1 + ROOT_DRIFT) + miss
    inverse, defect = _inverse(root, (vectors / roots) @ vectors.T)
    drift = miss / lowest * (1 + ROOT_DRIFT)
    inverse_drift = defect + float(np.linalg.norm(inverse.high)) * (1 + ROOT_DRIFT) * miss
    if not max(drift, inverse_drift) < ROOT_DRIFT:
        return None
    return SquareRoot(
        form,
        Pair(root.high * unit, root.low * unit),
        Pair(inverse.high / unit, inverse.low / unit),
        lowest * unit,
        ceiling * unit,
        drift,
        inverse_drift,
    )


def _refined(form: Pair, roots: np.ndarray, vectors: np.ndarray) -> tuple[Pair, Pair]:
    """Take Newton steps from the floating-point root while their length halves; return the root and its residual."""
    root, length = Pair(_symmetric((vectors * roots) @ vectors.T), np.zeros(form.high.shape)), math.inf
    for _ in range(MATRIX_ROOT_STEPS):
        residual = _residual(form, root)
        step = vectors @ ((vectors.T @ residual.rounded() @ vectors) / (roots[:, None] + roots)) @ vectors.T
        shrunk = float(np.linalg.norm(step))
        if not shrunk < 0.5 * length:
            break
        root, length = root + Pair(_symmetric(step), np.zeros(1)), shrunk
    return root, _residual(form, root)


def _residual(form: Pair, root: Pair) -> Pair:
    square = product(root, root)[0]
    return form + Pair(-square.high, -square.low)


def _product_error(root: Pair) -> float:
    """Bound the error of :func:`_residual`: the product's error, and the last rounding of a sum of pairs."""
    return 2.0 * product(root, root)[1]


def _smallest(root: Pair, floor: float) -> float:
    """Bound the smallest eigenvalue of a symmetric root from below by almost ``floor``; zero if not proven."""
    d = len(root.high)
    shifted = root.high - floor * np.eye(d)
    try:
        np.linalg.cholesky(shifted)
    except np.linalg.LinAlgError:
        return 0.0
    rounding = gamma(2 * d + 8) * float(np.trace(np.abs(root.high))) + 2 * float(np.linalg.norm(root.low))
    return floor - rounding


def _inverse(root: Pair, start: np.ndarray) -> tuple[Pair, float]:
    """Invert a root by Newton steps, and bound the Frobenius norm of inverse root - I."""
    inverse, identity = Pair(_symmetric(start), np.zeros(start.shape)), np.eye(len(start))
    for _ in range(3):
        square, error = product(inverse, root)
        defect = Pair(identity, np.zeros(1)) + Pair(-square.high, -square.low)
        bound = float(np.linalg.norm(defect.rounded())) * (1 + gamma(start.size + 4)) + 2 * error
        if bound < 1e-25:
            break
        inverse = inverse + Pair(_symmetric(defect.rounded() @ inverse.high), np.zeros(1))
    square, error = product(inverse, root)
    defect = Pair(identity, np.zeros(1)) + Pair(-square.high, -square.low)
    return inverse, float(np.linalg.norm(defect.rounded())) * (1 + gamma(start.size + 4)) + 2 * error


def _symmetric(M: np.ndarray) -> np.ndarray:
    return 0.5 * (M + M.T)
