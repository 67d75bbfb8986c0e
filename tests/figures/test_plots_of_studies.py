"""Pictures of a study: correlations over training, margins against scores, and singular values."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attsvm import SelectionProblem, solve
from attsvm.plots.curves import compared_figure, correlation_figure, nines, precision_figure
from attsvm.plots.locality import margins_figure
from attsvm.plots.spectra import spectrum_figure
from attsvm.plots.style import FIRST, NARROW, NORM_COLOURS, SECOND, WIDE
from attsvm.study.spectrum import certified_rank
from attsvm.study.words import Nouns
from drawn import ticks

STEPS = np.array([0, 10, 100, 1000])
RISE = np.array([0.0, 0.5, 0.9, 0.999])


def run(**fields: Any) -> Any:
    """A run of W that ends at .999 of its Frobenius SVM."""
    given = {
        "parameterization": "W", "own": "frobenius", "curves": {"frobenius": RISE, "nuclear": RISE / 2},
        "controls": (), "correlation": 0.999, "settled_at": 0, "trace": SimpleNamespace(step=STEPS),
    }  # fmt: skip
    return SimpleNamespace(**(given | fields))


def control(key: str, *curves: np.ndarray) -> Any:
    return SimpleNamespace(key=key, label=f"the {key} one", curves=np.array(curves))


def data(line: Line2D) -> tuple[list[float], list[float]]:
    return np.asarray(line.get_xdata(), dtype=float).tolist(), np.asarray(line.get_ydata(), dtype=float).tolist()


def by_label(ax: Axes) -> dict[str, Line2D]:
    return {str(line.get_label()): line for line in ax.lines if not str(line.get_label()).startswith("_")}


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for one in figure.legends for text in one.get_texts()]


def check_readable(figure: Figure) -> None:
    """Print hides lines under half a point, points under two and letters under six."""
    assert 2 < figure.get_figheight() < 8
    for ax in figure.axes:
        for line in ax.lines:
            if str(line.get_linestyle()) != "None":
                assert 0.4 <= line.get_linewidth() <= 3.5
            else:
                assert 2 <= line.get_markersize() <= 8
        for text in ax.texts:
            assert 6 <= float(text.get_fontsize()) <= 10


def test_nines_count_the_digits_of_a_correlation() -> None:
    np.testing.assert_allclose(nines(np.array([0.0, 0.9, 0.99, 0.999, -9.0])), [0, 1, 2, 3, -1], atol=1e-12)
    # Beyond twelve digits a correlation is rounding.
    np.testing.assert_allclose(nines(np.array([1.0, 1.0 + 1e-15, 1 - 1e-13])), 12.0)
    assert float(nines(1 - 1e-11)) == pytest.approx(11, abs=1e-5)


def test_the_correlation_with_both_svms_is_drawn_in_nines() -> None:
    figure = correlation_figure({"W": run(settled_at=500, controls=(control("hebbian", RISE),))}, WIDE)
    check_readable(figure)
    (ax,) = correlation_figure({"W": run()}, WIDE).axes
    lines = by_label(ax)
    assert list(lines) == ["Frobenius SVM of the realised tokens", "nuclear SVM of the realised tokens"]
    for norm, line in zip(("frobenius", "nuclear"), lines.values(), strict=True):
        x, y = data(line)
        # Step zero has no place on a logarithmic axis.
        assert x == [0.5, 10, 100, 1000]
        np.testing.assert_allclose(y, -np.log10(1 - run().curves[norm]), atol=1e-12)
        assert line.get_color() == NORM_COLOURS[norm]
    own, other = lines.values()
    assert own.get_linewidth() > 1.3 * other.get_linewidth()
    assert ax.get_title("left") == "Training W"
    assert (ax.get_xscale(), ax.get_xlim(), ax.get_xlabel()) == ("log", (1, 1000), "training step")
    assert ax.get_ylabel() == "correlation"


def test_the_heights_of_the_axis_are_named_by_their_correlations() -> None:
    (ax,) = correlation_figure({"W": run()}, WIDE).axes
    bottom, top = ax.get_ylim()
    # Room above the highest curve, at three nines, and below zero, by the definition of the picture.
    assert 3.1 < top < 4
    assert -0.5 < bottom < 0
    shown = ticks(ax.yaxis)
    assert list(shown.values()) == ["0", "0.5", "0.9", "0.99", "0.999"]
    np.testing.assert_allclose(list(shown), [-math.log10(1 - float(text)) for text in shown.values()], atol=1e-12)


def test_one_scale_holds_the_curves_and_controls_of_all_panels() -> None:
    low = control("hebbian", np.array([0.0, -1.0, -2.0, -9.0]))
    factors = run(parameterization="KQ", own="nuclear", curves={"nuclear": np.full(4, 1 - 1e-6)}, controls=(low,))
    figure = correlation_figure({"W": run(), "KQ": factors}, NARROW)
    first, second = figure.axes
    assert [ax.get_title("left") for ax in (first, second)] == ["Training W", "Training K and Q"]
    assert first.get_ylim() == second.get_ylim()
    bottom, top = first.get_ylim()
    assert 6.2 < top < 8
    assert -1.3 < bottom < -1
    place = second.get_subplotspec()
    assert place is not None
    assert place.get_gridspec().get_geometry() == (2, 1)
    assert legend(figure) == [
        "Frobenius SVM of the realised tokens", "nuclear SVM of the realised tokens", "the hebbian one",
    ]  # fmt: skip


def test_a_poor_correlation_leaves_room_up_to_one_nine() -> None:
    (ax,) = correlation_figure({"W": run(curves={"frobenius": RISE / 10}, correlation=None)}, WIDE).axes
    assert list(ticks(ax.yaxis).values()) == ["0", "0.5", "0.9"]
    assert not ax.texts


def test_controls_come_in_one_order_and_have_one_entry_each() -> None:
    controls = (
        control("shuffled", RISE / 4, RISE / 5, RISE / 6),
        control("hebbian", RISE / 3),
        control("optimal", RISE),
    )
    (ax,) = correlation_figure({"W": run(curves={"frobenius": RISE}, controls=controls)}, WIDE).axes
    named = [str(line.get_label()) for line in ax.lines]
    assert named[1:4] == ["the optimal one", "the hebbian one", "the shuffled one"]
    assert len(ax.lines) == 6
    assert not any(name.startswith("the") for name in named[4:])
    for line, curve in zip(ax.lines[1:], (RISE, RISE / 3, RISE / 4, RISE / 5, RISE / 6), strict=True):
        np.testing.assert_allclose(data(line)[1], nines(curve), atol=1e-12)
    assert [line.get_linestyle() for line in ax.lines[1:]] == ["-.", "--", "-", "-", "-"]
    assert len({line.get_color() for line in ax.lines[3:]}) == 1


def test_the_final_correlation_is_written_above_the_end_of_its_curve() -> None:
    """The number covers the steps from an eighth of the last on; a peak before is not above it."""
    curve = np.array([0.9999, 0.99, 0.5, 0.9])
    steps = np.array([0, 124, 125, 1000])
    shown = run(curves={"frobenius": curve}, correlation=0.9, trace=SimpleNamespace(step=steps))
    (ax,) = correlation_figure({"W": shown}, WIDE).axes
    (text,) = ax.texts
    assert text.get_text() == "0.900"
    assert text.xy == pytest.approx((1000, 1.0))  # type: ignore[attr-defined]
    assert (text.get_horizontalalignment(), text.get_verticalalignment(), text.get_color()) == (
        "right",
        "bottom",
        NORM_COLOURS["frobenius"],
    )
    higher = run(curves={"frobenius": curve[[0, 2, 1, 3]]}, correlation=0.9, trace=SimpleNamespace(step=steps))
    (ax,) = correlation_figure({"W": higher}, WIDE).axes
    assert ax.texts[0].xy[1] == pytest.approx(2.0)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("settled", "drawn"), [(0, False), (1, False), (2, True), (999, True), (1000, False)])
def test_the_step_after_which_no_token_changes_is_marked_inside_the_training(settled: int, drawn: bool) -> None:
    (ax,) = correlation_figure({"W": run(settled_at=settled, correlation=None)}, WIDE).axes
    assert [text.get_text() for text in ax.texts] == ["selection final"] * drawn
    assert len(ax.lines) == 2 + drawn
    if drawn:
        assert data(ax.lines[-1])[0] == [settled, settled]
        # Without a number at the end, the words stand at the top.
        assert ax.texts[0].xy == (settled, 1.0)  # type: ignore[attr-defined]
        assert ax.texts[0].get_horizontalalignment() == "right"
        # To the left of their line and under the edge.
        assert max(ax.texts[0].xyann) < 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(("final", "top"), [(0.999, False), (0.9, True), (0.5, True)])
def test_the_mark_gives_way_to_the_number_at_the_top(final: float, top: bool) -> None:
    (ax,) = correlation_figure({"W": run(settled_at=500, correlation=final)}, WIDE).axes
    words = ax.texts[-1]
    height = words.xy[1]  # type: ignore[attr-defined]
    assert (height == 1.0) == top
    # Below the number, which stands in the highest fifth.
    assert top or 0.6 < height < 0.8


def test_arithmetics_are_drawn_over_exact_training() -> None:
    parts = [("float32", "exact"), ("float64", "autograd"), ("float32", "autograd")]
    last = np.array([0, 20, 4000])
    runs: Any = tuple(
        SimpleNamespace(label=f"{dtype} {numerics}", dtype=dtype, numerics=numerics, step=last, curve=np.array(curve))
        for (dtype, numerics), curve in zip(parts, ([0, 0.5, 0.9], [0, 0.4, 0.7], [0, 0.3, -0.5]), strict=True)
    )
    figure = precision_figure(run(), runs, WIDE)
    check_readable(figure)
    (ax,) = figure.axes
    lines = by_label(ax)
    assert list(lines) == legend(figure) == ["float64, exact gradient", *(one.label for one in runs)]
    assert data(lines["float64, exact gradient"]) == ([0.5, 10, 100, 1000], RISE.tolist())
    for one in runs:
        assert data(lines[one.label]) == ([0.5, 20, 4000], one.curve.tolist())
    # The exact gradient is dashed in single precision; no two curves look alike.
    looks = [(line.get_linestyle(), line.get_color()) for line in lines.values()]
    assert looks[:2] == [("-", FIRST), ("--", looks[1][1])]
    assert looks[3] == ("-", SECOND)
    assert len(set(looks)) == 4
    assert lines["float64, exact gradient"].get_linewidth() > max(lines[one.label].get_linewidth() for one in runs)
    assert ax.get_xlim() == (1, 4000)
    assert ax.get_ylim() == (-0.5, 1.04)
    assert data(ax.lines[-1])[1] == [0, 0]
    assert ax.get_ylabel() == "correlation with the SVM"
    assert precision_figure(run(), runs[:2], WIDE).axes[0].get_ylim() == (-0.02, 1.04)


def test_two_studies_are_drawn_over_each_other() -> None:
    first = {"W": {"step": [0, 10, 200], "frobenius": [0.0, 0.9, 0.99], "nuclear": [0.0, 0.5, np.nan]}}
    second = {
        "W": {"step": [0, 10, 500], "frobenius": [-9.0, 0.9, 0.999]}, "KQ": {"step": [1, 30], "nuclear": [0.5, 0.9]},
    }  # fmt: skip
    figure = compared_figure(("a", "b"), (first, second), WIDE)
    check_readable(figure)
    W, KQ = figure.axes
    assert [ax.get_title("left") for ax in (W, KQ)] == ["Training W", "Training K and Q"]
    assert {name: data(line)[0] for name, line in by_label(W).items()} == {
        "a: its own SVM": [0.5, 10, 200], "a: its other SVM": [0.5, 10, 200], "b: its own SVM": [0.5, 10, 500],
    }  # fmt: skip
    lines = by_label(W)
    np.testing.assert_allclose(data(lines["a: its own SVM"])[1], [0, 1, 2], atol=1e-12)
    np.testing.assert_allclose(data(lines["a: its other SVM"])[1], [0, -math.log10(0.5), math.nan])
    np.testing.assert_allclose(data(lines["b: its own SVM"])[1], [-1, 1, 3], atol=1e-12)
    assert lines["a: its own SVM"].get_linewidth() > 1.5 * lines["a: its other SVM"].get_linewidth()
    assert [line.get_linestyle() for line in lines.values()] == ["-", "-", "--"]
    assert [line.get_color() for line in lines.values()] == [FIRST, FIRST, SECOND]
    assert list(by_label(KQ)) == ["b: its own SVM"]
    # The nuclear norm belongs to factors.
    assert by_label(KQ)["b: its own SVM"].get_linewidth() == lines["b: its own SVM"].get_linewidth()
    assert [ax.get_xlim() for ax in (W, KQ)] == [(1, 500), (1, 30)]
    assert 3.05 < W.get_ylim()[1] < 3.5
    assert -1.2 < W.get_ylim()[0] < -1
    # One nine is the least height, and a little under zero the least depth.
    assert 1 < KQ.get_ylim()[1] < 1.2
    assert -0.2 < KQ.get_ylim()[0] < -0.05
    assert legend(figure) == ["a: its own SVM", "a: its other SVM", "b: its own SVM"]


def test_only_what_a_study_has_trained_is_compared() -> None:
    factors = {"KQ": {"step": [1, 1], "frobenius": [0, 0.5]}}
    figure = compared_figure(("a", "b"), ({"W": {"step": [1, 2]}}, factors), WIDE)
    (ax,) = figure.axes
    assert ax.get_title("left") == "Training K and Q"
    assert list(by_label(ax)) == ["b: its other SVM"]
    assert ax.get_xlim() == (1, 2)
    assert 1 < ax.get_ylim()[1] < 1.2


WORDS = Nouns("patch", "patches", "image", "images")
TOKENS = np.array([[[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]], [[-1.0, 2.0], [-1.0, 1.0], [-30.0, 0.0]]])


def located(lower: np.ndarray) -> tuple[Any, np.ndarray]:
    """A run of which some neighbours score lower, and the scores of the tokens."""
    solution = solve(SelectionProblem(TOKENS, np.ones((2, 1)), [0, 0]))
    margins = np.asarray(solution.margins)
    near = np.isclose(margins, 1.0, atol=1e-6) & solution.problem.rejected
    assert near.sum() == 2
    gamma = np.array([[1.0, 0.5, -2.0], [3.0, 7.0, -math.inf]])
    locality = SimpleNamespace(neighbours=near, violations=~lower)
    fields = {"solutions": {"frobenius": solution}, "locality": locality, "selected": np.array([0, 0])}
    return run(**fields), gamma


def test_margins_are_drawn_against_the_scores_below_the_selected() -> None:
    lower = np.array([[True, True, True], [True, False, True]])
    one, gamma = located(lower)
    figure = margins_figure({"W": one, "KQ": run(locality=None)}, gamma, WIDE, WORDS)
    (ax,) = figure.axes
    check_readable(figure)
    margins, near = np.asarray(one.solutions["frobenius"].margins), one.locality.neighbours
    gap = np.array([[0.0, 0.5, 3.0], [0.0, -4.0, math.nan]])
    lines = by_label(ax)
    assert legend(figure) == [*lines] == ["other patches", "neighbours that score lower", "neighbours that do not"]
    groups = [~near & one.solutions["frobenius"].problem.rejected, near & lower, near & ~lower]
    for line, group in zip(lines.values(), groups, strict=True):
        x, y = data(line)
        np.testing.assert_array_equal(x, margins[group])
        np.testing.assert_allclose(y, gap[group])
    assert [line.get_color() for line in lines.values()][1:] == [FIRST, SECOND]
    assert lines["other patches"].get_rasterized()
    assert 0.2 < (lines["other patches"].get_alpha() or 1.0) < 1
    assert data(ax.lines[-1])[1] == [0, 0]
    assert ax.get_title("left") == "Training W"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("margin under the Frobenius SVM", "score below the selected")
    assert ax.get_xscale() == "log"
    widest = margins[one.solutions["frobenius"].problem.rejected].max()
    expected = [tick for tick in (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000) if tick <= widest]
    assert ticks(ax.xaxis) == {float(tick): str(tick) for tick in expected}
    assert len(expected) > 3
    assert ax.get_xticks(minor=True).tolist() == []


def test_a_group_without_neighbours_has_no_entry_and_the_axis_reaches_two() -> None:
    one, gamma = located(np.ones((2, 3), bool))
    one.solutions["frobenius"] = SimpleNamespace(
        margins=np.array([[0.0, 1.0, 1.1], [0.0, 1.0, 1.2]]), problem=one.solutions["frobenius"].problem
    )
    (ax,) = margins_figure({"W": one}, gamma, WIDE, WORDS).axes
    assert list(by_label(ax)) == ["other patches", "neighbours that score lower"]
    assert list(ticks(ax.xaxis).values()) == ["1", "2"]


def spectral(W: np.ndarray, **solutions: Any) -> Any:
    return run(
        trace=SimpleNamespace(W=[np.zeros_like(W), np.eye(*W.shape), W]),
        curves=dict.fromkeys(solutions),
        solutions=solutions,
    )


def test_singular_values_are_drawn_in_units_of_the_largest() -> None:
    trained = np.diag([4.0, 2.0, 1e-3, 3e-6, 4e-7])
    frobenius = SimpleNamespace(W=np.diag([2.0, 1.0, 0.0]), gap=0.0)
    nuclear: Any = SimpleNamespace(W=np.diag([3.0, 0.0, 0.0]), gap=0.0)
    figure = spectrum_figure({"W": spectral(trained, nuclear=nuclear, frobenius=frobenius)}, WIDE)
    (ax,) = figure.axes
    lines = by_label(ax)
    assert legend(figure) == [*lines] == ["trained", "Frobenius SVM", "nuclear SVM"]
    check_readable(figure)
    # What is less than a millionth of the largest is left out.
    x, y = data(lines["trained"])
    assert x == [1, 2, 3]
    np.testing.assert_allclose(y, [1, 0.5, 2.5e-4])
    assert data(lines["nuclear SVM"]) == ([1], [1])
    np.testing.assert_allclose(data(lines["Frobenius SVM"]), [[1, 2], [1, 0.5]])
    assert [line.get_markerfacecolor() for line in lines.values()] == ["none", *NORM_COLOURS.values()]
    assert lines["trained"].get_markersize() > lines["Frobenius SVM"].get_markersize()
    rank, right = ax.texts
    assert (rank.get_text(), right.get_text()) == ("rank 2", f"rank {certified_rank(nuclear)}") == ("rank 2", "rank 1")
    assert (rank.xy, right.xy) == ((2, pytest.approx(0.5)), (1, 1))  # type: ignore[attr-defined]
    assert [(text.get_horizontalalignment(), text.get_verticalalignment()) for text in ax.texts] == [
        ("center", "top"),
        ("left", "center"),
    ]
    # One label is below its value, the other to its right.
    (x, y), (x_right, y_right) = (text.xyann for text in ax.texts)  # type: ignore[attr-defined]
    assert x == 0 > y
    assert y_right == 0 < x_right
    assert (ax.get_yscale(), ax.get_ylim()) == ("log", (1e-6, 2))
    assert ax.get_xlim()[0] == 0
    assert 3.4 < ax.get_xlim()[1] < 5
    assert all(float(at).is_integer() for at in ax.get_xticks())
    assert ax.get_title("left") == "Training W"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("number of the singular value", "size over the largest")


def test_thirty_singular_values_are_shown_and_none_of_a_matrix_of_zeros() -> None:
    many, zero = spectral(np.eye(40)), spectral(np.zeros((3, 3)))
    zero.curves, zero.solutions = {"nuclear": None}, {"nuclear": SimpleNamespace(W=np.zeros((3, 3)), gap=0.0)}
    figure = spectrum_figure({"W": many, "KQ": zero}, NARROW)
    first, second = figure.axes
    assert data(by_label(first)["trained"])[0] == list(range(1, 31))
    assert data(by_label(second)["trained"]) == ([], [])
    # Its label stands at the foot of the axis.
    assert second.texts[0].xy == (0, 1e-6)  # type: ignore[attr-defined]
    assert all(float(at).is_integer() for at in first.get_xticks())
    assert second.get_yticks(minor=True).tolist() == []
