"""Rows of the concave head, made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm_paper.judging.verdict import Row

STEP = [1, 101, 201, 301, 401, 501, 1001, 2001, 5001]
NAMES = {"equivalent": "SVM equivalent", "mm": "max-margin part"}


def course(level: float) -> list[float]:
    """Return distances that differ at every record."""
    return [level / (1 + at) for at in range(len(STEP))]


def row(seed: int, lam: float = 1.0, **other: Any) -> Row:
    nothing = dict.fromkeys(("masked", "equivalent", "mm", "drawn"))
    settings = {"numerics": "exact", "tau": 0, "T": 10, "d": 10, "steps": 5001, "trial": seed, "step": STEP}
    return {"seed": seed, "lam": lam, "count": 7, "early": 8, "lemma": 7, "off": 0.01, **settings, **nothing} | other


def bounded(seed: int, tau: int, lemma: int | None, drawn: float | None, **other: Any) -> Row:
    return row(seed, 0.0, numerics="lemma", tau=tau, steps=0, count=None, lemma=lemma, drawn=drawn, step=None) | other


def trained_cell(lam: float, count: int = 7, **other: Any) -> list[Row]:
    """Four runs, of which one has no SVM equivalent."""
    levels = (0.3, 0.2, 0.5)
    cell = [
        row(seed, lam, count=count, equivalent=course(level), mm=course(2 * level), **other)
        for seed, level in enumerate(levels)
    ]
    return [*cell, row(len(levels), lam, count=count, **other)]


def figure_rows() -> list[Row]:
    """A dozen trials of every part of the figures, with outputs on both sides of the edge."""
    rng = np.random.default_rng(0)
    rows = []
    for seed in range(24):
        for lam in (1.0, 1.2):
            own = {"count": int(rng.choice([8, 9, 9, 9])), "masked": 1e-6 if seed % 2 else 1e-4}
            for numerics in ("exact", "published"):
                levels = {name: course(float(rng.uniform(0.1, 0.3))) for name in NAMES}
                rows.append(row(seed, lam, numerics=numerics, **own, **levels))
        rows += [bounded(seed, tau, int(rng.integers(2, tau + 1)), float(rng.uniform(0.1, 1))) for tau in (3, 4)]
        rows.append(row(seed, numerics="lemma", count=9, lemma=8))
    return rows
