r"""Solve the attention SVM of a head by inner products alone.

The Frobenius solution is :math:`W = \sum_k \lambda_k \delta_k z_k^\top` over constraints :math:`k = (i, t)`. Its dual
needs only the products :math:`\langle\delta_k,\delta_l\rangle\langle z_k,z_l\rangle` of the data. For lifted tokens
:math:`\phi = \rho\otimes x` these are products of products (:mod:`attsvm_pretrained.selection.rope`), so neither
:math:`\phi` nor W is formed, and the width of a model does not matter.

Few constraints support W. :mod:`attsvm.solvers.gram` solves the dual on a working set. The margins of all constraints
are then computed from the multipliers above zero, and the constraints with the largest violations join. Rounds repeat
until the gap, computed over *all* constraints, is at most `tol`. If ``C`` is given, the squared hinge replaces the hard
margin: its dual differs by 1/(2C) on the diagonal.

Objective and bound are measured in double precision. Their rounding is not bounded, unlike in :func:`attsvm.solve`,
which certifies an explicit W.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from attsvm.core.status import Status
from attsvm.platform.summary import BAD, GOOD, UNSURE, Summarised, Summary, counted, histogram
from attsvm.solvers.gram import multipliers_of
from attsvm_pretrained.heads.head import AttentionHead
from attsvm_pretrained.selection.inner_products import Factored, Kernel, scores_under, token_weights

# Number of constraints per query in the first working set.
FIRST_TOKENS = 3
# Number of constraints that may join per round if there are fewer multipliers above zero.
JOIN = 400
# Largest number of rounds of the working set.
MAX_ROUNDS = 60
_SENTENCES = {
    Status.OPTIMAL: "Objective and bound, as measured, agree to the requested gap; rounding is not counted.",
    Status.UNDECIDED: "The rounds ended with a measured gap above tol; the multipliers are the last ones found.",
}


@dataclass(frozen=True, eq=False, repr=False)
class KernelSolution(Summarised):
    """An attention SVM in terms of its multipliers; objective and bound are measured, and rounding is not counted.

    Attributes
    ----------
    head : AttentionHead
    selected : ndarray of int, shape (n,)
    dual : ndarray, shape (n, T)
    margins : ndarray, shape (n, T)
        Margin of the selected token over each token; +inf for hidden tokens.
    objective : float
        Norm of W scaled to smallest margin one, or ||W||^2 / 2 + C sum u^2 if C is given. Infinite without a W.
    lower_bound : float
        Dual objective of the multipliers, as measured.
    status : Status
        OPTIMAL if `objective` and `lower_bound`, as measured, agree to the requested gap.
    C : float or None
    seconds : float

    Examples
    --------
    >>> from attsvm import pretrained
    >>> head = pretrained.example_head()
    >>> solution = pretrained.solve_kernel(head, C=1.0)
    >>> solution.status.name, solution.gap < 1e-5, solution.scores(head).shape
    ('OPTIMAL', True, (24, 6))
    """

    head: AttentionHead
    selected: np.ndarray
    dual: np.ndarray
    margins: np.ndarray
    objective: float
    lower_bound: float
    status: Status
    C: float | None
    seconds: float

    @property
    def gap(self) -> float:
        """Relative gap, as measured."""
        return self.objective / self.lower_bound - 1.0 if self.lower_bound > 0 else np.inf

    def scores(self, head: AttentionHead) -> np.ndarray:
        """Return the scores that W gives to any queries of the same head, (n, T); -inf for hidden tokens.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> head = pretrained.example_head()
        >>> solution = pretrained.solve_kernel(head, C=1.0)
        >>> solution.scores(head).shape
        (24, 6)
        """
        return np.where(head.mask, scores_under(head, self.head, token_weights(self.dual, self.selected)), -np.inf)

    def product_with_trained(self) -> float:
        """Return the inner product <W, trained W> in the lifted space: multipliers times the trained margins.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> head = pretrained.example_head()
        >>> solution = pretrained.solve_kernel(head, C=1.0)
        >>> type(solution.product_with_trained()).__name__
        'float'
        """
        trained_scores = self.head.scores()
        rows, columns = np.nonzero(self.dual)
        return float(
            self.dual[rows, columns] @ (trained_scores[rows, self.selected[rows]] - trained_scores[rows, columns])
        )

    @property
    def norm(self) -> float:
        """Frobenius norm of W = sum dual delta z^T, not scaled to smallest margin one."""
        rows, columns = np.nonzero(self.dual)
        margins = self.margins[rows, columns]
        return float(np.sqrt(max(self.dual[rows, columns] @ margins, 0.0)))

    def _summary(self) -> Summary:
        colour = {Status.OPTIMAL: GOOD, Status.INFEASIBLE: BAD}.get(self.status, UNSURE)
        rejected = np.isfinite(self.margins) & (np.arange(self.margins.shape[1]) != self.selected[:, None])
        support = self.dual[rejected] > 0
        facts = [
            ("objective", f"{self.objective:.6g}"),
            ("gap, measured", f"{self.gap:.1e}"),
            ("multipliers above zero", f"{int(support.sum()):,} of {counted(int(rejected.sum()), 'constraint')}"),
            ("margin", "hard" if self.C is None else f"soft, C = {self.C:g}"),
            ("seconds", f"{self.seconds:.3g}"),
        ]
        picture = histogram(self.margins[rejected], support)
        caption = "margins; blue: tokens with a multiplier"
        return Summary("KernelSolution", self.status.name, colour, facts, picture, caption, [_SENTENCES[self.status]])


def solve_kernel(
    head: AttentionHead,
    selected: np.ndarray | None = None,
    *,
    C: float | None = None,
    tol: float = 1e-6,
    time_limit: float | None = None,
) -> KernelSolution:
    """Solve the Frobenius attention SVM of a head, rotary or not, without forming W.

    Parameters
    ----------
    head : AttentionHead
    selected : ndarray of int, shape (n,), optional
        Default: the token that each query attends to most.
    C : float, optional
        Soft margin with squared hinge, as in :func:`attsvm.solve`.
    tol : float
        Requested relative gap.
    time_limit : float, optional
        In seconds.

    Returns
    -------
    KernelSolution
        UNDECIDED if no W was found; the lower bound is then the measured bound on the norm of any W.

    Raises
    ------
    ValueError
        If `selected` does not fit the head, or an option is out of range.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> head = pretrained.example_head("llama")
    >>> solution = pretrained.solve_kernel(head)
    >>> solution.dual.shape, bool(solution.lower_bound <= solution.objective)
    ((24, 6), True)
    """
    selection = _read_selected(head, selected)
    if C is not None and not C > 0:
        raise ValueError(f"C is {C!r}; a positive number was expected.")
    if not 0 < tol < 1:
        raise ValueError(f"tol is {tol!r}; a number between 0 and 1 was expected.")
    return solve_selection(head, selection, Factored(head), C, tol, time_limit)


def solve_selection(
    head: AttentionHead, selection: np.ndarray, kernel: Kernel, C: float | None, tol: float, time_limit: float | None
) -> KernelSolution:
    """Solve as :func:`solve_kernel` does, with inner products that several selections may share."""
    start = time.perf_counter()
    n, T = head.mask.shape
    rejected = head.mask.copy()
    rejected[np.arange(n), selection] = False
    dual = np.zeros((n, T))
    working = _first(rejected)
    best = KernelSolution(
        head, selection, dual, np.where(head.mask, 0.0, np.inf), np.inf, 0.0, Status.UNDECIDED, C, 0.0
    )
    if not rejected.any():
        return KernelSolution(head, selection, dual, best.margins, 0.0, 0.0, Status.OPTIMAL, C, 0.0)
    for _ in range(MAX_ROUNDS):
        rows, columns = np.nonzero(working)
        values = multipliers_of(kernel.gram(rows, selection[rows], columns), dual[rows, columns], C)
        dual = np.zeros((n, T))
        if values is None:
            return best
        dual[rows, columns] = values
        scores = kernel.scores(token_weights(dual, selection))
        margins = np.where(head.mask, scores[np.arange(n), selection][:, None] - scores, np.inf)
        objective, bound = _measure(dual, margins, rejected, C)
        status = Status.OPTIMAL if objective <= (1 + tol) * bound else Status.UNDECIDED
        seconds = time.perf_counter() - start
        best = KernelSolution(head, selection, dual, margins, objective, bound, status, C, seconds)
        if status is Status.OPTIMAL:
            return best
        short = np.where(rejected & ~working, 1.0 - margins, -np.inf)
        violators = int((short > tol / 10).sum())
        late = time_limit is not None and seconds > time_limit
        if violators == 0 or late:
            return best
        working = dual > 0
        joining = min(violators, max(JOIN, int(working.sum())))
        worst = np.argpartition(short.ravel(), -joining)[-joining:]
        working.ravel()[worst] = True
    return best


def _read_selected(head: AttentionHead, selected: np.ndarray | None) -> np.ndarray:
    selection = head.selected if selected is None else np.asarray(selected)
    n, T = head.mask.shape
    if selection.shape != (n,) or selection.dtype.kind not in "iu" or (selection < 0).any() or (selection >= T).any():
        raise ValueError(
            f"selected has {selection.dtype} of shape {selection.shape}; {n} integers from 0 to {T - 1} were expected."
        )
    if not head.mask[np.arange(n), selection].all():
        raise ValueError("selected names a hidden token; tokens visible under the head's mask were expected.")
    return selection


def _first(rejected: np.ndarray) -> np.ndarray:
    """Spread the first working set evenly over each query's rejected tokens."""
    order = np.cumsum(rejected, axis=1)
    step = np.maximum(1, order[:, -1:] // FIRST_TOKENS)
    return rejected & (order % step == 0)


def _measure(dual: np.ndarray, margins: np.ndarray, rejected: np.ndarray, C: float | None) -> tuple[float, float]:
    """Compute the objective of W and the bound that its multipliers prove."""
    support = dual > 0
    squared, total = float(dual[support] @ margins[support]), float(dual.sum())
    if C is not None:
        short = np.maximum(1.0 - margins[rejected], 0.0)
        return 0.5 * squared + C * float(short @ short), total - 0.5 * squared - float((dual**2).sum()) / (4.0 * C)
    if squared <= 0:
        return np.inf, 0.0
    norm, smallest = float(np.sqrt(squared)), float(margins[rejected].min())
    return (norm / smallest if smallest > 0 else np.inf), total / norm
