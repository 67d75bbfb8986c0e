"""Proofs: they hold on every named problem, and fail or widen when W, multipliers or certificates are tampered with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from attsvm import SelectionProblem, Solution, Status, solve
from attsvm.check import root_above
from attsvm.core import rounding
from attsvm.core.norms import KyFan, Largest, Mahalanobis, Mixed, Norm, Schatten, Sum, Weighted, get_norm
from attsvm.proofs import linear
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.dyadic import Dyadic
from exact import dual_norm_above, norm_above
from problems import FAMILIES, NAMED

NORMS = ("frobenius", "nuclear", "spectral", "max", 1, 1.5, 3)
RNG = np.random.default_rng(0)


def with_changes(solution: Solution, **changes: np.ndarray) -> Solution:
    return replace(solution, certified=replace(solution.certified, **changes))


def instance(family: str, *size: int, seed: int = 0) -> SelectionProblem:
    return FAMILIES[family].draw(*size, seed=seed)


# --- arithmetic ---


def test_dyadic_is_exact() -> None:
    a, b = RNG.standard_normal((3, 4)) * 10.0 ** RNG.integers(-12, 12, (3, 4)), RNG.standard_normal((4, 2))
    A, B = Dyadic.of(a), Dyadic.of(b)
    product = [sum(Fraction(a[i, k]) * Fraction(b[k, j]) for k in range(4)) for i in range(3) for j in range(2)]
    assert (A @ B).fractions() == product
    small = Dyadic.of(np.full((3, 4), 1e-300))
    assert (A + small).fractions() == [Fraction(x) + Fraction(1e-300) for x in a.ravel()]
    assert (A - small).fractions() == [Fraction(x) - Fraction(1e-300) for x in a.ravel()]
    assert Dyadic.of(np.zeros((2, 2))).fractions() == [0, 0, 0, 0]


def test_root_is_rounded_up_and_sharp() -> None:
    for value in (Fraction(2), Fraction(1, 3), Fraction(10) ** 60 + 1, Fraction(7, 10**50), Fraction(9)):
        root = root_above(value)
        assert value <= root**2 <= value * (1 + Fraction(1, 2**100))
    assert root_above(Fraction(9)) == 3


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (8, 6)])
def test_norms_are_bounded_sharply_from_above(norm: str | float, shape: tuple[int, int]) -> None:
    """Against 40 digits: never below, and above by at most the rounding of singular vectors, entry by entry."""
    M = RNG.standard_normal(shape)
    measure = get_norm(norm)
    with mpmath.workdps(40):
        singular = mpmath.svd_r(mpmath.matrix(M.tolist()), compute_uv=False)
        entries = [abs(mpmath.mpf(float(x))) for x in M.ravel()]

        def power(p: float) -> mpmath.mpf:
            return max(entries) if p == np.inf else sum(x ** mpmath.mpf(p) for x in entries) ** (1 / mpmath.mpf(p))

        nuclear, spectral = mpmath.fsum(singular), max(singular)
        if norm == "frobenius":
            expected = power(2), power(2)
        elif norm == "nuclear":
            expected = nuclear, spectral
        elif norm == "spectral":
            expected = spectral, nuclear
        else:
            p = mpmath.inf if norm == "max" else mpmath.mpf(norm)
            q = mpmath.inf if p == 1 else mpmath.mpf(1) if p == mpmath.inf else p / (p - 1)
            expected = power(p), power(q)
        bounds = norm_above(measure, Dyadic.of(M)), dual_norm_above(measure, Dyadic.of(M))
        for bound, true in zip(bounds, expected, strict=True):
            exact = mpmath.mpf(bound.numerator) / bound.denominator
            assert true * (1 - mpmath.mpf(10) ** -38) <= exact <= true * (1 + 50 * M.size * 2.0**-52)


Measure = Callable[[list[mpmath.mpf], list[list[mpmath.mpf]]], mpmath.mpf]
HALVES = (0.5, 1.0, 2.0, 3.0)
STRETCH = np.diag([0.25, 1.0, 4.0, 9.0])
WEIGHTS = np.random.default_rng(5).random((4, 3)) + 0.1


@pytest.mark.parametrize(
    ("norm", "value", "dual"),
    [
        (Schatten(1.5), lambda s, M: power(s, 1.5), lambda s, M: power(s, 3)),
        (KyFan(2), lambda s, M: s[0] + s[1], lambda s, M: max(s[0], sum(s) / 2)),
        (
            Mixed(2, 1),
            lambda s, M: sum(power(row, 2) for row in M),
            lambda s, M: max(power(row, 2) for row in M),
        ),
        (
            Weighted(WEIGHTS, 3),
            lambda s, M: power([M[i][k] * mpmath.mpf(w) for (i, k), w in np.ndenumerate(WEIGHTS)], 3),
            lambda s, M: power([M[i][k] / mpmath.mpf(w) for (i, k), w in np.ndenumerate(WEIGHTS)], 1.5),
        ),
        (
            Mahalanobis(STRETCH, None, 1.5),
            lambda s, M: power([x * r for row, r in zip(M, HALVES, strict=True) for x in row], 1.5),
            lambda s, M: power([x / r for row, r in zip(M, HALVES, strict=True) for x in row], 3),
        ),
        (Sum("frobenius", "spectral"), lambda s, M: power(s, 2) + s[0], None),
        (
            Largest("nuclear", Mixed(2, 1)),
            lambda s, M: max(sum(s), sum(power(row, 2) for row in M)),
            None,
        ),
    ],
)
def test_other_norms_are_bounded_sharply_from_above(norm: Norm, value: Measure, dual: Measure | None) -> None:
    """Against 40 digits, exact bounds and those of floats: never below, and above by little."""
    M = np.random.default_rng(6).standard_normal((4, 3))
    with mpmath.workdps(40):
        entries = [[mpmath.mpf(x) for x in row] for row in M.tolist()]
        singular = sorted(mpmath.svd_r(mpmath.matrix(M.tolist()), compute_uv=False), reverse=True)
        # A split bounds the dual of a composed norm from above; what it shows in floats is what there is to compare.
        split = mpmath.mpf(norm.dual(M)) * (1 - mpmath.mpf(norm.dual_resolution))
        wide = 1e-14 + 2 * norm.dual_resolution
        second = split if dual is None else dual(singular, entries)
        for is_dual, expected in ((False, value(singular, entries)), (True, second)):
            bound = (dual_norm_above if is_dual else norm_above)(norm, Dyadic.of(M))
            exact = mpmath.mpf(bound.numerator) / bound.denominator
            calculation = norm.dual(M) if is_dual else norm.value(M)
            # 32 units for singular vectors; some 60 roundings where the floats bound themselves.
            assert expected <= exact * (1 + mpmath.mpf(10) ** -35) <= expected * (1 + wide)
            # Products with the roots' inverses are counted as generously as ten times the rest.
            assert expected <= rounding.norm_above(norm, M, calculation, dual=is_dual) <= expected * (1 + 20 * wide)


@pytest.mark.parametrize(
    "norm",
    [
        Schatten(1.5),
        Schatten(3.0),
        KyFan(2),
        Mixed(2, 1),
        Weighted(np.full((4, 4), 2.0), 3),
        Sum("frobenius", "nuclear"),
        Sum("max", KyFan(2)),
        Largest("spectral", Mixed(2, 1)),
        Mahalanobis(STRETCH, None, "nuclear"),
        Mahalanobis(STRETCH, STRETCH, Largest(3.0, Schatten(1.5))),
    ],
)
def test_optima_of_other_norms_are_proven_exactly(norm: Norm) -> None:
    solution = solve(FAMILIES["planted"].make(np.random.default_rng(2), 5, 4, 4), norm)
    proof = solution.verify(exact=True)
    assert proof, proof.statement


@pytest.mark.parametrize("norm", [Mahalanobis(STRETCH), Sum("frobenius", "nuclear"), Largest("spectral", Mixed(2, 1))])
def test_soft_margins_of_other_norms_are_proven_exactly(norm: Norm) -> None:
    problem = FAMILIES["planted"].make(np.random.default_rng(2), 5, 4, 4)
    solution = solve(problem, norm, C=2.0)
    proof = solution.verify(exact=True)
    assert proof, proof.statement
    # Half the square of the dual norm, not of the Frobenius norm, is what multipliers cost.
    assert proof.low <= solution.primal <= proof.high * (1 + 1e-12)


def power(values: list[mpmath.mpf], p: float) -> mpmath.mpf:
    return mpmath.fsum(abs(x) ** mpmath.mpf(p) for x in values) ** (1 / mpmath.mpf(p))


def test_linear_systems_over_the_integers() -> None:
    for size in (1, 2, 7, 15):
        A = np.array([[int(x) for x in row] for row in RNG.integers(-(2**40), 2**40, (size, size))], dtype=object)
        b = np.array([int(x) for x in RNG.integers(-(2**40), 2**40, size)], dtype=object)
        result = linear.solve(A, b)
        assert result is not None
        assert (np.dot(A, np.array(result[0], dtype=object)) == b * result[1]).all()
    assert linear.solve(np.array([[1, 2], [2, 4]], dtype=object), np.array([1, 1], dtype=object)) is None
    line = linear.kernel_vector(np.array([[1, -2, 0], [0, 3, -1], [1, 1, -1]], dtype=object))
    assert line is not None
    assert Fraction(line[0], line[2]) == Fraction(2, 3)
    assert linear.kernel_vector(np.eye(3, dtype=int).astype(object)) is None  # no kernel
    assert linear.kernel_vector(np.array([[1, 1, 1]], dtype=object)) is None  # a plane


# --- claims that hold ---


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("name", NAMED)
def test_named_problem_is_proven(name: str, norm: str, exact: bool) -> None:
    reference = NAMED[name]()
    solution = solve(reference.problem, norm)
    proof = solution.verify(exact=exact)
    assert proof, proof.statement
    if not reference.feasible:
        assert proof.low == proof.high == np.inf
        return
    # The float check allows a margin the rounding of |delta||W||z|, however small the margin itself: units at these
    # sizes are a thousand roundings at most.
    rows = [np.linalg.norm(delta, axis=2) for _, delta in reference.problem.differences()]
    lengths = np.concatenate(rows) * np.linalg.norm(reference.problem.queries, axis=1)[:, None]
    size = max(1.0, float(lengths.max() * np.linalg.norm(solution.certified.W)))
    assert proof.gap <= 1e-9 + 1e3 * 2.0**-52 * (1.0 if exact else size)
    expected = getattr(reference, norm)
    if expected is not None:
        # Expected values are floats, and tokens such as 1e-4 are not the decimal numbers they stand for.
        assert float(proof.low) <= expected * (1 + 1e-12)
        assert float(proof.high) >= expected * (1 - 1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_proof_sits_inside_the_float_interval(norm: str | float) -> None:
    for family in ("planted", "several", "rectangular", "near_duplicates"):
        solution = solve(instance(family, 4, 4, 4), norm)
        if solution.status is not Status.OPTIMAL:
            continue
        proven, float_check = solution.verify(exact=True), solution.verify()
        assert proven, proven.statement
        assert float_check, float_check.statement
        assert float_check.low <= proven.low <= proven.high <= float_check.high
        assert float(proven.low) <= solution.objective * (1 + 1e-12)
        assert proven.gap == pytest.approx(solution.gap, abs=1e-12)


def test_of_the_size_of_the_paper() -> None:
    for norm in ("frobenius", "nuclear"):
        proof = solve(instance("planted", 15, 15, 20), norm).verify(exact=True)
        assert proof
        assert isinstance(proof.low, Fraction)
        assert proof.gap <= 1e-9
    assert solve(instance("published", 15, 15, 4), "nuclear").verify(exact=True).low == np.inf


def test_many_ties_are_proven_without_solving_for_them() -> None:
    problem = instance("several", 24, 8, 20)
    assert problem.tied.sum() > 20
    proof = solve(problem).verify(exact=True)
    assert proof, proof.statement
    assert proof.gap <= 1e-9


# --- claims that do not ---


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("norm", NORMS)
def test_tampering_with_w_or_the_multipliers_widens_the_interval(norm: str | float, exact: bool) -> None:
    problem = instance("planted", 6, 8, 10)
    solution = solve(problem, norm)
    honest = solution.verify(exact=exact)
    W, dual = solution.certified.W, solution.certified.dual
    worse = with_changes(solution, W=W + 1e-4 * np.abs(W).max() * RNG.standard_normal(W.shape)).verify(exact=exact)
    assert worse.high > honest.high
    assert worse.low == honest.low
    # Multipliers cannot be told to be optimal and are not: halving one loses the bound a visible part.
    perturbation = dual.copy()
    perturbation.flat[perturbation.argmax()] *= 0.5
    weaker = with_changes(solution, dual=perturbation).verify(exact=exact)
    assert weaker.low < honest.low
    assert weaker.high == honest.high


@pytest.mark.parametrize("exact", [True, False])
def test_useless_w_and_multipliers_prove_nothing(exact: bool) -> None:
    solution = solve(instance("planted", 6, 8, 10))
    W, dual = solution.certified.W, solution.certified.dual
    for bad in (-W, np.zeros_like(W), np.full_like(W, np.nan)):
        proof = with_changes(solution, W=bad).verify(exact=exact)
        assert not proof
        assert proof.high == np.inf
        assert proof.low > 0  # the multipliers still bound the norm
        assert proof.statement.startswith("Not proven: ")
    for bad in (-dual, np.zeros_like(dual), np.full_like(dual, np.nan)):
        proof = with_changes(solution, dual=bad).verify(exact=exact)
        assert not proof
        assert proof.low == 0
        assert np.isfinite(float(proof.high))


def test_a_broken_tie_is_mended_or_refused() -> None:
    solution = solve(NAMED["tie_forces_a_detour"]().problem)
    W = solution.certified.W
    repair = with_changes(solution, W=W + np.array([[1e-3], [0.0]])).verify(exact=True)
    assert not repair  # moved back onto the tie, at the price of its length: a bound, but not the one that was claimed
    assert repair.high**2 >= 2
    assert not with_changes(solution, W=np.array([[0.0], [1.0]])).verify(exact=True)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", [n for n, make in NAMED.items() if not make().feasible])
def test_a_certificate_without_one_of_its_multipliers_proves_nothing(name: str, exact: bool) -> None:
    """The named certificates have minimal supports or duplicates, so what is left after the largest is no proof.

    A zero-length constraint is a proof by itself: there every one of them has to go.
    """
    solution = solve(NAMED[name]().problem)
    assert solution.certificate is not None
    dual = np.array(solution.certificate.dual)
    inner = dual * solution.problem.rejected
    perturbation = dual.copy()
    perturbation[inner > 0] = 0.0
    if (inner > 0).sum() > 1 and name not in {"duplicate_of_the_selected", "all_tokens_zero", "zero_query"}:
        perturbation = dual.copy()
        perturbation.flat[inner.argmax()] = 0.0
    certificate = replace(solution, certificate=FarkasCertificate(solution.problem, perturbation))
    proof = certificate.verify(exact=exact)
    assert not proof
    assert proof.statement.startswith("Not proven: ")


@pytest.mark.parametrize("exponent", [10, 26, 40, 50])
def test_nearly_infeasible_is_not_proven_infeasible(exponent: int) -> None:
    """Multipliers (1, 1) leave A^T lam = (0, 2h), rounding level beside (1, h) and (-1, h); W = (0, 1/h) exists."""
    h = 2.0**-exponent
    problem = SelectionProblem([[[0.0, 0.0], [-1.0, -h], [1.0, -h]]], [[1.0]], [0])
    solution = solve(problem)
    certificate = replace(solution, certificate=FarkasCertificate(problem, np.array([[0.0, 0.5, 0.5]])))
    assert not certificate.verify(exact=True)
    if solution.status is Status.OPTIMAL:
        proof = solution.verify(exact=True)
        assert proof
        assert proof.low <= Fraction(2) ** exponent <= proof.high


def test_no_certificate_proves_a_feasible_problem_infeasible() -> None:
    for seed in range(10):
        problem = instance("planted", 10, 5, 4, seed=seed)
        solution = solve(problem)
        assert solution.status is Status.OPTIMAL
        dual = np.where(problem.rejected, RNG.random(problem.mask.shape), 0.0)
        certificate = replace(solution, certificate=FarkasCertificate(problem, dual / dual.sum()))
        assert not certificate.verify(exact=True)
        assert not certificate.verify()
