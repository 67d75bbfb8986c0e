"""Certificates of infeasibility: what each test of them says, against dense algebra and exact elimination."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import oracle
from attsvm import SelectionProblem, Status, solve
from attsvm.core.double_double import Rows
from attsvm.core.error_free import EPS
from attsvm.core.reduction import Reduced, reduce
from attsvm.proofs import certificate as module
from attsvm.proofs import infeasible
from attsvm.proofs.certificate import FarkasCertificate, existence_ratio
from attsvm.proofs.infeasible import prove_infeasible
from attsvm.proofs.surjective import RightInverse
from attsvm.solvers.common import farkas
from attsvm.solvers.common.control import Control
from attsvm.solvers.schedule import DENSE_ENTRIES
from problems import FAMILIES, NAMED, single


@cache
def contradictions() -> list[tuple[SelectionProblem, np.ndarray]]:
    """Infeasible problems of several kinds with the multipliers that the solver found."""
    contradictory = [make().problem for make in NAMED.values() if not make().feasible]
    for name in ("contradicted", "published", "integers", "several", "self_attention"):
        contradictory += [problem for _, (_, problem) in zip(range(25), FAMILIES[name].instances(), strict=False)]
    usable = []
    for problem in contradictory:
        solution = solve(problem)
        if solution.status is Status.INFEASIBLE:
            assert solution.certificate is not None
            usable.append((problem, np.array(solution.certificate.dual)))
    assert len(usable) > 40
    return usable


def feasible() -> Iterator[SelectionProblem]:
    for name in ("planted", "several", "rectangular", "correlated"):
        for _, (_, problem) in zip(range(6), FAMILIES[name].instances(), strict=False):
            if solve(problem).status is Status.OPTIMAL:
                yield problem


# --- what holds ---


def test_every_certificate_found_is_verified_with_the_words_for_it() -> None:
    for problem, dual in contradictions():
        certificate = FarkasCertificate(problem, dual)
        assert certificate.verify()
        assert certificate.residual <= 1e-14
        assert certificate.exact == (certificate.perturbation == 0.0)
        if certificate.exact:
            assert "cancel exactly" in certificate.statement
        else:
            assert certificate.ratio < 1
            assert certificate.perturbation < 1e-12
            assert f"{certificate.perturbation:.1e}" in certificate.statement
        # Scaling says the same.
        assert FarkasCertificate(problem, 1e-3 * dual).verify()


def test_the_residual_and_the_perturbation_are_shares_of_the_terms() -> None:
    """Both are |A^T lam| over the sum of lam |delta||z|, the second from above."""
    rng = np.random.default_rng(0)
    count = 0
    for problem, dual in contradictions():
        if np.count_nonzero(dual) < 2:
            continue
        inexact = dual * (1 + 0.3 * rng.random(dual.shape))
        full = oracle.dense(problem)
        weights = inexact[full.where]
        adjoint = np.einsum("m,md,me->de", weights, full.left, full.right)
        total = float((np.abs(weights) * full.lengths).sum())
        if total == 0 or np.linalg.norm(adjoint) < 1e-6 * total:
            continue
        certificate = FarkasCertificate(problem, inexact)
        expected = float(np.linalg.norm(adjoint)) / total
        assert certificate.residual == pytest.approx(expected, rel=1e-9)
        if certificate.perturbation not in (0.0, np.inf):
            count += 1
            assert expected * (1 - 1e-12) <= certificate.perturbation <= expected * (1 + 1e-9)
    assert count > 5
    nothing = FarkasCertificate(NAMED["midpoint"]().problem, np.zeros((1, 4)))
    assert nothing.residual == 0.0


def dense_ratio(problem: SelectionProblem, dual: np.ndarray) -> float:
    """(|A^T lam| + 4 eps of its terms) over the smallest singular value of A_J^T diag(lam_J) that is not rounding."""
    full = oracle.dense(problem)
    weights = dual[full.where]
    places = weights != 0
    size = np.where(full.tied[places], np.abs(weights).max(), weights[places])
    M = (full.rows[places] * size[:, None]).T
    sigma = np.linalg.svd(M, compute_uv=False)
    sigma = sigma[sigma > 1e-12 * sigma[0]]
    adjoint = full.rows[places].T @ weights[places]
    terms = float((size * full.lengths[places]).sum())
    return (float(np.linalg.norm(adjoint)) + 4 * EPS * terms) / float(sigma[-1])


def test_the_ratio_is_that_of_dense_algebra() -> None:
    rng, count = np.random.default_rng(1), 0
    for problem, dual in contradictions():
        full = oracle.dense(problem)
        if not (np.abs(dual[full.where]) * full.lengths).any():
            continue
        reduced = reduce(problem)
        for bend in (0.0, 1e-3):
            inexact = dual * (1 + bend * rng.random(dual.shape))
            expected = dense_ratio(problem, inexact)
            result = existence_ratio(reduced, reduced.gather(inexact))
            # Where supports outnumber the equations the smallest singular value is only bounded from below.
            assert result >= expected * (1 - 1e-6) - 1e-13
            if np.count_nonzero(inexact) < np.prod(reduced.shape):
                count += 1
                assert result == pytest.approx(expected, rel=1e-6, abs=1e-13)
    assert count > 20


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
    for value in (0.5, -0.5):
        stray = dual.copy()
        stray[0, problem.reference[0]] = value
        yield "a multiplier of the selected token", stray


def test_multipliers_without_the_signs_of_a_certificate_prove_nothing() -> None:
    for problem, dual in contradictions()[:20]:
        for what, bad in inadmissible(problem, dual):
            certificate = FarkasCertificate(problem, bad)
            assert certificate.ratio == np.inf, what
            assert not certificate.exact, what
            assert certificate.perturbation == np.inf, what
            assert not certificate.verify(), what


def test_multipliers_that_leave_something_prove_nothing_of_a_feasible_problem() -> None:
    rng = np.random.default_rng(2)
    for problem in feasible():
        for _ in range(3):
            dual = np.where(problem.constrained, rng.random(problem.mask.shape), 0.0)
            dual /= dual[problem.rejected].sum()
            certificate = FarkasCertificate(problem, dual)
            assert not certificate.verify()
            assert not certificate.exact
            assert certificate.perturbation > 1e-6


def test_what_is_left_over_may_be_a_w_itself() -> None:
    """Differences (1, h), (-1, h): multipliers 1/2, 1/2 leave (0, h), which has margins h^2 > 0 on both."""
    for h in (1e-3, 1e-8, 1e-15, 1e-100):
        problem = single([[1.0, h], [-1.0, h]])
        certificate = FarkasCertificate(problem, np.array([[0.0, 0.5, 0.5]]))
        assert certificate.ratio == np.inf
        assert not certificate.verify()
    # The same with a tie that what is left over does not meet: the tests of rounding have to refuse it.
    tied = SelectionProblem(
        [[[0.0, 0.0], [-1.0, -1e-3], [1.0, -1e-3], [0.0, 1.0]]], [[1.0]], np.array([[True, False, False, True]])
    )
    certificate = FarkasCertificate(tied, np.array([[0.0, 0.5, 0.5, 0.0]]))
    assert certificate.ratio > 0


def test_a_problem_small_enough_to_be_decided_needs_exact_multipliers() -> None:
    """Differences (1, h), (-1, h): with (0, -1) multipliers 1, 1 and 2h cancel; without, none do."""
    h = 2.0**-20
    infeasible = single([[1.0, h], [-1.0, h], [0.0, -1.0]])
    certificate = FarkasCertificate(infeasible, np.array([[0.0, 0.5, 0.5, h]]))
    assert certificate.exact
    assert certificate.verify()
    # Within 1e-12 of a contradiction and not one: the data decide.
    near = single([[1.0, 2.0**-60], [-1.0, 2.0**-60], [2.0**-70, 1.0], [3.0, 0.5]])
    assert not FarkasCertificate(near, np.array([[0.0, 0.5, 0.5, 0.0, 0.0]])).verify()


def test_a_direction_that_was_cut_off_is_noticed() -> None:
    """The third token lies 2^-70 off the plane of the others: rotation drops it, exact arithmetic does not."""
    small = 2.0**-70
    deltas = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, small], [0.0, 1.0, 0.0], [0.0, -1.0, 0.0]])
    problem = single(deltas)
    truncation = FarkasCertificate(problem, np.array([[0.0, 0.5, 0.5, 0.0, 0.0]]))
    assert not truncation.verify()  # (1, 0, 0) + (-1, 0, s) = (0, 0, s), and W = (0, 0, 1/s) + ... may exist
    whole = FarkasCertificate(problem, np.array([[0.0, 0.0, 0.0, 0.5, 0.5]]))
    assert whole.exact


@pytest.mark.parametrize(("lengths", "queries"), [((1.0, 1e17), (1.0, 1.0)), ((1e-200, 1.0), (1e-200, 1.0))])
def test_a_constraint_that_is_short_beside_another_is_no_contradiction(
    lengths: tuple[float, float], queries: tuple[float, float]
) -> None:
    """Each constraint has a row of W to itself; reduced coordinates cut the row of the short one off, or underflow."""

    def alone(short: float) -> FarkasCertificate:
        tokens = np.zeros((2, 2, 2))
        tokens[[0, 1], 0, [0, 1]] = short, lengths[1]
        problem = SelectionProblem(tokens, np.array(queries)[:, None], [0, 0])
        assert (solve(problem).status is Status.INFEASIBLE) == (short == 0.0)
        return FarkasCertificate(problem, np.array([[0.0, 1.0], [0.0, 0.0]]))

    assert not alone(lengths[0]).exact
    assert not alone(lengths[0]).verify()
    # A constraint that no W moves is one.
    assert alone(0.0).exact


def test_a_bound_on_the_smallest_singular_value_is_one() -> None:
    rng, count = np.random.default_rng(3), 0
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
        count += floor > 0
        if floor > 0:
            # The floor is the root of 1e-10 of the largest row sum of M M^T.
            assert floor >= 1e-5 * sigma[0] * (1 - 1e-9)
            assert floor <= 1e-5 * sigma[0] * 2.0
        assert module._singular_values(M) == (pytest.approx(sigma[-1]), pytest.approx(sigma[0]), 4)
        flat = np.where(np.arange(n)[:, None] == 0, weight, 0.0)  # one query: rank two of four
        assert module._singular_value_floor(reduced, flat) == 0.0
    assert count == 10


def cancelling(seed: int, *, kernels: int = 1) -> tuple[Reduced, np.ndarray]:
    """Orthogonal queries, for each of which four positive multipliers cancel constraints in three dimensions.

    Each query has six more constraints, so that there are more entries of W than multipliers. A^T diag(lam) takes one
    vector a query to zero.
    """
    rng = np.random.default_rng(seed)
    tokens = np.zeros((kernels, 11, 8))
    tokens[:, 1:4, :3] = rng.standard_normal((kernels, 3, 3))
    tokens[:, 4, :3] = -np.einsum("it,itd->id", rng.uniform(0.5, 1.0, (kernels, 3)), tokens[:, 1:4, :3])
    tokens[:, 5:] = rng.standard_normal((kernels, 6, 8))
    reduced = reduce(SelectionProblem(tokens, np.eye(kernels, 7), np.zeros(kernels, dtype=int)))
    dual = np.zeros((kernels, 11))
    for i in range(kernels):
        dual[i, 1:5] = np.abs(np.linalg.svd(tokens[i, 1:5, :3].T)[2][-1])
    return reduced, reduced.gather(dual)


def test_a_bound_beside_a_kernel_is_one() -> None:
    """It lies below the singular values that do not count as zero, and is given for one kernel vector alone."""
    for seed in range(20):
        reduced, dual = cancelling(seed)
        row, column = np.nonzero(dual)
        M = reduced.constraint_rows(row, column) * dual[row, column][:, None]
        sigma = np.linalg.svd(M, compute_uv=False)
        residual = float(np.linalg.norm(reduced.adjoint(dual)))
        assert residual < 10 * EPS * sigma[0]
        floor = module._floor_beside_kernel(reduced, dual, dual, residual)
        assert 1e-5 * sigma[0] <= floor <= min(sigma[2], 3e-5 * sigma[0])
        assert module._floor_beside_kernel(reduced, dual, dual, 1e-12 * sigma[0]) == 0.0, (
            "the vector is none of a kernel"
        )
        two, dual = cancelling(seed, kernels=2)
        assert module._floor_beside_kernel(two, dual, dual, float(np.linalg.norm(two.adjoint(dual)))) == 0.0


@pytest.mark.parametrize("change", [0.0, 1e-7, 1e-3])
def test_few_constraints_have_the_verdict_of_their_singular_values(
    change: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BOUNDED_ENTRIES", 0)
    for seed in range(10):
        reduced, dual = cancelling(seed)
        dual[0, np.flatnonzero(dual[0])[0]] *= 1 + change
        ratio, sure = module._existence(reduced, dual)
        with monkeypatch.context() as context:
            context.setattr(module, "_floor_beside_kernel", lambda *_: 0.0)
            expected, _ = module._existence(reduced, dual)
        assert (ratio < 1.0) == (expected < 1.0)
        assert ratio >= expected * (1 - 1e-9)
        assert not sure


# --- the test of existence, part by part ---


def many_rows(seed: int = 0) -> tuple[Reduced, np.ndarray]:
    """Twenty-four constraints on the four entries of W, and positive multipliers that do not cancel."""
    rng = np.random.default_rng(seed)
    problem = SelectionProblem(rng.standard_normal((6, 5, 2)), rng.standard_normal((6, 2)), rng.integers(5, size=6))
    reduced = reduce(problem)
    return reduced, np.where(reduced.rejected, rng.uniform(0.5, 1.0, reduced.rejected.shape), 0.0)


def sizes(reduced: Reduced, dual: np.ndarray) -> tuple[float, float, float]:
    """Length of A^T lam, the sum of lengths of its terms, and the roundings of reduced rows and their sum."""
    p, r = reduced.shape
    wide = 1 if reduced.left is None else reduced.left.shape[1]
    long = 1 if reduced.right is None else reduced.right.shape[1]
    count = wide * math.sqrt(p) + long * math.sqrt(r) + min(sum(dual.shape), np.count_nonzero(dual))
    return float(np.linalg.norm(reduced.adjoint(dual))), float((reduced.lengths * np.abs(dual)).sum()), count


def rotated(seed: int = 1) -> tuple[Reduced, np.ndarray]:
    """Tokens in three of forty dimensions, queries in three of thirty: bases on both sides."""
    rng = np.random.default_rng(seed)
    tokens = rng.standard_normal((6, 5, 3)) @ rng.standard_normal((3, 40))
    queries = rng.standard_normal((6, 3)) @ rng.standard_normal((3, 30))
    reduced = reduce(SelectionProblem(tokens, queries, rng.integers(5, size=6)))
    assert reduced.left is not None
    assert reduced.right is not None
    return reduced, np.where(reduced.rejected, rng.uniform(0.5, 1.0, reduced.rejected.shape), 0.0)


@pytest.mark.parametrize("make", [many_rows, rotated])
def test_existence_is_sure_beyond_the_roundings_counted(make: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual and the smallest singular value are each off by some units: of both, and sixteen in reserve."""
    reduced, dual = make()
    residual, terms, count = sizes(reduced, dual)
    unit, error = 1e-4, residual + 4 * EPS * terms
    monkeypatch.setattr(module, "gamma", lambda k: k * unit)
    p, r = reduced.shape
    for extra, sure in ((0.0, False), (30.0, True)):
        floor = residual + 2 * (count + extra) * unit * terms
        monkeypatch.setattr(module, "_singular_value_floor", lambda reduced, weight, floor=floor: floor)
        # Where the bound by the normal matrix leaves it open, dense algebra decides.
        monkeypatch.setattr(module, "_singular_values", lambda M: (0.5 * residual, 2.0, p * r))
        ratio, result = module._existence(reduced, dual)
        assert result == sure
        assert ratio == pytest.approx(error / (floor if sure else 0.5 * residual), rel=1e-12)
        # Too many entries for dense algebra: the ratio is that of the bound, and nothing is sure.
        with monkeypatch.context() as inner:
            inner.setattr(module, "SUPPORT_ENTRIES", np.count_nonzero(dual) * p * r - 1)
            assert module._existence(reduced, dual) == (pytest.approx(error / floor, rel=1e-12), sure)
    monkeypatch.setattr(module, "_singular_value_floor", lambda reduced, weight: 0.0)
    for rank, extra, sure in ((p * r, 30.0, True), (p * r, 0.0, False), (p * r - 1, 30.0, False)):
        floor = residual + 2 * (count + extra) * unit * terms
        # Singular values are LAPACK's, off by 32 units of the largest times the size at most.
        largest = floor
        smallest = floor + 32 * (p * r + np.count_nonzero(dual)) * EPS * largest
        monkeypatch.setattr(module, "_singular_values", lambda M, s=smallest, t=largest, k=rank: (s, t, k))
        assert module._existence(reduced, dual) == (pytest.approx(error / smallest, rel=1e-12), sure)
    monkeypatch.setattr(module, "gamma", lambda k: 0.0)
    for part, sure in ((0.5, False), (2.0, True)):
        smallest = residual * (1 + 1e-15) + part * 32 * (p * r + np.count_nonzero(dual)) * EPS * 1e9
        monkeypatch.setattr(module, "_singular_values", lambda M, s=smallest: (s, 1e9, p * r))
        assert module._existence(reduced, dual)[1] == sure


def test_fewer_supports_than_entries_are_never_sure() -> None:
    reduced = reduce(NAMED["midpoint"]().problem)
    dual = np.where(reduced.rejected, np.array([[0.5, 0.5, 0.0]]), 0.0)
    ratio, sure = module._existence(reduced, dual)
    assert ratio < 1e-12
    assert not sure
    assert module._existence(reduced, np.zeros_like(dual)) == (0.0, True)


def test_the_weight_of_a_tie_is_the_largest_multiplier(monkeypatch: pytest.MonkeyPatch) -> None:
    """A multiplier of a tie may be of either sign and as small as it likes: its correction is not a part of itself."""
    tokens = [[[0.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [0.0, -1.0]]]
    problem = SelectionProblem(tokens, [[1.0]], np.array([[True, False, False, True]]))
    reduced = reduce(problem)
    monkeypatch.setattr(module, "_singular_value_floor", lambda reduced, weight: 0.0)
    for size in (1.0, 1e-6, -1e-6, 0.1):
        dual = reduced.gather(np.array([[0.0, 0.5, 0.5, size]]))
        # Columns (1/2, 0), (-1/2, 0) and (0, w) with w the largest multiplier.
        weight = max(0.5, abs(size))
        smallest = min(math.sqrt(0.5), weight)
        expected = (abs(size) + 4 * EPS * (1.0 + weight)) / smallest
        assert existence_ratio(reduced, dual) == pytest.approx(expected, rel=1e-9)


def test_spans_count_what_exact_data_may_need() -> None:
    def spans(tokens: np.ndarray, queries: np.ndarray) -> bool:
        problem = SelectionProblem(tokens, queries, np.zeros(len(queries), dtype=int))
        return module._spans_exactly(problem, reduce(problem))

    rng = np.random.default_rng(5)
    full = rng.standard_normal((4, 3, 2))
    assert spans(full, rng.standard_normal((4, 2)))
    # Queries on a line: one query four times, multiples of an axis, and multiples of (1, 1), which are two columns.
    assert spans(full, np.tile([[0.3, 0.7]], (4, 1)))
    assert spans(full, np.outer([1.0, 2.0, 3.0, 4.0], [0.0, 1.0]))
    assert not spans(full, np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 1.0]))
    # Tokens in a plane: of two axes, turned, and turned but two differences only.
    queries = rng.standard_normal((4, 2))
    plane = np.pad(full, ((0, 0), (0, 0), (0, 1)))
    assert spans(plane, queries)
    images = full @ rng.standard_normal((2, 3))
    assert not spans(images, queries)
    assert not spans(images, rng.standard_normal((4, 3)))
    assert spans(rng.standard_normal((1, 3, 3)), queries[:1, :1])
    assert not spans(images[:1, [0, 1, 2, 1]] + images[:1, :1] * [[[0], [0], [0], [0.5]]], queries[:1, :1])


def test_the_factorisation_allows_for_its_own_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The normal matrix is the identity: the shift of 2 size + n + T units and ten in reserve is below one or not."""
    eye = np.eye(4)
    tokens = np.concatenate([np.zeros((1, 4)), -eye])[None]
    reduced = reduce(SelectionProblem(tokens, [[1.0]], [0]))
    weight = np.where(reduced.rejected, 1.0, 0.0)
    for unit, is_bounded in ((1.02 / 8, False), (0.98 / (8 + 5 + 10), True)):
        monkeypatch.setattr(module, "EPS", unit)
        assert (module._singular_value_floor(reduced, weight) > 0) == is_bounded


def test_the_perturbation_counts_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a unit of 1e-5: lengths of d + dz roundings, and what the sums in twice the precision may miss."""
    unit, missing = 1e-5, 1e-3
    problem = FAMILIES["planted"].make(np.random.default_rng(6), 3, 4, 6)
    dual = np.where(problem.rejected, 1.0, 0.0)
    full = oracle.dense(problem)
    adjoint = full.rows.sum(axis=0)
    true = float(np.linalg.norm(adjoint)) / float(full.lengths.sum())
    monkeypatch.setattr(FarkasCertificate, "_is_refuted", lambda self, dual: False)
    assert FarkasCertificate(problem, dual).perturbation == pytest.approx(true, rel=1e-12)
    monkeypatch.setattr(module, "gamma", lambda k: k * unit)
    stretch = (FarkasCertificate(problem, dual).perturbation / true - 1) / unit
    assert 6 + 6 <= stretch <= 3 + 4 + 6 + 6 + 45
    honest = Rows.adjoint
    monkeypatch.setattr(Rows, "adjoint", lambda *arguments, **options: (honest(*arguments, **options)[0], missing))
    wider = FarkasCertificate(problem, dual).perturbation
    assert wider >= true + missing
    assert wider <= (true + missing) * (1 + 70 * unit)


def test_exact_arithmetic_is_for_few_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two multipliers on 2 x 2 entries."""
    problem, dual = NAMED["midpoint"]().problem, np.array([[0.0, 0.5, 0.5, 0.0]])
    monkeypatch.setattr(module, "EXACT_OPERATIONS", 16)
    assert FarkasCertificate(problem, dual).exact
    monkeypatch.setattr(module, "EXACT_OPERATIONS", 15)
    assert not FarkasCertificate(problem, dual).exact
    monkeypatch.setattr(module, "EXACT_OPERATIONS", 16)
    monkeypatch.setattr(module, "EXACT_RATIO", 0.0)
    assert not FarkasCertificate(problem, dual).exact


def test_opposite_demands_cancel_exactly_in_many_dimensions() -> None:
    """One query twice that asks for different tokens: two multipliers on 40,000 entries."""
    rng = np.random.default_rng(6)
    queries = rng.standard_normal((6, 200))
    queries[4] = queries[1]
    problem = SelectionProblem(rng.standard_normal((1, 5, 200)), queries, [0, 1, 2, 3, 4, 0], sequence=[0] * 6)
    solution = solve(problem)
    assert solution.status is Status.INFEASIBLE
    assert solution.certificate is not None
    assert solution.certificate.perturbation == 0
    assert solution.verify(exact=True)


@pytest.mark.parametrize("dense_entries", [DENSE_ENTRIES, 0])
def test_multipliers_near_exact_ones_are_corrected_to_them(dense_entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farkas, "DENSE_ENTRIES", dense_entries)
    rng = np.random.default_rng(0)
    for problem, dual in contradictions():
        reduced = reduce(problem)
        near = reduced.gather(dual) * rng.uniform(0.99, 1.01, reduced.rejected.shape)
        exact = farkas.correct(reduced, near, Control(1e-9))
        assert exact is not None
        assert (exact[reduced.rejected] >= 0).all()
        before, after = (np.linalg.norm(reduced.adjoint(values / values.sum())) for values in (near, exact))
        assert after <= 1e-6 * before


@pytest.mark.parametrize(("other", "exists"), [(-1.0, True), (1.0, False)])
def test_multipliers_that_a_relative_change_makes_exact_prove_a_contradiction(other: float, exists: bool) -> None:
    """Differences of one and -1 or 1 with multipliers 1 and 0.5: the changes, if any, are not small."""
    reduced = reduce(SelectionProblem([[[0.0], [1.0], [other]]], [[1.0]], [0]))
    dual = reduced.gather(np.array([[0.0, 1.0, 0.5]]))
    # |A' dual| over the norm of the row of weighted differences.
    expected = abs(1.0 + 0.5 * other) / math.hypot(1.0, 0.5)
    assert existence_ratio(reduced, dual) == pytest.approx(expected, rel=1e-6)
    assert 0.4 < expected < 1.4
    assert farkas.proves(reduced, dual) == exists


@pytest.mark.parametrize(("dense_entries", "growth"), [(DENSE_ENTRIES, 2.0), (0, 1.0)])
def test_the_work_of_a_search_is_that_of_its_decompositions(
    dense_entries: int, growth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are decomposed in proportion to the longer side; a square matrix of the shorter side takes their place."""
    monkeypatch.setattr(farkas, "DENSE_ENTRIES", dense_entries)
    reduced = reduce(FAMILIES["planted"].draw(10, 6, 3))
    assert reduced.rejected.sum() > 40 > 20 > np.prod(reduced.shape)

    def work(count: int) -> float:
        dual = np.zeros(reduced.rejected.shape)
        dual[tuple(part[:count] for part in np.nonzero(reduced.rejected))] = 1.0
        return farkas.work(reduced, dual)

    assert work(0) == 0.0
    assert work(40) == pytest.approx(growth * work(20))


def test_what_is_too_large_to_be_decided_may_be_near(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    others = rng.standard_normal((40, 30)) @ rng.standard_normal((30, 60))
    problem = SelectionProblem(np.vstack([others.mean(axis=0), others])[None], rng.standard_normal((1, 3)), [0])
    dual = np.r_[0.0, np.full(40, 1 / 40)][None]

    def is_verified() -> bool:
        return FarkasCertificate(problem, dual).verify()

    certificate = FarkasCertificate(problem, dual)
    assert not certificate.exact
    assert certificate.verify()
    with monkeypatch.context() as inner:
        inner.setattr(module, "NEARBY_DATA", 0.5 * certificate.perturbation)
        assert not is_verified()
        inner.setattr(module, "NEARBY_DATA", 2 * certificate.perturbation)
        assert is_verified()
        inner.setattr(module, "decidable", lambda problem: True)
        assert not is_verified()
    for ratio, fine in ((1.0, False), (0.5, True)):
        with monkeypatch.context() as inner:
            inner.setattr(FarkasCertificate, "_existence", (ratio, False))
            assert is_verified() == fine


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


def spanning(rng: np.random.Generator, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Random rows, and positive multipliers under which they cancel."""
    products, values = rng.standard_normal((rows, columns)), rng.uniform(0.2, 2.0, rows)
    products[-1] = -(values[:-1, None] * products[:-1]).sum(axis=0) / values[-1]
    return products, values


@pytest.mark.parametrize("ties", [0, 2])
def test_a_support_is_cut_down_until_its_multipliers_are_unique(ties: int) -> None:
    rng = np.random.default_rng(0)
    for columns in (2, 3, 5):
        for spare in (0, 1, 3):
            for _ in range(4):
                products, values = spanning(rng, columns + 1 + spare, columns)
                size = 10.0 ** rng.uniform(-2, 2, len(products))
                free = np.arange(len(values)) < ties
                # A tie's multiplier may be negative.
                sign = np.where(free, rng.choice([-1.0, 1.0], len(values)), 1.0)
                support = infeasible._minimal(products * (sign * size)[:, None], sign * values / size, free)
                assert support is not None
                assert np.linalg.matrix_rank(products[support]) == len(support) - 1
                line = np.linalg.svd(products[support].T)[2][-1]
                inner = line[~free[support]]
                assert (inner > 1e-9).all() or (inner < -1e-9).all()


def test_supports_without_a_null_vector_or_of_length_zero() -> None:
    free = np.zeros(2, dtype=bool)
    assert infeasible._minimal(np.eye(2), np.ones(2), free) is None
    zero = infeasible._minimal(np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), np.ones(3), np.zeros(3, dtype=bool))
    assert zero is not None
    assert zero.tolist() == [1]
    # A tie of length zero is no proof by itself.
    assert infeasible._minimal(np.array([[1.0, 0.0], [0.0, 1.0]]), np.ones(2), np.array([True, False])) is None


def test_ties_that_depend_on_others_are_dropped_and_no_inequality() -> None:
    rows = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    free = np.array([True, True, True, True, False])
    independent_rows = infeasible._drop_dependent_ties(rows, np.arange(5), free)
    assert independent_rows.tolist() == [0, 2, 4]
    assert infeasible._drop_dependent_ties(rows, np.array([1, 3, 4]), free).tolist() == [1, 3, 4]


def test_opposite_unit_vectors_are_proved_by_intervals() -> None:
    """Twice as many supports as equations, most entries zero: existence by a right inverse."""
    eye = np.eye(3)
    deltas = np.concatenate([eye, -eye])
    dual = np.r_[0.0, np.full(6, 1 / 6)][None]
    for query in ([1.0], [0.0, 2.0]):
        how = prove_infeasible(single(deltas, query), dual)
        assert how is not None
        assert how.startswith("6 multipliers near")
    # Multipliers so small that products underflow are left to the integers.
    tiny = prove_infeasible(
        single(np.array([[1.0, 1e-200], [-1.0, -1e-200]]), [1.0, 1e-100]), np.array([[0.0, 0.5, 0.5]])
    )
    assert tiny is not None
    assert "integers" in tiny


def test_exact_proofs_at_every_scale_and_with_a_tie_of_weight_one() -> None:
    for size in (1e-200, 1e-100, 1e100, 1e200):
        instance = NAMED["midpoint"]().problem
        problem = SelectionProblem(size * instance.tokens, size * instance.queries, instance.reference)
        how = prove_infeasible(problem, np.array([[0.0, 0.5, 0.5, 0.0]]))
        assert how is not None
        assert how.startswith("2 multipliers")
    tied = SelectionProblem([[[0.0], [-1.0], [1.0]]], [[1.0]], np.array([[True, False, True]]))
    assert prove_infeasible(tied, np.array([[0.0, 1.0, 1.0]])) is not None
    assert prove_infeasible(tied, np.array([[0.0, 1.0, 0.0]])) is None


def test_existence_by_intervals_counts_its_roundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multipliers of +-e_k that leave a residual: corrections below one half of themselves exist or are not shown."""
    eye = np.eye(2)
    products, free = np.concatenate([eye, -eye]), np.zeros(4, dtype=bool)
    for bend, is_proved in ((0.3, True), (1.3, True), (1.7, False), (0.0, True)):
        values = np.array([1.0 + bend, 1.0, 1.0, 1.0])
        assert infeasible._existence(products, values, free) == is_proved
        assert infeasible._existence(products, 1e-3 * values, free) == is_proved
    # A tie's correction may be as large as it likes.
    tied = np.array([True, False, True, False])
    assert infeasible._existence(products, np.array([2.7, 1.0, 1.0, 1.0]), tied)
    # 2.2 : 1 asks for a correction of (1 - 1/2.2) / (1 + 1/2.2^2) = 0.452, a tenth below one half.
    honest = infeasible.right_inverse
    for unit, is_proved in ((0.01, True), (0.2, False)):
        monkeypatch.setattr(infeasible, "gamma", lambda k, size=unit: k * size)
        monkeypatch.setattr(infeasible, "UNIT", 0.0)
        assert infeasible._existence(products, np.array([2.2, 1.0, 1.0, 1.0]), free) == is_proved
        monkeypatch.setattr(infeasible, "gamma", lambda k: 0.0)
        monkeypatch.setattr(infeasible, "UNIT", unit)
        assert infeasible._existence(products, np.array([2.2, 1.0, 1.0, 1.0]), free) == is_proved
        monkeypatch.setattr(infeasible, "UNIT", 0.0)
        monkeypatch.setattr(infeasible, "right_inverse", lambda M, k, size=unit: with_error(honest(M, k), size))
        assert infeasible._existence(products, np.array([2.2, 1.0, 1.0, 1.0]), free) == is_proved
        monkeypatch.setattr(infeasible, "right_inverse", honest)


def with_error(inverse: RightInverse | None, error: float) -> RightInverse | None:
    return None if inverse is None else replace(inverse, error=error)


def test_a_proof_over_the_integers_has_a_size() -> None:
    """Two multipliers on four equations: one unknown."""
    problem, dual = NAMED["midpoint"]().problem, np.array([[0.0, 0.5, 0.5, 0.0]])
    how = prove_infeasible(problem, dual)
    assert how is not None
    assert how.startswith("2 multipliers, integers of up to ")
    assert prove_infeasible(problem, dual, 1) is not None
    assert prove_infeasible(problem, dual, 0) is None


def test_a_system_larger_than_allowed_is_not_solved() -> None:
    """Three multipliers cancel in the triangle: two unknowns."""
    problem = NAMED["inside_the_triangle"]().problem
    dual = np.array([[0.0, 0.25, 0.25, 0.5]])
    how = prove_infeasible(problem, dual)
    assert how is not None
    assert how.startswith("3 multipliers")
    limit_run = prove_infeasible(problem, dual, 2)
    assert limit_run is not None
    if "integers" in how:
        assert prove_infeasible(problem, dual, 1) is None
