"""The figure on regularisation: what each panel draws, from rows made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from attsvm.plots.style import NARROW, WIDE
from attsvm_paper.beyond import regularisation
from attsvm_paper.beyond.regularisation import FIELDS
from attsvm_paper.judging.statistics import mean_interval
from drawn import curves, in_one_column, levels, panel_height, ticks


def row(**values: Any) -> dict[str, Any]:
    return {"n": 6, "T": 8, "d": 10, "heads": 1, "strength": 0.0, "infeasible": False} | dict.fromkeys(FIELDS) | values


def sizes(d: int, T: int, heads: int, **means: float | None) -> list[dict[str, Any]]:
    """Two trials whose mean is the given one."""
    return [
        row(topic="size", d=d, T=T, heads=heads, **{
            name: None if mean is None else mean + part for name, mean in means.items()
        })
        for part in (-0.5, 0.5)
    ]  # fmt: skip


RANKS = {"local_optima": 4.0, "rank": 3.0, "nuclear_rank": 2.0, "agree": 1.0, "margin": 0.9}
DECAY = [
    row(topic="decay", strength=strength, relative=relative)
    for strength, relative in ((0.01, 2.0), (0.01, 3.0), (0.01, None), (0.0001, 6.0), (0.0001, 7.0))
]
DROPOUT = [
    row(topic=topic, strength=strength, margin=margin)
    for topic, strength, margin in (
        ("tokens", 0.0, 0.9), ("tokens", 0.5, 0.6), ("weights", 0.0, 0.9), ("weights", 0.5, 0.8), ("weights", 0.5, 0.6)
    )
]  # fmt: skip
EARLY = [
    row(topic="early", step=step, margin=margin, correlation=corr)
    for step, margin, corr in ((10, 0.2, 0.5), (10, 0.4, 0.7), (100, 0.8, 0.9))
]
SIZE = [
    *sizes(3, 5, 1, **RANKS),
    *sizes(8, 5, 1, **RANKS | {"rank": 5.0, "local_optima": None}),
    *sizes(16, 5, 1, **RANKS | {"rank": 6.0, "local_optima": 7.0}),
    *sizes(8, 3, 1, **RANKS | {"local_optima": 2.0}),
    *sizes(8, 5, 2, **RANKS | {"agree": 0.75, "margin": 0.6}),
    # Other sizes than the common ones are not drawn with them.
    *sizes(3, 3, 4, **RANKS),
]
TITLES = [
    "weight decay: which R", "dropout: margin", "early stopping", "dimension d, T = 5", "length T, d = 8",
    "several heads",
]  # fmt: skip


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_each_topic_has_its_panels(width: float) -> None:
    figure = regularisation.figure([*DECAY, *DROPOUT, *EARLY, *SIZE], width)
    assert [ax.get_title("left") for ax in figure.axes] == TITLES
    assert in_one_column(figure) is (width == NARROW)
    assert 2.4 < panel_height(figure) < 3.5
    places = [ax.get_subplotspec().get_gridspec().get_geometry() for ax in figure.axes]  # type: ignore[union-attr]
    assert set(places) == {(2, 3) if width == WIDE else (6, 1)}
    assert [(ax.get_xlabel(), ax.get_ylabel()) for ax in figure.axes] == [
        ("weight decay", "R, norms of the SVM"),
        ("share dropped", "share of the largest"),
        ("step", "share of the largest, correlation"),
        ("dimension d", "mean number"),
        ("length T", "mean number"),
        ("heads", "share of sequences, of the largest"),
    ]
    # A panel of one curve needs no legend.
    assert [ax.get_legend() is not None for ax in figure.axes] == [False, True, True, True, True, True]


def test_curves_are_means_with_their_intervals() -> None:
    radius, drop, stop, dimension, length, heads = regularisation.figure([*DECAY, *DROPOUT, *EARLY, *SIZE]).axes
    curve = curves(radius)["R over the SVM's norm"]
    assert (curve.x, curve.y) == ([0.0001, 0.01], [6.5, 2.5])
    assert (curve.low[1], curve.high[1]) == pytest.approx(mean_interval([2.0, 3.0]))
    assert ticks(radius.xaxis) == {0.0001: "0.0001", 0.01: "0.01"}
    assert {label: (one.x, one.y) for label, one in curves(drop).items()} == {
        "dropout of tokens": ([0.0, 0.5], [0.9, 0.6]),
        "dropout of weights": ([0.0, 0.5], [0.9, 0.7]),
    }
    assert {label: (one.x, one.y) for label, one in curves(stop).items()} == {
        "margin": ([10, 100], pytest.approx([0.3, 0.8])),
        "correlation": ([10, 100], pytest.approx([0.6, 0.9])),
    }
    assert stop.get_xscale() == "log"
    assert levels(stop) == {"": 1.0}
    assert {label: (one.x, one.y) for label, one in curves(dimension).items()} == {
        "local optima": ([3, 16], [4.0, 7.0]),
        "rank, Frobenius": ([3, 8, 16], [3.0, 5.0, 6.0]),
        "rank, nuclear": ([3, 8, 16], [2.0, 2.0, 2.0]),
    }
    assert ticks(dimension.xaxis) == {3: "3", 8: "8", 16: "16"}
    assert {label: (one.x, one.y) for label, one in curves(length).items()} == {
        "local optima": ([3], [2.0]),
        "rank, Frobenius": ([3, 5], [3.0, 5.0]),
        "rank, nuclear": ([3, 5], [2.0, 2.0]),
    }
    assert {label: (one.x, one.y) for label, one in curves(heads).items()} == {
        "heads agree": ([1, 2], [1.0, 0.75]),
        "margin": ([1, 2], pytest.approx([0.9, 0.6])),
    }
    assert list(heads.get_xticks()) == [1, 2]


def test_curves_of_one_panel_look_different_and_margins_look_alike_everywhere() -> None:
    figure = regularisation.figure([*DECAY, *DROPOUT, *EARLY, *SIZE])
    ranks = {"local optima": 1, "rank, Frobenius": 0, "rank, nuclear": 3}
    assert [{label: one.look for label, one in curves(ax).items()} for ax in figure.axes] == [
        {"R over the SVM's norm": 0},
        {"dropout of tokens": 1, "dropout of weights": 2},
        {"margin": 0, "correlation": 3},
        ranks,
        ranks,
        {"heads agree": 4, "margin": 0},
    ]


@pytest.mark.parametrize(
    ("rows", "titles"),
    [
        (DECAY, TITLES[:1]),
        (DROPOUT, TITLES[1:2]),
        (EARLY, TITLES[2:3]),
        (SIZE[:6], [TITLES[3], "length T, d = 3", TITLES[5]]),
        (SIZE[8:10], [TITLES[5]]),
    ],
)
def test_a_topic_without_rows_has_no_panel(rows: list[dict[str, Any]], titles: list[str]) -> None:
    assert [ax.get_title("left") for ax in regularisation.figure(rows).axes] == titles


def test_several_heads_without_a_single_one_are_drawn_together() -> None:
    figure = regularisation.figure([*sizes(8, 5, 2, **RANKS), *sizes(3, 5, 4, **RANKS | {"agree": 0.5})])
    heads = figure.axes[-1]
    assert curves(heads)["heads agree"].x == [2, 4]
    assert curves(heads)["heads agree"].y == [1.0, 0.5]
