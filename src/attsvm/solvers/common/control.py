"""Limits, callback and best iterate of a solve, between a method and its caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attsvm.core.gap import relative_gap
from attsvm.core.status import Status
from attsvm.platform.kernels import Stopwatch
from attsvm.platform.memory import available_bytes
from attsvm.platform.summary import Listed

# Seconds that an uninterruptible library call may take if there is a callback, and seconds between two calls of the
# callback while steps yield without a report.
LONGEST_CALL, POLL = 1.0, 0.1
# Share of the available memory that one step may take.
MEMORY_SHARE = 0.5
# Bytes of a step up to which the available memory is not looked up; looking it up takes the time of a small step.
UNCHECKED_BYTES = 1e6


@dataclass(frozen=True, repr=False)
class IterationState(Listed):
    """The state that a callback receives.

    Attributes
    ----------
    iteration : int
    objective : float
        Norm of the best feasible W so far (infinite before one is found).
    lower_bound : float
        Best proven bound so far.
    seconds : float
    method : str

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import SelectionProblem, solve
    >>> random = np.random.default_rng(0)
    >>> problem = SelectionProblem(random.normal(size=(6, 5, 8)), random.normal(size=(6, 8)), np.zeros(6, int))
    >>> states = []
    >>> solution = solve(problem, 3.0, callback=states.append)
    >>> len(states) > 0, all(state.lower_bound <= solution.objective for state in states)
    (True, True)
    """

    iteration: int
    objective: float
    lower_bound: float
    seconds: float
    method: str

    @property
    def gap(self) -> float:
        """Relative gap between objective and lower bound."""
        return relative_gap(self.lower_bound, self.objective)


Callback = Callable[[IterationState], object]

# Time after the limit in which evaluations of the answer may end: a share of the limit, and seconds.
ALLOWANCE = 0.05, 0.05


class Control:
    """Limits and best iterates of one solve.

    A method reports to :meth:`observe` and stops when that returns True. The best W and the best multipliers are
    stored separately and may come from different iterates, since the gap is certified from the pair.
    """

    def __init__(
        self,
        tol: float,
        *,
        max_iter: int | None = None,
        time_limit: float | None = None,
        callback: Callback | None = None,
        verbose: bool = False,
    ) -> None:
        self.tol = tol
        self.max_iter = max_iter
        self.time_limit = time_limit
        self.callback = callback
        self.verbose = verbose
        # Ratio of norms in a method's coordinates to norms in the caller's coordinates.
        self.unit = 1.0
        self.iterations = 0
        self.method = ""
        self.stopped: Status | None = None
        self.W: np.ndarray | None = None
        self.dual: np.ndarray | None = None
        self._watch = Stopwatch()
        self._objective = np.inf
        self._bound = 0.0
        self._rows = 0
        self._certifies = False
        # Largest number of bytes of a step, in addition to the limit by available memory; subproblems have their own.
        self.most_bytes = np.inf
        self._longest = np.inf if callback is None else LONGEST_CALL
        self._asked = 0.0

    @property
    def is_watched(self) -> bool:
        """Whether the caller follows or counts the iterations, so that they must be taken one at a time."""
        return self.verbose or self.callback is not None or self.max_iter is not None

    @property
    def seconds(self) -> float:
        """Seconds since the solve began, without compiling."""
        return self._watch.seconds

    def inner(self, tol: float, max_iter: int | None = None) -> Control:
        """Set up the control of a subproblem: new iterates, the same clock, no callback."""
        part = Control(tol, max_iter=max_iter, time_limit=self.time_limit)
        part._watch, part._longest = self._watch, self._longest
        return part

    def affords(self, seconds: float, size: float) -> bool:
        """Tell whether a step of these seconds and bytes fits into the remaining time and memory.

        The step is a library call that neither a limit nor a callback can interrupt.
        """
        left = np.inf if self.time_limit is None else self.time_limit - self.seconds
        if seconds > min(left, self._longest) or size > self.most_bytes:
            return False
        return size <= UNCHECKED_BYTES or size <= MEMORY_SHARE * available_bytes()

    @property
    def state(self) -> IterationState:
        """The state a callback would see."""
        return IterationState(
            self.iterations, self._objective / self.unit, self._bound / self.unit, self.seconds, self.method
        )

    @property
    def solved(self) -> bool:
        """Whether the best pair closes the gap."""
        return self.state.gap <= self.tol

    def enter(self, method: str) -> None:
        """Name the method that runs now, in addition to earlier methods."""
        if not self.method:
            self.method = method
        elif method not in self.method.split(", "):
            self.method += f", {method}"

    def is_over(self) -> bool:
        """Check the time limit and the callback; True when it is time to stop, for this or any other reason."""
        if self.stopped is None and self.callback is not None and self.seconds >= self._asked + POLL:
            self._ask(self.callback)
        if self.stopped is None and self.time_limit is not None and self.seconds >= self.time_limit:
            self.stopped = Status.TIME_LIMIT
        return self.stopped is not None

    def has_time_for(self, seconds: float) -> bool:
        """Tell whether a step of this many seconds ends before the limit; if not, the methods stop."""
        if self.stopped is None and self.time_limit is not None and self.seconds + seconds >= self.time_limit:
            self.stopped = Status.TIME_LIMIT
        return self.stopped is None

    def certify(self) -> None:
        """End the methods; later work evaluates their answer."""
        self._certifies = True

    def is_late(self) -> bool:
        """Tell whether iterative evaluations must end: at the time limit, or a little later for the final answer."""
        if self.time_limit is None:
            return False
        share, seconds = ALLOWANCE if self._certifies else (0.0, 0.0)
        return self.seconds >= (1.0 + share) * self.time_limit + seconds

    def offer(self, W: np.ndarray | None, objective: float, dual: np.ndarray | None, bound: float) -> None:
        """Store W (with its scale-free objective) and dual (with its bound) if they improve on the best."""
        if W is not None and objective < self._objective:
            self.W, self._objective = W.copy(), objective
        if dual is not None and bound > self._bound:
            self.dual, self._bound = dual.copy(), bound

    def forget(self) -> None:
        """Drop the best pair: the methods that follow work in other coordinates."""
        self.W = self.dual = None
        self._objective, self._bound = np.inf, 0.0

    def observe(
        self, W: np.ndarray | None, objective: float, dual: np.ndarray | None, bound: float, *, steps: int = 1
    ) -> bool:
        """Count iterations, keep the best, and tell whether to stop (solved, a limit, or the callback)."""
        self.iterations += steps
        self.offer(W, objective, dual, bound)
        if self.verbose:
            self._print_row()
        if self.solved:
            return True
        if self.callback is not None and self._ask(self.callback):
            return True
        if self.max_iter is not None and self.iterations >= self.max_iter:
            self.stopped = Status.MAX_ITERATIONS
        return self.is_over()

    def _ask(self, callback: Callback) -> bool:
        if callback(self.state):
            self.stopped = Status.CANCELLED
        self._asked = self.seconds
        return self.stopped is not None

    def _print_row(self) -> None:
        state = self.state
        if self._rows == 0:
            print(f"{'iteration':>9} {'objective':>14} {'lower bound':>14} {'gap':>9} {'seconds':>8}  method")
        self._rows += 1
        print(
            f"{state.iteration:>9} {state.objective:>14.8g} {state.lower_bound:>14.8g} {state.gap:>9.1e} "
            f"{state.seconds:>8.3f}  {state.method}"
        )
