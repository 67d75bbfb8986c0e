"""Phase one of the other norms: the Frobenius solver decides feasibility, which does not depend on the norm."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from attsvm.core.norms import FROBENIUS
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius.portfolio import solve_setting

# Gap of the Frobenius solution that decides feasibility.
FEASIBILITY_TOL = 1e-6
# Gap and number of steps if feasibility is known and only a start is needed.
START_GAP, START_STEPS = 1e-2, 500


@dataclass(frozen=True)
class PhaseOne:
    """V (p, r) with multipliers (n, T), or a certificate (n, T); V of a plain hard margin has smallest margin one."""

    V: np.ndarray | None = None
    dual: np.ndarray | None = None
    certificate: np.ndarray | None = None


def open_with_frobenius(setting: Setting, control: Control) -> Generator[float, None, PhaseOne]:
    """Solve the Frobenius problem to a moderate gap, within the limits of ``control``, and report it in the norm.

    A result without V or multipliers ends the run. Yields the work of each step.
    """
    terms = replace(setting.terms, norm=FROBENIUS, squared=not setting.terms.hard)
    # On a single row or column every unitarily invariant norm is a multiple of the Euclidean one.
    finest = control.tol if setting.terms.norm.invariant and 1 in setting.reduced.shape else FEASIBILITY_TOL
    first = control.inner(finest) if setting.plain else control.inner(START_GAP, START_STEPS)
    certificate = yield from solve_setting(replace(setting, terms=terms), first, None)
    control.iterations += first.iterations
    control.method = f"Frobenius ({first.method})"
    if certificate is not None:
        return PhaseOne(certificate=certificate)
    V, dual = first.W, first.dual
    if setting.plain:
        if V is None or dual is None:
            control.stopped = first.stopped
            return PhaseOne()
        V = V / setting.reduced.min_margin(setting.reduced.apply(V))
    V = np.zeros(setting.reduced.shape) if V is None else V
    dual = np.zeros(terms.cost.shape) if dual is None else dual
    dual = setting.terms.clip(dual)
    adjoint = setting.reduced.adjoint(dual)
    size = setting.terms.norm.dual_near(adjoint, V)
    return PhaseOne() if setting.report(V, dual, control, adjoint=adjoint, size=size) else PhaseOne(V, dual)
