r"""Primal-dual hybrid gradient for the nuclear norm: many cheap steps towards the face that holds the solution.

The saddle point of :math:`\|W\|_* + \lambda^\top(c - A(W))` over W and multipliers (nonnegative on inequalities) is
approached by the steps of Chambolle and Pock (J. Math. Imaging Vis. 40, 2011),

.. math:: \bar W = \mathrm{SVT}_\tau(W + \tau A^\top\lambda), \qquad
   \bar\lambda = [\lambda + \sigma(c - A(2\bar W - W))]_+,

over-relaxed: :math:`W \leftarrow W + \rho(\bar W - W)`, likewise the multipliers (Condat, J. Optim. Theory Appl. 158,
2013). :math:`\mathrm{SVT}_\tau` shortens the singular values by :math:`\tau`; :math:`\tau = 1/(\omega\|A\|)` and
:math:`\sigma = \omega/\|A\|`. Steps are restarted from their average where that is nearer to the solution, and the
primal weight :math:`\omega` is then set to the ratio of the distances that multipliers and W have moved (Applegate et
al., NeurIPS 2021; there for linear programs). Only constraints of a working set take part: fewer rows make
:math:`\|A\|`, hence the number of steps, smaller as well as the steps cheaper.

Tried on the benchmark instances: without over-relaxation 1.6 to 1.8 times the steps; restarted Halpern steps (Lu and
Yang, arXiv 2407.16144) as many to twice as many; all constraints instead of a working set mostly 1.5 to 2.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from attsvm.norms import spectral
from attsvm.reduction import Reduced
from attsvm.solvers.dual_coordinate import FAST

RELAXATION = 1.9
LOOK = 10  # steps between looks at the gap
# Restart when the error has fallen by this factor, or this part of all steps has passed since the last restart.
FALL, LONG = 0.2, 0.36
# The Frobenius solution underestimates the weight (measured over the benchmark instances: by 1.5 to 5).
WEIGHT = 2.5
POWER_STEPS = 30
# Steps to a gap of 1e-3 grow as the root of a condition number, ||A||^2 |lam| / sqrt(supports) of the Frobenius
# solution with margin one: near 30 times that root on the benchmark instances that got there. Random tokens took 8 to
# 16 steps, hidden states 50 to 100; digits, where this says thousands, had not arrived after 3000.
STEPS_TO_FACE = 30.0
SAFETY = 1.02


@njit(cache=True, nogil=True, fastmath=FAST)
def _margins(delta, of, projected, out):
    """Margin delta_k . (W z)_k of every constraint, from the products W z (n, p) of all queries."""
    for k in range(len(of)):
        i = of[k]
        value = 0.0
        for a in range(delta.shape[1]):
            value += delta[k, a] * projected[i, a]
        out[k] = value


@njit(cache=True, nogil=True, fastmath=FAST)
def _pull(delta, of, dual, queries):
    """A^T dual, (p, r)."""
    gathered = np.zeros((len(queries), delta.shape[1]))
    for k in range(len(of)):
        if dual[k] != 0.0:
            i = of[k]
            for a in range(delta.shape[1]):
                gathered[i, a] += dual[k] * delta[k, a]
    return np.dot(gathered.T, queries)


@njit(cache=True, nogil=True)
def _norm(delta, of, queries, W, steps):
    """Power iteration on A^T A from W (p, r): the norm of A, from below."""
    margins = np.empty(len(of))
    value = 0.0
    for _ in range(steps):
        W = W / np.sqrt((W * W).sum())
        _margins(delta, of, np.dot(queries, W.T), margins)
        W = _pull(delta, of, margins, queries)
        value = np.sqrt((W * W).sum())
    return np.sqrt(value)


@njit(cache=True, nogil=True)
def _shorten(Y, tau):
    """Shorten the singular values of Y by tau, through the eigenvectors of the smaller Gram matrix."""
    wide = Y.shape[0] < Y.shape[1]
    gram = np.dot(Y, Y.T) if wide else np.dot(Y.T, Y)
    values, vectors = np.linalg.eigh(gram)
    size = len(values)
    first = size
    while first > 0 and values[first - 1] > tau * tau:
        first -= 1
    kept = np.ascontiguousarray(vectors[:, first:])
    scaled = np.empty((size - first, size))
    for j in range(size - first):
        factor = 1.0 - tau / np.sqrt(values[first + j])
        for a in range(size):
            scaled[j, a] = factor * kept[a, j]
    projector = np.dot(kept, scaled)
    return np.dot(projector, Y) if wide else np.dot(Y, projector)


@njit(cache=True, nogil=True)
def _value(delta, of, queries, free, W, dual):
    """Certified gap of a pair on the working set, and the size of its optimality residuals."""
    margins = np.empty(len(of))
    _margins(delta, of, np.dot(queries, W.T), margins)
    smallest, short, total, count = np.inf, 0.0, 0.0, 0
    for k in range(len(of)):
        if free[k]:
            short += margins[k] ** 2
        else:
            smallest = min(smallest, margins[k])
            short += max(0.0, 1.0 - margins[k]) ** 2
            total += dual[k]
            count += 1
    nuclear = np.linalg.svd(W)[1].sum()
    spectral = np.linalg.svd(_pull(delta, of, dual, queries))[1][0]
    gap = nuclear / smallest * spectral / total - 1.0 if smallest > 0 and total > 0 else np.inf
    apart = (nuclear - total) / (1.0 + nuclear + abs(total))
    return gap, np.sqrt(short / count + max(0.0, spectral - 1.0) ** 2 + apart**2)


@njit(cache=True, nogil=True)
def _run(delta, of, queries, free, W, dual, sums, restart, best, state, target, limit):
    """Make steps until the gap on the working set falls below the target, or ``limit`` steps.

    W, dual, the pairs ``sums``, ``restart`` and ``best`` of such arrays and ``state`` (norm of A, weight, error at the
    last restart, steps since, steps in all, last gap) are updated. Returns the steps made.
    """
    norm, weight = state[0], state[1]
    m = len(of)
    margins, next_dual = np.empty(m), np.empty(m)
    for made in range(1, limit + 1):
        tau, sigma = 1.0 / (weight * norm), weight / norm
        next_W = _shorten(W + tau * _pull(delta, of, dual, queries), tau)
        _margins(delta, of, np.dot(queries, (2.0 * next_W - W).T), margins)
        W += RELAXATION * (next_W - W)
        for k in range(m):
            if free[k]:
                next_dual[k] = dual[k] - sigma * margins[k]
            else:
                next_dual[k] = max(0.0, dual[k] + sigma * (1.0 - margins[k]))
            dual[k] += RELAXATION * (next_dual[k] - dual[k])
            sums[1][k] += next_dual[k]
        sums[0][:] += next_W
        state[3] += 1.0
        state[4] += 1.0
        if state[4] % LOOK != 0.0:
            continue
        state[5], error = _value(delta, of, queries, free, next_W, next_dual)
        best[0][:], best[1][:] = next_W, next_dual
        mean_W, mean_dual = sums[0] / state[3], sums[1] / state[3]
        gap, mean_error = _value(delta, of, queries, free, mean_W, mean_dual)
        if mean_error < error:
            state[5], error = gap, mean_error
            best[0][:], best[1][:] = mean_W, mean_dual
        if error < FALL * state[2] or state[3] > LONG * state[4]:
            W[:], dual[:] = best[0], best[1]
            far_W, far_dual = np.sqrt(((W - restart[0]) ** 2).sum()), np.sqrt(((dual - restart[1]) ** 2).sum())
            if far_W > 0.0 and far_dual > 0.0:
                weight = np.sqrt(weight * far_dual / far_W)
            restart[0][:], restart[1][:] = best[0], best[1]
            sums[0][:], sums[1][:] = 0.0, 0.0
            state[1], state[2], state[3] = weight, error, 0.0
        if state[5] < target:
            return made
    return limit


class FirstOrder:
    """Over-relaxed primal-dual steps with restarts, on a working set of a reduced problem.

    Parameters
    ----------
    reduced : Reduced
    working : ndarray of bool, shape (n, T)
        The working set; every equality must be in it.
    W : ndarray, shape (p, r)
        Where to start.
    dual : ndarray, shape (n, T)
        The multipliers of W as the Frobenius solution, of any scale.

    Attributes
    ----------
    expected_steps : float
        Estimate of the steps until the face can be identified.
    """

    def __init__(self, reduced: Reduced, working: np.ndarray, W: np.ndarray, dual: np.ndarray) -> None:
        self.reduced = reduced
        length = spectral(reduced.adjoint(dual))
        weight = WEIGHT * float(np.linalg.norm(dual)) / (length * float(np.linalg.norm(W)))
        self._begin(working, W, dual / length, weight)
        scale = float(dual[reduced.rejected].sum()) / float(np.linalg.norm(reduced.adjoint(dual))) ** 2
        spread = scale * float(np.linalg.norm(dual)) / np.sqrt(max(1, np.count_nonzero(dual)))
        self.expected_steps = STEPS_TO_FACE * self.norm * float(np.sqrt(spread))

    def _begin(self, working: np.ndarray, W: np.ndarray, dual: np.ndarray, weight: float) -> None:
        reduced = self.reduced
        self.working = working
        self._place = np.nonzero(working)
        self._of = self._place[0]
        self._delta = reduced.delta[self._place]  # (m, p)
        self._free = reduced.tied[self._place]
        start = np.ascontiguousarray(W, dtype=float), np.ascontiguousarray(dual[self._place])
        self._current = start[0].copy(), start[1].copy()
        self._restart = start[0].copy(), start[1].copy()
        self._best = start[0].copy(), start[1].copy()
        self._sums = np.zeros_like(start[0]), np.zeros_like(start[1])
        norm = SAFETY * _norm(self._delta, self._of, reduced.queries, start[0], POWER_STEPS)
        _, error = _value(self._delta, self._of, reduced.queries, self._free, *start)
        self._state = np.array([norm, weight, error, 0.0, 0.0, np.inf])

    @property
    def norm(self) -> float:
        """The norm of A on the working set, as it is used."""
        return float(self._state[0])

    @property
    def gap(self) -> float:
        """Certified gap on the working set when last looked at."""
        return float(self._state[5])

    @property
    def W(self) -> np.ndarray:
        """The better of the last iterate and the average, (p, r)."""
        return self._best[0]

    def scattered_dual(self) -> np.ndarray:
        """Its multipliers on all constraints, (n, T)."""
        dual = np.zeros(self.working.shape)
        dual[self._place] = self._best[1]
        return dual

    def extend(self, joining: np.ndarray) -> None:
        """Let inequalities join the working set, with multipliers zero."""
        self._begin(self.working | joining, self.W, self.scattered_dual(), float(self._state[1]))

    def advance(self, target: float, limit: int) -> int:
        """Make steps until the gap on the working set falls below the target, ``limit`` at most; how many."""
        return _run(
            self._delta,
            self._of,
            self.reduced.queries,
            self._free,
            *self._current,
            self._sums,
            self._restart,
            self._best,
            self._state,
            target,
            limit,
        )
