r"""Independent answers to selection problems, from dense algebra, HiGHS and Clarabel.

Nothing here uses the package's linear map, reduction, certificates or solvers: the constraint matrix is built row by
row, reduced by its own singular value decompositions, and every reference answer is turned into a *proven interval* for
the optimal norm:

* any matrix that ties exactly what must tie and has a positive smallest margin, scaled to margin one, bounds it above;
* any multipliers, nonnegative on the rejected tokens, give the lower bound sum(lam) / dual norm of A^T lam.

So an interior-point solver that stops early widens the interval and does no other harm.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from attsvm import SelectionProblem

EPS = float(np.finfo(float).eps)
# Its extension module carries no types.
clarabel: Any = import_module("clarabel")


@dataclass(frozen=True, eq=False)
class Dense:
    """The constraints of a problem written out: ``rows @ vec(W)`` with one row a constraint.

    Attributes
    ----------
    left : ndarray (m, d), right : ndarray (m, dz)
        Row k of the constraint matrix is ``kron(left[k], right[k])``.
    tied : ndarray of bool (m,)
        Equality (margin 0) or inequality (margin >= 1).
    where : tuple of two index arrays
        Query and token of each constraint.
    """

    left: np.ndarray
    right: np.ndarray
    tied: np.ndarray
    where: tuple[np.ndarray, np.ndarray]

    @cached_property
    def rows(self) -> np.ndarray:
        return (self.left[:, :, None] * self.right[:, None, :]).reshape(
            len(self.left), self.left.shape[1] * self.right.shape[1]
        )

    @cached_property
    def lengths(self) -> np.ndarray:
        return np.linalg.norm(self.left, axis=1) * np.linalg.norm(self.right, axis=1)


def dense(problem: SelectionProblem) -> Dense:
    """Write the constraints out, one Python iteration a token."""
    left, right, tied, query, token = [], [], [], [], []
    for i, z in enumerate(problem.queries):
        x = np.asarray(problem.tokens[problem.sequence[i]], dtype=float)
        columns = np.flatnonzero(problem.selected[i])
        for t in np.flatnonzero(problem.mask[i]):
            if t == columns[0]:
                continue
            left.append(x[columns[0]] - x[t])
            right.append(z)
            tied.append(bool(problem.selected[i, t]))
            query.append(i)
            token.append(t)
    _, _, d, dz = problem.shape
    return Dense(
        np.reshape(left, (-1, d)).astype(float),
        np.reshape(right, (-1, dz)).astype(float),
        np.array(tied, dtype=bool),
        (np.array(query, dtype=int), np.array(token, dtype=int)),
    )


def _span(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of the rows in an orthonormal basis of their span, and that basis (rank, d)."""
    _, sigma, basis = np.linalg.svd(rows, full_matrices=False)
    basis = basis[: max(1, int((sigma > 1e-13 * sigma[0]).sum()))]
    return rows @ basis.T, basis


@dataclass(frozen=True, eq=False)
class Reference:
    """What the oracle knows: a verdict and a proven interval for the optimal norm.

    ``feasible`` is None when neither a positive margin nor a Farkas certificate could be verified.
    """

    feasible: bool | None
    lower: float = 0.0
    upper: float = np.inf

    @property
    def width(self) -> float:
        """Relative width of the interval; infinite when nothing is known from one side."""
        if self.upper == 0:
            return 0.0
        return self.upper / self.lower - 1 if self.lower > 0 else np.inf


def reference(problem: SelectionProblem, norm: str) -> Reference:
    """Solve with HiGHS (verdict) and Clarabel (norm)."""
    full = dense(problem)
    if full.tied.all():
        return Reference(True, 0.0, 0.0)
    if (full.lengths[~full.tied] == 0).any():
        return Reference(False)
    keep = full.lengths > 0
    left, left_basis = _span(full.left[keep] / np.linalg.norm(full.left[keep], axis=1, keepdims=True))
    right, right_basis = _span(full.right[keep] / np.linalg.norm(full.right[keep], axis=1, keepdims=True))
    unit = Dense(left, right, full.tied[keep], (full.where[0][keep], full.where[1][keep]))
    verdict, W = _linear_program(unit)
    if verdict is not True:
        return Reference(verdict)
    # The right-hand side of a unit row is one over the length of the constraint it stands for, scaled so that the
    # solution has norm about one.
    need = np.where(unit.tied, 0.0, 1.0 / full.lengths[keep])
    margin = unit.rows @ W.ravel()
    scale = float(np.max(need[~unit.tied] / margin[~unit.tied])) * float(np.linalg.norm(W))
    solve = _frobenius if norm == "frobenius" else _nuclear
    W, dual = solve(unit, need / scale)
    lifted = left_basis.T @ (W * scale) @ right_basis
    multipliers = np.zeros(len(keep))
    multipliers[keep] = dual / full.lengths[keep]
    return Reference(True, *bounds(full, lifted, multipliers, norm))


def bounds(full: Dense, W: np.ndarray, dual: np.ndarray, norm: str) -> tuple[float, float]:
    """Proven lower and upper bound on the optimal norm from a matrix and multipliers, by dense algebra."""
    if full.tied.any():
        ties = full.rows[full.tied]
        W = W - (np.linalg.pinv(ties, rcond=1e-13) @ (ties @ W.ravel())).reshape(W.shape)
    smallest = float((full.rows[~full.tied] @ W.ravel()).min())
    order = "fro" if norm == "frobenius" else "nuc"
    upper = float(np.linalg.norm(W, order)) / smallest if smallest > 0 else np.inf
    dual = np.where(full.tied, dual, np.maximum(dual, 0.0))
    adjoint = (full.left * dual[:, None]).T @ full.right
    size = float(np.linalg.norm(adjoint, "fro" if norm == "frobenius" else 2))
    lower = float(dual[~full.tied].sum()) / size if size > 0 else 0.0
    return lower, upper


def _linear_program(unit: Dense) -> tuple[bool | None, np.ndarray]:
    """Maximise the smallest margin over |W_ij| <= 1 with unit rows; the verdict is verified from either side."""
    m, size = unit.rows.shape
    shape = unit.left.shape[1], unit.right.shape[1]
    inequality = ~unit.tied
    answer = linprog(
        np.r_[np.zeros(size), -1.0],
        A_ub=np.column_stack([-unit.rows[inequality], np.ones(inequality.sum())]),
        b_ub=np.zeros(inequality.sum()),
        A_eq=np.column_stack([unit.rows[unit.tied], np.zeros(unit.tied.sum())]) if unit.tied.any() else None,
        b_eq=np.zeros(unit.tied.sum()) if unit.tied.any() else None,
        bounds=[(-1, 1)] * size + [(0, 1)],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert answer.status == 0, answer.message
    W = answer.x[:size]
    if unit.tied.any():
        ties = unit.rows[unit.tied]
        W = W - np.linalg.pinv(ties, rcond=1e-13) @ (ties @ W)
    # A product of vectors of length `size` carries an error of at most size * eps * |row| * |W|, and so does a tie.
    noise = 4 * size * EPS * max(1.0, float(np.linalg.norm(W)))
    if float((unit.rows[inequality] @ W).min()) > 10 * noise:
        return True, W.reshape(shape)
    dual = np.zeros(m)
    dual[inequality] = np.maximum(-answer.ineqlin.marginals, 0.0)
    if unit.tied.any():
        dual[unit.tied] = answer.eqlin.marginals
    return (False if farkas_ratio(unit, polish(unit, dual)) < 1 else None), W.reshape(shape)


def polish(unit: Dense, dual: np.ndarray) -> np.ndarray:
    """Project multipliers onto the kernel of A^T over their support: an LP solver's 1e-10 becomes rounding level."""
    support = (np.abs(dual) > 1e-7 * np.abs(dual).max(initial=0.0)) & (dual != 0)
    matrix = unit.rows[support].T
    out = np.zeros_like(dual)
    out[support] = dual[support] - np.linalg.pinv(matrix, rcond=1e-12) @ (matrix @ dual[support])
    out[~unit.tied] = np.maximum(out[~unit.tied], 0.0)
    return out


def farkas_ratio(full: Dense, dual: np.ndarray) -> float:
    """The existence test of an infeasibility proof, by a dense singular value decomposition.

    With M = A_J^T diag(lam_J) the correction e of least length with M (1 + e) = 0 is at most ||A^T lam|| / sigma long,
    sigma the smallest non-zero singular value of M. Below one, lam (1 + e) is exact and still nonnegative. Tied
    constraints may take any sign and size, so their columns are not weighted by the multiplier. Rounding of A^T lam is
    added to it.
    """
    if (dual[~full.tied] < 0).any() or not (dual[~full.tied] > 0).any():
        return np.inf
    support = dual != 0
    weight = np.where(full.tied, np.abs(dual).max(), dual)[support]
    M = full.rows[support].T * weight
    if not M.any():
        return 0.0
    residual = full.rows[support].T @ dual[support]
    noise = 2 * EPS * float(np.linalg.norm(np.abs(full.rows[support]).T @ np.abs(dual[support])))
    sigma = np.linalg.svd(M, compute_uv=False)
    smallest = sigma[sigma > max(M.shape) * EPS * sigma[0]][-1]
    return (float(np.linalg.norm(residual)) + noise) / float(smallest)


def _frobenius(unit: Dense, need: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Minimise |W|^2 / 2 with Clarabel's own interface, at tolerances cvxpy's default does not ask for."""
    m, size = unit.rows.shape
    order = np.r_[np.flatnonzero(unit.tied), np.flatnonzero(~unit.tied)]
    ties = int(unit.tied.sum())
    solver = clarabel.DefaultSolver(
        sp.identity(size, format="csc"),
        np.zeros(size),
        sp.csc_matrix(-unit.rows[order]),
        -need[order],
        [clarabel.ZeroConeT(ties), clarabel.NonnegativeConeT(m - ties)],
        _settings(),
    )
    answer = solver.solve()
    dual = np.zeros(m)
    dual[order] = answer.z
    return np.array(answer.x).reshape(unit.left.shape[1], unit.right.shape[1]), dual


def _nuclear(unit: Dense, need: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Minimise the nuclear norm with cvxpy and Clarabel, the constraints as one matrix product."""
    W = cp.Variable((unit.left.shape[1], unit.right.shape[1]))
    product = unit.rows @ cp.vec(W, order="C")
    beat = [product[~unit.tied] >= need[~unit.tied]]
    tie = [product[unit.tied] == 0] if unit.tied.any() else []
    program = cp.Problem(cp.Minimize(cp.normNuc(W)), beat + tie)
    with warnings.catch_warnings():
        # Clarabel cannot always reach what is asked for; the interval says how far it got.
        warnings.filterwarnings("ignore", message="Solution may be inaccurate")
        program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11, max_iter=100)
    dual = np.zeros(len(need))
    dual[~unit.tied] = beat[0].dual_value
    if tie:
        # cvxpy's Lagrangian adds the multiplier of an equality where it subtracts that of an inequality.
        dual[unit.tied] = -np.asarray(tie[0].dual_value)
    return np.asarray(W.value), dual


def _settings() -> Any:
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_iter = 200
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-13
    return settings
