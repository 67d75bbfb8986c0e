"""Rows of an experiment by cell, and as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attsvm_paper.judging.verdict import Row


def by(rows: Sequence[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by the values of some fields, in order of those values.

    Parameters
    ----------
    rows : sequence of dict
    names : str

    Returns
    -------
    dict
        Rows keyed by the tuple of values.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return dict(sorted(groups.items()))


def having(rows: Sequence[Row], **values: Any) -> list[Row]:
    """Return the rows whose fields have these values."""
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


Panels = tuple[tuple[str, tuple[tuple[int, int], ...]], ...]


def panels_of(rows: Sequence[Row], panels: Panels) -> Panels:
    """Return the panels that contain every size (n, T) of the rows, or one panel for the missing sizes."""
    sizes = tuple(by(rows, "n", "T"))
    panel_sizes = {size for _, part in panels for size in part}
    return panels if panel_sizes.issuperset(sizes) else ((", ".join(f"n = {n}, T = {T}" for n, T in sizes[:2]), sizes),)


def column(rows: Sequence[Row], name: str) -> np.ndarray:
    """Return a field of all rows that have it, float64; None is omitted."""
    return np.array([row[name] for row in rows if row[name] is not None], dtype=float)
