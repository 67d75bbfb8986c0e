"""Certificates of infeasibility: what each test of them says, against dense algebra and exact elimination."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

import oracle
from attsvm import SelectionProblem, Status, solve
from attsvm.core.reduction import reduce
from attsvm.core.rounding import EPS
from attsvm.proofs import certificate as module
from attsvm.proofs.certificate import FarkasCertificate, existence_ratio
from attsvm.proofs.infeasible import prove_infeasible
from problems import FAMILIES, NAMED, single


@cache
def contradictions() -> list[tuple[SelectionProblem, np.ndarray]]:
    """Infeasible problems of several kinds with the multipliers that the solver found."""
    made = [make().problem for make in NAMED.values() if not make().feasible]
    for name in ("contradicted", "published", "integers", "several", "self_attention"):
        made += [problem for _, (_, problem) in zip(range(25), FAMILIES[name].instances(), strict=False)]
    kept = []
    for problem in made:
        solution = solve(problem)
        if solution.status is Status.INFEASIBLE:
            assert solution.certificate is not None
            kept.append((problem, np.array(solution.certificate.dual)))
    assert len(kept) > 40
    return kept


def feasible() -> Iterator[SelectionProblem]:
    for name in ("planted", "several", "rectangular", "correlated"):
        for _, (_, problem) in zip(range(6), FAMILIES[name].instances(), strict=False):
            if solve(problem).status is Status.OPTIMAL:
                yield problem


# --- what holds ---


def test_every_certificate_found_is_verified_with_the_words_for_it() -> None:
    for problem, dual in contradictions():
        found = FarkasCertificate(problem, dual)
        assert found.verify()
        assert found.residual <= 1e-14
        assert found.exact == (found.perturbation == 0.0)
        if found.exact:
            assert "cancel exactly" in found.statement
        else:
            assert found.ratio < 1
            assert found.perturbation < 1e-12
            assert f"{found.perturbation:.1e}" in found.statement
        # Scaling says the same.
        assert FarkasCertificate(problem, 1e-3 * dual).verify()


def test_the_residual_and_the_perturbation_are_shares_of_the_terms() -> None:
    """Both are |A^T lam| over the sum of lam |delta||z|, the second from above."""
    rng = np.random.default_rng(0)
    checked = 0
    for problem, dual in contradictions():
        if np.count_nonzero(dual) < 2:
            continue
        bent = dual * (1 + 0.3 * rng.random(dual.shape))
        full = oracle.dense(problem)
        weights = bent[full.where]
        pulled = np.einsum("m,md,me->de", weights, full.left, full.right)
        total = float((np.abs(weights) * full.lengths).sum())
        if total == 0 or np.linalg.norm(pulled) < 1e-6 * total:
            continue
        found = FarkasCertificate(problem, bent)
        expected = float(np.linalg.norm(pulled)) / total
        assert found.residual == pytest.approx(expected, rel=1e-9)
        if found.perturbation not in (0.0, np.inf):
            checked += 1
            assert expected * (1 - 1e-12) <= found.perturbation <= expected * (1 + 1e-9)
    assert checked > 5
    nothing = FarkasCertificate(NAMED["midpoint"]().problem, np.zeros((1, 4)))
    assert nothing.residual == 0.0


def dense_ratio(problem: SelectionProblem, dual: np.ndarray) -> float:
    """(|A^T lam| + 4 eps of its terms) over the smallest singular value of A_J^T diag(lam_J) that is not rounding."""
    full = oracle.dense(problem)
    weights = dual[full.where]
    used = weights != 0
    size = np.where(full.tied[used], np.abs(weights).max(), weights[used])
    M = (full.rows[used] * size[:, None]).T
    sigma = np.linalg.svd(M, compute_uv=False)
    sigma = sigma[sigma > 1e-12 * sigma[0]]
    pulled = full.rows[used].T @ weights[used]
    terms = float((size * full.lengths[used]).sum())
    return (float(np.linalg.norm(pulled)) + 4 * EPS * terms) / float(sigma[-1])


def test_the_ratio_is_that_of_dense_algebra() -> None:
    rng, checked = np.random.default_rng(1), 0
    for problem, dual in contradictions():
        full = oracle.dense(problem)
        if not (np.abs(dual[full.where]) * full.lengths).any():
            continue
        reduced = reduce(problem)
        for bend in (0.0, 1e-3):
            bent = dual * (1 + bend * rng.random(dual.shape))
            expected = dense_ratio(problem, bent)
            found = existence_ratio(reduced, reduced.gather(bent))
            # Where supports outnumber the equations the smallest singular value is only bounded from below.
            assert found >= expected * (1 - 1e-6) - 1e-13
            if np.count_nonzero(bent) < np.prod(reduced.shape):
                checked += 1
                assert found == pytest.approx(expected, rel=1e-6, abs=1e-13)
    assert checked > 20


# --- what does not hold ---


def inadmissible(problem: SelectionProblem, dual: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    negative = dual.copy()
    negative.flat[np.flatnonzero(problem.rejected)[0]] = -1e-3 * dual.max()
    if (negative != dual).any():
        yield "a negative multiplier", negative
    for value in (np.nan, np.inf):
        odd = dual.copy()
        odd.flat[0] = value
        yield "not finite", odd
    yield "another shape", dual[:, :-1]
    yield "nothing", np.zeros_like(dual)
    yield "ties only", np.where(problem.tied, 1.0, 0.0)
    stray = dual.copy()
    stray[np.arange(len(dual)), problem.reference] = 0.5
    yield "a multiplier of the selected token", stray


def test_multipliers_without_the_signs_of_a_certificate_prove_nothing() -> None:
    for problem, dual in contradictions()[:20]:
        for what, bad in inadmissible(problem, dual):
            found = FarkasCertificate(problem, bad)
            assert found.ratio == np.inf, what
            assert not found.exact, what
            assert found.perturbation == np.inf, what
            assert not found.verify(), what


def test_multipliers_that_leave_something_prove_nothing_of_a_feasible_problem() -> None:
    rng = np.random.default_rng(2)
    for problem in feasible():
        for _ in range(3):
            dual = np.where(problem.constrained, rng.random(problem.mask.shape), 0.0)
            dual /= dual[problem.rejected].sum()
            found = FarkasCertificate(problem, dual)
            assert not found.verify()
            assert not found.exact
            assert found.perturbation > 1e-6


def test_what_is_left_over_may_be_a_w_itself() -> None:
    """Differences (1, h), (-1, h): multipliers 1/2, 1/2 leave (0, h), which has margins h^2 > 0 on both."""
    for h in (1e-3, 1e-8, 1e-15, 1e-100):
        problem = single([[1.0, h], [-1.0, h]])
        found = FarkasCertificate(problem, np.array([[0.0, 0.5, 0.5]]))
        assert found.ratio == np.inf
        assert not found.verify()
    # The same with a tie that what is left over does not meet: the tests of rounding have to refuse it.
    tied = SelectionProblem(
        [[[0.0, 0.0], [-1.0, -1e-3], [1.0, -1e-3], [0.0, 1.0]]], [[1.0]], np.array([[True, False, False, True]])
    )
    found = FarkasCertificate(tied, np.array([[0.0, 0.5, 0.5, 0.0]]))
    assert found.ratio > 0


def test_a_problem_small_enough_to_be_decided_needs_exact_multipliers() -> None:
    """Differences (1, h), (-1, h): with (0, -1) multipliers 1, 1 and 2h cancel; without, none do."""
    h = 2.0**-20
    infeasible = single([[1.0, h], [-1.0, h], [0.0, -1.0]])
    found = FarkasCertificate(infeasible, np.array([[0.0, 0.5, 0.5, h]]))
    assert found.exact
    assert found.verify()
    # Within 1e-12 of a contradiction and not one: the data decide.
    near = single([[1.0, 2.0**-60], [-1.0, 2.0**-60], [2.0**-70, 1.0], [3.0, 0.5]])
    assert not FarkasCertificate(near, np.array([[0.0, 0.5, 0.5, 0.0, 0.0]])).verify()


def test_a_direction_that_was_cut_off_is_noticed() -> None:
    """The third token lies 2^-70 off the plane of the others: rotation drops it, exact arithmetic does not."""
    small = 2.0**-70
    deltas = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, small], [0.0, 1.0, 0.0], [0.0, -1.0, 0.0]])
    problem = single(deltas)
    lost = FarkasCertificate(problem, np.array([[0.0, 0.5, 0.5, 0.0, 0.0]]))
    assert not lost.verify()  # (1, 0, 0) + (-1, 0, s) = (0, 0, s), and W = (0, 0, 1/s) + ... may exist
    kept = FarkasCertificate(problem, np.array([[0.0, 0.0, 0.0, 0.5, 0.5]]))
    assert kept.exact


def test_a_bound_on_the_smallest_singular_value_is_one() -> None:
    rng, shown = np.random.default_rng(3), 0
    n, T, d = 6, 5, 2
    for _ in range(10):
        problem = SelectionProblem(rng.standard_normal((n, T, d)), rng.standard_normal((n, d)), rng.integers(T, size=n))
        reduced = reduce(problem)
        weight = np.where(reduced.rejected, 10.0 ** rng.uniform(-3, 0, reduced.rejected.shape), 0.0)
        row, column = np.nonzero(weight)
        terms = reduced.delta[row, column][:, :, None] * reduced.queries[row][:, None, :]
        M = (terms.reshape(len(row), -1) * weight[row, column][:, None]).T
        sigma = np.linalg.svd(M, compute_uv=False)
        floor = module._singular_value_floor(reduced, weight)
        assert floor <= sigma[-1]
        shown += floor > 0
        if floor > 0:
            # The floor is the root of 1e-10 of the largest row sum of M M^T.
            assert floor >= 1e-5 * sigma[0] * (1 - 1e-9)
            assert floor <= 1e-5 * sigma[0] * 2.0
        assert module._singular_values(M) == (pytest.approx(sigma[-1]), pytest.approx(sigma[0]), 4)
        flat = np.where(np.arange(n)[:, None] == 0, weight, 0.0)  # one query: rank two of four
        assert module._singular_value_floor(reduced, flat) == 0.0
    assert shown == 10


# --- exact proofs ---


def test_exact_proofs_hold_and_say_how() -> None:
    ways = set()
    for problem, dual in contradictions():
        how = prove_infeasible(problem, dual)
        assert how is not None
        ways.add("interval" in how)
        # Multipliers near to the given ones do as well: exact ones lie beside them.
        assert prove_infeasible(problem, dual * (1 + 1e-12 * np.random.default_rng(0).random(dual.shape))) is not None
    assert ways == {True, False}


def test_exact_proofs_refuse_what_proves_nothing() -> None:
    for problem, dual in contradictions()[:20]:
        assert prove_infeasible(problem, dual[:, :-1]) is None
        assert prove_infeasible(problem, np.full_like(dual, np.nan)) is None
        assert prove_infeasible(problem, -np.abs(dual) * problem.rejected) is None
        assert prove_infeasible(problem, np.where(problem.tied, dual, 0.0)) is None
    rng = np.random.default_rng(4)
    for problem in feasible():
        for _ in range(3):
            assert prove_infeasible(problem, np.where(problem.rejected, rng.random(problem.mask.shape), 0.0)) is None


def test_a_system_larger_than_allowed_is_not_solved() -> None:
    """Three multipliers cancel in the triangle: two unknowns."""
    problem = NAMED["inside_the_triangle"]().problem
    dual = np.array([[0.0, 0.25, 0.25, 0.5]])
    how = prove_infeasible(problem, dual)
    assert how is not None
    assert how.startswith("3 multipliers")
    limited = prove_infeasible(problem, dual, 2)
    assert limited is not None
    if "integers" in how:
        assert prove_infeasible(problem, dual, 1) is None
