r"""Entrywise l_p norms and the largest entry: which methods, in which order.

The constraints do not depend on the norm, so the Frobenius solution decides feasibility and opens the run: scaled up,
it is strictly feasible. p = 1 and the largest entry are linear programs
(:mod:`attsvm.solvers.interior_point.hard_entrywise`), 1 < p < inf is smooth on one side of the duality
(:mod:`attsvm.solvers.interior_point.hard_power`). From the solution of a similar problem, or where rounding ends an
interior point early, its active constraints lead on (:mod:`attsvm.solvers.warm.linear`,
:mod:`attsvm.solvers.warm.power`).
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.core.norms import Norm
from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.phase_one import open_with_frobenius
from attsvm.solvers.interior_point.hard_entrywise import solve_linear
from attsvm.solvers.interior_point.hard_power import solve_power
from attsvm.solvers.warm.linear import pursue_linear
from attsvm.solvers.warm.power import pursue_power


def solve_entrywise(reduced: Reduced, control: Control, start: np.ndarray | None, norm: Norm) -> np.ndarray | None:
    """Solve, leaving W and multipliers with ``control``.

    Parameters
    ----------
    reduced : Reduced
        In the original axes (scaled only).
    control : Control
    start : ndarray, shape (n, T), optional
        Multipliers of a similar problem, whose W is ``control.earlier``; interior points take no start.
    norm : Norm
        Entrywise, not Frobenius.

    Returns
    -------
    ndarray or None
        Multipliers that prove infeasibility, when they do.
    """
    p = norm.power
    assert p is not None
    linear = p == 1 or math.isinf(p)
    pursue = pursue_linear if linear else pursue_power
    if start is not None and control.earlier is not None:
        control.method = "warm simplex" if linear else "warm Newton"
        if pursue(reduced, norm, control.earlier, start, control):
            return None
    opening = open_with_frobenius(reduced, control)
    if opening.W is None or opening.dual is None:
        return opening.certificate
    if linear:
        control.method += ", linear-programming interior point"
        solve_linear(reduced, norm, opening.W, control)
    else:
        control.method += ", interior point"
        solve_power(reduced, norm, opening.W, opening.dual, control)
    if not control.solved and control.stopped is None and control.W is not None and control.dual is not None:
        control.method += ", simplex" if linear else ", Newton"
        pursue(reduced, norm, control.W, control.dual, control)
    return None
