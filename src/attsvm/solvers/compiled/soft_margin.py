r"""Small soft margins in the Frobenius norm: the interior point in one compiled call.

For a few hundred constraints, the steps of :mod:`attsvm.solvers.interior_point.engine` and the gap tests of coordinate
descent spend most of their time in the interpreter. The steps here are the same, in loops: each factors :math:`I +
A^\top \Theta A`, takes a predictor and a corrector, and moves V and the multipliers by one length.
"""

from __future__ import annotations

import numpy as np
from numba import float64

from attsvm.platform.kernels import FAST, call, kernel, spares
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius.constraints import CONSTRAINTS, Constraints
from attsvm.solvers.interior_point.engine import CENTRE
from attsvm.solvers.interior_point.euclidean import work_of_a_step
from attsvm.solvers.nuclear.steps import apply_adjoint, margins_of
from attsvm.solvers.schedule import CENTRAL_OPERATIONS, INTERIOR_STEPS

# Largest number of steps, and sum of products over the objective at which only rounding remains and the path ends.
MOST_PATH_STEPS, PATH_END = 60, 1e-13
# Share of the way to the boundary.
STEP_SHARE = 0.99
# Smallest pivot of a factor, over the diagonal entry.
LEAST_PIVOT = 1e-15


@kernel(inner=True, fastmath=FAST)
def _factor(constraints, columns, theta, out):
    """Write the lower Cholesky factor of I + A^T Theta A, (p r, p r); ``columns`` are the transposed queries (r, n)."""
    delta, first, (r, n), p = constraints.delta, constraints.first, columns.shape, constraints.delta.shape[1]
    size, weight, weighted = p * r, np.empty(n), np.empty(n)
    for a in range(p):
        for b in range(a + 1):
            for i in range(n):
                weight[i] = 0.0
                for k in range(first[i], first[i + 1]):
                    weight[i] += theta[k] * delta[k, a] * delta[k, b]
            for c in range(r):
                for i in range(n):
                    weighted[i] = weight[i] * columns[c, i]
                for e in range(c + 1):
                    value = 1.0 if a == b and c == e else 0.0
                    for i in range(n):
                        value += weighted[i] * columns[e, i]
                    out[a * r + c, b * r + e] = out[a * r + e, b * r + c] = value
    for a in range(size):
        for b in range(a + 1):
            value = square = out[a, b]
            for c in range(b):
                value -= out[a, c] * out[b, c]
            out[a, b] = np.sqrt(max(value, LEAST_PIVOT * square)) if a == b else value / out[b, b]


@kernel(inner=True, fastmath=FAST)
def _solve(L, x):
    """Overwrite x with the solution of L L^T y = x."""
    for a in range(len(x)):
        for b in range(a):
            x[a] -= L[a, b] * x[b]
        x[a] /= L[a, a]
    for a in range(len(x) - 1, -1, -1):
        x[a] /= L[a, a]
        for b in range(a):
            x[b] -= L[a, b] * x[a]


@kernel(inner=True, fastmath=FAST)
def _direction(constraints, L, theta, point, residual, lack, shift, mu, move, step, image):
    """Write the direction from ``point`` towards products ``mu`` to ``move``, and its change of V to ``step``.

    ``point`` and ``move`` (4, m) have slacks, multipliers, losses and their multipliers. The products of an earlier
    ``move`` correct the direction. Returns the longest step within the bounds.
    """
    slack, dual, loss, other = point[0], point[1], point[2], point[3]
    hinge = shift == 0.0
    target, target_loss = np.empty(len(dual)), np.zeros(len(dual))
    for k in range(len(dual)):
        target[k] = mu - slack[k] * dual[k] - move[0, k] * move[1, k]
        image[k] = residual[0, k] + target[k] / dual[k]
        if hinge:
            target_loss[k] = mu - loss[k] * other[k] - move[2, k] * move[3, k]
            image[k] -= (target_loss[k] - loss[k] * residual[1, k]) / other[k]
        image[k] *= theta[k]
    apply_adjoint(constraints, image, step)
    step += lack
    _solve(L, step.reshape(step.size))
    margins = np.empty(len(dual))
    margins_of(constraints, step, margins)
    longest = 1.0 / STEP_SHARE if np.isfinite(margins).all() else 0.0
    for k in range(len(dual)):
        move[1, k] = image[k] - theta[k] * margins[k]
        move[0, k] = (target[k] - slack[k] * move[1, k]) / dual[k]
        if hinge:
            move[3, k] = residual[1, k] - move[1, k]
            move[2, k] = (target_loss[k] - loss[k] * move[3, k]) / other[k]
        for j in range(4 if hinge else 2):
            if move[j, k] < 0.0:
                longest = min(longest, -point[j, k] / move[j, k])
    return longest


@kernel((CONSTRAINTS, float64[::1], float64, float64), seconds=4.0, fastmath=FAST)
def central_path(constraints, cost, upper, shift):
    """Follow the central path of a soft margin from V = 0 to its end.

    Parameters
    ----------
    constraints : Constraints
        Rejected tokens only, without the Gram matrix.
    cost : ndarray, shape (m,)
    upper, shift : float
        As in :class:`attsvm.proofs.objective.Terms`.

    Returns
    -------
    V : ndarray, shape (p, r)
    dual : ndarray, shape (m,)
        Multipliers within their bounds. Their rounding moves A^T dual, but not V.
    steps : int
    """
    m, p, r = len(cost), constraints.delta.shape[1], constraints.queries.shape[1]
    hinge, count = shift == 0.0, m if shift > 0.0 else 2 * m
    V, step, lack, L = np.zeros((p, r)), np.zeros((p, r)), np.zeros((p, r)), np.zeros((p * r, p * r))
    point, move, residual = np.zeros((4, m)), np.zeros((4, m)), np.zeros((2, m))
    slack, dual, loss, other = point[0], point[1], point[2], point[3]
    theta, margins, columns = np.empty(m), np.empty(m), np.ascontiguousarray(constraints.queries.T)
    total = 0.0
    for k in range(m):
        short = max(cost[k], 0.0)
        total += upper * short if hinge else short * short / (2.0 * shift)
    mu = CENTRE * total / m
    for k in range(m):
        half = 0.5 * cost[k]
        if hinge:
            mean = mu / upper
            up = np.hypot(mean, half) + abs(half)
            down = mean * (mean / up)
            slack[k], loss[k] = mean + (down if half > 0.0 else up), mean + (up if half > 0.0 else down)
            dual[k], other[k] = mu / slack[k], mu / loss[k]
        else:
            root = np.hypot(half, np.sqrt(mu * shift)) + abs(half)
            dual[k] = root / shift if half > 0.0 else mu / root
            slack[k] = mu / dual[k]
    steps = 0
    while steps < MOST_PATH_STEPS:
        margins_of(constraints, V, margins)
        apply_adjoint(constraints, dual, lack)
        value, products = 0.0, 0.0
        for a in range(p):
            for c in range(r):
                value += 0.5 * V[a, c] * V[a, c]
                lack[a, c] -= V[a, c]
        for k in range(m):
            ease = loss[k] / other[k] if hinge else shift
            theta[k] = 1.0 / (slack[k] / dual[k] + ease)
            products += slack[k] * dual[k] + loss[k] * other[k]
            value += upper * loss[k] if hinge else 0.5 * shift * dual[k] * dual[k]
            residual[0, k] = cost[k] - margins[k] - (loss[k] if hinge else shift * dual[k]) + slack[k]
            residual[1, k] = upper - dual[k] - other[k] if hinge else 0.0
        if not products > PATH_END * value:
            break
        _factor(constraints, columns, theta, L)
        move[:] = 0.0
        longest = min(1.0, _direction(constraints, L, theta, point, residual, lack, shift, 0.0, move, step, margins))
        after = 0.0
        for k in range(m):
            after += (slack[k] + longest * move[0, k]) * (dual[k] + longest * move[1, k])
            after += (loss[k] + longest * move[2, k]) * (other[k] + longest * move[3, k])
        ratio = min(1.0, after / products)
        mu = products / count * ratio**3
        longest = STEP_SHARE * _direction(constraints, L, theta, point, residual, lack, shift, mu, move, step, margins)
        if not 0.0 < longest < np.inf:
            break
        steps += 1
        for a in range(p):
            for c in range(r):
                V[a, c] += longest * step[a, c]
        for j in range(4):
            for k in range(m):
                point[j, k] += longest * move[j, k]
    return V, dual, steps


def step_operations(setting: Setting) -> float:
    """Estimate the multiplications of a step."""
    p, r = setting.reduced.shape
    n, T = setting.terms.cost.shape
    return n * T * (p * p + 8 * p) + n * p * r * (p * r / 4 + 6) + (p * r) ** 3 / 6 + 80 * n * T


def suits_path(setting: Setting) -> bool:
    """Tell whether a problem is a soft margin so small that one compiled call solves it."""
    terms, operations = setting.terms, step_operations(setting)
    if terms.hard or terms.tied.any() or not terms.rejected.any() or operations > CENTRAL_OPERATIONS:
        return False
    return not spares(central_path, operations * INTERIOR_STEPS, INTERIOR_STEPS * work_of_a_step(setting.reduced))


def solve_on_path(setting: Setting) -> tuple[np.ndarray, np.ndarray, int]:
    """Return V (p, r) and multipliers (n, T) of a small soft margin without ties, and the number of steps."""
    terms, all_of = setting.terms, Constraints.of_reduced(setting.reduced)
    chosen = np.flatnonzero(terms.rejected)
    of = all_of.of[chosen]
    first = np.searchsorted(of, np.arange(len(all_of.queries) + 1))
    constraints = all_of._replace(
        delta=all_of.delta[chosen], of=of, first=first, rejected=all_of.rejected[chosen], tied=all_of.tied[chosen]
    )
    operations = INTERIOR_STEPS * step_operations(setting)
    V, values, steps = call(
        central_path, operations, constraints, terms.cost.ravel()[chosen], float(terms.upper), float(terms.shift)
    )
    dual = np.zeros(terms.cost.shape)
    dual.ravel()[chosen] = values
    return V, dual, steps
