"""The atlas's heat map: its numbers, marks and frames, and how panels are arranged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from attsvm.plots.style import INK, NARROW, SECOND, WIDE
from attsvm_paper.beyond.atlas_cells import MODELS, NORMS, OPTIMISERS
from attsvm_paper.beyond.atlas_figure import _text, figure  # pyright: ignore[reportPrivateUsage]
from attsvm_paper.judging.verdict import Row

FAST, STILL, RISING = (0.9, 0.97, 0.99, 0.997, 0.999), (0.5,) * 5, (0.2, 0.35, 0.47, 0.57, 0.65)


def rows_of(model: str, name: str, **shares: tuple[float | None, ...]) -> list[Row]:
    """Rows of two instances whose shares differ by 0.02; norms that are not named stand still at 0.5."""
    rows = []
    for at, horizon in enumerate((1, 3, 10, 32, 100)):
        for seed, apart in enumerate((-0.01, 0.01)):
            ends: Row = {}
            for norm in NORMS:
                share = shares.get(norm, STILL)[at]
                both = None if share is None else share + (apart if norm not in shares else 0.0)
                ends |= {f"{norm}_low": both, f"{norm}_high": both}
            rows.append({"model": model, "optimiser": name, "seed": seed, "horizon": horizon, "trials": 2} | ends)
    return rows


# In the order in which they are shown: normalised before sign.
ROWS = rows_of("multiclass", "sign", max=FAST, l_1=(0.04,) * 5, spectral=(0.8,) * 5)
ROWS += rows_of("multiclass", "normalised", frobenius=FAST, rows=FAST, nuclear=(None,) * 5, columns=RISING)
ROWS += rows_of("multiclass", "Lion")
NAMES, COLUMNS = ["normalised", "sign", "Lion"], list(NORMS)


def place(name: str, norm: str) -> tuple[int, int]:
    return COLUMNS.index(norm), NAMES.index(name)


@pytest.fixture(scope="module")
def panel() -> Any:
    (ax,) = figure(ROWS).axes
    return ax


def test_rows_are_optimisers_from_above_and_columns_norms(panel: Any) -> None:
    assert panel.get_title("left") == "multiclass classification"
    assert [tick.get_text() for tick in panel.get_xticklabels()] == COLUMNS
    assert [tick.get_text() for tick in panel.get_yticklabels()] == NAMES
    assert list(panel.get_xticks()) == list(range(len(COLUMNS)))
    assert list(panel.get_yticks()) == [0, 1, 2]
    assert panel.yaxis_inverted()
    assert panel.get_xlim() == (-0.5, len(COLUMNS) - 0.5)
    assert panel.get_ylim() == (2.5, -0.5)
    assert not any(spine.get_visible() for spine in panel.spines.values())


def test_a_cell_has_the_mean_share_at_the_last_horizon(panel: Any) -> None:
    shares = np.full((3, len(COLUMNS)), 0.5)
    for name, norm, share in (
        ("sign", "max", 0.999), ("sign", "l_1", 0.04), ("sign", "spectral", 0.8), ("normalised", "frobenius", 0.999),
        ("normalised", "rows", 0.999), ("normalised", "nuclear", np.nan), ("normalised", "columns", 0.65),
    ):  # fmt: skip
        x, y = place(name, norm)
        shares[y, x] = share
    (mesh,) = panel.collections
    np.testing.assert_allclose(np.ma.filled(mesh.get_array(), np.nan), shares)
    # Squares are about the ticks; all shares up to a half have one colour.
    assert (mesh.get_coordinates()[0, 0] == -0.5).all()
    assert (mesh.get_coordinates()[-1, -1] == [len(COLUMNS) - 0.5, 2.5]).all()
    assert mesh.get_clim() == (0.5, 1)
    texts = {}
    for text in panel.texts:
        x, y = text.get_position()
        # The number leaves room for a mark to its right.
        assert -0.3 < x - round(x) < -0.05
        texts[round(x), y] = text.get_text()
    expected = {(x, y): f"{share:.2f}"[1:] for (y, x), share in np.ndenumerate(shares) if np.isfinite(share)}
    expected |= dict.fromkeys((place("sign", "max"), place("normalised", "frobenius")), "1.0")
    assert texts == expected | {place("normalised", "rows"): "1.0"}


def test_numbers_are_light_on_dark_squares(panel: Any) -> None:
    colors = {(round(text.get_position()[0]), text.get_position()[1]): text.get_color() for text in panel.texts}
    # By hand: 0.8 is 0.6 of the way from a half to one, and 0.65 is 0.3 of it; white begins at 0.52.
    assert colors[place("sign", "spectral")] == colors[place("sign", "max")] == "white"
    assert colors[place("normalised", "columns")] == colors[place("Lion", "max")] == INK


def test_dots_mark_shares_that_tend_to_one_and_crosses_what_was_not_predicted(panel: Any) -> None:
    marks: dict[str, set[tuple[int, int]]] = {}
    for line in panel.get_lines():
        ((x,), (y,)) = line.get_data()
        # A mark stands to the right of its number.
        assert 0.2 < x - round(x) < 0.5
        marks.setdefault(line.get_marker(), set()).add((round(x), y))
    assert marks == {
        "o": {place("sign", "max"), place("normalised", "frobenius")},
        # Lion was predicted to reach 1 in the max norm, normalised descent in no other norm than its own.
        "x": {place("normalised", "rows"), place("Lion", "max")},
    }


def test_frames_are_solid_about_theorems_and_dotted_about_predictions(panel: Any) -> None:
    frames = {}
    for patch in panel.patches:
        assert isinstance(patch, Rectangle)
        assert not patch.get_fill()
        # A frame is centred on its square and lies within it.
        (x, y), width, height = patch.get_xy(), patch.get_width(), patch.get_height()
        assert 0.8 < min(width, height) <= max(width, height) < 1
        at = x + width / 2, y + height / 2
        assert at == pytest.approx([round(one) for one in at])
        frames[round(at[0]), round(at[1])] = patch.get_linestyle(), to_hex(patch.get_edgecolor())
    assert frames == {
        place("sign", "max"): ("solid", SECOND),
        place("normalised", "frobenius"): ("solid", SECOND),
        place("Lion", "max"): (":", INK),
    }


@pytest.mark.parametrize(("models", "width", "shape"), [
    (["attention"], WIDE, (1, 1)), (["next-token", "attention"], WIDE, (1, 2)),
    (["next-token", "attention"], NARROW, (2, 1)),
    (["multiclass", "factors", "attention"], WIDE, (2, 2)), ([], WIDE, (1, 1)), ([], NARROW, (1, 1)),
])  # fmt: skip
def test_models_have_a_panel_each_in_their_order(models: list[str], width: float, shape: tuple[int, int]) -> None:
    result: Any = figure([row for model in models for row in rows_of(model, "sign")], width)
    axes: Any = result.axes
    assert axes[0].get_subplotspec().get_gridspec().get_geometry() == shape
    assert [ax.get_title("left") for ax in axes[: len(models)]] == [MODELS[one] for one in MODELS if one in models]
    assert [ax.axison for ax in axes] == [at < len(models) for at in range(shape[0] * shape[1])]
    (legend,) = result.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "theorem", "predicted", "tends to 1", "not as predicted"
    ]  # fmt: skip
    assert legend._ncols == (4 if width == WIDE else 2)
    theorem, predicted, dot, cross = legend.legend_handles
    assert (dot.get_marker(), cross.get_marker()) == ("o", "x")
    assert not theorem.get_fill()
    assert not predicted.get_fill()


def test_a_figure_is_as_high_as_the_panel_with_most_optimisers_asks() -> None:
    def height(*counts: int, width: float = WIDE) -> float:
        models = list(MODELS)[: len(counts)]
        names = OPTIMISERS["W"][5:]  # those of every model
        rows = [
            row for model, count in zip(models, counts, strict=True) for name in names[:count]
            for row in rows_of(model, name)
        ]  # fmt: skip
        return figure(rows, width).get_figheight()

    line = height(2) - height(1)
    assert line > 0
    assert height(3, 1) == pytest.approx(height(1, 3)) == pytest.approx(height(1) + 2 * line)
    # Two rows of panels have twice the lines, and each its axis and title.
    assert height(2, 1, 1) - height(1, 1, 1) == pytest.approx(2 * line)
    assert height(1, 1, width=NARROW) == pytest.approx(height(1, 1, 1))
    assert height(1, 1, 1) - height(1) > 2 * line


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_numbers_fit_their_squares_on_a_page(width: float) -> None:
    models = MODELS if width == WIDE else ["attention"]
    result = figure([row for one in models for name in OPTIMISERS["W"][5:] for row in rows_of(one, name)], width)
    result.draw_without_rendering()
    assert result.get_figheight() < 11
    for ax in result.axes:
        corner, opposite = ax.transData.transform([(-0.5, -0.5), (0.5, 0.5)])
        across, up = np.abs(opposite - corner) / result.dpi
        # In inches: digits are as high as seven tenths of the font size, and three are narrower than twice that size.
        assert up > 0.15
        for text in ax.texts:
            assert 5 < float(text.get_fontsize()) < 72 * up / 0.7
        assert across > 2 * 6.4 / 72


def test_marks_and_lines_are_of_readable_sizes(panel: Any) -> None:
    """In points: a dot or a cross is smaller than a number, and a theorem's frame heavier than a prediction's."""
    (mesh,) = panel.collections
    assert mesh.get_linewidth() < 1
    theorem, predicted, *marks = panel.figure.legends[0].legend_handles
    frames = {patch.get_linestyle(): patch.get_linewidth() for patch in panel.patches}
    for light, heavy in ((frames[":"], frames["solid"]), (predicted.get_linewidth(), theorem.get_linewidth())):
        assert 0.5 < light < heavy < 3
    for line in (*panel.get_lines(), *marks):
        assert 1.5 < line.get_markersize() < 6
        assert 0.5 < line.get_markeredgewidth() < 2
    assert 5 < panel.get_xticklabels()[0].get_fontsize() < 9


@pytest.mark.parametrize(("share", "text"), [
    (0.995, "1.0"), (1.0, "1.0"), (0.9949, ".99"), (0.5, ".50"), (0.043, ".04"), (-0.25, "-.25"), (-0.001, ".00"),
])  # fmt: skip
def test_shares_are_written_without_their_zero(share: float, text: str) -> None:
    assert _text(share) == text
