"""Numbers of the ledger's curves, and pairings of our runs with them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from attsvm_paper.judging.points import Point
from attsvm_paper.published.ledger import LedgerNumber, curve


def printed(key: str, x: float) -> LedgerNumber:
    """Return the printed number of a curve at a point that has one."""
    number = curve(key).at(x)
    assert number is not None
    return number


def check_points(ours: Sequence[Point], expected: Sequence[tuple[str, float, dict[int, float]]]) -> None:
    """Compare pairings with (curve, grid value, value by seed)."""
    assert [one.published.key for one in ours] == [f"{key} @ {x}" for key, x, _ in expected]
    for one, (key, x, values) in zip(ours, expected, strict=True):
        assert one.published == printed(key, x)
        assert one.values == pytest.approx(values)
        assert one.place == (key, curve(key).x.index(x))
