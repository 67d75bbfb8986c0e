"""The splitting method of the published nuclear SVM, against the same method written with one dense matrix."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem
from attsvm_paper.published import solver
from attsvm_paper.published.instances import draw
from attsvm_paper.published.solver import splitting_solution

D, DZ = 2, 3
CORNER = slice(None, D), slice(D, None)


@pytest.fixture(scope="module")
def problem() -> SelectionProblem:
    random = np.random.default_rng(4)
    tokens, queries = random.standard_normal((3, 3, D)), random.standard_normal((3, DZ))
    return SelectionProblem(tokens, queries, [2, 0, 1])


def iterates(problem: SelectionProblem, penalty: float) -> Iterator[tuple[Any, float, float, float, float]]:
    """Yield W, the primal and dual residual, and the norms of cone and cone's dual, of every step.

    The symmetric matrix X minimises penalty/2 |M x - target|^2 + tr X / 2 over the entries x of its triangle. The
    copies of M x are projected on the cone and on the half line.
    """
    size = D + DZ
    rows, columns = np.triu_indices(size)
    basis = np.zeros((len(rows), size, size))
    basis[np.arange(len(rows)), rows, columns] = basis[np.arange(len(rows)), columns, rows] = 1.0
    differences = [
        np.outer(problem.tokens[i, problem.reference[i]] - problem.tokens[i, t], problem.queries[i])
        for i, t in np.argwhere(problem.rejected)
    ]
    M = np.array([[*one.ravel(), *(np.sum(A * one[CORNER]) for A in differences)] for one in basis]).T
    slope = np.trace(basis, axis1=1, axis2=2) / (2 * penalty)
    one = np.r_[np.zeros(size**2), np.ones(len(differences))]
    copy, dual = np.zeros(len(M)), np.zeros(len(M))
    while True:
        # Normal equations of the quadratic function above, divided by the penalty.
        x = np.linalg.solve(M.T @ M, M.T @ (copy + one - dual) - slope)
        image = M @ x - one
        before, total = copy, image + dual
        values, vectors = np.linalg.eigh(total[: size**2].reshape(size, size))
        cone = sum(max(value, 0.0) * np.outer(v, v) for value, v in zip(values, vectors.T, strict=True))
        copy = np.r_[np.ravel(cone), total[size**2 :].clip(0.0)]
        dual = total - copy
        primal, residual = image - copy, penalty * (copy - before)
        parts = (primal, residual, copy[: size**2], dual[: size**2])
        W = np.tensordot(x, basis, 1)[CORNER]
        of_primal, of_dual, of_cone, of_cone_dual = (float(np.linalg.norm(part)) for part in parts)
        yield W, of_primal, of_dual, of_cone, of_cone_dual


@pytest.mark.parametrize("penalty", [1.0, 2.5])
@pytest.mark.parametrize("steps", [1, 2, 3, 14])
def test_every_step_is_one_of_the_splitting_method(
    monkeypatch: pytest.MonkeyPatch, problem: SelectionProblem, steps: int, penalty: float
) -> None:
    monkeypatch.setattr(solver, "LIMIT", steps)
    monkeypatch.setattr(solver, "PENALTY", penalty)
    for _, (W, *_) in zip(range(steps), iterates(problem, penalty), strict=False):
        expected = W
    np.testing.assert_allclose(splitting_solution(problem, 0.0), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("penalty", [0.2, 1.0, 6.0])
def test_it_stops_when_both_residuals_are_small(
    monkeypatch: pytest.MonkeyPatch, problem: SelectionProblem, penalty: float
) -> None:
    """Residuals are relative to the matrices, and looked at in every tenth step."""
    monkeypatch.setattr(solver, "PENALTY", penalty)
    looks = [one for _, one in zip(range(101), iterates(problem, penalty), strict=False)][::10]
    needed = [max(primal / (1 + cone), dual / (1 + cone_dual)) for _, primal, dual, cone, cone_dual in looks]
    lows = [k for k, epsilon in enumerate(needed) if epsilon < min(needed[:k], default=np.inf)]
    assert len(lows) > 4
    for k, after in pairwise(lows):
        # A little more lets it stop there, and a little less only at the next low.
        for epsilon, stop in ((needed[k] * (1 + 1e-6), k), (needed[k] * (1 - 1e-6), after)):
            np.testing.assert_allclose(splitting_solution(problem, epsilon), looks[stop][0], rtol=1e-9, atol=1e-11)


def test_the_accuracy_is_the_usual_one_of_the_method() -> None:
    instances = draw([5], 3, 3, 4)
    (problem,) = instances.problems(instances.optimal)
    np.testing.assert_array_equal(splitting_solution(problem), splitting_solution(problem, 1e-4))
    assert np.any(splitting_solution(problem) != splitting_solution(problem, 1e-5))
