r"""The share of the largest possible margin that a matrix reaches, norm by norm.

Steepest descent in a norm is matched with the max-margin problem in that norm (arXiv 2308.16898, section 5.3;
2502.04664 for multiclass linear models), so the share

.. math:: \frac{\min A(W)}{\|W\|} \cdot \|W^\star\|, \qquad \|W^\star\| = \min\{\|V\| : A(V) \ge 1\},

shows which norm's margin a trained W maximises: it is one in that norm, and less in the others. The smallest norm has
certified bounds, and so has the share.

A W that gives tied tokens different scores does not satisfy the constraints, and has no share. (Matrices that need not
tie reach larger margins, so the ratio above may exceed one.) The violation of a tie is divided by the smallest margin
of W, as in a certificate (:mod:`attsvm.proofs.certified`). This quotient does not depend on the length of W or the
units of tokens and queries.

During training, one matrix may have its largest share in a norm whose margin is not maximised. The solution of one norm
has shares near one in others, so shares differ little between norms while each is far from one. A norm is therefore
named only if every other share is more than twice as far from one. :func:`margin_path` decides the other cases from
several steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from attsvm.core.error_free import gamma
from attsvm.core.norms import get_norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.status import Status
from attsvm.core.types import AnyNorm
from attsvm.platform.extras import drawing, frame
from attsvm.platform.interop import to_numpy
from attsvm.platform.summary import MARKED, Summarised, Summary, bars, counted, series
from attsvm.solution.solution import Solution
from attsvm.solvers.solving import solve
from attsvm.theory.contradiction import contradictions, separable_part
from attsvm.theory.finite_part import growing_part

REPORT_NORMS = ("frobenius", "nuclear", "spectral", "max", 1.0, 1.5, 3.0)
TOL = 1e-6
# Ratio of the distances of two shares from one above which their norms are told apart.
CLEAR = 2.0
# Largest number of rows of one contradiction that are printed.
PRINTED = 12
SOFT_MARGIN = "soft_margin_path(problem, [0.1, 1.0, 10.0]) allows violations: the soft margin, in any norm."


@dataclass(frozen=True, eq=False)
class MarginShare:
    """The share of W in one norm.

    Attributes
    ----------
    margin : float
        Smallest margin of W divided by its norm; negative if W violates a constraint.
    low, high : float
        Certified bounds on the share of the largest possible margin; NaN if no W satisfies the constraints, or this W
        breaks a tie.
    solution : Solution
        The max-margin problem in this norm.
    """

    norm: str
    margin: float
    low: float
    high: float
    solution: Solution

    @property
    def share(self) -> float:
        """Middle of the certified interval."""
        return 0.5 * (self.low + self.high)


@dataclass(frozen=True, eq=False, repr=False)
class MarginReport(Summarised):
    """Shares of the largest margins, one per norm.

    Attributes
    ----------
    shares : tuple of MarginShare
        In the order of the requested norms.
    tie_residual : float
        Largest difference of tied scores beyond rounding, divided by the smallest margin of W; infinite if a tie is
        broken and this margin is not positive.
    tol : float
        Largest `tie_residual` for which W has a share.
    separable : MarginReport or None
        If no W satisfies the constraints: the shares of W on the constraints that are part of no contradiction. The
        finite part of W, which belongs to the other constraints, is subtracted first.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import SelectionProblem, margin_report
    >>> problem = SelectionProblem([[[1.0, 1.0], [0.0, 0.0]]], [[1.0]], [0])
    >>> report = margin_report(np.array([[1.0], [1.0]]), problem, norms=("frobenius", "max"))
    >>> [(share.norm, round(share.low, 6)) for share in report.shares]
    [('frobenius', 1.0), ('max', 1.0)]
    """

    shares: tuple[MarginShare, ...]
    tie_residual: float = 0.0
    tol: float = TOL
    separable: MarginReport | None = None

    def __getitem__(self, norm: AnyNorm | str) -> MarginShare:
        """Find the share of a norm, given as for :func:`attsvm.solve` or by the name in a share."""
        shares = {share.norm: share for share in self.shares}
        return shares[norm if isinstance(norm, str) and norm in shares else get_norm(norm).name]

    @property
    def known(self) -> tuple[MarginShare, ...]:
        """The shares on all constraints; if no W satisfies them, the shares on the separable part."""
        if self.shares[0].solution.status is not Status.INFEASIBLE:
            return self.shares
        return () if self.separable is None else self.separable.shares

    @property
    def _best(self) -> MarginShare:
        return max(self.shares, key=lambda share: share.share if np.isfinite(share.share) else -np.inf)

    @property
    def nearest(self) -> str | None:
        """Name of the norm with the largest share; None if no share is positive, or another share is too near."""
        contenders = self._contenders
        return contenders[0] if len(contenders) == 1 else None

    @cached_property
    def _contenders(self) -> list[str]:
        """Norms that one matrix does not exclude, largest share first; none if no share is positive."""
        best = self._best
        if not best.low > 0 or best.margin == np.inf:
            return []
        order = sorted(self.shares, key=lambda share: -share.share)
        return [one.norm for one in order if one is best or not 1.0 - one.high > CLEAR * (1.0 - best.low)]

    @cached_property
    def contradictions(self) -> list[np.ndarray]:
        """Sets of rows (queries) that contradict each other, smallest first; empty if a W satisfies the constraints.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import SelectionProblem, margin_report
        >>> problem = SelectionProblem.from_classes([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]], [0, 1, 1])
        >>> margin_report(np.eye(2), problem).contradictions
        [array([0, 2])]
        """
        certificate = self.shares[0].solution.certificate
        return [] if certificate is None else contradictions(certificate)

    @property
    def sentence(self) -> str:
        """The result in words."""
        best = self._best
        if best.solution.status is Status.INFEASIBLE:
            rows = _rows(self.contradictions[0])
            part = (
                ""
                if self.separable is None
                else f"{part_of(best.solution, self.separable.shares[0].solution)} {self.separable.sentence} "
            )
            return f"No W satisfies the constraints: {rows} contradict each other. {part}{SOFT_MARGIN}"
        if best.margin == np.inf:
            return "No token is rejected, so there is no margin."
        if self.tie_residual > self.tol:
            size = (
                f"differ by {self.tie_residual:.4g} times its smallest margin; at most {self.tol:g} was expected"
                if best.margin > 0
                else "differ, and its smallest margin is not positive"
            )
            return f"W breaks a tie and has no share: scores of tied tokens {size}."
        if not np.isfinite(best.share):
            return "No share is known: the max-margin problems were not solved."
        if best.share <= 0:
            return "W breaks a constraint: its smallest margin is not positive."
        largest = f"W has {100 * best.share:.4g} % of the largest margin in the {best.norm} norm"
        if self.nearest:
            return f"{largest}, its nearest."
        first, second, *others = self._contenders
        more = f" {counted(len(others), 'other norm')} may be maximised too." if others else ""
        reason = resemblance([self[first].solution, self[second].solution])
        return (
            f"{largest}, but the {first} and {second} norms cannot be told apart by this matrix: {reason}.{more} "
            "margin_path decides from several steps."
        )

    def to_frame(self) -> Any:
        """List the norms in a pandas DataFrame: norm, margin of W, and the certified share from low to high.

        If no W satisfies the constraints, the shares are on the separable part.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import SelectionProblem, margin_report
        >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])
        >>> report = margin_report(np.array([[3.0], [4.0]]), problem)
        >>> report.to_frame().head(1)
                norm  margin  low  high
        0  frobenius    10.0  1.0   1.0
        """
        columns = {name: [getattr(share, name) for share in self.known] for name in ("norm", "margin", "low", "high")}
        return frame("MarginReport.to_frame", columns)

    def plot(self, ax: Any = None) -> Any:
        """Draw the shares as bars on matplotlib axes, and return the axes; see :func:`attsvm.plots.shares`.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import SelectionProblem, margin_report
        >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])
        >>> report = margin_report(np.array([[3.0], [4.0]]), problem)
        >>> report.plot().get_xlabel()
        'share of the largest margin'
        """
        return drawing("MarginReport.plot").shares(self, ax)

    def _summary(self) -> Summary:
        names, values = [share.norm for share in self.shares], [share.share for share in self.shares]
        caption = "share of the largest margin, by norm; blue: the nearest"
        highlight = names.index(self.nearest) if self.nearest else -1
        picture = bars(names, values, highlight) if np.isfinite(values).any() else ""
        return Summary("MarginReport", colour=MARKED, picture=picture, caption=caption, notes=[self.sentence])

    def __str__(self) -> str:
        rows = [f"  {one.norm:<10} {one.low:>9.6f} to {one.high:.6f}" for one in self.known if np.isfinite(one.share)]
        rows += [f"  {_rows(one)}" for one in self.contradictions]
        return "\n".join((f"MarginReport: {self.sentence}", *rows))


def margin_report(
    W: Any,
    problem: SelectionProblem,
    norms: Iterable[AnyNorm] = REPORT_NORMS,
    *,
    tol: float = TOL,
    time_limit: float | None = None,
) -> MarginReport:
    """Compare the margin of W with the largest possible margin in several norms.

    Parameters
    ----------
    W : array_like, shape (d, dz)
        Its length does not matter.
    problem : SelectionProblem
    norms : iterable of norms, optional
        As for :func:`attsvm.solve`.
    tol : float
        Certified relative gap of each max-margin problem. Scores of tied tokens may differ by this share of the
        smallest margin, in addition to the effect of rounding W to its dtype.
    time_limit : float, optional
        In seconds, for each norm.

    Returns
    -------
    MarginReport

    Raises
    ------
    ValueError
        If W has another shape, is zero or is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import SelectionProblem, margin_report, solve
    >>> problem = SelectionProblem.from_classes(np.array([[2.0, 1.0], [-1.0, 1.0], [0.0, -2.0]]), [0, 1, 2])
    >>> margin_report(solve(problem, "spectral").W, problem).nearest
    'spectral'
    """
    norms = tuple(norms)
    report = report_of(W, problem, max_margins(problem, norms, tol, time_limit), tol)
    part = None if report.shares[0].solution.status is not Status.INFEASIBLE else separable_part(problem)
    if part is None:
        return report
    growing = growing_part(part, to_numpy("W", W).astype(np.float64))
    return replace(report, separable=report_of(growing, part, max_margins(part, norms, tol, time_limit), tol))


def max_margins(
    problem: SelectionProblem, norms: Iterable[AnyNorm], tol: float, time_limit: float | None
) -> list[Solution]:
    """Solve the max-margin problem in each norm; a proof that no W exists holds for every norm."""
    solutions: list[Solution] = []
    for norm in map(get_norm, norms):
        if solutions and solutions[0].status is Status.INFEASIBLE:
            solutions.append(replace(solutions[0], norm=norm))
        else:
            solutions.append(solve(problem, norm, tol=tol, time_limit=time_limit))
    return solutions


def report_of(W: Any, problem: SelectionProblem, solutions: Sequence[Solution], tol: float) -> MarginReport:
    """Compare the margin of W with the margins of solutions; see :func:`margin_report`."""
    raw = to_numpy("W", W)
    precision = float(np.finfo(raw.dtype).eps) if raw.dtype.kind == "f" else 0.0
    matrix = raw.astype(np.float64)
    _, _, d, dz = problem.shape
    if matrix.shape != (d, dz):
        raise ValueError(f"W has shape {matrix.shape}; (d, dz) = {(d, dz)} was expected.")
    if not np.isfinite(matrix).all() or not matrix.any():
        raise ValueError("W is zero or not finite; a direction was expected.")
    matrix = matrix / np.abs(matrix).max()
    margins = problem.apply(matrix)
    smallest = float(margins.min(where=problem.rejected, initial=np.inf))
    tie_residual = _tie_residual(problem, matrix, precision, margins, smallest)
    shares = []
    for solution in solutions:
        margin = smallest / solution.norm.value(matrix)
        low, high = _smallest_norm(solution) if tie_residual <= tol else (np.nan, np.nan)
        bounds = (margin * low, margin * high) if margin >= 0 else (margin * high, margin * low)
        shares.append(MarginShare(solution.norm.name, margin, *bounds, solution))
    return MarginReport(tuple(shares), tie_residual, tol)


def share_of(solution: Solution, other: Solution) -> float:
    """Return the share that a solution has of the largest margin in the norm of another; zero if it has no W."""
    return other.objective / other.norm.value(solution.certified.W) if np.isfinite(solution.objective) else 0.0


def resemblance(solutions: Sequence[Solution]) -> str:
    """State which shares the solutions of several norms have of each other's largest margins."""
    shares = [share_of(ours, theirs) for ours in solutions for theirs in solutions if ours is not theirs]
    low, high = f"{min(shares):.3f}", f"{max(shares):.3f}"
    return f"their own solutions have {low if low == high else f'{low} to {high}'} of each other's largest margins"


def part_of(whole: Solution, separable: Solution) -> str:
    """State how many constraints are in no contradiction."""
    count, of = (int(one.problem.rejected.sum()) for one in (separable, whole))
    return f"On the {count:,} of {of:,} constraints in no contradiction:"


def _rows(rows: np.ndarray) -> str:
    """Name rows; of many rows, only the first are named."""
    if len(rows) == 1:
        return f"tokens of row {rows[0]}"
    if len(rows) > PRINTED:
        return f"rows {', '.join(map(str, rows[:PRINTED]))} and {counted(len(rows) - PRINTED, 'other')}"
    return f"rows {series([str(row) for row in rows])}"


def _tie_residual(
    problem: SelectionProblem, W: np.ndarray, precision: float, margins: np.ndarray, smallest: float
) -> float:
    """Divide the largest difference of tied scores, less rounding, by the smallest margin.

    Relative errors `precision` of the entries of W change a score difference by at most precision |delta| |z| |W|_F.
    """
    if not problem.has_ties:
        return 0.0
    rounding = (precision + gamma(sum(W.shape) + 4)) * np.linalg.norm(W)
    broken = np.abs(margins[problem.tied]) - rounding * problem.lengths[problem.tied]
    largest = float(broken.max(initial=0.0))
    if smallest > 0.0:
        return largest / smallest
    return np.inf if largest > 0.0 else 0.0


def _smallest_norm(solution: Solution) -> tuple[float, float]:
    """Return certified bounds on the smallest norm; NaN if there is none or no upper bound is known."""
    if solution.status is Status.INFEASIBLE or not np.isfinite(solution.certified.upper_bound):
        return np.nan, np.nan
    return solution.certified.lower_bound, solution.certified.upper_bound
