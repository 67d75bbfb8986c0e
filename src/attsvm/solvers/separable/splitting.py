r"""Norms of singular values for constraints that separate over columns, by alternating the norm and the constraints.

Let scores S have the norm of W (:mod:`attsvm.core.columns`). In :math:`\min f(Y) + g(Z)` subject to Y = Z, the proximal
map of f is one decomposition, and the proximal map of g is the projection of :mod:`.projection` on all columns. The
alternating direction method of multipliers (Boyd et al., Found. Trends Mach. Learn. 3, 2011, section 3) alternates the
two, over-relaxed and extrapolated, and balances its two residuals by the weight :math:`\rho` (section 3.4.1 there). At
a point V the projection's optimality conditions give multipliers with :math:`A^\top\lambda = \rho(Z - V)`. Every step
thus has scores that satisfy all constraints, and a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from attsvm.core.columns import Columns
from attsvm.core.norms import Norm
from attsvm.proofs.objective import Terms
from attsvm.solvers.common.control import Control
from attsvm.solvers.separable.projection import Projection
from attsvm.solvers.separable.proximal import largest_sum, shrink, shrink_power

# Over-relaxation, and first weight over the inverse of the Frobenius solution's mean singular value.
OVER_RELAXATION, FIRST_WEIGHT = 1.7, 0.3
# Number of steps between tests of the gap, and before the first change of the weight. The intervals between changes
# double, since the weight would otherwise respond to the disturbance of its last change.
TEST_INTERVAL, BALANCE = 5, 10
# Ratio of the relative residuals up to which they count as balanced, and largest factor of the weight.
BALANCED, LARGEST_FACTOR = 2.0, 4.0
# Number of differences in an extrapolation, its ridge over the trace, and largest growth of the residual.
EXTRAPOLATED, RIDGE, GUARD = 6, 1e-10, 1.0
# Number of steps without a smaller gap after which other methods go on.
STALLED = 300

Shrinkage = Callable[[np.ndarray, float], np.ndarray]


def proximal_map(norm: Norm) -> Shrinkage | None:
    """Return the map of singular values and a weight that a step uses; None if the norm has none."""
    k = largest_sum(norm)
    if k is not None:
        return partial(shrink, k=k)
    p = None if norm.profile is None else norm.profile.power
    return None if p is None else partial(shrink_power, p=p)


def split(columns: Columns, terms: Terms, origin: np.ndarray, control: Control) -> None:
    """Step until the control is satisfied; it receives scores minus the prior's, (T, G), and multipliers (n, T)."""
    shrinkage = proximal_map(terms.norm)
    assert shrinkage is not None
    project = Projection(columns, terms)
    V = Z = project(origin)
    weight = FIRST_WEIGHT * min(Z.shape) / float(np.linalg.svd(Z, compute_uv=False).sum())
    extrapolation, step, last, balance, gap = Extrapolation(), 0, 0, BALANCE, np.inf
    while step - last < STALLED:
        step += 1
        before, change = Z, project(V + origin, weight)
        Z = V + change
        if step % TEST_INTERVAL == 0:
            if report(columns, terms, Z, weight * change, control, steps=TEST_INTERVAL):
                return
            if control.state.gap < gap:
                gap, last = control.state.gap, step
        Y = _shrink(Z + change, lambda sigma, now=weight: shrinkage(sigma, now))
        V = extrapolation.advance(V, OVER_RELAXATION * (Y - Z))
        if step == balance:
            balance *= 2
            factor = _balance(Y, Z, before, change)
            if factor != 1.0:
                # The multiplier, weight times -change, does not change.
                weight, V = weight * factor, V + change * (1.0 - 1.0 / factor)
                extrapolation = Extrapolation()


class Extrapolation:
    """Anderson's acceleration (Walker and Ni, SIAM J. Numer. Anal. 49, 2011) of V + residual(V), guarded.

    Every other step extrapolates from the last differences of V and of its residual to a V of least residual. If the
    residual there is larger than before, the plain step is taken instead and the differences are discarded.
    """

    def __init__(self) -> None:
        self._history: list[tuple[np.ndarray, np.ndarray]] = []
        self._safe: tuple[np.ndarray, float] | None = None
        self._count = 0

    def advance(self, V: np.ndarray, residual: np.ndarray) -> np.ndarray:
        """Return the next V (T, G) from this one and its residual."""
        size = float(np.linalg.norm(residual))
        if self._safe is not None and size > GUARD * self._safe[1]:
            V, self._safe = self._safe[0], None
            self._history.clear()
            return V
        self._safe, plain = None, V + residual
        self._history = [*self._history[-EXTRAPOLATED:], (V, residual)]
        self._count += 1
        if len(self._history) <= EXTRAPOLATED or self._count % 2:
            return plain
        changes, images = (np.diff(part, axis=0).reshape(EXTRAPOLATED, -1) for part in zip(*self._history, strict=True))
        gram = images @ images.T
        gram[np.diag_indices(EXTRAPOLATED)] += RIDGE * np.trace(gram)
        if not gram.any():
            return plain
        self._safe = plain, size
        return plain - (np.linalg.solve(gram, images @ residual.ravel()) @ (changes + images)).reshape(V.shape)


def _shrink(M: np.ndarray, shrinkage: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Map the singular values of M (T, G), through its smaller Gram matrix.

    Singular values below the root of the rounding have an error of this size, on which no bound depends.
    """
    wide = M.shape[0] < M.shape[1]
    gram = M @ M.T if wide else M.T @ M
    squares, vectors = np.linalg.eigh(gram)
    sigma = np.sqrt(np.maximum(squares[::-1], 0.0))
    vectors, factor = vectors[:, ::-1], shrinkage(sigma) / np.maximum(sigma, np.finfo(float).tiny)
    filtered = (vectors * factor) @ vectors.T
    return filtered @ M if wide else M @ filtered


def _balance(Y: np.ndarray, Z: np.ndarray, before: np.ndarray, change: np.ndarray) -> float:
    """Return the factor of the weight that balances the relative residuals of primal and dual, (T, G)."""
    size = np.linalg.norm
    primal, dual = float(size(Y - Z) * size(change)), float(size(Z - before) * size(Z))
    factor = np.sqrt(primal / dual) if dual > 0 else 1.0
    return 1.0 if 1.0 / BALANCED < factor**2 < BALANCED else float(np.clip(factor, 1 / LARGEST_FACTOR, LARGEST_FACTOR))


def report(
    columns: Columns, terms: Terms, V: np.ndarray, adjoint: np.ndarray, control: Control, *, steps: int = 1
) -> bool:
    """Report scores minus the prior's (T, G), and multipliers with that adjoint; True when it is time to stop.

    ``V`` meets the constraints of a hard margin.
    """
    dual = terms.clip(columns.multipliers(adjoint))
    scale, bound = terms.bound(dual, adjoint, terms.norm.dual(adjoint))
    dual *= scale
    loss = 0.0 if terms.hard else terms.loss(terms.cost - columns.margins(V))
    return control.observe(V, terms.size(V) + loss, dual, bound, steps=steps)
