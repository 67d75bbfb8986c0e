"""The search for locally optimal directions where selections are too many to enumerate."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from attsvm import TokenData, diagnose, theory, train
from attsvm.data.synthetic import random_data
from attsvm.nn.heads import LambdaHead
from attsvm.theory.search import SIZES, random_starts, swaps, train_starts
from attsvm.theory.tokens import local_optimality


def instance(seed: int = 37) -> theory.Trial:
    """Eight sequences of six tokens, 1.7e6 selections; of seed 37 five of thirty trained starts end off the optimum."""
    return theory.Trial.of(*random_data(None, 8, 6, 10, seed=seed))


def test_the_direction_that_training_ends_in_is_known() -> None:
    trial = instance()
    rng = np.random.default_rng(0)
    choices = rng.integers(0, 6, (100, 8))
    assert not any(local_optimality(trial, selected).holds for selected in choices)
    landscape = theory.explore(trial)
    assert not landscape.exhaustive
    (first, second) = landscape.ends
    assert (first.count, first.swaps) == (25, 0)
    assert (second.count, second.swaps) == (5, 1)
    assert second.share == pytest.approx(1 / 6)
    assert second.locality.holds
    assert landscape.index(second.selected) >= 0
    assert second.correlation > 0.99
    assert "16.7 %  1 swap from the optimal tokens, locally optimal" in landscape.table()


@pytest.mark.parametrize("how", ["swaps", "realised"])
def test_it_is_known_without_training_too(how: str) -> None:
    trial = instance()
    other_end = theory.explore(trial).ends[1].selected
    if how == "swaps":
        landscape = theory.explore(trial, starts=0)
    else:
        landscape = theory.explore(trial, starts=0, samples=1, realised=other_end)
        assert len(landscape.selections) == 2
    assert landscape.index(other_end) >= 0
    assert landscape.ends == ()


def test_a_number_of_directions_says_of_how_many() -> None:
    trial = instance()
    few = theory.explore(trial, starts=0, samples=1)
    assert few.counted == "1 locally optimal direction of those searched (1 of 1.68e+06 selections searched)"
    prediction = theory.predict(trial, landscape=few)
    assert "1 direction is locally optimal of those searched" in prediction.conjecture
    small = theory.Trial.of(*random_data(None, 2, 3, 4, seed=0))
    assert "of those searched" not in theory.explore(small).counted


def test_a_diagnosis_looks_where_training_went_and_shows_the_ends() -> None:
    data, v = random_data(None, 8, 6, 10, seed=37)
    trial = theory.Trial.of(data, v)
    other_end = theory.explore(trial).ends[1].selected
    trace = train(data, v, init=2 * local_optimality(trial, other_end).W, steps=300)
    diagnosis = diagnose(data, v, trace, samples=20, starts=0)
    assert diagnosis.landscape.index(np.asarray(trace.selected)) >= 0
    text = str(diagnose(data, v, trace))
    assert "Ends of training from 30 starts" in text
    assert "16.7 %" in text
    assert "of those searched" in text


def test_swaps_change_one_token_nearest_to_the_margin_first() -> None:
    trial = instance()
    optimum = local_optimality(trial, trial.optimal)
    exchanges = list(swaps(optimum))
    assert len(exchanges) == len(set(exchanges)) == 8 * 5
    differences = np.array(exchanges) != trial.optimal
    assert (differences.sum(axis=1) == 1).all()
    margins = np.asarray(optimum.solution.margins)
    rows = differences.argmax(axis=1)
    order = margins[rows, np.array(exchanges)[np.arange(40), rows]]
    assert (np.diff(order) >= 0).all()


def test_shares_are_those_of_training_one_by_one() -> None:
    trial = instance(31)
    starts = random_starts(trial, 6, 0)
    assert not starts[0].any()
    together = train_starts(trial, starts, 400)
    for start, selected in zip(starts, together.selected, strict=True):
        trace = train(trial.data, trial.v, init=start, steps=400)
        assert (np.asarray(trace.selected) == selected).all()


def test_a_trained_start_is_the_last_record() -> None:
    data, v = random_data(None, 3, 4, 5, seed=1)
    trial = theory.Trial.of(data, v)
    starts = random_starts(trial, 2, 0)
    trained = train_starts(trial, starts, 9, record_every=3)
    for start, W, attention in zip(starts, trained.W, trained.least_attention, strict=True):
        np.testing.assert_allclose(W, train(data, v, init=start, steps=9).W[-1], rtol=1e-12, atol=1e-14)
        assert attention == pytest.approx(softmax(trial.logits(W), axis=1).max(axis=1).min(), rel=1e-12)


@pytest.mark.parametrize("length", [0.25, 4.0])
def test_starts_have_shares_of_the_norm_of_the_svm(length: float) -> None:
    # One margin length W_1: the norm of the SVM is its inverse.
    data = TokenData(np.array([[[length, 0.0], [0.0, 0.0]]]), [[1.0]], [1.0])
    sizes = np.linalg.norm(random_starts(theory.Trial.of(data, [1.0, 0.0]), 4, 0), axis=(1, 2))
    np.testing.assert_allclose(sizes, np.array([0.0, SIZES[1], *SIZES]) / length, rtol=1e-8)


def test_starts_read_the_values_and_the_head_of_their_trial() -> None:
    """Values that prefer the other token, under a linear head and under one that is not."""
    tokens, values = np.array([[[1.0, 0.0], [0.0, 1.0]]]), np.array([[[0.0], [1.0]]])
    data = TokenData(tokens, [[1.0]], [1.0], values=values)
    for head in ([1.0], LambdaHead(np.array([1.0]), 0.1)):
        trained = train_starts(theory.Trial.of(data, head), np.zeros((2, 2, 1)), 50)
        assert trained.selected.tolist() == [[1], [1]]


def test_without_an_svm_starts_have_logits_of_size_one() -> None:
    """The middle of two tokens is best, and no matrix selects it; the starts shrink as the tokens grow."""
    values = np.array([[[1.0], [0.0], [0.0]]])
    sizes = {}
    for scale in (0.0, 1.0, 10.0):
        data = TokenData(scale * np.array([[[0.0, 1.0], [1.0, 1.0], [-1.0, 1.0]]]), [[2.0, 0.0]], [1.0], values=values)
        sizes[scale] = np.linalg.norm(random_starts(theory.Trial.of(data, [1.0]), 4, 0), axis=(1, 2))
    # ||W|| = sqrt(d dz) over the mean lengths, of the tokens (1 + 2 sqrt 2) / 3 and of the query 2.
    lengths = 2 * (1 + 2 * np.sqrt(2)) / 3
    for scale, size in sizes.items():
        assert size[0] == 0
        np.testing.assert_allclose(size[1:], 2 / (scale * lengths or 1.0) * np.resize(SIZES, 4)[1:], rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"starts": -1}, "starts"),
        ({"starts": True}, "starts"),
        ({"realised": np.zeros(3, int)}, "realised"),
        ({"realised": np.full(8, 6)}, "realised"),
        ({"realised": [0, 1, 2, 3, 4, 5, 0, 6]}, "realised"),
        ({"realised": [-1, 1, 2, 3, 4, 5, 0, 5]}, "realised"),
        ({"realised": np.zeros(8)}, "realised"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        theory.explore(instance(), **options)  # type: ignore[arg-type]


def test_a_hidden_token_is_no_selection() -> None:
    data, v = random_data(None, 3, 3, 4, seed=0)
    mask = np.ones((3, 3), bool)
    mask[1, 2] = False
    trial = theory.Trial.of(type(data)(data.tokens, data.queries, data.labels, mask), v)
    with pytest.raises(ValueError, match="hidden"):
        theory.explore(trial, realised=[0, 2, 0])


def test_token_data_and_a_head_are_explored_as_their_trial() -> None:
    data, v = random_data(None, 2, 3, 4, seed=1)
    ours, theirs = theory.explore(data, v), theory.explore(theory.Trial.of(data, v))
    assert ours.total == theirs.total == 9
    assert [one.selected.tolist() for one in ours.directions] == [one.selected.tolist() for one in theirs.directions]
    with pytest.raises(ValueError, match="head is None"):
        theory.explore(data)
