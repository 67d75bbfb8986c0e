"""Margins in twice the precision: sparse differences lose nothing."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from attsvm.core import double_double
from attsvm.core.double_double import Rows
from attsvm.core.error_free import Pair


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
