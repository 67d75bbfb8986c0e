"""The norm of A and B that was asked for is the one that is certified, whatever their condition numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from attsvm import SelectionProblem, Solution, Status, check, norms, solve
from attsvm.core import error_free
from attsvm.core.error_free import Pair, product
from attsvm.core.norms import square_root
from attsvm.core.norms.square_root import SquareRoot
from attsvm.core.rounding import norm_above
from attsvm.proofs.dyadic import Dyadic
from attsvm.proofs.words import sum_table, table
from exact import norm_above as exact_norm_above

mpf, Matrix = mpmath.mpf, mpmath.matrix
DIGITS = 80


def form(rng: np.random.Generator, size: int, condition: float) -> np.ndarray:
    """A symmetric positive definite matrix of about this condition number, as floats."""
    U = np.linalg.qr(rng.standard_normal((size, size)))[0]
    A = (U * condition ** -np.linspace(0.0, 1.0, size)) @ U.T
    return 0.5 * (A + A.T)


def root(A: np.ndarray) -> Any:
    """The root of a matrix of floats, to DIGITS less the digits of its condition number."""
    values, vectors = mpmath.eigsy(Matrix(A.tolist()))
    return vectors * mpmath.diag([mpmath.sqrt(value) for value in values]) * vectors.T


def planted(rng: np.random.Generator, n: int = 6, T: int = 5, d: int = 3, dz: int = 3) -> SelectionProblem:
    tokens, queries = rng.standard_normal((n, T, d)), rng.standard_normal((n, dz))
    best = np.einsum("ntd,de,ne->nt", tokens, rng.standard_normal((d, dz)), queries).argmax(axis=1)
    return SelectionProblem(tokens, queries, best)


def enclosure(problem: SelectionProblem, A: np.ndarray, W: np.ndarray, dual: np.ndarray) -> tuple[Any, Any]:
    """What W and multipliers prove of the smallest |A^(1/2) W|_F, with the root itself: nothing lies further inside."""
    rows, columns = np.nonzero(problem.rejected)
    tokens = [[Matrix(x) for x in sequence] for sequence in problem.tokens.tolist()]
    X, M, margins = Matrix(W.tolist()), mpmath.zeros(*W.shape), []
    for i, t in zip(rows.tolist(), columns.tolist(), strict=True):
        row = (tokens[i][problem.reference[i]] - tokens[i][t]) * Matrix(problem.queries[i].tolist()).T
        margins.append(mpmath.fsum(a * b for a, b in zip(row, X, strict=True)))
        M += mpf(dual[i, t]) * row
    S = root(A)
    total = mpmath.fsum(dual[rows, columns].tolist())
    return total / mpmath.norm(mpmath.inverse(S) * M), mpmath.norm(S * X) / min(margins)


@pytest.mark.parametrize("condition", [1.0, 1e4, 1e8, 1e12, 3e13])
@pytest.mark.parametrize("seed", range(4))
def test_every_interval_holds_the_optimum_of_the_norm_that_was_asked_for(
    seed: int, condition: float, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    A, problem = form(rng, 3, condition), planted(rng)
    solution = solve(problem, norms.Mahalanobis(A))
    with mpmath.workdps(DIGITS):
        low, high = enclosure(problem, A, solution.certified.W, solution.certified.dual)

    def holds(*ends: Fraction | float) -> bool:
        with mpmath.workdps(DIGITS):
            ours = [mpf(Fraction(x).numerator) / Fraction(x).denominator for x in ends]
            return bool(ours[0] <= low * (1 + mpf(10) ** -38) and high <= ours[1] * (1 + mpf(10) ** -38))

    assert holds(solution.certified.lower_bound, solution.certified.upper_bound)
    floats, exact = solution.verify(), solution.verify(exact=True)
    assert holds(floats.low, floats.high)
    assert holds(exact.low, exact.high)
    if condition <= 1e8:  # W and multipliers as floats cost the root of it times a rounding, far below the tolerance
        assert solution.status is Status.OPTIMAL
        assert floats, floats.statement
        assert exact, exact.statement
    if solution.status is Status.OPTIMAL:
        solution.save(tmp_path / "c.json")
        claims = check.check(json.loads((tmp_path / "c.json").read_text(encoding="utf-8")))
        assert holds(claims["lower"], claims["upper"])


def length(p: float) -> Callable[[Any], Any]:
    def measure(X: Any) -> Any:
        sizes = [abs(x) for x in X]
        return max(sizes) if math.isinf(p) else mpmath.fsum(x ** mpf(p) for x in sizes) ** (1 / mpf(p))

    return measure


def singular(p: float) -> Callable[[Any], Any]:
    return lambda X: length(p)(mpmath.svd_r(X, compute_uv=False))


@pytest.mark.parametrize("condition", [1.0, 1e8, 3e13])
@pytest.mark.parametrize(
    ("base", "value", "dual"),
    [
        ("frobenius", length(2), length(2)),
        (1.0, length(1), length(math.inf)),
        (3.0, length(3), length(1.5)),
        ("nuclear", singular(1), singular(math.inf)),
        ("schatten:3", singular(3), singular(1.5)),
    ],
    ids=["frobenius", "1", "3", "nuclear", "schatten 3"],
)
def test_bounds_on_norms_in_other_coordinates_are_above(base, value, dual, condition: float) -> None:
    """In floats, in twice the precision and in exact arithmetic; the last two lose a few roundings and no more."""
    rng = np.random.default_rng(7)
    A, B = form(rng, 4, condition), form(rng, 3, math.sqrt(condition))
    norm, M = norms.Mahalanobis(A, B, base), rng.standard_normal((4, 3))
    with mpmath.workdps(DIGITS):
        left, right = root(A), root(B)
        images = left * Matrix(M.tolist()) * right, mpmath.inverse(left) * Matrix(M.tolist()) * mpmath.inverse(right)
        for is_dual, measure, image in zip((False, True), (value, dual), images, strict=True):
            truth, floats = measure(image), norm.dual(M) if is_dual else norm.value(M)
            exact = exact_norm_above(norm, Dyadic.of(M), dual=is_dual)
            assert truth <= norm_above(norm, M, floats, dual=is_dual)
            assert truth <= norm_above(norm, M, floats, dual=is_dual, sharp=True) <= truth * (1 + 1e-12)
            assert truth <= mpf(exact.numerator) / exact.denominator * (1 + mpf(10) ** -38) <= truth * (1 + 1e-13)


@pytest.mark.parametrize(("size", "condition"), [(1, 1.0), (3, 1e8), (5, 3e13), (12, 1e4)])
def test_a_root_is_as_near_as_it_says(size: int, condition: float) -> None:
    A = form(np.random.default_rng(size), size, condition) * 1e-3
    ours = SquareRoot.of("A", A)
    with mpmath.workdps(DIGITS):
        S = root(A)
        near = Matrix(ours.root.high.tolist()) + Matrix(ours.root.low.tolist())
        inverse = Matrix(ours.inverse.high.tolist()) + Matrix(ours.inverse.low.tolist())
        values = mpmath.eigsy(S, eigvals_only=True)
        assert ours.floor <= min(values) <= 1.3 * ours.floor  # nine tenths are asked of the Cholesky factorisation
        assert max(values) <= ours.ceiling <= max(values) * (1 + 1e-8)
        assert mpmath.norm(near * mpmath.inverse(S) - mpmath.eye(size)) <= ours.drift < 1e-12
        assert mpmath.norm(inverse * S - mpmath.eye(size)) <= ours.inverse_drift < 1e-12


def test_the_error_of_a_root_is_relative_to_its_smallest_eigenvalue(monkeypatch: pytest.MonkeyPatch) -> None:
    """X^2 = A up to 1e-20, so that X misses S by 1e-20 over the smallest eigenvalue, and X S^-1 misses I by as much."""
    size = 1e-20
    monkeypatch.setattr(square_root, "_product_error", lambda root: size)
    ours = SquareRoot.of("A", np.eye(3))
    assert 0.8 < ours.floor <= 1
    assert ours.drift == pytest.approx(size / ours.floor**2, rel=1e-6, abs=0)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_matrix_that_is_not_finite_has_no_root(bad: float) -> None:
    for A in (np.diag([bad, 1.0]), np.array([[2.0, bad], [bad, 2.0]])):
        with pytest.raises(
            ValueError, match=r"A has shape \(2, 2\); a symmetric positive definite matrix was expected"
        ):
            norms.Mahalanobis(A)


def test_a_matrix_that_is_not_symmetric_has_no_root() -> None:
    """Its symmetric part is positive definite and would have one."""
    with pytest.raises(ValueError, match=r"A has shape \(2, 2\); a symmetric positive definite matrix was expected"):
        norms.Mahalanobis([[2.0, 1.0], [0.0, 2.0]])


def test_the_proof_of_a_smallest_eigenvalue_counts_the_roundings_of_its_factorisation() -> None:
    """The computed factors belong to a matrix that differs by up to d + 1 roundings of the trace (Rump, section 10)."""
    for size in (1, 50):
        root = Pair(np.eye(size), np.zeros((size, size)))
        lost = 0.5 - square_root._smallest(root, 0.5)
        assert (size + 1) * size * 2.0**-53 <= lost <= 10 * (size + 1) * size * 2.0**-53


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("exponent", [-40, 40])
def test_errors_are_relative_to_the_size_of_the_matrices(exponent: int, dual: bool) -> None:
    rng = np.random.default_rng(4)
    A, M = form(rng, 3, 1e4), rng.standard_normal((3, 2))
    one, other = SquareRoot.of("A", A), SquareRoot.of("A", A * 4.0**exponent)
    for rounded in (False, True):
        expected = one.drift_of(dual, rounded=rounded)
        assert other.drift_of(dual, rounded=rounded) == pytest.approx(expected, rel=1e-12, abs=0)
    norm = norms.Mahalanobis(A)
    error, scaled = (norm.image(N, dual)[2] for N in (M, M * 2.0**exponent))
    assert scaled == pytest.approx(error * 2.0**exponent, rel=1e-12, abs=0)


@pytest.mark.parametrize("dual", [False, True])
def test_the_factor_in_floats_is_as_near_as_it_says(dual: bool) -> None:
    A = form(np.random.default_rng(5), 3, 1e6) * 1e5
    ours = SquareRoot.of("A", A)
    with mpmath.workdps(DIGITS):
        S = root(A)
        identity = Matrix(ours.factor(dual).high.tolist()) * (S if dual else mpmath.inverse(S))
        missing = mpmath.norm(identity - mpmath.eye(3))
        assert missing <= ours.drift_of(dual, rounded=True) <= 1e4 * missing


def test_only_the_symmetric_part_counts() -> None:
    """A matrix within rounding of symmetric stands for its symmetric part, to the last bit."""
    A = np.array([[2.0, 1.0 + 2.0**-40], [1.0, 3.0]])
    ours = SquareRoot.of("A", A)
    with mpmath.workdps(DIGITS):
        near = Matrix(ours.root.high.tolist()) + Matrix(ours.root.low.tolist())
        square = near * near - (Matrix(A.tolist()) + Matrix(A.T.tolist())) / 2
        assert mpmath.norm(square) < 1e-27


@pytest.mark.parametrize("shapes", [(1, 1, 1), (3, 40, 2), (5, 3, 7)])
def test_a_product_in_twice_the_precision_is_as_near_as_it_says(shapes: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(3)
    m, k, n = shapes
    left = Pair(high := rng.standard_normal((m, k)) * 10.0 ** rng.integers(-5, 6, (m, k)), high * 1e-17)
    right = Pair(rng.standard_normal((k, n)), np.zeros((k, n)))
    ours, error = product(left, right)
    square = Fraction(0)
    for i in range(m):
        for j in range(n):
            terms = [
                (Fraction(left.high[i, a]) + Fraction(left.low[i, a])) * Fraction(right.high[a, j]) for a in range(k)
            ]
            square += (Fraction(ours.high[i, j]) + Fraction(ours.low[i, j]) - sum(terms)) ** 2
    assert square <= Fraction(error) ** 2
    assert error <= 1e-25 * np.linalg.norm(left.high) * np.linalg.norm(right.high) * k


@pytest.mark.parametrize("bits", [21, 26])
def test_a_slice_leaves_half_of_its_last_bit(bits: int) -> None:
    rng = np.random.default_rng(6)
    high = rng.uniform(-1.0, 1.0, 20)
    low = high * rng.uniform(-1.0, 1.0, 20) * 2.0**-54
    slices = error_free._slices(Pair(high, low), bits)
    for i in range(20):
        rest = Fraction(high[i]) + Fraction(low[i])
        for k, part in enumerate(slices, 1):
            assert (Fraction(part[i]) * 2 ** (k * bits)).denominator == 1
            rest -= Fraction(part[i])
            # What is below the last digit of the rest is not rounded with it.
            assert abs(rest) <= Fraction(1, 2 ** (k * bits + 1)) * (1 + Fraction(1, 2**20))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda R, K, C: (-R, -K, C), "not positive definite"),
        (lambda R, K, C: (R + np.eye(3)[[1, 2, 0]] * 1e-9, K, C), "not symmetric"),
        (lambda R, K, C: (R, 3.0 * K, C), "the inverse of a root is none"),
        (lambda R, K, C: (R, K, 1.5 * C), "not positive definite"),
        (lambda R, K, C: (2.0 * R, K / 2, math.sqrt(2.0) * C), "a root's square is not its matrix"),
    ],
    ids=["negative", "unsymmetric", "no inverse", "no factor", "another root"],
)
def test_a_root_that_is_none_is_refused(change, reason: str) -> None:
    A = form(np.random.default_rng(1), 3, 100.0)
    ours = SquareRoot.of("A", A)
    check.RationalRoot(table(A), [sum_table(ours.root), sum_table(ours.inverse), table(ours.evidence[2])], 3)
    parts = change(ours.root.high, ours.inverse.high, ours.evidence[2])
    with pytest.raises(check.Rejected, match=reason):
        check.RationalRoot(table(A), [table(part) for part in parts], 3)


def test_a_root_of_the_wrong_signs_is_refused_though_its_square_fits() -> None:
    """With an eigenvalue of the other sign R^2 = A all the same, and an l_1 norm of R W is another one."""
    values, U = np.array([1.0, 0.5, 0.25]), np.linalg.qr(np.random.default_rng(2).standard_normal((3, 3)))[0]
    A, R = (U * values**2) @ U.T, (U * values * [1.0, 1.0, -1.0]) @ U.T
    R, K = 0.5 * (R + R.T), np.linalg.inv(R)
    with pytest.raises(check.Rejected, match="not positive definite"):
        check.RationalRoot(table(A), [table(R), table(0.5 * (K + K.T)), table(np.linalg.cholesky(R @ R))], 3)


@pytest.mark.parametrize("seed", range(25))
def test_both_proofs_and_the_file_agree(seed: int, tmp_path: Path) -> None:
    """Ordinary Mahalanobis optima, of which one proof refused what the other proved."""
    rng = np.random.default_rng(seed)
    base = ["frobenius", "nuclear", 1.5, "ky-fan:2", norms.Weighted(rng.uniform(0.5, 2.0, (4, 3)), 3)][seed % 5]
    norm = norms.Mahalanobis(form(rng, 4, 10.0 ** (seed % 7)), form(rng, 3, 10.0), base)
    solution = solve(planted(rng, d=4), norm)
    assert solution.status is Status.OPTIMAL
    floats, exact = solution.verify(), solution.verify(exact=True)
    assert floats, floats.statement
    assert exact, exact.statement
    solution.save(tmp_path / "c.json")
    claims = check.check(json.loads((tmp_path / "c.json").read_text(encoding="utf-8")))
    # The file's ends are those of the proof, rounded outward to eighty bits.
    assert exact.low * (1 - Fraction(1, 2**78)) <= claims["lower"] <= exact.low
    assert exact.high <= claims["upper"] <= exact.high * (1 + Fraction(1, 2**78))
    assert Solution.load(tmp_path / "c.json").verify()


def test_what_is_refused_names_the_inequality() -> None:
    rng = np.random.default_rng(0)
    solution = solve(planted(rng), norms.Mahalanobis(form(rng, 3, 10.0)))
    more = replace(solution, certified=replace(solution.certified, lower_bound=solution.lower_bound * 1.001))
    statement = more.verify(exact=True).statement
    assert f"the bound is said to be {more.certified.lower_bound:.17g} where the multipliers prove" in statement
