"""Margins in twice the precision: sparse differences lose nothing."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from attsvm.core import double_double
from attsvm.core.double_double import Rows
from attsvm.core.error_free import EPS, Pair, multiply


@pytest.mark.parametrize("counts", [[1, 1, 1], [0, 3, 2], [4, 4, 4], [9, 1, 2]])
def test_margins_are_within_their_error_however_sparse(counts: list[int]) -> None:
    rng = np.random.default_rng(counts)
    d, dz = 9, 3
    selected, other = np.zeros((3, d)), np.zeros((3, d))
    for k, count in enumerate(counts):
        axes = rng.permutation(d)[:count]
        selected[k, axes] = rng.standard_normal(count)
        other[k, axes[:1]] = rng.standard_normal(len(axes[:1]))
    queries, W = rng.standard_normal((3, dz)), rng.standard_normal((d, dz))
    rows = Rows.between(selected, other, queries, np.arange(3))
    margins, error = rows.margins(Pair(W, np.zeros(W.shape)))
    for k in range(3):
        exact = sum(
            (Fraction(a) - Fraction(b)) * Fraction(w) * Fraction(z)
            for a, b, line in zip(selected[k].tolist(), other[k].tolist(), W.tolist(), strict=True)
            for w, z in zip(line, queries[k].tolist(), strict=True)
        )
        length = float(np.linalg.norm(selected[k] - other[k]) * np.linalg.norm(queries[k]) * np.linalg.norm(W))
        assert abs(Fraction(float(margins.high[k])) + Fraction(float(margins.low[k])) - exact) <= error * length
    assert (double_double._axes(rows.delta.high) is None) == (max(counts) > d // 2)


def test_a_pair_is_rounded_to_the_nearest_float() -> None:
    low = np.array([0.75, -0.75, 0.25, -0.125]) * EPS
    np.testing.assert_array_equal(Pair(np.ones(4), low).rounded(), [1.0 + EPS, 1.0 - EPS, 1.0, 1.0])


def test_a_row_at_the_end_of_the_range_costs_other_rows_no_digits() -> None:
    rng = np.random.default_rng(0)
    selected, queries, W = rng.standard_normal((2, 3)), rng.standard_normal((2, 2)), rng.standard_normal((3, 2))
    selected[0] = 1.5 * 2.0**1023
    with np.errstate(all="ignore"):
        rows = Rows.between(selected, np.zeros((2, 3)), queries, np.arange(2))
        margins, error = rows.margins(Pair(W, np.zeros(W.shape)))
    exact = sum(
        Fraction(x) * Fraction(w) * Fraction(z)
        for x, line in zip(selected[1].tolist(), W.tolist(), strict=True)
        for w, z in zip(line, queries[1].tolist(), strict=True)
    )
    missing = Fraction(float(margins.high[1])) + Fraction(float(margins.low[1])) - exact
    assert abs(missing) <= error * float(np.linalg.norm(selected[1]) * np.linalg.norm(queries[1]) * np.linalg.norm(W))


@pytest.mark.parametrize("few", [1, 2])
def test_products_are_formed_a_few_queries_at_a_time(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, they would take n d dz numbers of memory."""
    rng = np.random.default_rng(1)
    n, d, dz = 5, 4, 6
    selected, queries, W = rng.standard_normal((n, d)), rng.standard_normal((n, dz)), rng.standard_normal((d, dz))
    rows = Rows.between(selected, np.zeros((n, d)), queries, np.arange(n))
    calls = (
        lambda: rows.margins(Pair(W, np.zeros(W.shape))),
        lambda: rows.adjoint(Pair(np.full(n, 0.3), np.zeros(n))),
    )
    whole, sizes = [call()[0].rounded() for call in calls], []

    def multiply_and_note(a: Pair, b: Pair) -> Pair:
        product = multiply(a, b)
        sizes.append(product.high.size)
        return product

    monkeypatch.setattr(double_double, "multiply", multiply_and_note)
    monkeypatch.setattr(double_double, "BLOCK_ENTRIES", few * d * dz)
    for call, expected in zip(calls, whole, strict=True):
        sizes.clear()
        np.testing.assert_allclose(call()[0].rounded(), expected, rtol=1e-15, atol=1e-15)
        assert max(sizes) == few * d * dz
