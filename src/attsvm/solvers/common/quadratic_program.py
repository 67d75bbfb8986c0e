r"""Frobenius problems as dense quadratic programs, solved by DAQP.

DAQP (Arnstrom, Bemporad and Axehill, IEEE TAC 67, 2022) is a compiled dual active-set method that factors its working
set in W space, not through a Gram matrix whose condition number is squared: the portfolio's second opinion on small
ill-conditioned problems. It needs every constraint written out, so it is for small ones only.
"""

from __future__ import annotations

import daqp
import numpy as np

from attsvm.core.norms import FROBENIUS
from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.evaluation import report
from attsvm.solvers.frobenius.newton import polish

EQUALITY = 5  # DAQP's code for a constraint that holds with equality


def quadratic_program(reduced: Reduced, control: Control, *, working_set: int) -> np.ndarray:
    """Solve by DAQP and polish; W and multipliers go to ``control``.

    Parameters
    ----------
    reduced : Reduced
    control : Control
    working_set : int
        For the polish.

    Returns
    -------
    ndarray, shape (n, T)
        The multipliers: near a certificate when the problem is infeasible.
    """
    rows, columns = np.nonzero(reduced.rejected | reduced.tied)
    size = int(np.prod(reduced.shape))
    free = reduced.tied[rows, columns]
    # Constraints of length one: DAQP's tolerances are absolute.
    lengths = np.where(reduced.lengths[rows, columns] > 0, reduced.lengths[rows, columns], 1.0)
    matrix = (reduced.delta[rows, columns][:, :, None] * reduced.queries[rows][:, None, :]).reshape(-1, size)
    matrix = np.ascontiguousarray(matrix / lengths[:, None])
    lower = np.where(free, 0.0, 1.0) / lengths
    upper = np.where(free, 0.0, 1e30)
    sense = np.where(free, EQUALITY, 0).astype(np.int32)
    _, _, _, info = daqp.solve(np.eye(size), np.zeros(size), matrix, upper, lower, sense, primal_tol=1e-11)
    dual = np.zeros(reduced.rejected.shape)
    values = -np.asarray(info["lam"]) / lengths
    dual[rows, columns] = np.where(free, values, np.maximum(values, 0.0))
    W = reduced.adjoint(dual)
    if not report(reduced, FROBENIUS, W, dual, control):
        polish(reduced, dual, control, rounds=3, working_set=working_set)
    return dual
