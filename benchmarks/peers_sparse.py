"""Sparse statements of a problem, one vectorised expression for each solver.

Four things make a statement small. Dense tokens and queries that span less than their space are written in an
orthonormal basis of that span if the norm does not depend on the basis. One-hot vectors stay sparse. The products of W
with the queries become variables if that saves most of the entries. A Frobenius problem with few constraints is stated
by its dual. A norm of singular values is the Euclidean norm if W has one row or one column.

A statement is compiled before the clock starts. Its tolerance falls by factors of ten until its answer has the
certified gap ``TOL``, as attsvm's has. LIBLINEAR gives no multipliers: the excess of its objective over a proven bound
counts there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
import scipy.sparse as sp
from peers_svm import HARD, MANY

from attsvm import SelectionProblem
from attsvm.core.norms import get_norm
from attsvm.proofs.certified import Certified, certify
from attsvm.proofs.objective import HARD_MARGIN, Regularisation
from attsvm.proofs.program import Program

TOL = 1e-6
EPSILONS = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10)
OPTIONS: dict[str, tuple[str, ...]] = {
    "CLARABEL": ("tol_gap_abs", "tol_gap_rel", "tol_feas"),
    "OSQP": ("eps_abs", "eps_rel"),
    "PIQP": ("eps_abs", "eps_rel"),
    "SCS": ("eps_abs", "eps_rel"),
    "HIGHS": (),
    "LIBLINEAR": ("tol",),
}
TIME_LIMITS = {"CLARABEL": "time_limit", "OSQP": "time_limit", "SCS": "time_limit_secs"}
MOST_STEPS: dict[str, dict[str, int]] = {
    "OSQP": {"max_iter": 1_000_000},
    "SCS": {"max_iters": 1_000_000},
    "PIQP": {"max_iter": 1000},
}
SPECTRAL = ("nuclear", "spectral")
# Share of nonzeros below which tokens or queries stay sparse.
SPARSE_SHARE = 0.5
# Share of the entries below which products of W with the queries become variables.
PRODUCT_SHARE = 1 / 3
# Largest number of constraints of a dual, whose matrix is dense.
MOST_DUAL = 2000
# Largest number of entries of a statement's rows; each takes 12 bytes, and solvers copy them.
MOST_ENTRIES = 60_000_000


@dataclass(frozen=True, eq=False)
class Task:
    """A problem, the norm, and C for a soft margin."""

    problem: SelectionProblem
    norm: Any
    regularisation: Regularisation = HARD_MARGIN

    def certify(self, W: np.ndarray, dual: np.ndarray) -> Certified:
        """Return the bounds on the optimum that an answer proves."""
        return certify(Program(self.problem, get_norm(self.norm), self.regularisation), W, dual)

    @cached_property
    def coordinates(self) -> Coordinates:
        return Coordinates.of(self.problem, self.norm == "frobenius" or self.norm in SPECTRAL)

    def margins(self, marked: np.ndarray, W: Any) -> tuple[Any, list[Any]]:
        """Write the margins of marked tokens (n, T) as an expression in W, with the constraints it needs."""
        return self.coordinates.margins(self.problem, marked, W)


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Token differences and queries of a problem as sparse rows in the bases ``left`` (d, r) and ``right`` (dz, s).

    ``pairs`` are the queries and tokens of the differences. A basis is None where the coordinates are the given ones.
    """

    pairs: tuple[np.ndarray, np.ndarray]
    delta: sp.csr_array
    queries: sp.csr_array
    of_query: np.ndarray
    left: np.ndarray | None
    right: np.ndarray | None

    @classmethod
    def of(cls, problem: SelectionProblem, invariant: bool) -> Coordinates:
        """Find bases of the spans if the norm is invariant and the data are dense."""
        distinct, of_query = np.unique(problem.queries, axis=0, return_inverse=True)
        tokens = problem.tokens.astype(float)  # (b, T, d)
        b, T, d = tokens.shape
        left = _basis(tokens.reshape(b * T, d)) if invariant else None
        right = _basis(distinct) if invariant else None
        rows = sp.csr_array(tokens.reshape(b * T, d) if left is None else tokens.reshape(b * T, d) @ left)
        i, t = np.nonzero(problem.constrained)
        first, other = problem.sequence[i] * T + problem.reference[i], problem.sequence[i] * T + t
        queries = sp.csr_array(distinct if right is None else distinct @ right)
        return cls((i, t), rows[first] - rows[other], queries, of_query.ravel(), left, right)

    @property
    def shape(self) -> tuple[int, int]:
        return self.delta.shape[1], self.queries.shape[1]

    @property
    def entries(self) -> int:
        """Entries of the rows delta kron z of all constraints."""
        return self._entries(self.delta, self.of_query[self.pairs[0]])

    def _entries(self, delta: sp.csr_array, of_query: np.ndarray) -> int:
        return int(np.diff(delta.indptr).astype(np.int64) @ np.diff(self.queries.indptr)[of_query])

    def rows(self, chosen: np.ndarray) -> sp.csr_array:
        """Rows delta kron z of the chosen constraints, W flattened row by row.

        Raises
        ------
        MemoryError
            If they have too many entries.
        """
        first, second = self.delta[chosen], self.queries[self.of_query[self.pairs[0][chosen]]]
        counts = np.diff(first.indptr), np.diff(second.indptr)
        each = counts[0].astype(np.int64) * counts[1]
        if each.sum() > MOST_ENTRIES:
            raise MemoryError
        place = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)  # of an entry in its row
        width = np.repeat(counts[1], each)
        a = np.repeat(first.indptr[:-1], each) + place // width
        b = np.repeat(second.indptr[:-1], each) + place % width
        columns = first.indices[a].astype(np.int64) * self.shape[1] + second.indices[b]
        indptr = np.concatenate([[0], np.cumsum(each)])
        place = columns.astype(np.int32), indptr.astype(np.int32)  # what LIBLINEAR takes
        return sp.csr_array((first.data[a] * second.data[b], *place), (len(each), int(np.prod(self.shape))))

    def margins(self, problem: SelectionProblem, marked: np.ndarray, W: Any) -> tuple[Any, list[Any]]:
        """Write the margins of marked tokens (n, T) as an expression in W, with the constraints it needs."""
        cp: Any = import_module("cvxpy")
        chosen = np.flatnonzero(marked[self.pairs])
        column = self.of_query[self.pairs[0][chosen]]
        delta = self.delta[chosen]
        r, q = self.shape[0], self.queries.shape[0]
        by_products = r * (self.queries.nnz + q) + delta.nnz
        if by_products > PRODUCT_SHARE * self._entries(delta, column):
            return self.rows(chosen) @ cp.vec(W, order="C"), []
        U = cp.Variable((r, q))
        place = delta.indices * q + np.repeat(column, np.diff(delta.indptr))
        picking = sp.csr_array((delta.data, place, delta.indptr), (len(chosen), r * q))
        return picking @ cp.vec(U, order="C"), [W @ self.queries.T.tocsc() == U]

    def restore(self, W: np.ndarray) -> np.ndarray:
        """Write W in the coordinates of the problem, (d, dz)."""
        W = W if self.left is None else self.left @ W
        return W if self.right is None else W @ self.right.T


def _basis(rows: np.ndarray) -> np.ndarray | None:
    """Find an orthonormal basis of the span, (d, r) with r < d; None for sparse rows and for more rows than columns."""
    count, d = rows.shape
    if count >= d or np.count_nonzero(rows) < SPARSE_SHARE * rows.size:
        return None
    return np.linalg.qr(rows.T)[0]


class Statement:
    """One sparse statement of a task for one solver of cvxpy."""

    def __init__(self, task: Task, solver: str, limit: float | None = None) -> None:
        """State it; ``limit`` is on a solver's own seconds, where it knows such a limit."""
        cp: Any = import_module("cvxpy")
        self.task, self.solver = task, getattr(cp, solver)
        self.options: dict[str, Any] = dict.fromkeys(OPTIONS[solver], EPSILONS[0])
        self.limits: dict[str, Any] = dict(MOST_STEPS.get(solver, {}))
        if limit is not None and solver in TIME_LIMITS:
            self.limits[TIME_LIMITS[solver]] = limit
        constraints = len(task.coordinates.pairs[0])
        small = constraints <= MOST_DUAL and constraints**2 < task.coordinates.entries
        self.by_dual = task.norm == "frobenius" and small
        self.program = self._dual(cp) if self.by_dual else self._primal(cp)
        self.program.get_problem_data(self.solver)  # compiled once, and kept

    def _primal(self, cp: Any) -> Any:
        task, problem = self.task, self.task.problem
        self.W = cp.Variable(task.coordinates.shape)
        slack, loss = 0.0, 0.0
        if not task.regularisation.hard:
            slack = cp.Variable(int(problem.rejected.sum()), nonneg=True)
            loss = task.regularisation.C * (cp.sum(slack) if task.regularisation.hinge else cp.sum_squares(slack))
        margins, self.constraints = task.margins(problem.rejected, self.W)
        self.multipliers = [margins + slack >= 1]
        if problem.has_ties:
            scores, more = task.margins(problem.tied, self.W)
            self.constraints += more
            self.multipliers.append(scores == 0)
        return cp.Problem(cp.Minimize(_size(cp, self.W, task.norm) + loss), self.multipliers + self.constraints)

    def _dual(self, cp: Any) -> Any:
        """Minimise |A^T lam|^2 / 2 - sum of lam, lam at most C or charged lam^2 / 4C, free on ties."""
        task, where = self.task, self.task.coordinates
        rejected = task.problem.rejected[where.pairs]
        delta, queries = where.delta, where.queries[where.of_query[where.pairs[0]]]
        gram = (delta @ delta.T).toarray() * (queries @ queries.T).toarray()
        C, hinge = task.regularisation.C, task.regularisation.hinge
        if C is not None and not hinge:
            gram += np.diag(np.where(rejected, 0.5 / C, 0.0))
        self.lam = cp.Variable(len(gram))
        on = np.flatnonzero(rejected)
        constraints = [self.lam[on] >= 0] + ([self.lam[on] <= C] if hinge else [])
        objective = cp.quad_form(self.lam, cp.psd_wrap(gram)) / 2 - rejected.astype(float) @ self.lam
        return cp.Problem(cp.Minimize(objective), constraints)

    def run(self) -> float:
        """Solve; returns processor seconds."""
        start = time.process_time()
        self.program.solve(solver=self.solver, warm_start=False, **self.options, **self.limits)
        return time.process_time() - start

    @property
    def says_infeasible(self) -> bool:
        return self.program.status in (("unbounded", "unbounded_inaccurate") if self.by_dual else ("infeasible",))

    def answer(self) -> Certified | None:
        """Return the bounds that the last answer proves; None without an answer."""
        problem, where = self.task.problem, self.task.coordinates
        dual = np.zeros(problem.mask.shape)
        if self.by_dual:
            if self.lam.value is None:
                return None
            dual[where.pairs] = np.where(problem.rejected[where.pairs], np.maximum(self.lam.value, 0.0), self.lam.value)
            return self.task.certify(problem.adjoint(dual), dual)
        if self.W.value is None:
            return None
        dual[problem.rejected] = np.maximum(self.multipliers[0].dual_value, 0.0)
        answers = []
        for sign in (
            (1.0, -1.0) if problem.has_ties else (1.0,)
        ):  # the sign of an equality's multiplier depends on the solver
            if problem.has_ties:
                dual[problem.tied] = sign * self.multipliers[1].dual_value
            answers.append(self.task.certify(where.restore(self.W.value), dual.copy()))
        return min(answers, key=lambda answer: answer.gap)


def _size(cp: Any, W: Any, norm: str) -> Any:
    """Build the objective without losses: half the square of the Frobenius norm, or another norm."""
    if norm in SPECTRAL and min(W.shape) == 1:
        return cp.norm2(cp.vec(W, order="C"))
    sizes: dict[str, Callable[[Any], Any]] = {
        "frobenius": lambda W: cp.sum_squares(W) / 2,
        "nuclear": cp.normNuc,
        "spectral": cp.sigma_max,
        "max": lambda W: cp.max(cp.abs(W)),
        "1": lambda W: cp.sum(cp.abs(W)),
    }
    return sizes[norm](W)


class Liblinear:
    """LIBLINEAR on token differences, as :mod:`peers_svm` states them, from sparse rows."""

    by_dual = says_infeasible = False

    def __init__(self, task: Task, solver: str = "LIBLINEAR") -> None:
        self.task, self.options = task, dict.fromkeys(OPTIONS[solver], EPSILONS[0])
        rows = task.coordinates.rows(np.arange(len(task.coordinates.pairs[0])))
        self.signs = np.where(np.arange(rows.shape[0]) % 2, -1.0, 1.0)
        self.rows = sp.csr_matrix(sp.diags_array(self.signs) @ rows)
        self.W = np.zeros(task.coordinates.shape)

    def run(self) -> float:
        """Solve; returns processor seconds."""
        from sklearn.svm import LinearSVC

        C = self.task.regularisation.C
        loss = "hinge" if C is None or self.task.regularisation.hinge else "squared_hinge"
        options = {"C": HARD if C is None else C, "loss": loss, "dual": True, "fit_intercept": False, "max_iter": MANY}
        start = time.process_time()
        machine = LinearSVC(**options, **self.options).fit(self.rows, self.signs)  # pyright: ignore[reportArgumentType]
        self.W = machine.coef_.reshape(self.W.shape)
        return time.process_time() - start

    def answer(self) -> Certified:
        """Return the bounds that its W proves."""
        return self.task.certify(self.task.coordinates.restore(self.W), np.zeros(self.task.problem.mask.shape))


def accuracy(peer: Statement | Liblinear, bound: float) -> float:
    """Return the certified gap of the last answer (LIBLINEAR: excess over a proven bound); infinite without one."""
    answer = peer.answer()
    if isinstance(peer, Liblinear):
        return max(peer.answer().value / bound - 1.0, 0.0) if bound > 0 else np.inf
    return np.inf if answer is None else answer.gap


def first_accurate(peer: Statement | Liblinear, bound: float = 0.0, limit: float = np.inf) -> tuple[float, float]:
    """Find the largest tolerance that is accurate enough; returns seconds and accuracy of the last run."""
    seconds, found = peer.run(), accuracy(peer, bound)
    for epsilon in EPSILONS[1:]:
        if found <= TOL or seconds > limit or not peer.options or peer.says_infeasible:
            break
        peer.options = dict.fromkeys(peer.options, epsilon)
        seconds, found = peer.run(), accuracy(peer, bound)
    return seconds, found
