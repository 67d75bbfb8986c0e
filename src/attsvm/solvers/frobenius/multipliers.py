r"""The method of multipliers for hard margins in the Frobenius norm, which needs products only.

A step of weight :math:`\sigma` minimises

.. math:: \tfrac12 \|V\|^2 + \tfrac\sigma2 \sum_j \max(0, c_j + \mu_j / \sigma - \langle a_j, V\rangle)^2.

The next multipliers :math:`\mu` are :math:`\sigma` times the shortfalls (Rockafellar, Math. Oper. Res. 1, 1976). A step
from :math:`\mu = 0` is the squared hinge with C = :math:`\sigma/2`. The function is piecewise quadratic, so Newton's
method with an exact line search ends after finitely many steps (Mangasarian, Optim. Methods Softw. 17, 2002). Conjugate
gradients solve its systems, :math:`I + \sigma A_J^\top A_J` over the constraints J that fall short. A product takes |J|
(p + r) numbers and 4 |J| p r operations, and no matrix of size |J| by |J| or p r by p r is formed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attsvm.core.reduction import constraint_margins, constraint_sum
from attsvm.solvers.common.setting import Setting

PROXIMAL_NEWTON_STEPS = 30
# Residual of a system over the gradient, and largest number of products that a system takes.
FORCING, PRODUCTS = 0.05, 400
BISECTIONS = 60


def proximal_step(
    setting: Setting, V: np.ndarray, dual: np.ndarray, weight: float, tol: float, is_over: Callable[[], bool]
) -> tuple[np.ndarray, np.ndarray, int]:
    """Make one step of the method of multipliers.

    Parameters
    ----------
    setting : Setting
        A hard margin.
    V : ndarray, shape (p, r)
        Starting point.
    dual : ndarray, shape (n, T)
        Multipliers, on the scale of V = A^T dual.
    tol : float
        Largest gradient, over the norm of V.
    is_over : callable
        Called before every product; the step ends if it returns True.

    Returns
    -------
    V : ndarray, shape (p, r)
    dual : ndarray, shape (n, T)
        Multipliers of the right signs; V = A^T dual up to ``tol``.
    products : int
        Number of products with A and its transpose.
    """
    reduced, terms = setting.reduced, setting.terms
    rows, columns = np.nonzero(terms.rejected | terms.tied)
    (delta, queries), free = reduced.factors_at(rows, columns), terms.tied[rows, columns]
    lacking = terms.cost[rows, columns] + dual[rows, columns] / weight - constraint_margins(delta, queries, V)
    products = 0
    for _ in range(PROXIMAL_NEWTON_STEPS):
        short = np.flatnonzero(free | (lacking > 0.0))
        x, z = delta[short], queries[short]
        gradient = V - weight * constraint_sum(x, z, lacking[short])
        size = float(np.linalg.norm(gradient))
        if size <= tol * float(np.linalg.norm(V)) or is_over():
            break
        step, count = _conjugate_gradients(x, z, weight, -gradient, FORCING * size, is_over)
        if not count:
            break
        products += count
        image = constraint_margins(delta, queries, step)
        length = _line_search(lacking, image, free, weight, float(np.vdot(V, step)), float(np.vdot(step, step)))
        V, lacking = V + length * step, lacking - length * image
    values = np.zeros(dual.shape)
    values[rows, columns] = weight * np.where(free, lacking, np.maximum(lacking, 0.0))
    return V, values, products


def _conjugate_gradients(
    delta: np.ndarray, queries: np.ndarray, weight: float, rhs: np.ndarray, goal: float, is_over: Callable[[], bool]
) -> tuple[np.ndarray, int]:
    """Solve (I + weight A^T A) X = rhs to a residual of ``goal``; return X and the number of products."""
    # Types are written out because inferring them through the loop takes a type checker ten seconds.
    solution: np.ndarray = np.zeros_like(rhs)
    residual: np.ndarray = rhs
    direction: np.ndarray = rhs
    square: float = float(np.vdot(residual, residual))
    count = 0
    while count < PRODUCTS and square > goal * goal and not is_over():
        count += 1
        image = direction + weight * constraint_sum(delta, queries, constraint_margins(delta, queries, direction))
        length = square / float(np.vdot(direction, image))
        solution, residual = solution + length * direction, residual - length * image
        before, square = square, float(np.vdot(residual, residual))
        direction = residual + (square / before) * direction
    return solution, count


def _line_search(
    lacking: np.ndarray, image: np.ndarray, free: np.ndarray, weight: float, slope: float, curvature: float
) -> float:
    """Minimise along a step by Newton's method on the derivative, which is piecewise linear and grows, in a bracket."""
    low, high, length = 0.0, np.inf, 1.0
    for _ in range(BISECTIONS):
        residual = lacking - length * image
        short = free | (residual > 0.0)
        derivative = slope + length * curvature - weight * float(residual[short] @ image[short])
        low, high = (low, length) if derivative > 0 else (length, high)
        following = length - derivative / (curvature + weight * float(image[short] @ image[short]))
        if not low <= following <= high:
            following = 0.5 * (low + high) if high < np.inf else 2.0 * length
        if abs(following - length) <= 1e-10 * length:
            break
        length = following
    return length
