r"""The dual norm of a composed norm, computed from the problem that defines it.

Sums and maxima of norms, nested and in other coordinates, are composed of leaves: norms with a dual norm in closed
form. Matrices :math:`M_l`, one per leaf, that add up to M bound the dual norm from above in closed form
(:meth:`attsvm.core.norms.norm.Norm.dual_of_parts`). One minimisation over all leaves replaces one per level.

The dual norm satisfies :math:`\|M\|_*^{-1} = \min \|V\|` subject to the single constraint :math:`\langle M, V\rangle =
1`. The minimisers of the smoothed norm :math:`f_\mu(V)` form a path with :math:`\nabla f_\mu(V) = \theta M`. The
leaves' contributions to the gradient, divided by :math:`\theta`, split M. Newton's method follows the path until a
smaller :math:`\mu` no longer helps, or until the time limit of the solve. Earlier splits of nearly the same M are tried
first, so an answer at the time limit keeps the bound that its method had proven.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError
from scipy.optimize import minimize_scalar

from attsvm.core.cholesky import factor
from attsvm.core.norms.norm import Norm

# First and last weight of the barrier on the path, relative to the norm.
BARRIER_START, BARRIER_END = 1.0, 1e-14
# Factors by which the weight falls, tried in turn until the squared Newton decrement is below the bound.
BARRIER_FALLS, PATH_DECREMENT = (0.1, 0.3, 0.6, 0.85), 3.0
# Largest number of Newton steps per weight, squared decrement relative to the weight at which they end, shortest step.
SPLIT_NEWTON_STEPS = 40
DECREMENT_TOL = 1e-7
SHORTEST = 1e-6
# Largest relative error of a split's scale.
OFF = 1e-3
# Weight, relative to its first value, below which the path ends without progress; least relative decrease of the dual
# norm that counts as progress; number of weights without progress.
LATE_WEIGHT, LEAST_DECREASE, IDLE_WEIGHTS = 1e-8, 1e-12, 2
# The path ends when rounding makes the Hessian indefinite with this ridge; a larger ridge would make the bound worse.
HESSIAN_RIDGES = (1e-15,)
# Number of splits that a solve keeps, and largest relative distance from the sum of a split to M at which it is tried.
KEPT_SPLITS, SAME_SPLIT = 16, 1e-8
# Weights of the barrier, relative to the norm, for a cheap bound.
CHEAP_WEIGHTS = (1e-1, 1e-2, 1e-3)

Splits = list[np.ndarray]


@dataclass
class _Solve:
    """State shared by the evaluations within a solve: its clock, and earlier splits with their norm."""

    is_over: Callable[[], bool] = lambda: False
    known: deque[tuple[Norm, Splits]] = field(default_factory=lambda: deque(maxlen=KEPT_SPLITS))


_SOLVE: ContextVar[_Solve | None] = ContextVar("solve", default=None)


@contextmanager
def evaluations_within(
    is_over: Callable[[], bool] = lambda: False, known: Sequence[tuple[Norm, Splits]] = ()
) -> Iterator[None]:
    """Let evaluations of dual norms end when ``is_over`` returns True, and reuse earlier splits, ``known`` first."""
    token = _SOLVE.set(_Solve(is_over, deque(known, maxlen=KEPT_SPLITS)))
    try:
        yield
    finally:
        _SOLVE.reset(token)


def keep(norm: Norm, parts: Splits) -> None:
    """Keep a split for later evaluations in the same solve."""
    solve = _SOLVE.get()
    if solve is not None:
        solve.known.append((norm, parts))


def latest_split(norm: Norm) -> Splits | None:
    """Return the split that was kept last for a norm in the current solve."""
    solve = _SOLVE.get()
    kept = () if solve is None else reversed(solve.known)
    return next((parts for other, parts in kept if other == norm), None)


def optimal_split(norm: Norm, M: np.ndarray, profile: Norm | None = None, *, slack: float = 0.0) -> Splits:
    """Split M (p, r), not zero, between the leaves of a norm.

    Parameters
    ----------
    norm : Norm
        A norm whose smoothing has a part for each leaf.
    M : ndarray, shape (p, r)
    profile : Norm, optional
        The equal norm of the singular values.
    slack : float
        Relative amount by which the path's split may be worse than the best. If several splits are optimal, the path's
        split is in the interior of their set and shows their common face.

    Returns
    -------
    list of ndarray, each of shape (p, r)
        Their sum is M, up to the rounding of one of them.
    """
    best = _Best(norm, M, slack)
    best.recall()
    if profile is not None and min(M.shape) > 1:
        U, sigma, Vt = np.linalg.svd(M, full_matrices=False)
        best.offer([(U * part[0]) @ Vt for part in optimal_split(profile, sigma[None], slack=slack)])
        return best.parts
    top = float(np.abs(M).max())
    unit = M / top
    length, stalls, smallest = float(np.linalg.norm(unit)), 0, np.inf
    larger, before = np.inf, [M] * norm.leaves
    for mu, theta, leaves in _path(norm, unit / length):
        parts, late = [part * (top * length / theta) for part in leaves], mu < LATE_WEIGHT
        # The split is smooth in mu, so extrapolation from two weights has an error proportional to their product.
        fall = mu / larger
        limit = [part + fall / (1.0 - fall) * (part - last) for part, last in zip(parts, before, strict=True)]
        size = min(best.offer(parts, polish=late), best.offer(limit, polish=late))
        stalls = 0 if size < smallest * (1 - LEAST_DECREASE) else stalls + late
        smallest, larger, before = min(smallest, size), mu, parts
        if stalls >= IDLE_WEIGHTS:
            break
    return best.parts


def rough_split(norm: Norm, M: np.ndarray, V: np.ndarray) -> Splits:
    """Split M (p, r), not zero, like the gradients of smoothings of the norm at V (p, r)."""
    best = _Best(norm, M)
    best.recall()
    size = norm.value(V)
    for mu in CHEAP_WEIGHTS if size > 0 else ():
        leaves = norm.smoothing(V, mu * size).leaves
        theta = float(sum((part * M).sum() for part, _ in leaves)) / float((M * M).sum())
        if theta > 0:
            best.offer([part / theta for part, _ in leaves])
    return best.parts


def split_after(norm: Norm, M: np.ndarray, parts: Splits) -> Splits:
    """Split M (p, r) nearly as ``parts``, which nearly add up to it, and keep this split."""
    best = _Best(norm, M)
    best.offer(parts)
    keep(norm, best.parts)
    return best.parts


class _Best:
    """The split of M (p, r) with the smallest bound so far; initially all of M belongs to one leaf."""

    def __init__(self, norm: Norm, M: np.ndarray, slack: float = 0.0) -> None:
        self._norm, self._M, self._slack = norm, M, slack
        self.size, self.parts = np.inf, [M, *[np.zeros_like(M)] * (norm.leaves - 1)]
        self.offer([np.zeros_like(M)] * norm.leaves)

    def offer(self, parts: Sequence[np.ndarray], *, polish: bool = False) -> float:
        """Try ``parts`` that nearly add up to M, with the difference added to each leaf in turn; return the bound.

        ``polish`` also optimises their scale.
        """
        total = sum(parts, np.zeros_like(self._M))

        def completed(leaf: int, scale: float) -> Splits:
            # The leaf gets M minus the other parts.
            return [self._M - scale * (total - part) if k == leaf else scale * part for k, part in enumerate(parts)]

        sizes = [self._norm.dual_of_parts(completed(leaf, 1.0)) for leaf in range(len(parts))]
        leaf, scale = int(np.argmin(sizes)), 1.0
        if polish:

            def size(scale: float) -> float:
                return self._norm.dual_of_parts(completed(leaf, scale))

            minimum: Any = minimize_scalar(size, bounds=(1 - OFF, 1 + OFF), method="bounded", options={"xatol": 1e-13})
            scale = min((1.0, float(minimum.x)), key=size)
        candidate = completed(leaf, scale)
        bound = self._norm.dual_of_parts(candidate)
        if bound < self.size * (1.0 + self._slack):
            self.size, self.parts = bound, candidate
        return bound

    def recall(self) -> None:
        """Try the earlier splits of nearly the same matrix."""
        solve = _SOLVE.get()
        for norm, parts in () if solve is None else solve.known:
            if norm == self._norm and parts[0].shape == self._M.shape:
                total = sum(parts, np.zeros_like(self._M))
                scale = float((total * self._M).sum()) / (float((total * total).sum()) or 1.0)
                if np.linalg.norm(self._M - scale * total) <= SAME_SPLIT * np.linalg.norm(self._M):
                    self.offer([scale * part for part in parts])


def _path(norm: Norm, M: np.ndarray) -> Iterator[tuple[float, float, Splits]]:
    """Follow the minimisers of the smoothed norm with <M, V> = 1, |M| = 1.

    Yields mu relative to its first value, theta, and the leaves' gradients.
    """
    m, V, solve_around = M.ravel(), M, _SOLVE.get() or _Solve()
    first = mu = BARRIER_START * norm.value(V)
    while mu > BARRIER_END * first:
        here, is_stuck = norm.smoothing(V, mu), False
        for _ in range(SPLIT_NEWTON_STEPS):
            if solve_around.is_over():
                return
            try:
                solve = _solver(here.hessian, m)
            except LinAlgError:
                return
            step = solve(-here.gradient.ravel())
            decrement = -float(step @ here.gradient.ravel())
            if decrement <= DECREMENT_TOL * mu:
                break
            length = 1.0
            while True:
                there = norm.smoothing(V + length * step.reshape(V.shape), mu)
                if float(step @ there.gradient.ravel()) <= 0.5 * decrement or length < SHORTEST:
                    break
                length *= 0.5
            is_stuck = length < SHORTEST
            if is_stuck:
                break
            V, here = V + length * step.reshape(V.shape), there
        # First-order correction by the last, short step: it removes the rounding of V that a small mu magnifies.
        parts = [part + derivative(step).reshape(V.shape) for part, derivative in here.leaves]
        yield mu / first, float(m @ sum(parts, np.zeros(V.shape)).ravel()), parts
        if is_stuck:  # rounding
            return
        tangent = solve(here.hessian @ V.ravel()).reshape(V.shape)
        for fall in BARRIER_FALLS:
            after = V - (1.0 - fall) * tangent
            gradient = norm.smoothing(after, fall * mu).gradient.ravel()
            if float(gradient @ solve(gradient)) <= PATH_DECREMENT * fall * mu:
                break
        V, mu = after, fall * mu


def _solver(hessian: np.ndarray, m: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Factor the Hessian; the returned function solves for directions orthogonal to m."""
    inverse = factor(hessian + float(np.trace(hessian)) / len(m) * np.outer(m, m), HESSIAN_RIDGES)
    along = inverse(m)

    def solve(rhs: np.ndarray) -> np.ndarray:
        x = inverse(rhs)
        return x - along * (float(m @ x) / float(m @ along))

    return solve
