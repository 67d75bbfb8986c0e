"""Solution of a problem in memory: reduced, solved by a method of its norm or on working sets, and lifted."""

from __future__ import annotations

import numpy as np

from attsvm.core.reduction import independent_ties, reduce
from attsvm.proofs.program import Program
from attsvm.solvers.common.control import Control, IterationState
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.interior_point.euclidean import work_of_a_step
from attsvm.solvers.schedule import Method, Steps, Turn, beside_rounds, finish, take_turns
from attsvm.solvers.working_sets.solving import Outcome, WorkingSets


def solve_in_memory(
    program: Program,
    control: Control,
    method: Method,
    start: tuple[np.ndarray, np.ndarray] | None,
    *,
    skip_rounds: bool = False,
) -> Outcome:
    """Solve in reduced coordinates.

    Parameters
    ----------
    control : Control
        Keeps the best iterates, in reduced coordinates.
    start : tuple of ndarray, shapes (d, dz) and (n, T), or None
        W and multipliers of a similar problem. They are evaluated first, which ends a second fit of the same problem.
    skip_rounds : bool
        Whether to leave the outer loop out.
    """
    terms, prior, norm = program.terms, program.origin, program.norm
    reduced = independent_ties(reduce(program.problem, rotate=norm.base.invariant, transform=norm.transform))
    setting = Setting.of(reduced, terms, prior)
    control.unit = setting.value_unit
    # Rejected tokens that no W moves.
    loose = reduced.rejected & (reduced.lengths == 0.0)
    if terms.hard and loose.any():
        control.method = "closed form"
        return reduced.lift_dual(loose / loose.sum()), None, None
    # The scale of the multipliers does not matter for a plain hard margin.
    unit = 1.0 if setting.plain else setting.unit / setting.weights
    guess = None
    if start is not None:
        guess = reduced.gather(start[1]) * unit
        control.method = control.method or "warm start"
        setting.report(reduced.lower(start[0]) - setting.prior, guess, control)
    certificate = None
    if not (control.solved or control.stopped):
        whole, loop = Turn("", method(setting, control, guess), np.inf), None
        turns = [whole]
        if not skip_rounds:
            loop_control = control.inner(control.tol)
            loop = _OuterLoop(setting, unit, control, WorkingSets(program, loop_control, method, start), loop_control)
            turns = beside_rounds(setting, work_of_a_step(reduced), whole, Turn("working sets", loop.run(), np.inf))
        certificate = finish(take_turns(turns, control, lambda: setting.ends_in_rounding(control)))
        if loop is not None and certificate is None:
            certificate = loop.report()
    dual = np.where(reduced.lift_dual(loose), terms.slope(terms.cost), 0.0)
    if control.dual is not None:
        dual += reduced.lift_dual(control.dual / (1.0 if terms.hard else unit))
    return (
        None if certificate is None else reduced.lift_dual(certificate),
        None if control.W is None else prior + reduced.lift(control.W),
        dual,
    )


class _OuterLoop:
    """The outer loop as a method of the scheduler; the control of the other method gets its best pair at the end."""

    def __init__(
        self, setting: Setting, unit: float | np.ndarray, control: Control, loop: WorkingSets, loop_control: Control
    ) -> None:
        self._setting, self._unit, self._control = setting, unit, control
        self._loop, self._loop_control, self._steps, self._has_begun = loop, loop_control, 0, False
        loop_control.callback = self._tell

    def run(self) -> Steps:
        """Run all rounds; return multipliers (n, T) that prove infeasibility, if they do."""
        self._has_begun = True
        yield from self._loop.run()
        return self.report()

    def report(self) -> np.ndarray | None:
        """Give the control the best pair, which may close the gap; return a certificate (n, T) if there is one."""
        control, setting, reduced = self._control, self._setting, self._setting.reduced
        if control.solved or not self._has_begun:
            return None
        control.enter("working sets")
        certificate, W, dual = self._loop.outcome
        if certificate is not None:
            return reduced.gather(certificate)
        if W is not None and dual is not None:
            steps, self._steps = self._loop_control.iterations - self._steps, self._loop_control.iterations
            multipliers = reduced.gather(dual) * self._unit
            setting.report(reduced.lower(W) - setting.prior, multipliers, control, steps=steps)
        return None

    def _tell(self, state: IterationState) -> bool:
        steps, self._steps = state.iteration - self._steps, state.iteration
        return self._control.observe(None, np.inf, None, 0.0, steps=steps)
