r"""Decide which norm's margin training maximises, from the shares at several steps.

Steepest descent in a norm is matched with the max-margin problem in that norm: its share of the largest margin tends to
one (:mod:`attsvm.theory.margin_report`). The shares at several steps are certified, and an interval for the limit of
each (:mod:`attsvm.theory.limits`) decides whether it is one. The solution of another norm may have a share near one.
A share therefore counts as one only if its limit exceeds the shares of the other norms' solutions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attsvm.core.norms import get_norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.status import Status
from attsvm.core.types import AnyNorm
from attsvm.platform.extras import drawing, frame
from attsvm.platform.interop import to_numpy
from attsvm.platform.json_values import json_values
from attsvm.platform.summary import MARKED, Summarised, Summary, counted, line
from attsvm.solution.solution import Solution
from attsvm.theory.contradiction import separable_part
from attsvm.theory.finite_part import growing_part
from attsvm.theory.limits import ENDLESS, LIMIT_FLOOR, LIMIT_RECORDS, equal_records, limit_of_curve
from attsvm.theory.margin_report import (
    REPORT_NORMS,
    SOFT_MARGIN,
    TOL,
    MarginReport,
    max_margins,
    part_of,
    report_of,
    resemblance,
    share_of,
)

# Share of each other's largest margins from which the solutions of two norms are close.
RESEMBLANCE = 0.95
# Number of half decades of further training within which a deciding step is searched.
LONGEST = 8
# Largest number of matrices per decade of steps that are used.
PER_DECADE = 10
TENDS, BELOW, UNDECIDED = "tends to 1", "stays below", "undecided"


@dataclass(frozen=True)
class ShareLimit:
    """The limit of the share in one norm.

    Attributes
    ----------
    low, high : float
        Interval of the limit; `low` is -inf if the records do not bound it.
    verdict : {"tends to 1", "stays below", "undecided"}
        "tends to 1": the limit is at least 0.99, and more than the share of every other norm's solution. "stays below":
        it is less than 0.99.
    train_to : int or None
        Approximate number of steps at which an undecided share would be decided; None if more than four decades away.
    """

    norm: str
    low: float
    high: float
    verdict: str
    train_to: int | None = None

    def __str__(self) -> str:
        if self.verdict != UNDECIDED:
            return self.verdict
        return f"{UNDECIDED}, train to about {self.train_to:,} steps" if self.train_to else UNDECIDED


@dataclass(frozen=True, eq=False, repr=False)
class MarginPath(Summarised):
    """Shares of the largest margins over training, and their limits, one per norm.

    Attributes
    ----------
    steps : int array, shape (m,)
    reports : tuple of MarginReport
        The certified shares at each step.
    limits : tuple of ShareLimit
        In the order of the requested norms.
    separable : MarginPath or None
        If no W satisfies the constraints: the path on the constraints that are part of no contradiction.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import SelectionProblem, margin_path
    >>> problem = SelectionProblem([[[1.0, 3.0], [0.0, 0.0]]], [[1.0]], [0])
    >>> steps = np.array([100, 316, 1000, 3162, 10000])
    >>> path = margin_path([[[1.0 + 10.0 / step], [3.0]] for step in steps], steps, problem, norms=("frobenius", "max"))
    >>> path.nearest, path["max"].verdict
    ('frobenius', 'stays below')
    """

    steps: np.ndarray
    reports: tuple[MarginReport, ...]
    limits: tuple[ShareLimit, ...]
    separable: MarginPath | None = None

    def __getitem__(self, norm: AnyNorm | str) -> ShareLimit:
        """Find the limit of a norm, given as for :func:`attsvm.solve` or by the name in a limit."""
        limits = {limit.norm: limit for limit in self.limits}
        return limits[norm if isinstance(norm, str) and norm in limits else get_norm(norm).name]

    def shares(self, norm: AnyNorm | str) -> np.ndarray:
        """Return the middles of the certified shares in a norm at each step, (m,).

        Examples
        --------
        >>> from attsvm import SelectionProblem, margin_path
        >>> problem = SelectionProblem([[[1.0, 1.0], [0.0, 0.0]]], [[1.0]], [0])
        >>> margin_path([[[1.0], [0.0]], [[1.0], [1.0]]], [1, 2], problem).shares("max").round(3)
        array([0.5, 1. ])
        """
        name = self[norm].norm
        return np.array([report[name].share for report in self.reports])

    @property
    def nearest(self) -> str | None:
        """Name of the norm whose margin training maximises: its share tends to 1 and leads at the end; None if unclear.

        As in :attr:`attsvm.MarginReport.nearest`, a share leads if every other share is more than twice as far from 1.
        """
        reached = [limit.norm for limit in self.limits if limit.verdict == TENDS]
        return reached[0] if reached == [self.reports[-1].nearest] else None

    @property
    def _has_share(self) -> bool:
        return bool(max((share.low for share in self.reports[-1].shares), default=0.0) > 0)

    @property
    def sentence(self) -> str:
        """The result in words."""
        if not self._has_share:
            return self.reports[-1].sentence if self.separable is None else self._on_the_separable_part
        steps = counted(int(self.steps[-1]), "step")
        if self.nearest:
            limit = self[self.nearest]
            return (
                f"Training maximises the margin in the {limit.norm} norm: from {steps}, the limit of its share is "
                f"{limit.low:.3f} to {limit.high:.3f}."
            )
        if all(limit.verdict == BELOW for limit in self.limits):
            highest = max(limit.high for limit in self.limits)
            return (
                f"Training maximises the margin in none of these norms: the limits of all shares are below {highest:g}."
            )
        return self._unresolved(steps)

    @property
    def _on_the_separable_part(self) -> str:
        assert self.separable is not None
        whole, part = (path.reports[-1].shares[0].solution for path in (self, self.separable))
        contradiction, soft = self.reports[-1].sentence.removesuffix(SOFT_MARGIN).rstrip(), SOFT_MARGIN
        return f"{contradiction} {part_of(whole, part)} {self.separable.sentence} {soft}"

    def _unresolved(self, steps: str) -> str:
        """State which norms cannot be told apart, and why."""
        open_limits = [limit for limit in self.limits if limit.verdict != BELOW]
        ahead = sorted(open_limits, key=lambda limit: -self.shares(limit.norm)[-1])
        horizons = [limit.train_to for limit in ahead if limit.train_to]
        advice = f" Train to about {max(horizons):,} steps." if horizons else ""
        if len(ahead) == 1:
            return f"The share may tend to 1 in the {ahead[0].norm} norm alone, which {steps} do not decide.{advice}"
        first, second, *others = (limit.norm for limit in ahead)
        more = f" {counted(len(others), 'other norm')} may be maximised too." if others else ""
        pair = [self.reports[-1][name] for name in (first, second)]
        solutions = [share.solution for share in pair]
        if min(share_of(*solutions), share_of(*solutions[::-1])) >= RESEMBLANCE:
            reason = f"on these data from {steps}: {resemblance(solutions)}, and the share may tend to 1 in both"
        else:
            reason = f"yet: the share may tend to 1 in both, {pair[0].share:.3f} and {pair[1].share:.3f} after {steps}"
        return f"The {first} and {second} norms cannot be told apart {reason}.{more}{advice}"

    def to_frame(self) -> Any:
        """List steps and norms in a pandas DataFrame: step, norm, margin of W, and the certified share.

        Examples
        --------
        >>> from attsvm import SelectionProblem, margin_path
        >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])
        >>> margin_path([[[3.0], [4.0]]], [10], problem).to_frame().head(1)
           step       norm  margin  low  high
        0    10  frobenius    10.0  1.0   1.0
        """
        path = self.separable or self
        rows = [(step, share) for step, report in zip(path.steps, path.reports, strict=True) for share in report.known]
        columns: dict[str, Any] = {"step": [int(step) for step, _ in rows]}
        columns |= {name: [getattr(one, name) for _, one in rows] for name in ("norm", "margin", "low", "high")}
        return frame("MarginPath.to_frame", columns)

    def to_json(self) -> str:
        """Write steps, certified shares, limits and verdicts as JSON; numbers that are not finite are null.

        Examples
        --------
        >>> import json
        >>> from attsvm import SelectionProblem, margin_path
        >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])
        >>> sorted(json.loads(margin_path([[[3.0], [4.0]]], [10], problem).to_json()))
        ['nearest', 'norms', 'sentence', 'separable', 'steps']
        """
        norms = {
            limit.norm: {
                "low": [report[limit.norm].low for report in self.reports],
                "high": [report[limit.norm].high for report in self.reports],
                "limit": [limit.low, limit.high],
                "verdict": limit.verdict,
                "train_to": limit.train_to,
            }
            for limit in self.limits
        }
        part = None if self.separable is None else json.loads(self.separable.to_json())
        whole = {
            "nearest": self.nearest,
            "sentence": self.sentence,
            "steps": self.steps,
            "norms": norms,
            "separable": part,
        }
        return json.dumps(json_values(whole))

    def plot(self, ax: Any = None) -> Any:
        """Draw shares over steps and intervals of their limits; return the axes; see :func:`attsvm.plots.share_path`.

        Examples
        --------
        >>> from attsvm import SelectionProblem, margin_path
        >>> problem = SelectionProblem([[[1.0, 1.0], [0.0, 0.0]]], [[1.0]], [0])
        >>> path = margin_path([[[1.0], [0.0]], [[1.0], [1.0]]], [1, 2], problem)
        >>> path.plot().get_xscale()
        'log'
        """
        return drawing("MarginPath.plot").share_path(self, ax)

    def _summary(self) -> Summary:
        names = sorted(self.limits, key=lambda limit: -self.shares(limit.norm)[-1])
        shown = self.nearest or names[0].norm
        picture = line(self.steps, self.shares(shown)) if len(self.steps) > 1 else ""
        facts = [(limit.norm, str(limit)) for limit in names] if self._has_share else []
        caption = f"share of the largest {shown} margin over steps"
        return Summary("MarginPath", self.nearest or "", MARKED, facts, picture, caption, [self.sentence])

    def __str__(self) -> str:
        if self.separable is not None:
            return "\n".join((f"MarginPath: {self.sentence}", *str(self.separable).splitlines()[1:]))
        rows = [f"MarginPath: {self.sentence}"]
        if self._has_share:
            rows.append(f"  {'norm':<10} {'share':>6}  {'limit':<16} verdict")
        for limit in self.limits if self._has_share else ():
            interval = f"{limit.low:.3f} to {limit.high:.3f}" if limit.low > 0 else f"at most {limit.high:.3f}"
            rows.append(f"  {limit.norm:<10} {self.shares(limit.norm)[-1]:>6.3f}  {interval:<16} {limit}")
        return "\n".join(rows)


def margin_path(
    matrices: Any,
    steps: Any = None,
    problem: SelectionProblem | None = None,
    norms: Iterable[AnyNorm] = REPORT_NORMS,
    *,
    tol: float = TOL,
    time_limit: float | None = None,
) -> MarginPath:
    """Compare the margins of matrices over training with the largest possible ones, and bound the limits.

    The limit of a share is bounded from four records, two per decade of steps. Shares at other steps are interpolated
    in log k; steps at a constant factor of half a decade or more are used as they are. The limit stays open if fewer
    than four records have a positive share.

    Parameters
    ----------
    matrices : array_like, shape (m, d, dz), or Trace
        W after each number of steps. Zero matrices are ignored.
    steps : array_like of int, shape (m,), optional
        Increasing; step 0 is ignored. Default: the steps of the trace. At most ten steps per decade are used.
    problem : SelectionProblem, optional
        Default: the problem of the tokens that the trace selects at its end.
    norms : iterable of norms, optional
        As for :func:`attsvm.solve`. The max-margin problem in each norm is solved once.
    tol : float
        As for :func:`attsvm.margin_report`.
    time_limit : float, optional
        In seconds, for each norm.

    Returns
    -------
    MarginPath

    Raises
    ------
    ValueError
        If an argument does not fit; the message names it.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import TokenData, margin_path, train
    >>> data = TokenData(np.array([[[1.0, 3.0], [0.0, 0.0]]]), np.array([[1.0]]), np.array([1.0]))
    >>> trace = train(data, np.array([1.0, 0.0]), optimizer="gd", steps=1000, record_every=[10, 32, 100, 316, 1000])
    >>> margin_path(trace, norms=("frobenius", "max")).nearest
    'frobenius'
    """
    marks, stack, posed = _records(matrices, steps, problem)
    norms = tuple(norms)
    solutions = max_margins(posed, norms, tol, time_limit)
    path = path_of(marks, stack, posed, solutions, tol)
    part = separable_part(posed) if solutions[0].status is Status.INFEASIBLE else None
    if part is None:
        return path
    growing = [growing_part(part, W.astype(np.float64)) for W in stack]
    return replace(path, separable=path_of(marks, growing, part, max_margins(part, norms, tol, time_limit), tol))


def path_of(
    marks: np.ndarray, stack: list[np.ndarray], problem: SelectionProblem, solutions: list[Solution], tol: float
) -> MarginPath:
    """Compare matrices at increasing steps with the solutions in several norms; see :func:`margin_path`."""
    reports = tuple(report_of(W, problem, solutions, tol) for W in stack)
    return MarginPath(marks, reports, tuple(_limit(marks, reports, solution, solutions) for solution in solutions))


def _records(matrices: Any, steps: Any, problem: SelectionProblem | None) -> tuple[np.ndarray, list, SelectionProblem]:
    """Return steps, matrices and the problem, of a trace or as given."""
    if hasattr(matrices, "last_step"):
        trace = matrices
        if trace.data.batch_shape:
            raise ValueError(f"matrices is a trace of trials {trace.data.batch_shape}; one trial was expected.")
        problem = trace.data.problem(trace.selected) if problem is None else problem
        kept = trace.step <= int(trace.last_step)
        matrices, steps = trace.W[kept], trace.step[kept] if steps is None else steps
    if problem is None or steps is None:
        raise ValueError("steps or problem is None; both were expected unless matrices is a trace.")
    stack = [to_numpy("matrices", W) for W in matrices]
    marks = to_numpy("steps", steps)
    if marks.shape != (len(stack),) or not (np.diff(marks) > 0).all() or (marks < 0).any():
        raise ValueError(f"steps has shape {marks.shape}; {len(stack)} increasing numbers from 0 were expected.")
    used = [j for j, (step, W) in enumerate(zip(marks, stack, strict=True)) if step > 0 and W.any()]
    if not used:
        raise ValueError("matrices are all zero or at step 0; a trained matrix was expected.")
    decade_part = np.round(PER_DECADE * np.log10(marks[used] / marks[used[-1]]))
    used = [j for j, last in zip(used, np.append(np.diff(decade_part) > 0, True), strict=True) if last]
    return marks[used].astype(np.int64), [stack[j] for j in used], problem


def _limit(
    steps: np.ndarray, reports: tuple[MarginReport, ...], solution: Solution, solutions: Sequence[Solution]
) -> ShareLimit:
    """Bound the limit of the share in the norm of a solution."""
    name = solution.norm.name
    shares = np.array([report[name].share for report in reports])
    start = int(np.flatnonzero(~(shares > 0)).max(initial=-1)) + 1
    if start == len(steps):
        return ShareLimit(name, -np.inf, 1.0, UNDECIDED)
    marks, course = equal_records(steps[start:].astype(np.float64), shares[start:])
    if len(marks) < LIMIT_RECORDS:
        return ShareLimit(name, -np.inf, 1.0, UNDECIDED, _rounded(steps[-1] * 10 ** ((LIMIT_RECORDS - len(marks)) / 2)))
    low, high = limit_of_curve(marks, course)
    # No limit is above one, and solutions are accurate to the tolerance: norms that coincide are not told apart.
    if low >= LIMIT_FLOOR and min(low, 1.0) > (1.0 + reports[0].tol) * max(
        (share_of(other, solution) for other in solutions if other is not solution), default=0.0
    ):
        return ShareLimit(name, low, high, TENDS)
    if high < LIMIT_FLOOR:
        return ShareLimit(name, low, high, BELOW)
    return ShareLimit(name, low, high, UNDECIDED, _horizon(marks, course))


def _horizon(steps: np.ndarray, shares: np.ndarray) -> int | None:
    """Estimate the step at which the share is decided if its gains keep their last ratio; None if it is too far."""
    second, gain = np.diff(shares[-3:])
    ratio = float(np.clip(gain / second, 0.0, 1.0)) if second else 0.0
    share = shares[-1]
    for records in range(1, LONGEST + 1):
        gain *= ratio
        share += gain
        if share >= LIMIT_FLOOR or share + abs(gain) * ENDLESS / (1 - ENDLESS) < LIMIT_FLOOR:
            return _rounded(steps[-1] * (steps[-1] / steps[-2]) ** records)
    return None


def _rounded(steps: float) -> int:
    """Round to one digit."""
    return int(float(f"{steps:.0e}"))
