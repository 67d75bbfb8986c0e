"""All experiments, from a few short trials of every cell: verdicts of any cells, and figures that can be read.

What is short says nothing about the claims; the cells, and with them the panels, ticks and labels, are those of a quick
run.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from attsvm.plots.style import NARROW, WIDE, house_style
from attsvm.report.page import Picture
from attsvm_paper import registry
from attsvm_paper.engine.runner import run
from attsvm_paper.judging.comparison import COMPARISONS
from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.ledger import ledger
from attsvm_paper.report.finished import FinishedRun
from attsvm_paper.report.reproduction import render
from attsvm_paper.report.tally import as_json

# Beside two trials of a hundred steps.
SHORTER: dict[str, dict[str, Any]] = {
    "phase-diagram": {"trials": 1, "steps": 30},
    "layers": {"trials": 1, "n": 20, "steps": 5, "queries": 4},
    "basins": {"starts": 2},
    "atlas": {"trials": 1, "steps": 30},
    "overparameterisation": {"starts": 2},
    "factor-flow": {"horizon": 4.0},
    "parameter-margin": {"trials": 1, "steps": 30},
    "global-probability": {"trials": 1, "steps": 60},
    "svm-rank": {"trials": 1},
    "rank-budget": {"steps": 60},
    "prompt-attention": {"steps": 60},
    "token-similarity": {"steps": 40},
    "optimiser-geometry": {"trials": 1, "steps": 30},
    "rank-law": {"trials": 1, "steps": 30},
    "lambda-head": {"trials": 2, "steps": 40},
    "grokking": {"trials": 2, "steps": 8, "p": 7, "width": 8, "records": 4},
}
# Sizes that nobody has published, and cells that leave most of a sweep out.
OTHER: dict[str, list[dict[str, Any]]] = {
    "gd-paths": [{"numerics": "published"}],
    "convergence-types": [{"d": 6}, {"n": 4, "T": 3}],
    "global-probability": [{"n": 3, "T": 2, "d": 7}, {"numerics": "published"}],
    "svm-rank": [{"n": 4, "d": 1}],
    "local-convergence": [{"steps": 50}, {"d": 1}, {"n": 3, "T": 3}],
    "multi-token": [{"numerics": "exact"}, {"d": 5}, {"T": 3}],
    "lambda-head": [{"lam": 0.0}, {"numerics": "published"}, {"numerics": "lemma"}, {"T": 3}],
    "rank-budget": [{"m": 7}, {"d": 1}, {"n": 2, "T": 3}],
    "prompt-attention": [{"setting": "losses"}, {"setting": "tight"}],
    "mirror-descent": [{"p": 2.0}, {"d": 1}],
    "phase-diagram": [{"n": 3, "T": 3, "d": 4}],
    "rank-law": [{"n": 4, "T": 3, "d": 3}],
    "convergence-rates": [{"rule": "normalised"}],
    "optimiser-geometry": [{"d": 2}],
    "atlas": [{"model": "factors", "optimiser": "Muon", "n": 3, "T": 3, "d": 4}],
    "basins": [{"grid": 5}, {"d": 1, "grid": 0}],
    "overparameterisation": [{"d": 3}],
    "sparse-selectors": [{"d": 3}],
    "joint-training": [{"head_lr": 0.0, "d": 4}],
    "sequences": [{"setting": "cyclic", "vocabulary": 3}],
    "layers": [{"task": "chain", "T": 4, "between": "mlp", "layers": 2}],
    "token-similarity": [{"distance": 0.0}],
    "regularisation": [{"topic": "size", "strength": 0.0, "d": 1, "heads": 2}, {"topic": "early", "strength": 0.0}],
    "query-temperature": [{"setting": "budget", "n": 2, "d": 1}, {"setting": "specificity", "d": 6, "T": 3}],
    "factor-flow": [{"case": "diagonal, aligned", "n": 3, "d": 2, "T": 2}],
    "adaptive-steps": [{"setting": "orthogonal", "rule": "polyak", "n": 1, "T": 2}],
    "benign-overfitting": [{"setting": "two tokens", "ratio": 0.3, "d": 30, "n": 4}],
    "parameter-margin": [{"optimiser": "Muon", "power": 0.8, "n": 2, "d": 3}],
    "trained-embeddings": [{"start": 0.5, "n": 6, "d": 12}],
    "grokking": [{"optimiser": "normalised", "p": 5}, {"share": 0.5, "loss": "power"}],
    "weight-decay": [{"setting": "descent", "strength": 0.1}, {"d": 3, "setting": "margin", "strength": 1.0}],
}
# CSS pixels that a figure has at windows of 400 and 1280.
PAGE_WIDTHS = {NARROW: 368.0, WIDE: 735.0}
SMALLEST = 8.0


@cache
def tiny(name: str, effort: typing.Literal["quick", "full"] = "quick", **overrides: Any) -> list[Row]:
    """Compute a few short trials."""
    experiment = registry.get(name)
    fields = experiment.config.__dataclass_fields__
    shorter = {"trials": 2, "steps": 100} | SHORTER.get(name, {}) | overrides
    return run(experiment, effort, overrides={key: value for key, value in shorter.items() if key in fields})


@cache
def finished_run(name: str) -> FinishedRun:
    return FinishedRun(registry.get(name), tiny(name), "quick", 0, {}, 1.0)


@cache
def picture_of(name: str) -> Picture:
    return finished_run(name).picture


@cache
def drawing(name: str, width: float) -> Figure:
    figure = picture_of(name).draw(width)
    with house_style():
        figure.draw_without_rendering()
    figure.set_layout_engine(None)  # it is laid out
    return figure


def texts(figure: Figure) -> list[Text]:
    text_objects = figure.findobj(Text)
    return [text for text in text_objects if isinstance(text, Text) and text.get_visible() and text.get_text().strip()]


def title(ax: Axes) -> Text:
    words = ax.get_title(loc="left")
    return next(child for child in ax.get_children() if isinstance(child, Text) and child.get_text() == words)


def labels(ax: Axes) -> Iterator[list[Text]]:
    """Yield the tick labels of each axis that are within its limits."""
    for axis in (ax.xaxis, ax.yaxis):
        low, high = sorted(axis.get_view_interval())
        span = 1e-9 * (high - low)
        yield [
            tick.label1
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
            if tick.label1.get_rotation() == 0
            and tick.label1.get_visible()
            and tick.label1.get_text()
            and low - span <= tick.get_loc() <= high + span
        ]


def test_every_experiment_is_tried() -> None:
    assert set(OTHER) == set(registry.names())


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.slow
def test_any_cells_have_verdicts_and_a_figure(name: str) -> None:
    experiment, rows = registry.get(name), finished_run(name).rows
    fields = list(experiment.config.__dataclass_fields__)
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        cells.setdefault(tuple(row[field] for field in fields), []).append(row)
    first, *_, last = cells.values()
    others = [tiny(name, **other) for other in OTHER[name]]
    single, other = ([row for row in cell if row["trial"] == 0] for cell in (first, last))
    for part in (rows, single, other, *others):
        verdicts = experiment.verdicts(part)
        assert len({verdict.quantity for verdict in verdicts}) == len(verdicts)
        for test in experiment.joint(part) if experiment.joint is not None else ():
            as_json(test)
            assert test.values > 0
        for verdict in verdicts:
            as_json(verdict)
            if verdict.tolerance == float("inf"):
                assert verdict.verdict == "measured"
    for part in (single, *others):
        with house_style():
            assert experiment.figure(part, NARROW).axes


@pytest.mark.slow
def test_what_the_paper_does_not_have_is_measured_only() -> None:
    for name, other in (
        ("convergence-types", {"d": 6}),
        ("convergence-types", {"n": 4, "T": 3}),
        ("global-probability", {"n": 3, "T": 2, "d": 7}),
        ("svm-rank", {"n": 4, "d": 1}),
        ("local-convergence", {"n": 3, "T": 3}),
        ("multi-token", {"T": 3}),
        ("lambda-head", {"T": 3}),
        ("rank-budget", {"d": 12, "m": 2}),
    ):
        result = registry.get(name).verdicts(tiny(name, **other))
        assert result
        assert {verdict.verdict for verdict in result} == {"measured"}, (name, other)


@pytest.mark.slow
def test_every_printed_number_is_compared_once_and_comes_from_the_ledger() -> None:
    keys: list[str] = []
    # The pictures of Fig. 1, prompt attention and mirror descent print no numbers.
    printing = [name for name in registry.FIGURES if registry.get(name).joint is not None]
    assert len(printing) == len(registry.FIGURES) - 3
    for name in printing:
        # Beside the marks of Fig. 7; accepted draws of Figs 8 and 11 and numbers of tokens of 9c need real training.
        steps = {"local-convergence": 600}.get(name, 60)
        rows = tiny(name, "full", trials=1 if name == "svm-rank" else 2, steps=steps)
        for verdict in registry.get(name).verdicts(rows):
            if verdict.key:
                assert verdict.published == ledger().numbers[verdict.key].value, verdict
                keys.append(verdict.key)
            else:
                assert verdict.published is None
    assert len(set(keys)) == len(keys)
    assert len(ledger().numbers) <= COMPARISONS
    figures = {key.split()[1].rstrip(":abc") for key in keys}
    assert {"4", "5", "6", "7", "9", "10", "12"} <= figures
    there = [key for key in ledger().numbers if key.split()[1].rstrip(":abc") in ("4", "5", "6", "7", "10", "12")]
    assert set(there) <= set(keys)


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("name", OTHER)
@pytest.mark.slow
def test_a_figure_can_be_read(name: str, width: float) -> None:
    figure = drawing(name, width)
    assert figure.get_figwidth() == width
    pixels = PAGE_WIDTHS[width] / (72 * width)  # a point
    whole = figure.bbox.padded(figure.dpi / 72)
    for text in texts(figure):
        assert float(text.get_fontsize()) * pixels >= SMALLEST, text.get_text()
    text_objects = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for ax in figure.axes:
        for ticks in labels(ax):
            boxes = [label.get_window_extent() for label in ticks]
            assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2)), [t.get_text() for t in ticks]
        text_objects += [title(ax), ax.xaxis.label, ax.yaxis.label, *itertools.chain(*labels(ax))]
    for text in text_objects:
        if text.get_text():
            box = text.get_window_extent()
            inside = whole.x0 <= box.x0, box.x1 <= whole.x1, whole.y0 <= box.y0, box.y1 <= whole.y1
            assert all(inside), (text.get_text(), box)
    titles = [title(ax).get_window_extent() for ax in figure.axes if ax.get_title(loc="left")]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(titles, 2))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with the narrow figure of every experiment; the wide ones are left out, since nothing looks at them."""
    runs = [finished_run(name) for name in registry.names()]
    for one in runs:
        name = one.experiment.name
        whole = picture_of(name)
        picture = Picture(whole.name, lambda width, name=name: drawing(name, width), whole.alt, whole.caption)
        picture.__dict__["wide"] = "data:,"
        one.__dict__["picture"] = picture
    page = tmp_path_factory.mktemp("page") / "index.html"
    page.write_text(render(runs, "attsvm reproduce", ()), encoding="utf-8")
    return page


@pytest.mark.slow
@pytest.mark.parametrize("page", [(400, 800)], indirect=True)
def test_a_telephone_gets_narrow_drawings_in_letters_that_can_be_read(page) -> None:
    page_texts = page.evaluate(
        "[...document.images].map(i => [i.currentSrc != i.src, i.naturalWidth, i.getBoundingClientRect().width])"
    )
    assert len(page_texts) == len(registry.names())
    for name, (narrow, natural, width) in zip(registry.names(), page_texts, strict=True):
        assert narrow
        assert natural > 0
        assert width == pytest.approx(PAGE_WIDTHS[NARROW], abs=1)
        smallest = min(float(text.get_fontsize()) for text in texts(drawing(name, NARROW)))
        assert smallest * width / (72 * NARROW) >= SMALLEST, name
    assert page.console_log == []
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
