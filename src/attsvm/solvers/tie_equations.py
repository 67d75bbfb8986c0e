"""The matrix of least nuclear norm with prescribed score differences between tied tokens.

It is a hard margin without rejected tokens and with a prior: the smallest V = W - W_0, where :math:`W_0` has the
prescribed differences with the opposite sign and W has none (:mod:`attsvm.proofs.objective`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.core.norms import NUCLEAR
from attsvm.core.reduction import Reduced
from attsvm.core.rounding import LENIENT
from attsvm.proofs.objective import HARD_MARGIN
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.interior_point.general import solve_from
from attsvm.solvers.schedule import finish

# Requested gap: Newton on the face ends at rounding level.
NUCLEAR_GAP = 1e-12


def smallest_nuclear(reduced: Reduced, start: np.ndarray) -> tuple[np.ndarray, float]:
    """Find the matrix of least nuclear norm with the score differences of another matrix.

    Parameters
    ----------
    reduced : Reduced
        A problem without rejected tokens.
    start : ndarray, shape of the reduced W
        Any matrix with the prescribed differences.

    Returns
    -------
    W : ndarray
    gap : float
        Certified relative gap of its norm.
    """
    prior = -start
    cost = np.where(reduced.tied, reduced.apply(start), 0.0)
    setting = Setting(reduced, replace(HARD_MARGIN.terms(reduced, NUCLEAR), cost=cost), prior, 0.0, 1.0)
    control = Control(NUCLEAR_GAP)
    with np.errstate(**LENIENT):
        finish(solve_from(setting, control, start))
    return (start if control.W is None else control.W), control.state.gap
