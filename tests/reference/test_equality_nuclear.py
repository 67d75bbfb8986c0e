"""The nuclear finite part against Clarabel."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from attsvm import SelectionProblem
from attsvm.theory.finite_part import finite_part


@pytest.mark.parametrize(("n", "T", "d", "dz"), [(3, 4, 6, 6), (5, 5, 8, 8), (2, 6, 4, 7), (8, 6, 10, 5), (6, 4, 3, 6)])
def test_the_nuclear_finite_part_is_as_short_as_clarabels(n: int, T: int, d: int, dz: int) -> None:
    rng = np.random.default_rng((n, T, d, dz))
    tokens, queries = rng.standard_normal((n, T, d)), rng.standard_normal((n, dz))
    selected = rng.random((n, T)) < 0.5
    selected[:, :2] = True
    problem = SelectionProblem(tokens, queries, selected)
    target = problem.apply(rng.standard_normal((d, dz)))
    part = finite_part(problem, target, "nuclear")
    W = cp.Variable((d, dz))
    equations = [
        (tokens[i, 0] - tokens[i, t]) @ W @ queries[i] == target[i, t]
        for i, t in zip(*np.nonzero(problem.tied), strict=True)
    ]
    program = cp.Problem(cp.Minimize(cp.normNuc(W)), equations)
    program.solve(solver=cp.CLARABEL, tol_gap_rel=1e-9, tol_gap_abs=1e-9, tol_feas=1e-9)
    size = float(np.linalg.norm(part.W, "nuc"))
    assert abs(part.gap) < 1e-10
    # Clarabel answers to about its own tolerance; the certified gap makes ours the reference.
    assert W.value is not None
    assert size == pytest.approx(float(np.linalg.norm(W.value, "nuc")), rel=1e-6)
