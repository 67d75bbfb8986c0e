"""The published random instances: gaps of scores, and what one trial draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm.data import synthetic
from attsvm.data.synthetic import gapped_trial, random_data, random_trial, score_gap


def test_the_score_gap_is_the_smallest_lead_of_a_best_token() -> None:
    rng = np.random.default_rng(0)
    tokens, v, labels = rng.standard_normal((4, 5, 3)), rng.standard_normal(3), np.array([1.0, -1.0, 1.0, -1.0])
    leads = []
    for sequence, label in zip(tokens, labels, strict=True):
        second, best = sorted(label * float(token @ v) for token in sequence)[-2:]
        leads.append(best - second)
    # Sums of three products of numbers of some units.
    assert score_gap(tokens, labels, v) == pytest.approx(min(leads), abs=1e-14)
    assert score_gap(tokens[:, :1], labels, v) == np.inf


def test_every_sequence_of_a_trial_has_the_gap() -> None:
    for draw in (random_trial, gapped_trial):
        tokens, queries, labels, v = draw(np.random.default_rng(1), 3, 4, 5, gap=0.2)
        for i in range(3):
            assert score_gap(tokens[i : i + 1], labels[i : i + 1], v) >= 0.2
        assert set(labels) <= {-1.0, 1.0}
        for vectors in (tokens, queries, v):
            # Normalised in single precision.
            np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1.0, atol=1e-6)


def test_queries_of_self_attention_are_the_first_tokens() -> None:
    data, _ = random_data(2, 3, 4, 5, kind="self")
    np.testing.assert_array_equal(data.queries, data.tokens[:, :, 0])


def test_only_a_sequence_that_lacks_the_gap_is_drawn_again() -> None:
    first, _, labels, v = gapped_trial(np.random.default_rng(3), 40, 4, 5, gap=0.0)  # any draw has this gap
    last = gapped_trial(np.random.default_rng(3), 40, 4, 5, gap=0.2)[0]
    for i in range(40):
        has_gap = score_gap(first[i : i + 1], labels[i : i + 1], v) >= 0.2
        assert np.array_equal(last[i], first[i]) == has_gap


@pytest.mark.parametrize("size", [0, 2.5, True])
@pytest.mark.parametrize("name", ["trials", "n", "T", "d"])
def test_a_size_that_is_no_positive_integer_is_refused(name: str, size: float) -> None:
    sizes: Any = {"trials": 1, "n": 2, "T": 3, "d": 4} | {name: size}
    with pytest.raises(ValueError, match=f"^{name} is {size}; a positive integer was expected"):
        random_data(**sizes)


def test_one_trial_draws_no_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first draw of trial 0 has a gap that the first draw of trial 1 lacks."""
    data, v = random_data(2, 2, 3, 4, seed=2)
    gaps = [score_gap(data.tokens[j], data.labels[j], v[j]) for j in range(2)]
    assert gaps[0] > gaps[1]
    monkeypatch.setattr(synthetic, "_MAX_DRAWS", 1)
    one, _ = random_data(None, 2, 3, 4, gap=gaps[0], seed=2)
    np.testing.assert_array_equal(one.tokens, data.tokens[0])
    with pytest.raises(ValueError, match=r"^gap is .*; none of 1 draws"):
        random_data(2, 2, 3, 4, gap=gaps[0], seed=2)
