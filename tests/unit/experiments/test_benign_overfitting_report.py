"""Benign overfitting: what the verdicts say of hand-made rows, and what the figure shows of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm.plots.style import NARROW, WIDE
from attsvm_paper.beyond.benign_overfitting import figure
from attsvm_paper.beyond.benign_overfitting import verdicts as verdicts_of
from attsvm_paper.judging.estimates import estimate
from attsvm_paper.judging.verdict import Row


def row_of(ratio: float, train: float | None, held_out: float | None, interpolator: float | None, **other: Any) -> Row:
    return {
        "setting": "trained", "ratio": ratio, "n": 20, "T": 8, "d": 9, "train": train, "held_out": held_out,
        "interpolator": interpolator, "feasible": interpolator is not None, "trial": 0,
    } | other  # fmt: skip


def pair(n: int, ratio: float, share: float | None, trial: int = 0) -> Row:
    return row_of(ratio, None, None, share, setting="two tokens", n=n, trial=trial)


TRAINED = [
    row_of(0.05, 0.9, 0.5, 0.45),
    row_of(0.05, 1.0, 0.7, None),
    row_of(0.2, 1.0, 0.9, 0.8),
    row_of(0.2, 1.0, 0.96, 0.9),
    row_of(0.8, 1.0, 1.0, 0.98),
    row_of(0.8, 1.0, 0.98, 0.96),
]
# The threshold is the middle of a factor of four in each trial and at each n: 0.4 and 0.2, 0.4 and 0.1.
PAIRS = [
    pair(10, 0.2, 0.9), pair(10, 0.8, 1.0), pair(40, 0.1, 0.9), pair(40, 0.4, 1.0),
    pair(10, 0.2, 0.9, 1), pair(10, 0.8, 1.0, 1), pair(40, 0.05, 0.9, 1), pair(40, 0.2, 1.0, 1), pair(40, 0.8, None, 1),
]  # fmt: skip
TRAIN = "accuracy on the training labels, flipped ones included, by descent"
HELD_OUT, INTERPOLATOR = "accuracy on fresh sequences, descent", "accuracy on fresh sequences, certified interpolator"
HIGH = (
    "Predicted by theorem: 0.95 to 1, hit. arXiv 2409.17625, 2410.07746: with enough signal held-out accuracy is high "
    "in spite of flipped labels."
)
LOW = "Predicted by guess: 0.4 to 0.75, {}. With little signal an interpolator selects noise on fresh sequences."


def test_accuracies_at_the_ends_of_the_sweep_are_compared_with_predictions() -> None:
    found = verdicts_of(TRAINED)
    sizes = [f"SNR={ratio}, n=20, T=8, d=9" for ratio in ("0.05", "0.2", "0.8")]
    words = (TRAIN, HELD_OUT, INTERPOLATOR)
    assert [one.quantity for one in found] == [f"{word}, {size}" for size in sizes for word in words]
    assert [one.measured for one in found] == pytest.approx([0.95, 0.6, 0.45, 1.0, 0.93, 0.85, 1.0, 0.99, 0.97])
    ours = estimate([0.5, 0.7], "bootstrap")
    assert (found[1].low, found[1].high) == (ours.low, ours.high)
    assert [(one.trials, one.infeasible) for one in found] == [(2, 1)] * 3 + [(2, 0)] * 6
    # One interpolator has no interval, and so decides nothing.
    assert [one.note for one in found] == ["", LOW.format("hit"), LOW.format("undecided"), "", "", "", "", HIGH, HIGH]


def test_ratios_that_are_not_of_the_sweep_have_no_prediction() -> None:
    assert [one.note for one in verdicts_of([row | {"ratio": 0.3} for row in TRAINED])] == [""] * 3


def test_pairs_are_told_by_size_and_their_threshold_by_its_exponent() -> None:
    *found, exponent = verdicts_of(PAIRS)
    assert [(one.quantity, one.measured, one.trials, one.infeasible) for one in found] == [
        (f"accuracy on fresh sequences, certified pair, two tokens, SNR={ratio}, n={n}, d=9", *rest)
        for ratio, n, *rest in (
            ("0.05", 40, 0.9, 1, 0), ("0.1", 40, 0.9, 1, 0), ("0.2", 10, 0.9, 2, 0), ("0.2", 40, 1.0, 1, 0),
            ("0.4", 40, 1.0, 1, 0), ("0.8", 10, 1.0, 2, 0),
        )
    ]  # fmt: skip
    assert exponent.quantity == "exponent of n in the least SNR of benign overfitting, two tokens"
    ours = estimate([-0.5, -1.0], "bootstrap")
    assert (exponent.measured, exponent.low, exponent.high) == pytest.approx((-0.75, ours.low, ours.high))
    assert exponent.note == (
        "Predicted by theorem: -0.75 to -0.25, undecided. arXiv 2410.07746: the least signal-to-noise ratio of benign "
        "overfitting scales like 1/sqrt(n)."
    )


def test_without_rows_or_thresholds_nothing_is_said() -> None:
    assert verdicts_of([]) == []
    assert verdicts_of([pair(10, 0.8, None)]) == []
    assert len(verdicts_of([pair(10, 0.8, 1.0), pair(40, 0.8, 1.0)])) == 2


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_figure_has_accuracies_over_the_ratio_and_a_map_of_two_tokens(width: float) -> None:
    axes: Any = figure(TRAINED + PAIRS, width).axes
    curves, plane = axes
    assert [ax.get_title("left") for ax in (curves, plane)] == ["trained attention", "two tokens: accuracy, fresh"]
    assert curves.get_ylabel() == "accuracy"
    assert plane.get_ylabel() == "sequences n"
    assert curves.get_xlabel() == plane.get_xlabel() == "signal-to-noise ratio"
    lines = {bars.get_label(): bars.lines[0] for bars in curves.containers}
    expected = {
        "training labels": [0.95, 1.0, 1.0],
        "fresh, descent": [0.6, 0.93, 0.99],
        "fresh, interpolator": [0.45, 0.85, 0.97],
    }
    assert list(lines) == list(expected)
    for label, values in expected.items():
        assert list(lines[label].get_xdata()) == [0.05, 0.2, 0.8]
        assert list(lines[label].get_ydata()) == pytest.approx(values)
    assert len({line.get_color() for line in lines.values()}) == 3
    assert [tick.get_text() for tick in curves.get_xticklabels()] == ["0.05", "0.2", "0.8"]
    assert [text.get_text() for text in curves.get_legend().get_texts()] == list(expected)
    # Ratios to the right, sizes upwards; no accuracy was measured where there is no number.
    assert [tick.get_text() for tick in plane.get_xticklabels()] == ["0.05", "0.1", "0.2", "0.4", "0.8"]
    assert list(plane.get_xticks()) == [0, 1, 2, 3, 4]
    assert [tick.get_text() for tick in plane.get_yticklabels()] == ["10", "40"]
    assert list(plane.get_yticks()) == [0, 1]
    shares = [[np.nan, np.nan, 0.9, np.nan, 1.0], [0.9, 0.9, 1.0, 1.0, np.nan]]
    (mesh,) = plane.collections
    np.testing.assert_allclose(np.ma.filled(mesh.get_array(), np.nan), shares)
    assert {text.get_position(): text.get_text() for text in plane.texts} == {
        (2, 0): "0.90", (4, 0): "1.00", (0, 1): "0.90", (1, 1): "0.90", (2, 1): "1.00", (3, 1): "1.00",
    }  # fmt: skip


def test_a_setting_without_rows_leaves_its_panel_empty() -> None:
    curves, plane = figure(PAIRS).axes
    assert not curves.containers
    assert curves.get_legend() is None
    curves, plane = figure([row | {"interpolator": None} for row in TRAINED]).axes
    assert [bars.get_label() for bars in curves.containers] == ["training labels", "fresh, descent"]
    assert not plane.collections
    assert not plane.texts
