r"""Soft margins and priors for norms other than Frobenius: which methods, in which order.

The interior point starts from the Frobenius solution, and again, further from all bounds, should rounding end it early;
entrywise l_p norms with 1 < p < inf have their own (:mod:`attsvm.solvers.interior_point.power_barrier`). Newton on the
face of the nuclear norm (:mod:`attsvm.solvers.nuclear.soft_face`) finishes what the interior point began.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from attsvm.core.norms import FROBENIUS, NUCLEAR, SPECTRAL
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius.portfolio import solve_setting
from attsvm.solvers.interior_point.engine import CENTRE, NormTerm, SoftInteriorPoint, run
from attsvm.solvers.interior_point.power_barrier import solve_soft_power
from attsvm.solvers.interior_point.semidefinite import NuclearTerm, SpectralTerm
from attsvm.solvers.interior_point.terms import LinearTerm
from attsvm.solvers.nuclear.soft_face import refine

OPENING_GAP, OPENING_STEPS = 1e-2, 500
FURTHER = 10.0
MANY = 5000  # constraints up to which the second run for the nuclear norm solves for multipliers
# Gaps at which Newton on the face of the nuclear norm is tried.
FACE_GAPS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8)


def solve_soft_general(setting: Setting, control: Control, start: np.ndarray | None) -> None:
    """Solve, leaving V and multipliers with ``control``.

    Parameters
    ----------
    setting : Setting
        With a norm other than Frobenius.
    control : Control
    start : ndarray, shape (n, T), optional
        Not used: interior points take no start.
    """
    V = _opening(setting, control)
    control.method = f"Frobenius ({control.method}), interior point"
    origin = np.zeros(setting.reduced.shape)
    power = setting.terms.norm.power
    if power is not None and 1 < power < math.inf:
        solve_soft_power(setting, control, origin if V is None else V)
        return
    for place, centre in ((origin if V is None else V, CENTRE), (origin, FURTHER * CENTRE)):
        method = SoftInteriorPoint(setting, _term(setting, again=centre != CENTRE), place, centre)
        run(method, setting, control, FaceAttempts(setting, control))
        if control.solved or control.stopped:
            return
    if np.isfinite(setting.terms.upper):
        _without_loss(setting, control)


def _without_loss(setting: Setting, control: Control) -> None:
    """Try the hard margin: it is the answer when its multipliers stay below C, however large C is."""
    hard = replace(setting, terms=replace(setting.terms, upper=np.inf))
    method = SoftInteriorPoint(hard, _term(hard), np.zeros(setting.reduced.shape) if control.W is None else control.W)
    inner = Control(control.tol, time_limit=control.time_limit)
    run(method, hard, inner, FaceAttempts(hard, inner))
    control.iterations += inner.iterations
    if inner.W is not None and inner.dual is not None:
        setting.report(inner.W, inner.dual, control)


def _opening(setting: Setting, control: Control) -> np.ndarray | None:
    terms = replace(setting.terms, norm=FROBENIUS, squared=not setting.terms.hard)
    first = Control(OPENING_GAP, max_iter=OPENING_STEPS, time_limit=control.time_limit)
    solve_setting(replace(setting, terms=terms), first, None)
    control.iterations += first.iterations
    control.method = first.method
    return first.W


def _term(setting: Setting, *, again: bool = False) -> NormTerm:
    norm = setting.terms.norm
    if norm is NUCLEAR:
        return NuclearTerm(setting, MANY) if again else NuclearTerm(setting)
    if norm is SPECTRAL:
        return SpectralTerm(setting)
    return LinearTerm(setting, shared=norm.power != 1)


class FaceAttempts:
    """Tries Newton on the face of the nuclear norm each time the gap has fallen far enough.

    Parameters
    ----------
    setting : Setting
    control : Control
    """

    def __init__(self, setting: Setting, control: Control) -> None:
        self.setting, self.control = setting, control
        self._gaps = list(FACE_GAPS) if setting.terms.norm is NUCLEAR else []

    def __call__(self, method: SoftInteriorPoint, last: bool) -> bool:
        """Tell whether the run is over."""
        gap = self.control.state.gap
        if not self._gaps or not (last or gap < self._gaps[0]):
            return False
        self._gaps = [later for later in self._gaps if later < 0.5 * gap]
        V, dual = method.term.V, method.scattered_dual(self.setting)
        if last and self.control.W is not None and self.control.dual is not None:
            V, dual = self.control.W, self.control.dual
        return refine(self.setting, V, dual, self.control)
