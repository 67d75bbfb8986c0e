r"""The dual norm of a composed norm, by the problem that defines it.

Sums and larger ones of norms, to any depth and in other coordinates, are composed of norms with a dual norm in closed
form, their leaves. Matrices :math:`M_l`, one a leaf, that add up to M bound the dual norm from above in closed form
(:meth:`attsvm.core.norms.norm.Norm.dual_of_parts`): one minimisation over all of them takes the place of one per level.

:math:`\|M\|_*^{-1} = \min \|V\|` subject to :math:`\langle M, V\rangle = 1`: one constraint. On the path of minimisers
of :math:`f_\mu(V)`, :math:`\nabla f_\mu(V) = \theta M`. The contributions of the leaves to the gradient, divided by
:math:`\theta`, split M. Newton's method follows the path until a smaller :math:`\mu` no longer helps, or until the time
of the solve around it is over. Splits that the solve has met before for nearly the same M are tried first, so that an
answer at the time limit keeps the bound that its method had proven.
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

# The weight of the barrier in parts of the norm: where the path begins and ends.
FIRST, LAST = 1.0, 1e-14
# How fast it falls, tried in turn until the point reached is this near the path, in squared Newton decrements.
FALLS, PATH_DECREMENT = (0.1, 0.3, 0.6, 0.85), 3.0
NEWTON_STEPS = 40
DECREMENT_TOL = 1e-7
SHORTEST = 1e-6
# By how much the scale of a split may be off.
OFF = 1e-3
# Below this part of its first value mu ends the path when the dual norm has not fallen by such a part in so many of its
# values.
LATE, PROGRESS, PATIENCE = 1e-8, 1e-12, 2
# Where rounding leaves the Hessian indefinite with this ridge the path ends; larger ones would cost the bound digits.
RIDGES = (1e-15,)
# Number of splits that a solve keeps, and how far, relatively, M may be from the sum of one that is tried.
KEPT, SAME = 16, 1e-8
# Weights of the barrier, in parts of the norm, for a bound at little cost.
ROUGH = (1e-1, 1e-2, 1e-3)

Splits = list[np.ndarray]


@dataclass
class _Solve:
    """What evaluations within a solve share: its clock, and splits that it has met, with their norm."""

    is_over: Callable[[], bool] = lambda: False
    known: deque[tuple[Norm, Splits]] = field(default_factory=lambda: deque(maxlen=KEPT))


_SOLVE: ContextVar[_Solve | None] = ContextVar("solve", default=None)


@contextmanager
def evaluations_within(is_over: Callable[[], bool]) -> Iterator[None]:
    """Let evaluations of dual norms end when ``is_over`` says so, and use splits that they have met before."""
    token = _SOLVE.set(_Solve(is_over))
    try:
        yield
    finally:
        _SOLVE.reset(token)


def keep(norm: Norm, parts: Splits) -> None:
    """Keep a split for later evaluations of the same solve."""
    solve = _SOLVE.get()
    if solve is not None:
        solve.known.append((norm, parts))


def optimal_split(norm: Norm, M: np.ndarray, profile: Norm | None = None, *, slack: float = 0.0) -> Splits:
    """Split M (p, r), not zero, between the leaves of a norm.

    Parameters
    ----------
    norm : Norm
        Whose smoothing has a part for each leaf.
    M : ndarray, shape (p, r)
    profile : Norm, optional
        The norm of the singular values that it is.
    slack : float
        How much worse, relatively, the path's split may be than the best. Where several splits are optimal, the path's
        is inside their set, and shows the face that they have in common.

    Returns
    -------
    list of ndarray, each of shape (p, r)
        Their sum is M but for rounding of one of them.
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
        parts, late = [part * (top * length / theta) for part in leaves], mu < LATE
        # The split on the path is smooth in mu: what two values of it say of the limit is off by their product.
        fall = mu / larger
        limit = [part + fall / (1.0 - fall) * (part - last) for part, last in zip(parts, before, strict=True)]
        size = min(best.offer(parts, polish=late), best.offer(limit, polish=late))
        stalls = 0 if size < smallest * (1 - PROGRESS) else stalls + late
        smallest, larger, before = min(smallest, size), mu, parts
        if stalls >= PATIENCE:
            break
    return best.parts


def rough_split(norm: Norm, M: np.ndarray, V: np.ndarray) -> Splits:
    """Split M (p, r), not zero, as the gradients of smoothings of the norm at V (p, r) are."""
    best = _Best(norm, M)
    best.recall()
    size = norm.value(V)
    for mu in ROUGH if size > 0 else ():
        leaves = norm.smoothing(V, mu * size).leaves
        theta = float(sum((part * M).sum() for part, _ in leaves)) / float((M * M).sum())
        if theta > 0:
            best.offer([part / theta for part, _ in leaves])
    return best.parts


def split_after(norm: Norm, M: np.ndarray, parts: Splits) -> Splits:
    """Split M (p, r) nearly as ``parts``, which nearly add up to it, and keep that."""
    best = _Best(norm, M)
    best.offer(parts)
    keep(norm, best.parts)
    return best.parts


class _Best:
    """The split of M (p, r) with the smallest bound so far: all of M for one leaf at first."""

    def __init__(self, norm: Norm, M: np.ndarray, slack: float = 0.0) -> None:
        self._norm, self._M, self._slack = norm, M, slack
        self.size, self.parts = np.inf, [M, *[np.zeros_like(M)] * (norm.leaves - 1)]
        self.offer([np.zeros_like(M)] * norm.leaves)

    def offer(self, parts: Sequence[np.ndarray], *, polish: bool = False) -> float:
        """Try parts that nearly add up to M, each leaf in turn with what they lack; the bound that they come to.

        ``polish`` tries their scale too.
        """
        total = sum(parts, np.zeros_like(self._M))

        def completed(leaf: int, scale: float) -> Splits:
            # The leaf has M less the other parts.
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
        """Try the splits that the solve has met of nearly the same matrix."""
        solve = _SOLVE.get()
        for norm, parts in () if solve is None else solve.known:
            if norm == self._norm and parts[0].shape == self._M.shape:
                total = sum(parts, np.zeros_like(self._M))
                scale = float((total * self._M).sum()) / (float((total * total).sum()) or 1.0)
                if np.linalg.norm(self._M - scale * total) <= SAME * np.linalg.norm(self._M):
                    self.offer([scale * part for part in parts])


def _path(norm: Norm, M: np.ndarray) -> Iterator[tuple[float, float, Splits]]:
    """Follow the minimisers of the smoothed norm with <M, V> = 1, |M| = 1.

    Yields mu in parts of its first value, theta, and the leaves' gradients.
    """
    m, V, solve_around = M.ravel(), M, _SOLVE.get() or _Solve()
    first = mu = FIRST * norm.value(V)
    while mu > LAST * first:
        here, is_stuck = norm.smoothing(V, mu), False
        for _ in range(NEWTON_STEPS):
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
        # To first order in the last, short step: rounding of V that a small mu magnifies drops out.
        parts = [part + derivative(step).reshape(V.shape) for part, derivative in here.leaves]
        yield mu / first, float(m @ sum(parts, np.zeros(V.shape)).ravel()), parts
        if is_stuck:  # rounding
            return
        tangent = solve(here.hessian @ V.ravel()).reshape(V.shape)
        for fall in FALLS:
            after = V - (1.0 - fall) * tangent
            gradient = norm.smoothing(after, fall * mu).gradient.ravel()
            if float(gradient @ solve(gradient)) <= PATH_DECREMENT * fall * mu:
                break
        V, mu = after, fall * mu


def _solver(hessian: np.ndarray, m: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Factor the Hessian; the result solves for directions orthogonal to m."""
    inverse = factor(hessian + float(np.trace(hessian)) / len(m) * np.outer(m, m), RIDGES)
    along = inverse(m)

    def solve(rhs: np.ndarray) -> np.ndarray:
        x = inverse(rhs)
        return x - along * (float(m @ x) / float(m @ along))

    return solve
