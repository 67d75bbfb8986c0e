r"""Every norm but Frobenius, hard and soft margins, with and without a prior: which methods, in which order.

The Frobenius solution decides feasibility, which no norm changes, and opens the run. The interior point starts there,
and again, further from all bounds and with Newton systems over the other of entries and constraints, should rounding
end it early; then the path of smoothed norms, whose Newton systems are another set of equations, is tried. A hard
margin in l_p, 1 < p < inf, is first tried by a barrier on the smooth side of the duality
(:mod:`attsvm.solvers.interior_point.power`), twice as fast as the path of
:mod:`attsvm.solvers.interior_point.smoothing_path` where it arrives. That path serves soft margins in l_p and the norms
that have no interior point of their own; a second run follows it closely. Newton on the face of the nuclear norm
(:mod:`attsvm.solvers.nuclear.face_newton`) finishes what the interior point began.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from attsvm.core.norms import MAX, NUCLEAR, SPECTRAL, Entrywise, Norm
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.phase_one import open_with_frobenius
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.interior_point.engine import CENTRE, HARD_CENTRE, Run, Term
from attsvm.solvers.interior_point.euclidean import work_of_a_step
from attsvm.solvers.interior_point.power import solve_power
from attsvm.solvers.interior_point.semidefinite import NuclearTerm, SpectralTerm
from attsvm.solvers.interior_point.smoothing_path import SmoothingPath, resume
from attsvm.solvers.interior_point.terms import LinearTerm
from attsvm.solvers.schedule import FORMED_ENTRIES, Steps

FURTHER = 10.0
INSIDE = 0.5  # how far inside the constraints a hard margin begins, in parts of the margin


def solve_general(setting: Setting, control: Control, start: np.ndarray | None) -> Steps:
    """Solve in a norm other than Frobenius, leaving V and multipliers with ``control``.

    The problem is in the original axes when the norm depends on them. ``start`` (n, T) are multipliers of a similar
    problem; of a hard margin without a prior the caller has judged them together with their W, which takes the place
    of the Frobenius solution where it is feasible. Returns multipliers (n, T) that prove infeasibility, when they do.
    """
    norm = setting.terms.norm
    if start is not None and setting.plain and control.W is not None and control.dual is not None:
        control.method = "warm"
        V, dual = control.W, control.dual
    else:
        opening = yield from open_with_frobenius(setting, control)
        if opening.V is None or opening.dual is None:
            return opening.certificate
        V, dual = opening.V, opening.dual
    if setting.plain and norm.power is not None and norm.smooth:
        control.method += ", barrier"
        yield from solve_power(setting, V, dual, control)
    if not (control.solved or control.stopped):
        yield from solve_from(setting, control, V)
    if not (control.solved or control.stopped or setting.terms.hard):
        yield from _without_loss(setting, control)
    return None


def solve_from(setting: Setting, control: Control, V: np.ndarray) -> Generator[float, None, None]:
    """Run interior points from V (p, r), the answer in the Frobenius norm or near it."""
    control.method += ", interior point"
    if setting.terms.norm not in TERMS:
        yield from SmoothingPath(setting, control).run(V)
        if not (control.solved or control.stopped):
            yield from SmoothingPath(setting, control, closely=True).run(V)
        return
    yield from interior_point(setting, control, V)
    if control.solved or control.stopped:
        return
    yield from restart(setting, control, V)
    yield from resume(setting, control, V)


def interior_point(setting: Setting, control: Control, V: np.ndarray, working: np.ndarray | None = None) -> Steps:
    """Run the interior point from V (p, r), on a working set (n, T) that grows, or on all constraints."""
    centre = HARD_CENTRE if setting.terms.hard else CENTRE
    yield from _run(setting, _inside(setting, V), _unit(setting, V), centre, control, working=working)
    return None


def _unit(setting: Setting, V: np.ndarray) -> float:
    return setting.terms.norm.value(V) or 1.0


def _inside(setting: Setting, V: np.ndarray) -> np.ndarray:
    """Move V (p, r) off the constraints it satisfies, when the margin is hard and it satisfies all of them."""
    terms, W = setting.terms, V + setting.prior
    margins = setting.reduced.apply(W)
    demand = terms.cost + setting.reduced.apply(setting.prior)
    if not terms.hard or (margins < (1.0 - INSIDE) * demand)[terms.rejected].any():
        return V
    return (1.0 + INSIDE) * W - setting.prior


def _without_loss(setting: Setting, control: Control) -> Iterator[float]:
    """Try the hard margin: it is the answer when its multipliers are far below C, however large C is."""
    hard = replace(setting, terms=replace(setting.terms, upper=np.inf, shift=0.0))
    inner = control.inner(control.tol)
    yield from solve_general(hard, inner, None)
    control.iterations += inner.iterations
    if inner.W is not None and inner.dual is not None:
        control.enter("hard margin")
        setting.report(inner.W, inner.dual, control)


def _run(
    setting: Setting,
    V: np.ndarray,
    unit: float,
    centre: float,
    control: Control,
    *,
    working: np.ndarray | None = None,
    is_second: bool = False,
) -> Iterator[float]:
    """Run the interior point in units of a length; a second run takes the Newton systems that the first did not."""
    norm = setting.terms.norm
    run = Run(setting, control, partial(TERMS[norm], is_second=is_second), V, centre, unit, working)
    yield from run.steps(run.method.term.work if norm is NUCLEAR else work_of_a_step)


def restart(setting: Setting, control: Control, V: np.ndarray) -> Iterator[float]:
    """Begin again, further from all bounds, in units of the length of V (p, r), where the first run began."""
    if V.size <= FORMED_ENTRIES:
        yield from _run(setting, np.zeros_like(V), _unit(setting, V), FURTHER * CENTRE, control, is_second=True)


# Norms that have an interior point of their own; the others follow the path of smoothed norms.
TERMS: dict[Norm, Callable[..., Term]] = {
    NUCLEAR: NuclearTerm,
    SPECTRAL: SpectralTerm,
    Entrywise(1): LinearTerm,
    MAX: LinearTerm,
}
