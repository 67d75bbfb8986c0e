"""Pictures of single results show the numbers that they are given."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from attsvm import (
    SelectionProblem,
    Solution,
    TokenData,
    Trace,
    correlation,
    margin_report,
    plots,
    pretrained,
    regularization_path,
    solve,
    train,
)
from pretrained_models import batch, tiny

mpl.use("agg")
import matplotlib.pyplot as plt
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from attsvm.plots.style import FIRST, as_svg, new_figure, save
from attsvm_paper.plots.heat_maps import COLOURS, ink_on
from attsvm_pretrained.activations.image import Side

TOKENS = np.array([[[1.2, 1.4], [0.2, 0.6], [-0.6, 1.0]], [[1.5, -0.3], [0.5, -1.0], [0.1, 0.3]]])
QUERIES = np.ones((2, 1))


@pytest.fixture
def solution() -> Solution:
    return solve(SelectionProblem(TOKENS, QUERIES, selected=[0, 0]))


@pytest.fixture
def trace() -> Trace:
    return train(TokenData(TOKENS, QUERIES, labels=np.ones(2)), [1.0, 0.5], steps=100, record_every=10)


@pytest.fixture(autouse=True)
def _close() -> object:
    yield
    plt.close("all")


def test_every_rejected_token_is_counted_once(solution: Solution) -> None:
    ax = solution.plot()
    everything, support = (sum(bar.get_height() for bar in bars) for bars in ax.containers)
    assert everything == solution.problem.rejected.sum()
    assert support == np.asarray(solution.support).sum()


def test_the_dotted_lines_lie_at_margin_one(solution: Solution) -> None:
    ax = plots.plane(solution)
    w = np.asarray(solution.W)[:, 0]
    for i, (solid, dots) in enumerate(zip(ax.lines[::2], ax.lines[1::2], strict=True)):
        for line, level in ((solid, 0.0), (dots, 1.0)):
            points = np.asarray(line.get_xydata())
            # Coordinates of size one in double precision.
            assert np.allclose(TOKENS[i, 0] @ w - points @ w, level, atol=1e-12)


def test_a_path_is_the_correlation_or_the_norm(trace: Trace, solution: Solution) -> None:
    axes = plt.figure().subplots()
    assert trace.plot(solution, ax=axes) is axes
    (curve,) = axes.lines
    assert np.allclose(curve.get_ydata()[1:], correlation(trace.W[1:], solution.W))
    (norm,) = trace.plot().lines
    assert np.allclose(norm.get_ydata(), trace.norm)


def test_attention_adds_up(trace: Trace) -> None:
    ax = plots.attention(trace, 1)
    assert np.allclose(np.sum([line.get_ydata() for line in ax.lines], axis=0), 1.0)


def test_the_spectrum_leaves_out_rounding() -> None:
    ax = plots.spectrum(np.outer([1.0, 2.0, 3.0], [1.0, 1.0]), "rank one")
    assert len(ax.lines[0].get_ydata()) == 1


def test_a_matrix_is_drawn_around_zero() -> None:
    (image,) = plots.matrix(np.array([[1.0, -3.0]])).images
    assert image.get_clim() == (-3.0, 3.0)


def test_the_nearest_norm_is_marked(solution: Solution) -> None:
    report = margin_report(solution.W, solution.problem, ("frobenius", 1.0))
    ax = report.plot()
    assert [bar.get_width() for bar in ax.patches] == [share.share for share in report.shares]
    assert to_hex(ax.patches[0].get_facecolor()) == FIRST


def test_what_cannot_be_drawn_is_refused(solution: Solution, trace: Trace) -> None:
    infeasible = solve(SelectionProblem([[[0.0], [1.0], [-1.0]]], [[1.0]], [0]))
    with pytest.raises(ValueError, match="a W was expected"):
        infeasible.plot()
    with pytest.raises(ValueError, match="dimension 2 was expected"):
        plots.plane(infeasible)
    with pytest.raises(ValueError, match="from 0 to 1 was expected"):
        plots.attention(trace, 2)


def test_a_path_of_radii_is_its_risk_or_its_distance(solution: Solution) -> None:
    data = TokenData(TOKENS, QUERIES, labels=np.ones(2))
    radii = [1.0, 4.0, 16.0]
    path = regularization_path(data, [1.0, 0.5], radii)
    (risk,) = path.plot().lines
    assert np.array_equal(risk.get_ydata(), path.loss)
    (distance,) = path.plot(solution).lines
    assert np.array_equal(distance.get_ydata(), path.distance(solution))


def test_a_head_is_drawn_sequence_by_sequence() -> None:
    model, inputs = tiny("bert"), batch("bert")
    head = pretrained.extract_head(model, 0, 0, inputs)
    image = np.asarray(head.plot(1).images[0].get_array())
    rows = head.sequence == 1
    assert np.array_equal(image, head.probabilities[rows][:, :6])  # the padding of that sequence is left out
    assert head.plot(1).images[0].get_clim() == (0.0, 1.0)  # heads are compared by eye
    with pytest.raises(ValueError, match="sequence is 3"):
        head.plot(3)


def test_controls_stand_beside_the_cosine_of_the_own_selection() -> None:
    audit = pretrained.margin_audit(pretrained.extract_head(tiny("bert"), 0, 0, batch("bert")), queries=8)
    widths = [bar.get_width() for bar in audit.plot().containers[0]]
    assert widths[: len(audit.directions)] == [one.cosine for one in audit.directions.values()]
    assert widths[-1] == audit.hebbian


@pytest.mark.parametrize("side", ["query", "keys"])
def test_the_bars_of_a_margin_are_the_parts_of_that_side(side: Side) -> None:
    split = pretrained.attribute(tiny("gpt2"), 1, 2, batch("gpt2"))
    parts = {"query": split.queries, "keys": split.keys}[side].sum(axis=1)
    largest = np.argsort(-np.abs(parts))
    ax = plots.attribution(split, side, most=4)
    widths = [bar.get_width() for bar in ax.containers[0]]
    assert np.allclose(widths, [*parts[largest[:3]], parts[largest[3:]].sum()])
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == [*(split.components[c].name for c in largest[:3]), f"{len(parts) - 3} others"]


def _checkpoints(steps: list[int]) -> pretrained.Checkpoints:
    """One head whose attention to the token before grows."""
    share = np.linspace(0.1, 0.9, len(steps))
    names = tuple("previous" if value > 0.5 else None for value in share)
    scores, null = {"previous": share}, {"previous": share / 2}
    head = pretrained.HeadSeries(0, 0, np.array(steps), names, scores, null, share, share, share)
    return pretrained.Checkpoints(np.array(steps), (head,), {}, True, 0.0)


@pytest.mark.parametrize(
    ("steps", "scale"),
    [([0, 1, 10, 100, 1000], "symlog"), ([0, 100, 200, 300, 400], "linear"), ([0, 1, 1000], "linear")],
)
def test_steps_whose_gaps_grow_have_a_logarithmic_axis(steps: list[int], scale: str) -> None:
    ax = _checkpoints(steps).plot("previous")
    assert ax.get_xscale() == scale
    assert ax.get_xlim() == (0, steps[-1])


def test_a_single_checkpoint_stands_at_the_left_end() -> None:
    assert _checkpoints([7]).plot("previous").get_xlim() == (7, 8)


def test_heat_maps_keep_their_order_and_their_numbers_on_a_dark_page() -> None:
    """Where lightness is turned round, as the pages do it: more is further from the ground, be it white or black."""

    def luminance(colour: tuple[float, ...]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return float(np.dot((0.2126, 0.7152, 0.0722), linear))

    def brightness(colour: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(1 - max(colour) - min(colour) + c for c in colour)

    shares = np.linspace(0, 1, 51)
    light = np.array([luminance(COLOURS(share)[:3]) for share in shares])
    dark = np.array([luminance(brightness(COLOURS(share)[:3])) for share in shares])
    assert (np.diff(light) < 0).all()
    assert (np.diff(dark) > 0).all()
    ink = np.array([luminance(to_rgb(ink_on(share))) for share in shares])
    # 3 is WCAG's bound for what is not running text; half way along the scale neither ink nor white reaches 4.5.
    assert ((np.maximum(ink, light) + 0.05) / (np.minimum(ink, light) + 0.05) > 3.9).all()


def test_a_figure_is_laid_out_once_and_drawn_once_in_each_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure, draw, calls = new_figure(3.0, 2.0), Figure.draw, []
    figure.subplots().plot([0, 1])
    monkeypatch.setattr(Figure, "draw", lambda self, renderer: calls.append(renderer) or draw(self, renderer))
    as_svg(figure)
    save(figure, tmp_path, "line")
    assert {path.name for path in tmp_path.iterdir()} == {"line.png", "line.pdf"}
    assert len(calls) == 1 + 3
