"""Bounds on rounding: never below what exact arithmetic gives, and never far above it."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from attsvm.core import rounding
from attsvm.core.error_free import EPS, UNIT, gamma
from attsvm.core.norms import Largest, Mahalanobis, Mixed, Sum, Weighted, get_norm
from attsvm.core.norms.schatten import singular_values
from attsvm.core.rounding import growth, lengths_above, norm_above, row_lengths, squares_of, sum_below
from attsvm.proofs.dyadic import Dyadic
from exact import dual_norm_above
from exact import norm_above as exact_norm_above

NORMS = ("frobenius", "nuclear", "spectral", "max", 1, 1.5, 3)


def square(values: np.ndarray) -> Fraction:
    return sum((Fraction(float(v)) ** 2 for v in values.ravel()), Fraction(0))


def test_gamma_is_the_constant_of_k_roundings() -> None:
    """(1 + u)^k - 1 <= k u / (1 - k u), by less than the square of k u."""
    for k in (0, 1, 2.5, 7, 1000, 2**20):
        units = Fraction(k) / 2**53
        assert float(units / (1 - units)) == pytest.approx(gamma(k), rel=1e-15, abs=0)
    assert UNIT == 2.0**-53
    assert float(np.finfo(float).eps) == EPS


def test_row_lengths_at_every_scale() -> None:
    rng = np.random.default_rng(0)
    base = rng.standard_normal((6, 5))
    for exponent in (-1060, -600, -520, -500, -490, -300, 0, 300, 490, 500, 520, 1000):
        rows = np.ldexp(base, exponent)
        for row, length in zip(rows, row_lengths(rows), strict=True):
            true = mpmath.sqrt(mpmath.mpf(square(row).numerator) / square(row).denominator)
            # Subnormal lengths are a multiple of the smallest float.
            assert abs(mpmath.mpf(float(length)) - true) <= true * 13 * mpmath.mpf(UNIT) + mpmath.mpf(2) ** -1073
    np.testing.assert_array_equal(row_lengths(np.zeros((2, 3))), [0.0, 0.0])
    mixed = row_lengths(np.array([[3.0, 4.0], [0.0, 0.0], [3e-200, 4e-200], [3e200, 4e200]]))
    np.testing.assert_allclose(mixed, [5.0, 0.0, 5e-200, 5e200], rtol=1e-15, atol=0)
    np.testing.assert_allclose(row_lengths(base.reshape(2, 3, 5)), np.linalg.norm(base.reshape(2, 3, 5), axis=2))


def test_squares_are_sums_along_the_last_axis() -> None:
    rows = np.random.default_rng(1).standard_normal((2, 3, 4))
    np.testing.assert_allclose(squares_of(rows), (rows**2).sum(axis=-1), rtol=1e-15)


@pytest.mark.parametrize("size", [1, 2, 7, 129, 1000, 30_000])
def test_sums_are_bounded_from_below(size: int) -> None:
    values = np.random.default_rng(size).random(size) ** 4
    exact = sum((Fraction(float(v)) for v in values), Fraction(0))
    # min(k, 200) + 1 roundings are allowed for, and the sum itself is off by as many at most.
    assert exact * (1 - Fraction(2 * (min(size, 200) + 2)) / 2**53) <= Fraction(sum_below(values)) <= exact
    # What theory asks for: k - 1 roundings of the sum and one of the product.
    assert Fraction(sum_below(values)) <= Fraction(float(values.sum())) * (1 - Fraction(min(size, 200)) / 2**53)


def test_lengths_above_hold_what_underflows() -> None:
    """A difference of 1e-120 beside one of 1: its square is lost, its length is not."""
    delta = np.array([[[1.0, 0.5], [1e-120, 3e-121], [0.0, 0.0]]])
    queries = np.array([[2.0, 1.0]])
    lengths = lengths_above(squares_of(delta), squares_of(queries), 5)
    assert lengths is not None
    for t in range(3):
        assert square(delta[0, t]) * square(queries) <= Fraction(float(lengths[0, t])) ** 2
    assert lengths[0, 0] <= np.sqrt(1.25 * 5) * (1 + 1e-14)
    assert lengths[0, 1] <= 1e-99


@pytest.mark.parametrize("position", [0, 1])
def test_lengths_out_of_range_are_refused(position: int) -> None:
    for square_of_scale, fine in ((1e-101, False), (0.9e-100, False), (1.1e-100, True), (1e-99, True), (1e99, True),
                                  (0.9e100, True), (1.1e100, False), (math.inf, False)):  # fmt: skip
        squares = [np.array([[1.0, 0.5]]), np.array([1.0])]
        squares[position] = squares[position] * square_of_scale
        assert (lengths_above(squares[0], squares[1], 4) is not None) == fine, square_of_scale


def test_lengths_above_allow_for_the_roundings_named() -> None:
    """Squares that are too small by a relative (1 - u)^k still give a bound, and k more roundings cost k/2 units."""
    delta, queries = np.array([[[3.0, 4.0]]]), np.array([[1.0]])
    for roundings in (0, 10, 1000):
        short = (1 - UNIT) ** roundings
        lengths = lengths_above(squares_of(delta) * short, squares_of(queries), roundings)
        assert lengths is not None
        # The factor of the squares allows for k + 8 roundings; the root halves it.
        assert 5.0 <= lengths[0, 0] <= 5.0 * (1 + (roundings + 16) * UNIT)


# --- growth: the norm of every matrix of Frobenius norm one ---


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("norm", [*NORMS, "ky-fan:2"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (4, 2)])
def test_growth_bounds_every_matrix_and_is_attained(norm: str | float, shape: tuple[int, int], dual: bool) -> None:
    measure = get_norm(norm)
    bound = growth(measure, shape, dual)
    rng = np.random.default_rng(2)
    corner = np.zeros(shape)
    corner[0, 0] = 1.0
    level = np.ones(shape) / math.sqrt(math.prod(shape))
    turn = np.eye(*shape)
    plane = turn * (np.arange(shape[1]) < 2)
    worst = 0.0
    for M in (corner, level, turn, plane, *rng.standard_normal((20, *shape))):
        unit = M / np.linalg.norm(M)
        value = measure.dual(unit) if dual else measure.value(unit)
        assert value <= bound * (1 + 1e-15)
        worst = max(worst, value)
    # A corner, a constant or a partial isometry attains each of these; the allowance is a thousand units. Rounding
    # cannot reach beyond a bound of one, which is exact.
    assert bound <= worst * (1 + 3e-13)
    assert bound == 1.0 or bound >= worst * (1 + 2 * math.prod(shape) * UNIT)
    assert bound == 1.0 or bound > 1.0


@pytest.mark.parametrize(("p", "dual"), [(1.0, False), (math.inf, True)])
def test_a_weighted_norm_grows_with_its_weights(p: float, dual: bool) -> None:
    """A weighted sum of entries is at most the length of the weights, which the weights themselves attain."""
    weights = np.array([[3.0, 4.0, 0.5], [12.0, 1.0, 2.0]])
    bound = growth(Weighted(1.0 / weights if dual else weights, p), weights.shape, dual)
    length = float(np.linalg.norm(weights))
    assert length < bound <= length * (1 + 3e-13)


# --- norms from above ---


def random_matrix(seed: int) -> np.ndarray:
    """Matrices of small and full rank, with singular values that repeat and ones far apart."""
    rng = np.random.default_rng(seed)
    M = rng.standard_normal((6, 4))
    if seed % 4 == 1:
        M = np.linalg.qr(M)[0]
    if seed % 4 == 2:
        M = rng.standard_normal((6, 2)) @ rng.standard_normal((2, 4))
    if seed % 4 == 3:
        M[:, 2:] *= 1e-9
    return M * 10.0 ** rng.integers(-3, 4)


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("sharp", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_norms_in_floats_against_exact_ones(norm: str | float, sharp: bool, dual: bool) -> None:
    measure = get_norm(norm)
    for seed in range(8):
        M = random_matrix(seed)
        value = measure.dual(M) if dual else measure.value(M)
        exact = (dual_norm_above if dual else exact_norm_above)(measure, Dyadic.of(M))
        above = norm_above(measure, M, value, dual=dual, sharp=sharp)
        # The exact bound exceeds the norm itself by 1e-15 of it at most (tests/unit/proofs/test_exact.py).
        assert above >= float(exact) * (1 - 1e-15)
        assert above <= float(exact) * (1 + (2e-14 if sharp else 3e-13))


@pytest.mark.parametrize("norm", NORMS)
def test_an_infinite_norm_stays_infinite(norm: str | float) -> None:
    measure = get_norm(norm)
    assert norm_above(measure, np.full((2, 2), np.inf), math.inf) == math.inf
    assert norm_above(measure, np.full((2, 2), np.nan), math.nan) == math.inf


@pytest.mark.parametrize("norm", ["nuclear", "spectral"])
def test_singular_values_of_what_is_not_finite_bound_nothing(norm: str) -> None:
    M = np.array([[1.0, np.nan, 2.0], [0.0, 1.0, 1.0]])
    np.testing.assert_array_equal(singular_values(M), [math.inf, math.inf])
    assert norm_above(get_norm(norm), M, 1.0) == math.inf
    assert norm_above(get_norm(norm), M, 1.0, dual=True) == math.inf


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (1, 4)])
def test_each_singular_value_counts_a_modest_multiple_of_the_largest(shape: tuple[int, int]) -> None:
    """The multiple is 8 (d dz + 8), once for each of the smaller dimension."""
    for norm in ("nuclear", "spectral"):
        for dual in (False, True):
            assert get_norm(norm).roundings(shape, dual) == 8 * (math.prod(shape) + 8) * min(shape)


def test_the_largest_entry_carries_no_rounding() -> None:
    M = random_matrix(0)
    assert norm_above(get_norm("max"), M, float(np.abs(M).max())) == np.abs(M).max()
    assert norm_above(get_norm(1), M, float(np.abs(M).max()), dual=True) == np.abs(M).max()


@pytest.mark.parametrize("size", [1e-160, 1e-320, 1e200])
def test_frobenius_norms_at_the_ends_of_the_range(size: float) -> None:
    M = size * np.array([[3.0, 4.0], [0.0, 0.0]])
    measure = get_norm("frobenius")
    for sharp in (False, True):
        above = norm_above(measure, M, measure.value(M), sharp=sharp)
        assert Fraction(above) ** 2 >= square(M)
        # Subnormal entries are a multiple of the smallest float, of which as many are allowed as there are entries.
        assert above <= np.linalg.norm(M / size) * size * (1 + 1e-13) + 5 * 2.0**-1074
    assert norm_above(measure, np.zeros((2, 3)), 0.0, sharp=True) == 0.0
    smallest = np.array([[2.0**-1074]])
    assert norm_above(measure, smallest, measure.value(smallest), sharp=True) >= 2.0**-1074


def test_a_norm_in_other_coordinates_allows_for_their_condition() -> None:
    """|L^-1 M|_F computed by LAPACK is off by the condition number of L."""
    M = random_matrix(0)
    for spread, size in ((1.0, 1.0), (1e6, 1.0), (1e6, 1e-6)):
        shape = size * np.diag([spread, 1.0, 1.0, 1.0, 1.0, 1.0])
        measure = Mahalanobis(shape, np.eye(4))
        value = measure.value(M)
        above = norm_above(measure, M, value)
        condition = max(math.prod(float(np.linalg.cond(f)) for f in measure.transform if f is not None), 1.0)
        assert M.size * UNIT * condition <= above / value - 1 <= 20 * (M.size + 8) * UNIT * condition


@pytest.mark.parametrize("composition", [Sum, Largest])
def test_a_split_counts_a_rounding_of_every_entry(composition: type[Sum | Largest]) -> None:
    """The Frobenius norm is its own dual: all that the dual of a composition adds is what M - M_1 rounds."""
    norm = composition("frobenius", "frobenius")
    assert norm.roundings((3, 4), dual=True) - norm.roundings((3, 4)) == 12


# --- the parts ---


@pytest.mark.parametrize("sharp", [False, True])
def test_rows_that_are_nearly_orthonormal(sharp: bool) -> None:
    """||Q||^2 <= 1 + ||Q Q^T - I||_F: at least the norm, and one to within the distance from orthonormal."""
    rng = np.random.default_rng(3)
    for size in (0.0, 1e-12, 1e-6, 1e-2):
        Q = np.linalg.qr(rng.standard_normal((7, 3)))[0].T + size * rng.standard_normal((3, 7))
        bound = rounding._orthonormal_above(Q, sharp=sharp)
        true = float(exact_norm_above(get_norm("spectral"), Dyadic.of(Q)))
        defect = float(np.linalg.norm(Q @ Q.T - np.eye(3)))
        # The exact bound is itself above the norm by some 1e-15.
        assert true * (1 - 2e-15) <= bound <= 1 + 0.5 * defect + (3e-15 if sharp else 1e-14)


@pytest.mark.parametrize("sharp", [False, True])
def test_what_factors_miss(sharp: bool) -> None:
    rng = np.random.default_rng(4)
    K, Q = rng.standard_normal((5, 3)), rng.standard_normal((3, 4))
    exact = [sum(Fraction(K[i, k]) * Fraction(Q[k, j]) for k in range(3)) for i in range(5) for j in range(4)]
    for size in (0.0, 1e-14, 1e-3):
        M = K @ Q + size * rng.standard_normal((5, 4))
        missing = sum((Fraction(m) - e) ** 2 for m, e in zip(M.ravel().tolist(), exact, strict=True))
        bound = rounding._miss_above(M, K, Q, sharp=sharp)
        assert Fraction(bound) ** 2 >= missing
        # Five roundings of the product of the factors' norms in floats, their square in twice the precision.
        room = 6 * UNIT * np.linalg.norm(K) * np.linalg.norm(Q) * (UNIT * 1e3 if sharp else 1.0)
        assert bound <= math.sqrt(missing) * (1 + 1e-13) + room


# --- allowances, with a unit of 1e-6 in them alone ---


COARSE = 1e-6


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "UNIT", COARSE)
    monkeypatch.setattr(rounding, "FUNCTION_ROUNDING", 4 * COARSE)
    monkeypatch.setattr(rounding, "gamma", lambda k: k * COARSE)
    monkeypatch.setattr(rounding, "error_of", lambda first, second: 0.0)


def units(above: float, true: float) -> float:
    return (above / true - 1) / COARSE


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("shape", [(1, 1), (6, 4), (5, 30)])
def test_a_sum_of_squares_is_off_by_half_a_rounding_an_entry(shape: tuple[int, int]) -> None:
    M = np.random.default_rng(5).standard_normal(shape)
    size, value = M.size, float(np.linalg.norm(M))
    measure = get_norm("frobenius")
    assert 0.5 * size + 1 <= units(norm_above(measure, M, value), value) <= 0.5 * size + 10
    assert 2 <= units(norm_above(measure, M, value, sharp=True), value) <= 5
    assert 0.5 * size + 1 <= units(rounding._frobenius_above(M), value) <= 0.5 * size + 10


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(("r", "k"), [(2, 40), (9, 40), (9, 12)])
def test_a_gram_matrix_is_off_by_the_products_of_its_rows(r: int, k: int) -> None:
    """||Q Q^T - I||_F is at most k + 2 units of ||Q||_F^2 = r, and half of that is the norm's."""
    Q = np.eye(r, k)
    plain = units(rounding._orthonormal_above(Q, sharp=False), 1.0)
    assert 0.5 * k * r + 2 <= plain <= 0.5 * (k + 2) * r + 6 + 1e-3 * k * r
    assert 2 <= units(rounding._orthonormal_above(Q, sharp=True), 1.0) <= 6
    off = np.eye(r, k) * (1 + 1e-3)
    room = r**0.5 * (2e-3 + 1e-6) / 2 / COARSE
    assert room * (1 - 0.01) <= units(rounding._orthonormal_above(off, sharp=True), 1.0) <= room + 8


@pytest.mark.usefixtures("coarse")
def test_a_product_of_factors_is_off_by_its_terms() -> None:
    rng = np.random.default_rng(6)
    for r in (1, 3, 20):
        K, Q = rng.standard_normal((6, r)), rng.standard_normal((r, 4))
        size = float(np.linalg.norm(K) * np.linalg.norm(Q))
        plain = rounding._miss_above(K @ Q, K, Q, sharp=False) / COARSE / size
        assert r + 1 <= plain <= (r + 2.1) * (1 + (0.5 * 10 * r + 30) * COARSE)
        assert rounding._miss_above(K @ Q, K, Q, sharp=True) <= 1e-14 * size
        M = K @ Q + rng.standard_normal((6, 4))
        difference = float(np.linalg.norm(M - K @ Q))
        assert 0.5 * 24 + 3 <= units(rounding._miss_above(M, K, Q, sharp=True), difference) <= 0.5 * 24 + 13
        # Beside factors of zeros: the norm itself, differences, two factors above one and their products, and the sum.
        alone = rounding._miss_above(M, np.zeros(K.shape), Q, sharp=False)
        assert 0.5 * 24 + 6 <= units(alone, float(np.linalg.norm(M))) <= 0.5 * 24 + 13


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("shape", [(7, 6), (30, 2)])
def test_norms_of_singular_values_are_off_by_their_factors(shape: tuple[int, int]) -> None:
    M = np.random.default_rng(7).standard_normal(shape)
    s = np.linalg.svd(M, compute_uv=False)
    r, (d, dz), total, length = len(s), shape, float(s.sum()), float(np.linalg.norm(s))
    K = math.sqrt(total)  # the Frobenius norm of both factors
    nuclear, spectral = get_norm("nuclear"), get_norm("spectral")
    for measure, dual in ((nuclear, False), (spectral, True)):
        plain = units(norm_above(measure, M, total, dual=dual), total)
        squares, miss = 0.5 * r * (d + dz), math.sqrt(r) * K * K / total
        assert squares + r * miss + 3 <= plain <= squares + 16 + (r + 2) * miss + 5 + 1e-3 * plain
        assert 6 <= units(norm_above(measure, M, total, dual=dual, sharp=True), total) <= 13
    for measure, dual in ((spectral, False), (nuclear, True)):
        plain = units(norm_above(measure, M, float(s[0]), dual=dual), float(s[0]))
        stretch, miss = 0.5 * r * (d + dz), math.sqrt(r) * length / float(s[0])
        assert stretch + r * miss + 3 <= plain <= stretch + 2 * r + 14 + (r + 3) * miss + 1e-3 * plain
        sharp = units(norm_above(measure, M, float(s[0]), dual=dual, sharp=True), float(s[0]))
        assert 6 + miss <= sharp <= 14 + miss


@pytest.mark.usefixtures("coarse")
def test_powers_and_their_root() -> None:
    M = np.random.default_rng(8).standard_normal((6, 5))
    for p in (1, 1.5, 3):
        measure = get_norm(p)
        value = measure.value(M)
        # A sum of k powers to p units each, then the p-th root.
        assert 30 / p + 2 <= units(norm_above(measure, M, value), value) <= 30 / p + 40 + 4 * math.log(30)
    q = 3 / 2
    value = get_norm(3).dual(M)
    assert 30 / q + 2 <= units(norm_above(get_norm(3), M, value, dual=True), value) <= 30 / q + 40 + 4 * math.log(30)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_a_norm_of_norms_counts_the_entries_of_both(axis: str) -> None:
    """The largest of two sums of 200 entries; its dual is a sum of two largest entries."""
    rows = np.random.default_rng(10).standard_normal((2, 200))
    M, measure = rows if axis == "rows" else rows.T, Mixed(1, math.inf, axis=axis)
    value, dual = float(np.abs(rows).sum(axis=1).max()), float(np.abs(rows).max(axis=1).sum())
    assert 200 <= units(norm_above(measure, M, value), value) <= 200 + 40 + 4 * math.log(200)
    assert 2 <= units(norm_above(measure, M, dual, dual=True), dual) <= 2 + 40 + 4 * math.log(2)


def test_a_gram_matrix_in_twice_the_precision_is_off_by_its_rows_squared(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an error of 1e-6 of ||Q||_F^2 = r, half of which is the norm's."""
    monkeypatch.setattr(rounding, "error_of", lambda first, second: COARSE)
    for r in (2, 9):
        assert units(rounding._orthonormal_above(np.eye(r, 12), sharp=True), 1.0) == pytest.approx(0.5 * r, rel=1e-4)


def test_sums_in_twice_the_precision_are_for_small_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    K, Q = rng.standard_normal((6, 3)), rng.standard_normal((3, 4))
    for call, count in (
        (lambda: rounding._miss_above(K @ Q, K, Q, sharp=True), 6 * 3 * 4),
        (lambda: rounding._orthonormal_above(np.eye(3, 7), sharp=True), 3 * 3 * 7),
    ):
        monkeypatch.setattr(rounding, "SHARP_PRODUCTS", count)
        narrow = call()
        monkeypatch.setattr(rounding, "SHARP_PRODUCTS", count - 1)
        assert narrow < call()


@pytest.mark.usefixtures("coarse")
def test_a_sum_from_below_counts_the_additions() -> None:
    for size in (1, 5, 100, 200, 1000):
        values = np.random.default_rng(size).random(size)
        shortfall = -units(sum_below(values), float(values.sum()))
        assert min(size, 200) <= shortfall <= min(size, 200) + 2
