r"""The working set of a problem in pieces: the constraints listed so far, as a selection problem.

Constraints of a hinge at their bound enter as their sum M, whose loss is linear while all of them fall short. A matrix
is not the constraint of one query, but its singular vectors :math:`M = \sum_k s_k u_k v_k^\top` are constraints, each
with a demand so large that it falls short as well. They are extra rows below the queries of the table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse.linalg import LinearOperator, lsqr

from attsvm.core.norms import Norm, frobenius
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import constraint_margins, constraint_sum, independent_ties, reduce
from attsvm.proofs.objective import Regularisation, Terms
from attsvm.proofs.program import Program
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.schedule import PADDED, PADDED_BYTES
from attsvm.solvers.working_sets.constraints import BoundSum, ConstraintTable

# Singular value of a sum, over the largest, below which it is rounding.
SINGULAR_RESOLUTION = 1e-15


@dataclass(frozen=True, eq=False)
class Restriction:
    """A working set.

    Attributes
    ----------
    program : Program
        Its problem has one row per query, or several if some queries have many more constraints than most; the
        reference comes first.
    row, column : ndarray of int, shape (J,)
        Row and column of each constraint of the table in the problem.
    """

    table: ConstraintTable
    program: Program
    row: np.ndarray
    column: np.ndarray

    @property
    def problem(self) -> SelectionProblem:
        """The constraints of the table."""
        return self.program.problem

    @property
    def terms(self) -> Terms:
        """Terms of the problem."""
        return self.program.terms

    @classmethod
    def of(cls, table: ConstraintTable, norm: Norm, regularisation: Regularisation) -> Restriction:
        """Write a table with at least one constraint as a problem."""
        _, first, query, count = np.unique(
            table.place[:, :2], axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        width = _width(count, 8 * table.x.shape[1])
        parts = -(-count // width)
        order = np.lexsort((~table.tied, query))
        index = np.arange(len(order)) - np.searchsorted(query[order], query[order])
        row, column = np.empty(len(table), dtype=np.int64), np.empty(len(table), dtype=np.int64)
        row[order] = (np.cumsum(parts) - parts)[query[order]] + index // width
        column[order] = index % width + 1
        first = np.repeat(first, parts)
        tokens = np.zeros((len(first), width + 1, table.x.shape[1]))
        tokens[:, 0], tokens[row, column] = table.reference[first], table.x
        mask, selected = np.zeros(tokens.shape[:2], dtype=bool), np.zeros(tokens.shape[:2], dtype=bool)
        mask[:, 0], mask[row, column] = True, True
        selected[:, 0], selected[row, column] = True, table.tied
        problem = SelectionProblem(tokens, table.z[first], selected, mask=mask)
        return cls(table, Program(problem, norm, regularisation), row, column)

    def scatter(self, values: np.ndarray) -> np.ndarray:
        """Scatter values (J,) of the table to the rows and columns of the problem, (m, T)."""
        out = np.zeros(self.problem.mask.shape)
        out[self.row, self.column] = values
        return out

    def setting(
        self, bound_sum: BoundSum | None, centre: np.ndarray, reach: float, weight: float
    ) -> tuple[Setting, SelectionProblem]:
        """Set up the problem of a method: this problem, and rows for a sum around W = ``centre`` (d, dz).

        The sum's loss must be linear up to the distance ``reach`` from the centre, in the Frobenius norm. Each
        constraint of the table represents ``weight`` constraints. Returns the setting and the problem with the extra
        rows.
        """
        problem, terms = self.problem, replace(self.terms, upper=self.terms.upper * weight)
        if bound_sum is not None and bound_sum.count:
            problem, demands = _with_rows(problem, bound_sum.adjoint / weight, centre - self.program.origin, reach)
            extra = len(demands)
            cost = np.zeros(problem.mask.shape)
            cost[:-extra], cost[-extra:, 1] = terms.cost, demands
            terms = replace(terms, rejected=problem.rejected, tied=problem.tied, cost=cost)
        reduced = independent_ties(reduce(problem, rotate=terms.norm.base.invariant, transform=terms.norm.transform))
        return Setting.of(reduced, terms, self.program.origin), problem

    def start(self, setting: Setting, dual: np.ndarray) -> np.ndarray:
        """Multipliers (J,) in the form that a method takes, if there are no rows for a sum."""
        return setting.reduced.gather(self.scatter(dual)) * setting.unit

    def balance(
        self, values: np.ndarray, bound_sum: BoundSum, whole: SelectionProblem, whole_dual: np.ndarray
    ) -> np.ndarray:
        """Correct multipliers (J,) for the multipliers of a sum's rows, which end slightly below the bound.

        The adjoint must not leave the unit ball of the dual norm. A least-squares problem subtracts the difference of
        the sum and the rows' part of it from multipliers between their bounds, in proportion to their distance from the
        bounds, and from multipliers of ties, in proportion to C. Ties have no bounds. ``whole_dual`` (m + k, T) are the
        multipliers of ``whole``, the problem with the rows of the sum.
        """
        count, upper, table = len(self.problem.mask), self.terms.upper, self.table
        sums = constraint_sum(whole.tokens[count:, 0], whole.queries[count:], whole_dual[count:, 1])
        missing = upper * bound_sum.adjoint - sums
        room = np.where(table.tied, upper, np.maximum(np.minimum(values, upper - values), 0.0))
        delta = room[:, None] * (table.reference - table.x)

        def adjoint(share: np.ndarray) -> np.ndarray:
            return constraint_sum(delta, table.z, share.ravel()).ravel()

        def margins(y: np.ndarray) -> np.ndarray:
            return constraint_margins(delta, table.z, y.reshape(missing.shape))

        shape = (missing.size, len(values))
        operator = LinearOperator(shape, matvec=adjoint, rmatvec=margins)  # pyright: ignore[reportCallIssue]
        shares = lsqr(operator, missing.ravel(), atol=1e-13, btol=1e-13, iter_lim=4 * missing.size)[0]
        corrected = values - room * shares
        return np.where(table.tied, corrected, np.clip(corrected, 0.0, upper))


def _width(count: np.ndarray, token_bytes: int) -> int:
    """Choose the number of constraints per row of a problem from the number per query, (m,).

    All rows have the width of the widest query. If that takes many bytes, queries are cut into rows of the width that
    takes the fewest bytes.
    """
    most = int(count.max())
    sizes = {width: int((-(-count // width)).sum()) * (width + 1) for width in (*(1 << np.arange(10)).tolist(), most)}
    best = min((width for width in sizes if width <= most), key=sizes.__getitem__)
    return most if sizes[most] * token_bytes <= PADDED_BYTES or sizes[most] <= PADDED * sizes[best] else best


def _with_rows(
    problem: SelectionProblem, adjoint: np.ndarray, centre: np.ndarray, reach: float
) -> tuple[SelectionProblem, np.ndarray]:
    """Add a query for each singular vector of a sum; return the problem, and the demand on V of each, (k,)."""
    U, sigma, Vt = np.linalg.svd(adjoint, full_matrices=False)
    keep = sigma > SINGULAR_RESOLUTION * frobenius(adjoint)
    rows, queries = (U[:, keep] * sigma[keep]).T, Vt[keep]
    demands = constraint_margins(rows, queries, centre) + sigma[keep] * reach
    m, T, d, _ = problem.shape
    tokens, mask = np.zeros((m + len(rows), T, d)), np.zeros((m + len(rows), T), dtype=bool)
    tokens[:m], tokens[m:, 0], mask[:m], mask[m:, :2] = problem.tokens, rows, problem.mask, True
    selected = np.zeros(mask.shape, dtype=bool)
    selected[:m], selected[m:, 0] = problem.selected, True
    return SelectionProblem(tokens, np.vstack([problem.queries, queries]), selected, mask=mask), demands
