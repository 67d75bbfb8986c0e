r"""Newton steps that follow the face of the nuclear-norm ball as it changes.

Newton on one face (:mod:`attsvm.solvers.nuclear.face`) needs the right face; far from the solution a few constraints of
a guess are wrong. The conditions of optimality can be written as one equation that is not smooth,

.. math:: \lambda = [\lambda + 1 - A(W)]_+, \qquad W = \mathrm{SVT}_1(W + A^\top\lambda),

whose generalised Newton method reads the face anew before every step: active are the constraints with
:math:`\lambda > A(W) - 1`, the rank is the number of singular values of :math:`W + A^\top\lambda` above one (the
primal-dual active-set strategy; Hintermueller, Ito and Kunisch, SIAM J. Optim. 13, 2002). From a gap of 1e-2 or 1e-3
the face settles within a few steps.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from attsvm.core.kernels import FAST, call, interpreted, kernel
from attsvm.core.norms import NUCLEAR, spectral
from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.nuclear.face import CUTOFFS, face_at, matrix_of, newton_step
from attsvm.solvers.nuclear.matrices import FEW, gathered, right_singular, total
from attsvm.solvers.nuclear.steps import Constraints, apply_adjoint, copy, divide, margins_of, smallest_margin
from attsvm.solvers.schedule import NUCLEAR_PATIENCE

STEPS = 9
# A first step that changes multipliers by more than this part of the largest, or a face that changes by more than this
# part of its constraints, was taken too early: from there the steps went astray in nearly all runs.
FAR = 0.2
# Constraints and, in FEW, rows up to which loops are faster than NumPy and LAPACK.
MOST_CONSTRAINTS = 250
# A change of multipliers below this part of the largest is rounding.
LEVEL = 1e-15
# Equalities hold to this part of the smallest margin.
TIE_PRECISION = 1e-10
# A singular value of M that carries W is near one.
LEADING = 0.5


def pursue(reduced: Reduced, W: np.ndarray, dual: np.ndarray, control: Control) -> bool:
    """Take Newton steps from a pair whose gap is moderate, while they approach a solution; True when the run is over.

    W (p, r) has smallest margin one on the support of the multipliers (n, T). The best pair is with ``control``.
    """
    place = np.nonzero(reduced.rejected | reduced.tied)
    constraints = Constraints.of_reduced(reduced, place)
    length = spectral(reduced.adjoint(dual))
    if length <= 0:
        return False
    multipliers, active = dual[place] / length, np.zeros(len(place[0]), dtype=bool)
    W, on_face = np.array(W, order="C"), np.empty(W.shape)
    values, signed = np.empty(len(multipliers)), np.zeros(dual.shape)
    setting, step = Setting.hard_margin(reduced, NUCLEAR), interpreted(approach)
    if fits(len(multipliers), min(W.shape)):
        # In the interpreter a millisecond: products are calls of NumPy.
        step = partial(call, approach, 3e3, patience=NUCLEAR_PATIENCE)
    for _ in range(STEPS):
        gap, further = step(constraints, W, multipliers, active, on_face, values, control.tol)
        signed[place] = values
        if (further or gap < np.inf) and setting.report(on_face, signed, control):
            return True
        if not further:
            return False
    return False


def fits(constraints: int, rows: int) -> bool:
    """Whether so many constraints, and rows or columns of W, are few enough for loops."""
    return constraints <= MOST_CONSTRAINTS and rows <= FEW


def _activated(free, lengths, margins, dual, active):
    now = free | (lengths * dual > margins - 1.0)
    before, changes = int(active.sum()), int((now != active).sum())
    active[:] = now
    dual[~now] = 0.0
    return np.flatnonzero(now), before, changes


def _signed(free, dual, out):
    out[:] = np.where(free, dual, np.maximum(dual, 0.0))
    return float(out[~free].sum()), bool((out != dual).any())


def _listed(constraints, dual, index):
    rows = constraints.of[index]
    first = np.diff(rows, prepend=-1) > 0
    cost = np.where(constraints.free[index], 0.0, 1.0)
    return constraints.delta[index], np.cumsum(first) - 1, constraints.queries[rows[first]], cost, dual[index]


def _move(dual, index, change):
    size = np.abs(change).max() / max(np.abs(dual[index]).max(), 1e-300)
    dual[index] += change
    return float(size)


@kernel(inner=True, fastmath=FAST, plain=_activated)
def _activate(free, lengths, margins, dual, active):
    """Mark the constraints of the face and clear the multipliers of others.

    Returns the numbers (J,) of those marked, how many were marked before, and how many marks have changed.
    """
    count, before, changes = 0, 0, 0
    index = np.empty(len(free), dtype=np.int64)
    for k in range(len(free)):
        now = free[k] or lengths[k] * dual[k] > margins[k] - 1.0
        before += active[k]
        changes += now != active[k]
        active[k] = now
        if now:
            index[count] = k
            count += 1
        else:
            dual[k] = 0.0
    return index[:count], before, changes


@kernel(inner=True, fastmath=FAST, plain=_signed)
def _with_signs(free, dual, out):
    """Multipliers of the right sign; returns their sum over inequalities, and whether any was of the wrong one."""
    amount, wrong = 0.0, False
    for k in range(len(free)):
        out[k] = dual[k]
        if not free[k]:
            if dual[k] < 0.0:
                out[k], wrong = 0.0, True
            amount += out[k]
    return amount, wrong


@kernel(inner=True, fastmath=FAST, plain=_listed)
def _on_face(constraints, dual, index):
    """Gather the constraints numbered (J,): delta, of, the queries they ask, their cost and multipliers."""
    active = len(index)
    of, cost, lam = np.empty(active, dtype=np.int64), np.empty(active), np.empty(active)
    rows = np.empty(active, dtype=np.int64)
    count, last = 0, -1
    for j in range(active):
        k = index[j]
        if constraints.of[k] != last:  # constraints come query by query
            last = constraints.of[k]
            rows[count] = last
            count += 1
        of[j], lam[j] = count - 1, dual[k]
        cost[j] = 0.0 if constraints.free[k] else 1.0
    return gathered(constraints.delta, index), of, gathered(constraints.queries, rows[:count]), cost, lam


@kernel(inner=True, fastmath=FAST, plain=_move)
def _shift(dual, index, change):
    """Add a change (J,) to the multipliers with these numbers; returns its size over that of the largest of them."""
    largest, size = 1e-300, 0.0
    for j in range(len(index)):
        largest, size = max(largest, abs(dual[index[j]])), max(size, abs(change[j]))
        dual[index[j]] += change[j]
    return size / largest


@kernel(inner=True, fastmath=FAST)
def normalise(constraints, W, dual):
    """Scale W to smallest margin one and multipliers to |A^T dual| = 1, in place; False where that cannot be."""
    margins, M = np.empty(len(dual)), np.empty(W.shape)
    margins_of(constraints, W, margins)
    apply_adjoint(constraints, dual, M)
    spectral, smallest = right_singular(M)[2][0], smallest_margin(margins, constraints.free, np.inf)
    if not (spectral > 0.0 and smallest > 0.0):
        return False
    divide(dual, spectral)
    divide(W.reshape(W.size), smallest)
    return True


@kernel(fastmath=FAST)
def approach(constraints, W, dual, active, on_face, signed, goal):
    """Make one step: read the face off a pair, evaluate it there, and take a Newton step unless the gap is at its goal.

    Parameters
    ----------
    constraints : Constraints
    W : ndarray, shape (p, r)
    dual : ndarray, shape (m,)
        Both updated.
    active : ndarray of bool, shape (m,)
        The face of the step before, none at first; updated.
    on_face : ndarray, shape (p, r)
    signed : ndarray, shape (m,)
        Receive the pair as it lies on the face: smallest margin one, |A^T signed| one.
    goal : float

    Returns
    -------
    gap : float
        Of that pair; infinite when it is none.
    further : bool
        Whether another step is worth while.
    """
    margins, M = np.empty(len(dual)), np.empty(W.shape)
    margins_of(constraints, W, margins)
    index, before, changes = _activate(constraints.free, constraints.lengths, margins, dual, active)
    if len(index) == 0 or (before > 0 and changes > max(4.0, FAR * before)):
        return np.inf, False
    apply_adjoint(constraints, dual, M)
    vectors, images, sigma = right_singular(M)
    spectrum = right_singular(total(M, W, 1.0 / right_singular(W)[2][0]))[2]
    k = 1
    while k < min(W.shape[0], W.shape[1]) and spectrum[k] > 1.0:
        k += 1
    if not sigma[k - 1] > LEADING:
        return np.inf, False
    face = face_at(W, vectors, images, sigma, k)
    if not face.singular[0] > 0.0:
        return np.inf, False
    copy(matrix_of(face).reshape(W.size), on_face.reshape(W.size))
    margins_of(constraints, on_face, margins)
    smallest = smallest_margin(margins, constraints.free, TIE_PRECISION)
    amount, wrong = _with_signs(constraints.free, dual, signed)
    spectral, nuclear = sigma[0], 0.0
    if wrong:
        apply_adjoint(constraints, signed, M)
        spectral = right_singular(M)[2][0]
    for value in face.singular:
        nuclear += abs(value)
    gap = np.inf
    if smallest > 0.0 and amount > 0.0:
        gap = nuclear / smallest * spectral / amount - 1.0
        divide(on_face.reshape(W.size), smallest)
        divide(signed, spectral)
        if gap <= goal:
            return gap, False
    delta, of, queries, cost, lam = _on_face(constraints, dual, index)
    solvable, following, change = newton_step(delta, of, queries, cost, lam, np.zeros(len(lam)), face, CUTOFFS[0])
    if not solvable:
        return gap, False
    copy(following.reshape(W.size), W.reshape(W.size))
    size = _shift(dual, index, change)
    return gap, LEVEL < size < FAR
