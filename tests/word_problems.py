"""Problems over one-hot tokens, for the methods of classes and words."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import SelectionProblem


def classes(seed: int = 0, n: int = 40, K: int = 6, d: int = 4, noise: float = 1.5) -> SelectionProblem:
    """Draw inputs around the means of their classes; noise makes many margins fall short."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % K
    return SelectionProblem.from_classes(rng.normal(size=(K, d))[labels] + noise * rng.normal(size=(n, d)), labels)


def unusual_words(seed: int = 1) -> SelectionProblem:
    """Draw contexts of words with entries of either sign on some of the axes; some words are masked."""
    rng = np.random.default_rng(seed)
    tokens = np.zeros((5, 7))
    tokens[np.arange(5), [6, 0, 3, 2, 5]] = [2.0, -1.0, 0.5, 1.0, -3.0]
    selected, mask = rng.integers(5, size=30), rng.random((30, 5)) < 0.8
    mask[np.arange(30), selected] = True
    return SelectionProblem(
        tokens[None], rng.normal(size=(30, 3)), selected, mask=mask, sequence=np.zeros(30, dtype=int)
    )


def in_units(problem: SelectionProblem, unit: float) -> SelectionProblem:
    return SelectionProblem(problem.tokens, unit * problem.queries, problem.reference, sequence=problem.sequence)


PRICES = np.geomspace(0.1, 10.0, 40)
PRIOR = np.random.default_rng(5).normal(size=(6, 4))


INSTANCES = pytest.mark.parametrize(
    ("problem", "C", "prior"),
    [
        (classes(), 1e-3, None),
        (classes(), 1.0, None),
        (classes(noise=0.3), 100.0, None),
        (classes(), PRICES, None),
        (classes(), 1.0, PRIOR),
        (classes(), PRICES, PRIOR),
        (unusual_words(), 2.0, None),
        (classes(K=3, d=5), 1.0, None),
    ],
    ids=["small C", "C", "large C", "prices", "prior", "prices and prior", "scaled and masked words", "wide W"],
)
