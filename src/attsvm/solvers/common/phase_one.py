"""How the other norms begin: the Frobenius solver decides feasibility, which no norm changes, and supplies a start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.core.norms import Norm
from attsvm.core.reduction import Reduced
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius.portfolio import solve_frobenius

FEASIBILITY_TOL = 1e-6


@dataclass(frozen=True)
class Opening:
    """A feasible W (p, r) of smallest margin one with multipliers (n, T), or a certificate (n, T), or neither."""

    W: np.ndarray | None = None
    dual: np.ndarray | None = None
    certificate: np.ndarray | None = None


def open_with_frobenius(reduced: Reduced, control: Control, norm: Norm) -> Opening:
    """Solve the Frobenius problem to a moderate gap, within the limits of ``control``, and report it in the norm.

    Without W or multipliers there is nothing left to do.
    """
    first = control.inner(FEASIBILITY_TOL)
    certificate = solve_frobenius(reduced, first, None)
    control.iterations += first.iterations
    control.method = f"Frobenius ({first.method})"
    if certificate is not None:
        return Opening(certificate=certificate)
    if first.W is None or first.dual is None:
        control.stopped = first.stopped
        return Opening()
    W = first.W / reduced.min_margin(reduced.apply(first.W))
    return Opening() if Setting.hard_margin(reduced, norm).report(W, first.dual, control) else Opening(W, first.dual)
