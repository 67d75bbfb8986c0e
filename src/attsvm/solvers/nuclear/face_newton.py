r"""Newton on the face of the nuclear-norm ball, with multipliers at their bounds.

As in :mod:`attsvm.solvers.nuclear.face`, but a rejected token is one of three: beyond its margin (multiplier zero),
short of it (hinge: multiplier C), or active. The second kind adds the constant :math:`C\sum\delta_{it} z_i^\top` to
:math:`M = A^\top\lambda`; only the active ones enter the Newton system. Under the squared hinge active tokens fall
short by :math:`\lambda/(2C)`, which adds to the system's diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.core.kernels import interpreted
from attsvm.core.norms import spectral
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.nuclear.face import CUTOFFS, face_at, matrix_of, newton_step
from attsvm.solvers.nuclear.matrices import right_singular

NEWTON_STEPS = 8
FACE_ROUNDS = 8
# A spectrum of S this far below zero, relative to its top, means that the rank is too high; anything nearer may be a
# true zero (strict complementarity fails) and Newton goes on.
NEGATIVE = 1e-6

# A margin off by less than this part of what is asked is at its bound to rounding.
LEVEL = 1e-12
# A face that wants more than this part of its constraints changed was not identified: better data are needed.
MENDABLE = 0.3


@dataclass
class Face:
    """A guess of the active constraints and of those that keep a loss, bool (n, T), and of the rank."""

    active: np.ndarray
    short: np.ndarray
    rank: int


def refine(setting: Setting, V: np.ndarray, dual: np.ndarray, control: Control) -> bool:
    """Run Newton from a nearly optimal pair, mending the face where it is a little wrong; True when the run is over.

    V is (p, r), the multipliers (n, T); the best pair is with ``control``.
    """
    dual = setting.terms.clip(dual)
    face = _identify(setting, V, dual)
    if face is None:
        return False
    if not face.short.any():
        # On the unit sphere of the dual norm, where the solution is; multipliers at their bound must stay there.
        dual = setting.terms.clip(dual / spectral(setting.reduced.adjoint(dual)))
    return any(_mend(setting, V, dual, face, control, cutoff) for cutoff in CUTOFFS)


def _identify(setting: Setting, V: np.ndarray, dual: np.ndarray) -> Face | None:
    """Read the face off: of two complementary quantities the larger one is not zero."""
    terms, reduced = setting.terms, setting.reduced
    beyond = reduced.apply(V) - terms.cost + terms.shift * dual
    strength = reduced.lengths * dual
    short = terms.rejected & (-beyond >= np.where(terms.rejected, reduced.lengths, 1.0) * (terms.upper - dual))
    active = terms.rejected & (strength > beyond) & ~short | terms.tied
    sigma_v = np.linalg.svd(V, compute_uv=False)
    if sigma_v[0] == 0.0 or not active.any():
        return None
    sigma_m = np.linalg.svd(reduced.adjoint(dual), compute_uv=False)
    if sigma_m[0] == 0.0:
        return None
    rank = int(np.count_nonzero(sigma_v / sigma_v[0] > 1.0 - sigma_m / sigma_m[0]))
    return Face(active, short, max(rank, 1))


def _mend(setting: Setting, V: np.ndarray, dual: np.ndarray, face: Face, control: Control, cutoff: float) -> bool:
    """Newton on a face, moving constraints between the kinds and lowering the rank until it is right."""
    terms, reduced, gap = setting.terms, setting.reduced, control.state.gap
    for _ in range(FACE_ROUNDS):
        outcome = _newton(setting, V, dual, face, control, cutoff)
        if control.solved or control.stopped:
            return True
        if outcome is None:
            return False
        trial, multipliers, singular = outcome
        beyond = reduced.apply(trial) - terms.cost
        idle = terms.rejected & ~face.active
        level = LEVEL * (1.0 + np.abs(terms.cost))
        below = face.active & terms.rejected & (multipliers < 0)
        above = face.active & terms.rejected & (multipliers > terms.upper)
        entering = idle & np.where(face.short, beyond > level, beyond < -level)
        surplus = int(np.count_nonzero(singular < -NEGATIVE * singular[0]))
        changes = int(below.sum() + above.sum() + entering.sum())
        if changes + surplus == 0 and control.state.gap < 0.5 * gap:
            # The right face, not yet converged.
            V, dual, gap = trial, multipliers, control.state.gap
            continue
        if changes + surplus == 0 or changes > max(6, MENDABLE * face.active.sum()) or surplus >= max(2, face.rank):
            return False
        active = face.active & ~below & ~above | entering
        if not active.any():
            return False
        face = Face(active, face.short & ~entering | above, max(face.rank - surplus, 1))
    return False


def _newton(
    setting: Setting, V: np.ndarray, dual: np.ndarray, face: Face, control: Control, cutoff: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Newton steps on one face; returns V, multipliers and the spectrum of S, descending, or None if steps blow up."""
    terms, reduced, k = setting.terms, setting.reduced, face.rank
    rows, columns = np.nonzero(face.active)
    places, of = np.unique(rows, return_inverse=True)
    delta, queries, cost = reduced.delta[rows, columns], reduced.queries[places], terms.cost[rows, columns]
    shift = np.where(reduced.tied[rows, columns], 0.0, terms.shift)
    full = np.where(face.short, terms.upper, 0.0) if face.short.any() else np.zeros(dual.shape)
    constant = reduced.adjoint(full)
    lam = dual[rows, columns]
    singular, previous = np.ones(k), np.inf
    for step in range(NEWTON_STEPS):
        vectors, images, sigma = interpreted(right_singular)(constant + delta.T @ (lam[:, None] * queries[of]))
        if not sigma[k - 1] > 0.0:
            return None
        base = interpreted(face_at)(V, vectors, images, sigma, k)
        singular, V = base.singular, interpreted(matrix_of)(base)
        full[rows, columns] = lam
        if setting.report(V, full, control) or singular[0] <= 0:
            return V, full, singular
        if step and singular[-1] < -NEGATIVE * singular[0]:
            return V, full, singular
        solvable, V, change = interpreted(newton_step)(delta, of, queries, cost, lam, shift, base, cutoff)
        if not solvable:
            return None
        size = float(np.abs(change).max() / max(np.abs(lam).max(), 1e-300))
        lam = lam + change
        if not np.isfinite(size) or size > 1e3:
            return None
        if size < 1e-15 or (step > 3 and size > 0.5 * previous):
            break
        previous = size
    full[rows, columns] = lam
    return V, full, singular
