r"""Norms other than Frobenius, hard and soft margins, with and without a prior: which methods run, in which order.

The Frobenius solution decides feasibility, which does not depend on the norm, and is the start of the interior point.
If rounding ends the interior point early, it runs again, farther from all bounds and with its Newton systems over
constraints instead of entries or the reverse. The path of smoothed norms, whose Newton systems are different equations,
follows. A hard margin in l_p, 1 < p < inf, is first tried by a barrier on the smooth side of the duality
(:mod:`attsvm.solvers.interior_point.power`), which is faster than the path
(:mod:`attsvm.solvers.interior_point.smoothing_path`) if it converges. The path solves soft margins in l_p and norms
without an interior point; a second run follows it closely. Newton on the face of the nuclear norm
(:mod:`attsvm.solvers.nuclear.face_newton`) finishes runs of the interior point.
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
from attsvm.solvers.interior_point.engine import CENTRE, HARD_CENTRE, InteriorPointRun, Term
from attsvm.solvers.interior_point.euclidean import work_of_a_step
from attsvm.solvers.interior_point.power import solve_power
from attsvm.solvers.interior_point.semidefinite import NuclearTerm, SpectralTerm
from attsvm.solvers.interior_point.smoothing_path import SmoothingPath, resume
from attsvm.solvers.interior_point.terms import LinearTerm
from attsvm.solvers.schedule import FORMED_ENTRIES, Steps

# Factor of the first mu in a second run.
RESTART_CENTRE = 10.0
# Slack at the start of a hard margin, over the margin.
START_DEPTH = 0.5


def solve_general(setting: Setting, control: Control, start: np.ndarray | None) -> Steps:
    """Solve in a norm other than Frobenius, leaving V and multipliers with ``control``.

    The problem is in the original axes if the norm depends on them. ``start`` (n, T) are multipliers of a similar
    problem. For a hard margin without a prior the caller has reported them with their W; a feasible W replaces the
    Frobenius solution. Returns multipliers (n, T) that prove infeasibility, if they do.
    """
    norm = setting.terms.norm
    if start is not None and setting.plain and control.W is not None and control.dual is not None:
        control.method = "warm"
        V, dual = control.W, control.dual
    else:
        first = yield from open_with_frobenius(setting, control)
        if first.V is None or first.dual is None:
            return first.certificate
        V, dual = first.V, first.dual
    if setting.plain and norm.power is not None and norm.smooth:
        control.method += ", barrier"
        yield from solve_power(setting, V, dual, control)
    if not (control.solved or control.stopped):
        yield from solve_from(setting, control, V)
    if not (control.solved or control.stopped or setting.terms.hard):
        yield from _without_loss(setting, control)
    return None


def solve_from(setting: Setting, control: Control, V: np.ndarray) -> Generator[float, None, None]:
    """Run interior points from V (p, r), the solution in the Frobenius norm or a matrix near it."""
    control.method += ", interior point"
    if setting.terms.norm not in BARRIER_TERMS:
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
    """Move V (p, r) off the constraints if the margin is hard and V satisfies all of them."""
    terms, W = setting.terms, V + setting.prior
    margins = setting.reduced.apply(W)
    demand = terms.cost + setting.reduced.apply(setting.prior)
    if not terms.hard or (margins < (1.0 - START_DEPTH) * demand)[terms.rejected].any():
        return V
    return (1.0 + START_DEPTH) * W - setting.prior


def _without_loss(setting: Setting, control: Control) -> Iterator[float]:
    """Try the hard margin, which is the answer if its multipliers are far below C."""
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
    """Run the interior point in units of a length; a second run uses the Newton systems that the first did not."""
    norm = setting.terms.norm
    run = InteriorPointRun(
        setting, control, partial(BARRIER_TERMS[norm], is_second=is_second), V, centre, unit, working
    )
    yield from run.steps(run.method.term.work if norm is NUCLEAR else work_of_a_step)


def restart(setting: Setting, control: Control, V: np.ndarray) -> Iterator[float]:
    """Run again from the same V (p, r), farther from all bounds, in units of its length."""
    if V.size <= FORMED_ENTRIES:
        yield from _run(setting, np.zeros_like(V), _unit(setting, V), RESTART_CENTRE * CENTRE, control, is_second=True)


# Norms that have an interior point; others follow the path of smoothed norms.
BARRIER_TERMS: dict[Norm, Callable[..., Term]] = {
    NUCLEAR: NuclearTerm,
    SPECTRAL: SpectralTerm,
    Entrywise(1): LinearTerm,
    MAX: LinearTerm,
}
