r"""The nuclear norm: which methods, in which order.

The Frobenius solution decides feasibility and points at the constraints that matter. An interior point on those
identifies the face (rank and active constraints) at a gap of about 1e-5, and Newton on the face ends at rounding
level. Constraints that turn out violated join the working set.
"""

from __future__ import annotations

import numpy as np

from attsvm.norms import NUCLEAR, nuclear, spectral
from attsvm.reduction import Reduced
from attsvm.solvers.control import Control
from attsvm.solvers.gauge import report
from attsvm.solvers.nuclear_face import refine
from attsvm.solvers.nuclear_interior_point import NuclearInteriorPoint
from attsvm.solvers.opening import open_with_frobenius

SMALL = 250  # constraints up to which all of them are in the working set from the start
MAX_STEPS = 150
JOIN_GAP = 0.1
# Gaps on the working set at which Newton on the face is tried.
FACE_GAPS = (3e-5, 3e-6, 3e-7, 3e-8, 1e-8, 3e-9)


def solve_nuclear(reduced: Reduced, control: Control, start: np.ndarray | None) -> np.ndarray | None:
    """Solve, leaving W and multipliers with ``control``.

    Parameters
    ----------
    reduced : Reduced
    control : Control
    start : ndarray, shape (n, T), optional
        Multipliers of the solution of a similar problem.

    Returns
    -------
    ndarray or None
        Multipliers that prove infeasibility, when they do.
    """
    if start is not None and control.W is not None:
        control.method = "warm face Newton"
        smallest = reduced.min_margin(reduced.apply(control.W))
        if refine(reduced, control.W / smallest, start, control):
            return None
    opening = open_with_frobenius(reduced, control)
    if opening.W is None or opening.dual is None:
        return opening.certificate
    if report(reduced, NUCLEAR, opening.W, opening.dual, control):
        return None
    everything = reduced.rejected | reduced.tied
    working = _first_working_set(reduced, reduced.apply(opening.W), opening.dual)
    control.method += ", interior point + face Newton"
    _run(reduced, working.copy(), control)
    if not (control.solved or control.stopped or working.all(where=everything)):
        # Constraints that join late can leave a badly scaled iterate no room: begin again with all of them.
        _run(reduced, everything, control)
    return None


def _first_working_set(reduced: Reduced, margins: np.ndarray, dual: np.ndarray) -> np.ndarray:
    """Everything when small; otherwise equalities and the smallest margins of the Frobenius solution."""
    rejected = reduced.rejected
    count = int(rejected.sum())
    wanted = max(min(SMALL, 4 * int(np.prod(reduced.shape))), 2 * int((dual[rejected] > 0).sum()))
    if wanted >= count:
        return rejected | reduced.tied
    threshold = np.partition(margins[rejected], wanted)[wanted]
    return rejected & (margins <= threshold) | reduced.tied


def _run(reduced: Reduced, working: np.ndarray, control: Control) -> None:
    """Interior point on a growing working set, with attempts on the face as the gap falls."""
    method = NuclearInteriorPoint(reduced, *np.nonzero(working))
    attempts = list(FACE_GAPS)
    for _ in range(MAX_STEPS):
        W, dual = method.W, method.scattered_dual()
        margins = reduced.apply(W)
        smallest = float(np.min(margins, where=working & reduced.rejected, initial=np.inf))
        if smallest <= 0:
            if control.observe(None, np.inf, None, 0.0):
                return
        else:
            if report(reduced, NUCLEAR, W, dual, control):
                return
            bound = _bound(reduced, dual)
            gap = nuclear(W) / smallest / bound - 1.0 if bound > 0 else np.inf
            # Far from the optimum W says little of which other constraints will bind.
            violated = reduced.rejected & ~working & (margins < smallest)
            if gap < JOIN_GAP and violated.any():
                method.extend(*np.nonzero(violated))
                working |= violated
            elif attempts and gap < attempts[0]:
                attempts.pop(0)
                if refine(reduced, W / smallest, dual, control):
                    return
        if not method.step():
            return


def _bound(reduced: Reduced, dual: np.ndarray) -> float:
    length = spectral(reduced.adjoint(dual))
    return float(dual[reduced.rejected].sum()) / length if length > 0 else 0.0
