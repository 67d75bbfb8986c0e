"""Every contestant by name: attsvm and other solvers. Each takes a problem and returns an Answer.

Time counts from the tokens to W, so it includes forming a matrix of constraints for solvers that need one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from attsvm import SelectionProblem


@dataclass(frozen=True)
class Answer:
    """W and multipliers, None if the solver gives none; ``verdict`` is the status that the solver reports."""

    W: np.ndarray | None
    dual: np.ndarray | None
    verdict: str
    infeasible: bool = False


Solver = Callable[[SelectionProblem], Answer]


@dataclass(frozen=True)
class Contestant:
    """A solver; ``home`` is module:function of this folder, imported only in the contestant's process."""

    name: str
    norm: str
    home: str
    options: dict[str, Any]
    package: str
    note: str = ""

    def load(self) -> Solver:
        module, function = self.home.split(":")
        return partial(getattr(import_module(module), function), **self.options)

    @property
    def ours(self) -> bool:
        return self.package == "attsvm"


def _attsvm(norm: str, tol: float) -> Contestant:
    return Contestant(f"attsvm {tol:.0e}", norm, "peers:with_attsvm", {"norm": norm, "tol": tol}, "attsvm")


def _qp(solver: str, form: str, package: str) -> Contestant:
    return Contestant(
        f"{solver} {form}", "frobenius", "peers_qp:with_qpsolvers", {"solver": solver, "form": form}, package
    )


OFFICIAL = "naive cvxpy"
LIBLINEAR = "liblinear"
DAQP = ("daqp primal", "daqp dual")
CONTESTANTS: tuple[Contestant, ...] = (
    _attsvm("frobenius", 1e-6),
    _attsvm("frobenius", 1e-9),
    _attsvm("frobenius", 1e-13),
    Contestant(DAQP[0], "frobenius", "peers_qp:with_daqp", {"form": "primal"}, "daqp", "called directly"),
    Contestant(DAQP[1], "frobenius", "peers_qp:with_daqp", {"form": "dual"}, "daqp", "called directly"),
    Contestant(LIBLINEAR, "frobenius", "peers_svm:with_liblinear", {}, "scikit-learn", "C = 1e6 for a hard margin"),
    Contestant(
        "libsvm", "frobenius", "peers_svm:with_libsvm", {}, "scikit-learn", "C = 1e6, differences and negatives"
    ),
    _qp("quadprog", "primal", "quadprog"),
    _qp("quadprog", "dual", "quadprog"),
    _qp("piqp", "primal", "piqp"),
    _qp("piqp", "dual", "piqp"),
    _qp("proxqp", "primal", "proxsuite"),
    _qp("proxqp", "dual", "proxsuite"),
    _qp("osqp", "primal", "osqp"),
    _qp("osqp", "dual", "osqp"),
    _qp("clarabel", "primal", "clarabel"),
    _qp("clarabel", "dual", "clarabel"),
    Contestant("cvxpy, vectorised", "frobenius", "peers_cone:vectorised", {"norm": "frobenius"}, "cvxpy", "Clarabel"),
    Contestant(OFFICIAL, "frobenius", "peers_cone:naive", {"norm": "frobenius"}, "cvxpy", "Clarabel"),
    _attsvm("nuclear", 1e-5),
    _attsvm("nuclear", 1e-9),
    _attsvm("nuclear", 1e-13),
    Contestant("clarabel", "nuclear", "peers_cone:clarabel_directly", {}, "clarabel", "called directly"),
    Contestant("scs", "nuclear", "peers_cone:scs_directly", {}, "scs", "called directly, eps 1e-7"),
    Contestant("cvxpy, vectorised", "nuclear", "peers_cone:vectorised", {"norm": "nuclear"}, "cvxpy", "Clarabel"),
    Contestant(OFFICIAL, "nuclear", "peers_cone:naive", {"norm": "nuclear"}, "cvxpy", "SCS"),
    *(
        contestant
        for norm in ("1", "max")
        for contestant in (
            _attsvm(norm, 1e-6),
            _attsvm(norm, 1e-9),
            Contestant("highs", norm, "peers_lp:with_highs", {"norm": norm}, "scipy", "through SciPy"),
        )
    ),
)


def contestant(name: str, norm: str) -> Contestant:
    return next(c for c in CONTESTANTS if (c.name, c.norm) == (name, norm))


def with_attsvm(problem: SelectionProblem, norm: str, tol: float) -> Answer:
    from attsvm import solve

    solution = solve(problem, norm, tol=tol)
    W = solution.certified.W if np.isfinite(solution.objective) else None
    proof = solution.certificate is not None and solution.certificate.verify()
    return Answer(W, solution.certified.dual, solution.status.name.lower(), proof)


def constraint_rows(problem: SelectionProblem, *, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return the selected token minus every rejected (or tied) token, (m, d), and the query of each, (m, dz)."""
    i, t = np.nonzero(problem.constrained if ties else problem.rejected)
    sequence = problem.sequence[i]
    delta = problem.tokens[sequence, problem.reference[i]] - problem.tokens[sequence, t]
    return delta, problem.queries[i]


def constraint_matrix(problem: SelectionProblem, *, ties: bool = False) -> np.ndarray:
    """Return the matrix of A, rows delta kron z: (m, d * dz)."""
    delta, z = constraint_rows(problem, ties=ties)
    return np.einsum("ma,mb->mab", delta, z).reshape(len(delta), -1)


def gram_matrix(problem: SelectionProblem) -> np.ndarray:
    """Return A A^T (m, m), the Hadamard product of two Gram matrices."""
    delta, z = constraint_rows(problem)
    return (delta @ delta.T) * (z @ z.T)


def spread(problem: SelectionProblem, values: np.ndarray | None) -> np.ndarray | None:
    """Put the value of each constraint at its token: (n, T)."""
    if values is None:
        return None
    dual = np.zeros(problem.mask.shape)
    dual[problem.rejected] = values
    return dual
