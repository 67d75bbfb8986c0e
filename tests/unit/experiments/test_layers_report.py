"""What is said and drawn of layers, from rows made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm.plots.style import NARROW, WIDE
from attsvm_paper.beyond.layers import against_hebbian, figure, verdicts
from attsvm_paper.judging.estimates import estimate
from attsvm_paper.judging.statistics import mean_interval
from attsvm_paper.judging.verdict import Row, Verdict
from drawn import all_curves, curves, in_one_column, legend_words, levels, ticks, titles

SVM = [0.9, 0.8, 0.85]
NONE = [None] * 3


def rows_of(
    task: str = "chain", depth: int = 1, between: str = "linear", layer: int = 1, **columns: list[Any]
) -> list[Row]:
    base: dict[str, list[Any]] = {
        "svm": SVM,
        "control": [0.1, 0.2, 0.15],
        "hebbian": [0.5, 0.6, 0.7],
        "gen": [None, 0.7, 0.9],
        "kept": [1.0, 2.0, 1.5],
        "oneself": [1.0, 0.875, 0.9375],
        "spread": [2.0, 3.0, 4.0],
        "infeasible": [False, True, False],
        "hop": [0.9, 0.8, 1.0],
        "accuracy": [0.7, 0.8, 0.9],
        "learned": [0.9, 0.95, 1.0],
    }
    table = base | columns
    count = len(table["svm"])
    place = {"task": task, "layers": depth, "between": between, "layer": layer, "T": 4}
    return [place | {"seed": k, "trial": k} | {name: values[k] for name, values in table.items()} for k in range(count)]


def said(rows: list[Row]) -> dict[str, Verdict]:
    found = verdicts(rows)
    assert len({one.quantity for one in found}) == len(found)
    return {one.quantity: one for one in found}


def check_mean(one: Verdict, values: list[float]) -> None:
    low, high = mean_interval(values)
    assert (one.measured, one.low, one.high) == pytest.approx((np.mean(values), low, high))
    assert one.trials == len(values)


OWN = "correlation of W with the SVM of its top tokens, layer 1 of 1, linear, chain"


def test_a_network_of_one_layer_has_its_correlation_and_accuracy() -> None:
    found = said(rows_of())
    accuracy = "accuracy on fresh sequences, 1 layers, linear, chain"
    assert list(found) == [OWN, accuracy]
    check_mean(found[OWN], SVM)
    assert found[OWN].infeasible == 1
    assert found[OWN].note == (
        "Closer than shuffled selections, 0.15; Hebbian 0.60. A query keeps 1.5 tokens and is its own top token in "
        "94 % of the cases. The Gen-SVM of the kept sets is feasible in 2 of 3 trials, correlation 0.80."
    )
    check_mean(found[accuracy], [0.7, 0.8, 0.9])
    assert found[accuracy].note == "0.95 on those trained on."


@pytest.mark.parametrize(
    ("control", "start"),
    [
        ([0.1, 0.0, None], "Closer than shuffled selections, 0.05;"),
        ([0.1, None, None], "Not distinguished from shuffled selections, 0.10;"),
        (SVM, "Not distinguished from shuffled selections, 0.85;"),
        ([0.95, 0.1, 0.9], "Not distinguished from shuffled selections, 0.65;"),
        (NONE, "A query keeps 1.5 tokens"),
    ],
)
def test_a_layer_is_called_closer_only_if_the_interval_says_so(control: list[Any], start: str) -> None:
    assert said(rows_of(control=control))[OWN].note.startswith(start)


def test_without_a_gen_svm_there_is_no_correlation_with_it() -> None:
    note = said(rows_of(gen=NONE))[OWN].note
    assert note.endswith("The Gen-SVM of the kept sets is feasible in 0 of 3 trials.")


def deep(depth: int = 2, **last: list[Any]) -> list[Row]:
    own: dict[str, Any] = {"hop": NONE, "spread": [1.5, 2.0, 2.5], "accuracy": [0.0] * 3, "learned": [0.0] * 3} | last
    # A layer between has numbers that no comparison of ends may use.
    between = [row for k in range(2, depth) for row in rows_of(depth=depth, layer=k, spread=[99.0] * 3, hop=NONE)]
    return rows_of(depth=depth) + between + rows_of(depth=depth, layer=depth, **own)


@pytest.mark.parametrize(
    ("hop", "note"),
    [
        ([0.9, 0.8, 1.0], "Accuracy 0.80 on fresh chains."),
        ([0.25] * 3, "3 trials do not distinguish it from chance, 0.25. Accuracy 0.80 on fresh chains."),
        ([0.1, 0.9, 0.5], "3 trials do not distinguish it from chance, 0.25. Accuracy 0.80 on fresh chains."),
    ],
)
def test_hops_are_compared_with_chance(hop: list[float], note: str) -> None:
    found = said([row | {"hop": hop[row["seed"]] if row["layer"] == 1 else None} for row in deep()])
    one = found["hop 1 found by layer 1 of 2, linear, chain"]
    check_mean(one, hop)
    assert one.note == note


def test_layers_without_hops_have_no_verdict_on_them() -> None:
    assert [name for name in said(deep()) if name.startswith("hop")] == ["hop 1 found by layer 1 of 2, linear, chain"]


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize(
    ("spread", "phrase", "mean"),
    [
        ([1.5, 2.4, 3.5], "narrower", "2.47"),
        ([3.0, 4.5, 5.0], "wider", "4.17"),
        ([2.0, 3.0, 4.0], "as wide as far as these trials tell", "3.00"),
        ([1.0, 4.0, 5.0], "as wide as far as these trials tell", "3.33"),
    ],
)
def test_the_last_layer_is_compared_with_the_first(depth: int, spread: list[float], phrase: str, mean: str) -> None:
    # Networks of one layer have no last layer to compare.
    found = said([*rows_of(spread=[50.0] * 3), *deep(depth, spread=spread)])
    one = found["tokens that attention is spread over, last layer less the first, chain"]
    check_mean(one, [new - old for new, old in zip(spread, [2.0, 3.0, 4.0], strict=True)])
    assert one.note == f"The last layer is {phrase}: 3.00 tokens in the first layer, {mean} in the last."
    accuracy = found[f"accuracy on fresh sequences, {depth} layers, linear, chain"]
    check_mean(accuracy, [0.7, 0.8, 0.9])
    # Layers of a network of one layer are left out here, too.
    lead = found["correlation with the SVM less that with Hebbian, chain"]
    assert lead.trials == 3 * depth


@pytest.mark.parametrize(
    ("hebbian", "phrase"),
    [
        ([0.5, 0.4, 0.35], "closer to the SVM than to"),
        ([0.95, 0.86, 0.9], "farther from the SVM than from"),
        (SVM, "no closer to the SVM than to"),
        ([0.2, 0.95, 0.9], "no closer to the SVM than to"),
    ],
)
def test_the_svm_is_compared_with_the_mean_difference(hebbian: list[float], phrase: str) -> None:
    one = against_hebbian("chain", rows_of(hebbian=hebbian))
    check_mean(one, [svm - other for svm, other in zip(SVM, hebbian, strict=True)])
    assert one.quantity == "correlation with the SVM less that with Hebbian, chain"
    assert one.note == f"Over all layers W is {phrase} the Hebbian mean difference of the same selections."


def test_tasks_are_reported_apart() -> None:
    digits = [row | {"task": "digits", "hop": None} for row in deep()]
    found = said([*deep(), *digits])
    assert sum(name.endswith(", digits") for name in found) == sum(name.endswith(", chain") for name in found) - 1
    assert verdicts([]) == []


ROWS = [
    *rows_of(hop=NONE),
    *rows_of(depth=2, between="mlp"),
    *rows_of(depth=2, between="mlp", layer=2, svm=[0.1, 0.3, 0.2], control=[0.0, None, 0.1], hop=[0.2, 0.4, 0.6]),
    *[
        row
        for k in (1, 2, 3)
        for row in rows_of(depth=3, between="residual", layer=k, hop=[0.5] * 3 if k < 3 else NONE)
    ],
    *rows_of("digits", 2, "linear", hop=NONE),
    *rows_of("digits", 2, "linear", 2, hop=NONE),
]
TITLES = {
    "svm": ("W and its SVM", "median correlation"),
    "spread": ("spread of attention", "median number of tokens"),
    "hop": ("hops found", "median share of sequences"),
}
NETWORKS = {
    "chain": {"1 layer, linear": (1, 3, "-"), "2 layers, mlp": (2, 1, "-"), "3 layers, residual": (3, 2, ":")},
    "digits": {"2 layers, linear": (2, 0, "-")},
}


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_each_task_has_a_row_of_panels_with_a_curve_per_network(width: float) -> None:
    drawn = figure(ROWS, width)
    panels = [("chain", "svm"), ("chain", "spread"), ("chain", "hop"), ("digits", "svm"), ("digits", "spread")]
    assert titles(drawn.axes) == [f"{task}: {TITLES[field][0]}" for task, field in panels]
    assert in_one_column(drawn) == (width == NARROW)
    assert sorted(legend_words(drawn.axes)) == sorted([*NETWORKS["chain"], "shuffled"])
    # Two rows of panels and five.
    assert 1 < drawn.get_figheight() / (2 if width == WIDE else 5) < 4
    for ax, (task, field) in zip(drawn.axes, panels, strict=True):
        assert ax.get_ylabel() == TITLES[field][1]
        assert ax.get_xlabel() == "layer"
        assert ticks(ax.xaxis) == {1.0: "1", 2.0: "2", 3.0: "3"}
        assert ax.get_xlim() == pytest.approx((0.8, 3.3))
        assert levels(ax) == ({"": 0.0} if field == "svm" else {})
        networks = NETWORKS[task]
        found = curves(ax)
        # The network of one layer has no hops here.
        assert list(found) == [name for name in networks if field != "hop" or name[0] != "1"]
        marks = [line for line in ax.lines if line.get_label() == "shuffled"]
        assert len(marks) == (len(networks) if field == "svm" else 0)
        for at, (name, (depth, look, style)) in enumerate(networks.items()):
            cells = [row for row in ROWS if (row["task"], row["layers"]) == (task, depth)]
            stretch = 1 + 0.02 * (at - len(networks) / 2)
            if name in found:
                curve = found[name]
                assert (curve.look, curve.style) == (look, style)
                check_curve(curve.x, curve.y, cells, field, stretch)
            if field == "svm":
                check_curve(marks[at].get_xdata(), marks[at].get_ydata(), cells, "control", stretch)
                assert 4 < marks[at].get_markersize() < 20
                assert 0.5 < marks[at].get_markeredgewidth() < 4


def check_curve(x: Any, y: Any, cells: list[Row], field: str, stretch: float) -> None:
    """Check that a curve consists of the medians by layer."""
    by_layer: dict[int, list[float]] = {}
    for row in cells:
        if row[field] is not None:
            by_layer.setdefault(row["layer"], []).append(row[field])
    assert list(x) == pytest.approx([stretch * layer for layer in by_layer])
    assert list(y) == pytest.approx([estimate(values, "median").value for values in by_layer.values()])


def test_a_single_task_without_controls_is_drawn() -> None:
    drawn = figure(rows_of("digits", 2, "mlp", hop=NONE, control=NONE))
    assert titles(drawn.axes) == ["digits: W and its SVM", "digits: spread of attention"]
    assert ticks(drawn.axes[0].xaxis) == {1.0: "1", 2.0: "2"}
    assert [one.label for one in all_curves(drawn.axes[0])] == ["2 layers, mlp"]
    line = next(line for line in drawn.axes[0].lines if list(np.asarray(line.get_ydata())) == [0, 0])
    assert 0.3 < line.get_linewidth() < 1.5
