r"""Newton steps that follow the face of the nuclear-norm ball as it changes: hard and soft margins, priors and ties.

Newton on one face (:mod:`attsvm.solvers.nuclear.face`) needs the right face; a guess has a few wrong constraints. The
conditions of optimality can be written as one nonsmooth equation,

.. math:: \lambda = [\lambda + c - \epsilon\lambda - A(V)]_0^{C_{max}}, \qquad V = \mathrm{SVT}_1(V + A^\top\lambda)

(:mod:`attsvm.proofs.objective` has c, :math:`\epsilon` and :math:`C_{max}`). Its generalised Newton method identifies
the face before every step (the primal-dual active-set strategy; Hintermueller, Ito and Kunisch, SIAM J. Optim. 13,
2002). A rejected token is beyond its margin (multiplier zero), short of it (hinge: multiplier C), or active. Active
tokens enter the Newton system; tokens that fall short are a constant part of :math:`M = A^\top\lambda`. The rank is the
number of singular values of V + M above one. Below a gap of 1e-2 or 1e-3 the face no longer changes after a few steps.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numba import boolean, float64, int64, types

from attsvm.core.norms import spectral
from attsvm.platform.kernels import FAST, call, interpreted, kernel
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.nuclear.face import CUTOFFS, FACE, SYSTEM_BYTES, face_at, newton_step, system_size
from attsvm.solvers.nuclear.matrices import right_singular, rows_at, singular_values, total
from attsvm.solvers.nuclear.steps import NUCLEAR_CONSTRAINTS, StepConstraints, apply_adjoint, copy, margins_of
from attsvm.solvers.schedule import COMPILED_CONSTRAINTS, FACE_GAP, ROTATION_ROWS, nuclear_interior_work

# Largest number of Newton steps from one pair.
FACE_STEPS = 9
# Change of the multipliers in a first step, over the largest multiplier, and change of a face, over its constraints,
# above which later steps are likely to diverge.
LARGEST_CHANGE = 0.2
# Change of the multipliers, over the largest, below which it is rounding.
CHANGE_LEVEL = 1e-15
# Smallest singular value of M that can carry V; at the solution it is one.
LEADING = 0.5


class Demand(NamedTuple):
    """The requested margins and the cost of a shortfall.

    Attributes
    ----------
    cost : ndarray, shape (m,)
        Requested margins.
    upper : float
        Largest multiplier of an inequality.
    shift : float
        Permitted shortfall of a margin over its multiplier.
    """

    cost: np.ndarray
    upper: float
    shift: float


DEMAND = types.NamedTuple((float64[::1], float64, float64), Demand)


def refine(setting: Setting, V: np.ndarray, dual: np.ndarray, control: Control) -> bool:
    """Take Newton steps from a pair while they approach a solution; True if the run has ended.

    V is (p, r), the multipliers (n, T). The control stores the best pair; its gap measures how near it is.
    """
    terms, reduced = setting.terms, setting.reduced
    dual = terms.clip(dual)
    place = np.nonzero(terms.rejected | terms.tied)
    constraints = StepConstraints.of_reduced(reduced, place)
    demand = Demand(terms.cost[place], terms.upper, terms.shift)
    length = spectral(reduced.adjoint(dual))
    if length <= 0 or not V.any():
        return False
    # Near the solution a singular system has dependent constraints, for which LAPACK's least squares pay.
    is_near = control.state.gap < FACE_GAP
    reader, mover = interpreted(read), interpreted(move)
    if not is_near and fits(len(place[0]), min(V.shape)):
        # A call takes a millisecond in the interpreter: products are calls of NumPy.
        reader, mover = (partial(call, step, 3e3) for step in (read, move))
    for cutoff in CUTOFFS[: 1 + is_near]:
        # The solution lies on the unit sphere of the dual norm; multipliers at their bound must not be scaled.
        values = dual[place] / (length if terms.hard else 1.0)
        pair = np.array(V, order="C"), values
        active, multipliers = np.zeros(len(values), dtype=bool), np.zeros(dual.shape)
        for _ in range(FACE_STEPS):
            sound, index, face, _ = reader(constraints, demand, *pair, active)
            if not sound:
                break
            multipliers[place] = values
            # Report V, whose margins err by eps ||V||. Margins of U S V^T err by eps ||V||^2 with the rounding of M.
            if setting.report(pair[0], multipliers, control):
                return True
            size = system_size(len(index), len(face.singular))
            if not control.affords(nuclear_interior_work(reduced.shape, size), SYSTEM_BYTES * size**2):
                break
            if not mover(constraints, demand, *pair, index, face, cutoff):
                break
    return setting.ends_in_rounding(control)


def fits(constraints: int, rows: int) -> bool:
    """Tell whether loops are faster than NumPy for this number of constraints, and of rows or columns of W."""
    return constraints <= COMPILED_CONSTRAINTS and rows <= ROTATION_ROWS


def _activate_plain(constraints, demand, margins, dual, active):
    excess = np.where(active, 0.0, margins - demand.cost + demand.shift * dual)
    short = ~constraints.free & (-excess >= constraints.lengths * (demand.upper - dual))
    now = constraints.free | (constraints.lengths * dual > excess) & ~short
    before, changes = int(active.sum()), int((now != active).sum())
    active[:] = now
    dual[~now] = np.where(short[~now], demand.upper, 0.0)
    return np.flatnonzero(now), before, changes


def _on_face_plain(constraints, index):
    rows = constraints.of[index]
    first = np.diff(rows, prepend=-1) > 0
    return constraints.delta[index], np.cumsum(first) - 1, constraints.queries[rows[first]]


def _shift_plain(dual, index, change):
    size = np.abs(change).max() / max(np.abs(dual[index]).max(), 1e-300)
    dual[index] += change
    return float(size)


@kernel(inner=True, inline="always", fastmath=FAST, plain=_activate_plain)
def _activate(constraints, demand, margins, dual, active):
    """Mark the constraints of the face, and set other multipliers to their bound.

    Return the indices (J,) of the face, the number of marks before, and the number of changed marks.
    """
    count, before, changes = 0, 0, 0
    index = np.empty(len(dual), dtype=np.int64)
    for k in range(len(dual)):
        # Newton puts active constraints at their margin: the difference is rounding, and of second order.
        excess = 0.0 if active[k] else margins[k] - demand.cost[k] + demand.shift * dual[k]
        length = constraints.lengths[k]
        short = not constraints.free[k] and -excess >= length * (demand.upper - dual[k])
        now = constraints.free[k] or (length * dual[k] > excess and not short)
        before += active[k]
        changes += now != active[k]
        active[k] = now
        if now:
            index[count] = k
            count += 1
        else:
            dual[k] = demand.upper if short else 0.0
    return index[:count], before, changes


@kernel(inner=True, inline="always", fastmath=FAST, plain=_on_face_plain)
def _on_face(constraints, index):
    """Gather the constraints with indices (J,): delta, of, and their queries."""
    of, rows = np.empty(len(index), dtype=np.int64), np.empty(len(index), dtype=np.int64)
    count, last = 0, -1
    for j in range(len(index)):
        if constraints.of[index[j]] != last:  # constraints come query by query
            last = constraints.of[index[j]]
            rows[count] = last
            count += 1
        of[j] = count - 1
    return rows_at(constraints.delta, index), of, rows_at(constraints.queries, rows[:count])


@kernel(inner=True, inline="always", fastmath=FAST, plain=_shift_plain)
def _shift(dual, index, change):
    """Add a change (J,) to the multipliers at these indices; return its size over the largest of them."""
    largest, size = 1e-300, 0.0
    for j in range(len(index)):
        largest, size = max(largest, abs(dual[index[j]])), max(size, abs(change[j]))
        dual[index[j]] += change[j]
    return size / largest


@kernel((NUCLEAR_CONSTRAINTS, DEMAND, float64[:, ::1], float64[::1], boolean[::1]), seconds=4.0, fastmath=FAST)
def read(constraints, demand, V, dual, active):
    """Identify the face from a pair.

    Parameters
    ----------
    constraints : StepConstraints
    demand : Demand
    V : ndarray, shape (p, r)
    dual : ndarray, shape (m,)
        Updated: multipliers off the face are at their bounds.
    active : ndarray of bool, shape (m,)
        Marks of the last step's face, all False at first; updated.

    Returns
    -------
    sound : bool
        Whether the result is a face, and near the last face.
    index : ndarray of int, shape (J,)
        Constraints of the face.
    face : Face
    size : float
        Largest singular value of A^T dual.
    """
    margins, M = np.empty(len(dual)), np.empty(V.shape)
    margins_of(constraints, V, margins)
    index, before, changes = _activate(constraints, demand, margins, dual, active)
    apply_adjoint(constraints, dual, M)
    vectors, images, sigma = right_singular(M)
    spectrum = singular_values(total(M, V, 1.0 / singular_values(V)[0]))
    k = 1
    while k < len(spectrum) and spectrum[k] > 1.0:
        k += 1
    face = face_at(V, vectors, images, sigma, k)
    is_near = before == 0 or changes <= max(4.0, LARGEST_CHANGE * before)
    return len(index) > 0 and is_near and sigma[k - 1] > LEADING and face.singular[0] > 0.0, index, face, sigma[0]


@kernel(
    (NUCLEAR_CONSTRAINTS, DEMAND, float64[:, ::1], float64[::1], int64[::1], FACE, float64), seconds=4.0, fastmath=FAST
)
def move(constraints, demand, V, dual, index, face, cutoff):
    """Take a Newton step from a face that :func:`read` identified, in place; return whether another may follow."""
    delta, of, queries = _on_face(constraints, index)
    active = len(index)
    cost, lam, shift = np.empty(active), np.empty(active), np.empty(active)
    for j in range(active):
        k = index[j]
        cost[j], lam[j] = demand.cost[k], dual[k]
        shift[j] = 0.0 if constraints.free[k] else demand.shift
    solvable, following, change = newton_step(delta, of, queries, cost, lam, shift, face, cutoff)
    if not solvable:
        return False
    copy(following.reshape(V.size), V.reshape(V.size))
    return CHANGE_LEVEL < _shift(dual, index, change) < LARGEST_CHANGE
