"""Training converges to the SVM of the selected tokens, in the norm of the parameterisation (Fig. 7).

W tends to the Frobenius SVM of the realised selection, for every selection, and K Q^T to the nuclear one. The printed
axis ends at 600 iterations. The text does not say that the best score leads by 0.1, as p. 53 does for other figures.
Both settings are run, and the joint test decides which agrees.

Two of the six captions are wrong. The red curve of panel (b), captioned as (K, Q) with the Frobenius SVM, shows W with
the nuclear SVM. The blue curve of panel (c) shows (K, Q) with the Frobenius SVM. The official notebook draws one
parameterisation per panel and labels its two SVMs "W" and "(K, Q)".

Ours continues to 10,000 steps. In the published arithmetic ||W|| is constant by then: the gradient is divided by its
norm plus 2.2e-16, and consists only of rounding. Exact training continues to converge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from attsvm.core.correlation import correlation
from attsvm.plots.curves import nines
from attsvm.plots.style import NORM_TITLES, QUIET, house_style, step_axis
from attsvm.training import train
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import correction, mean_verdict
from attsvm_paper.judging.estimates import at_records
from attsvm_paper.judging.grouping import by, having
from attsvm_paper.judging.joint import JointTest, joint_test
from attsvm_paper.judging.points import Point, by_key, curve_points, next_values, swap
from attsvm_paper.judging.readings import Reading
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import Curve, curve_of, draw_curve, grid, legend
from attsvm_paper.published.instances import draw, start_seeds
from attsvm_paper.published.ledger import curve
from attsvm_paper.published.numerics import descent

NAME = "local-convergence"
FIGURE = "Fig. 7"
TRIALS = 100
SIZE = (6, 8, 10)
# Iterations at which the figure is read, up to the end of its axis.
MARKS = (50, 100, 200, 300, 400, 500, 599)
PRINTED_END = 600
# The official code counts from 0 and records W after the step: iteration k is W after k + 1 steps.
RECORDS = tuple(
    sorted({1, 2, 5, 10, 20, 1000, 2000, 5000, 10_000} | {mark + after for mark in MARKS for after in (0, 1)})
)
NORMS = ("frobenius", "nuclear")
GAP = 0.1
# Margins of correlations, and of the top probability.
MARGIN, TOP_MARGIN = 0.03, 0.05
LABELS = (
    "The label of this curve is not what it shows: the official notebook draws one parameterisation per panel and "
    "labels its two SVMs W and (K, Q)."
)
SWAP = {("W", "nuclear"): ("KQ", "frobenius"), ("KQ", "frobenius"): ("W", "nuclear")}
TITLES = {
    "frobenius": "correlation with the Frobenius SVM",
    "nuclear": "correlation with the nuclear SVM",
    "attention": "mean top softmax probability",
}
CAPTION, NOTEBOOK = "as captioned", "as the notebook draws them"
NO_GAP, WITH_GAP = "no score gap", "score gap 0.1"


@dataclass(frozen=True)
class Config:
    """One parameterisation, arithmetic and score gap."""

    parameterization: Literal["W", "KQ"] = "W"
    numerics: Literal["exact", "published"] = "exact"
    gap: float = GAP
    start: Literal["torch", "small"] = "torch"
    n: int = 6
    T: int = 8
    d: int = 10
    steps: int = RECORDS[-1]
    trials: int = TRIALS


def sweep(effort: Effort) -> list[Config]:
    """Both arithmetics to the end, with and without the gap, and one more dimension; quick and full are the same."""
    cells = []
    for p in ("W", "KQ"):
        cells += [Config(p, numerics) for numerics in ("exact", "published")]
        cells += [Config(p, "published", gap=0.0, steps=PRINTED_END)]
        cells += [Config(p, "published", d=SIZE[2] + 1, steps=PRINTED_END)]
    return cells


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train, and compare all records with both SVMs of the tokens selected at the end."""
    instances = draw(seeds, config.n, config.T, config.d, config.gap)
    start = {"init": "torch"} if config.start == "torch" else {}
    trace = train(
        instances.data, instances.v, steps=config.steps, seed=start_seeds(seeds),
        record_every=[step for step in RECORDS if step <= config.steps], **start,
        **descent(config.numerics, config.parameterization),
    )  # fmt: skip
    curves = {}
    for norm in NORMS:
        solutions = instances.solve(trace.selected, norm)
        feasible = np.isfinite(solutions.objective)
        curves[norm] = correlation(trace.W[:, 1:], solutions.W[:, None])
    top = trace.attention[:, 1:].max(-1).mean(-1)
    size = trace.norm[:, 1:]
    return [
        {
            "seed": int(seed),
            "feasible": bool(feasible[b]),
            "step": trace.step[1:].tolist(),
            "frobenius": curves["frobenius"][b].tolist() if feasible[b] else None,
            "nuclear": curves["nuclear"][b].tolist() if feasible[b] else None,
            "attention": top[b].tolist(),
            "norm": size[b].tolist(),
        }
        for b, seed in enumerate(seeds)
    ]


def _size(row: Row) -> tuple[int, int, int]:
    return row["n"], row["T"], row["d"]


def _reference_curve(parameterization: str, what: str, notebook: bool = True) -> Any:
    """Return the printed curve of a field of the rows, labelled as in the notebook or as in the caption."""
    if notebook and (parameterization, what) in SWAP:
        parameterization, what = SWAP[parameterization, what]
    names = {"frobenius": "Fig. 7b: {}, Frobenius SVM", "nuclear": "Fig. 7c: {}, nuclear SVM"}
    return curve(names.get(what, "Fig. 7a: {}, largest softmax").format(parameterization))


def _at(row: Row, what: str, mark: int, late: int = 1) -> float | None:
    """Return a recorded value at a printed iteration; None if there is no SVM or no record."""
    step = mark if what == "attention" else mark + late
    if row[what] is None or step not in row["step"]:
        return None
    return row[what][row["step"].index(step)]


def _is_reference(row: Row) -> bool:
    """Whether the row has the settings under which our curves agree: published arithmetic and start, score gap."""
    return _size(row) == SIZE and row["numerics"] == "published" and row["gap"] == GAP and row["start"] == "torch"


def _compare(cell: Sequence[Row], what: str, mark: int, name: str, **options: Any) -> Verdict:
    values = [value for row in cell if (value := _at(row, what, mark)) is not None]
    return mean_verdict(NAME, name, values, **options)


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Compare published arithmetic and a score gap with every printed number; other settings are only measured."""
    groups = by(rows, "parameterization", "numerics", "gap", "start", "d")
    for (p, numerics, gap, start, d), cell in groups.items():
        infeasible = sum(not row["feasible"] for row in cell)
        same = _is_reference(cell[0])
        protocol = [f"{numerics} numerics"] + ([] if gap == GAP else [NO_GAP if gap == 0 else f"gap {gap:g}"])
        protocol += [f"{start} start"] * (start != "torch") + [f"d={d}"] * (_size(cell[0]) != SIZE)
        for what in (*NORMS, "attention"):
            for mark in MARKS:
                options = {
                    "name": f"{TITLES[what]}, {p}, iteration {mark}, {', '.join(protocol)}",
                    "published": _reference_curve(p, what, notebook=False).at(mark) if same else None,
                    "margin": TOP_MARGIN if what == "attention" else MARGIN,
                    "infeasible": infeasible,
                }
                verdict = _compare(cell, what, mark, **options)
                if math.isnan(verdict.measured):
                    continue
                if same and (p, what) in SWAP:
                    other, field = SWAP[p, what]
                    partner = groups.get((other, numerics, gap, start, d), [])
                    verdict = correction(verdict, _compare(partner, field, mark, **options), LABELS)
                yield verdict
        own, step = ("frobenius" if p == "W" else "nuclear"), cell[0]["step"]
        ends = [1 - row[own][-1] for row in cell if row[own] is not None]
        yield mean_verdict(
            NAME,
            f"1 - correlation of {p} with its SVM, step {step[-1]}, {', '.join(protocol)}",
            ends,
            infeasible=infeasible,
            interval="bootstrap",
            note=f"Median norm of W at the end {_median([row['norm'][-1] for row in cell]):.4g}.",
        )


@listed
def points(rows: Sequence[Row], late: int = 1, notebook: bool = True) -> Iterator[Point]:
    """Pair every printed number with our trials.

    `late` is the number of steps before iteration 0; `notebook` labels curves as in the notebook, otherwise as in the
    caption.
    """
    for (p,), cell in by(rows, "parameterization").items():
        for what in (*NORMS, "attention"):
            reference = _reference_curve(p, what, notebook)
            margin = TOP_MARGIN if what == "attention" else MARGIN
            for mark in MARKS:
                yield from [
                    one
                    for one in curve_points(
                        reference, {mark: cell}, lambda row, w=what, m=mark: _at(row, w, m, late), margin
                    )
                    if one.values
                ]


def joint(rows: Sequence[Row]) -> list[JointTest]:
    """Test all six curves with and without the score gap, and state the power of the test."""
    plain = having(rows, numerics="published", start="torch", n=SIZE[0], T=SIZE[1])
    gap_rows, open_ = (having(plain, gap=gap, d=SIZE[2]) for gap in (GAP, 0.0))
    main, without = points(gap_rows), points(open_)
    caption, late = points(gap_rows, notebook=False), "iteration at the next grid value (100 further)"
    alternatives = {
        late: next_values(main),
        "W and (K, Q) swapped": swap(main, {one.place[0]: _swap(one.place[0]) for one in main}),
        "d off by one": by_key(points(having(plain, gap=GAP, d=SIZE[2] + 1))),
        NO_GAP: by_key(without),
        f"curves {CAPTION}": by_key(caption),
    }
    tests = [
        joint_test(
            NAME, FIGURE, main, alternatives,
            reading=f"reconstructed: {WITH_GAP}, curves {NOTEBOOK}",
        ),
        joint_test(NAME, FIGURE, without, {late: next_values(without)}, reading=f"{NO_GAP}, curves {NOTEBOOK}"),
        joint_test(NAME, FIGURE, caption, {late: next_values(caption)}, reading=f"{WITH_GAP}, curves {CAPTION}"),
    ]  # fmt: skip
    return [test for test in tests if test is not None]


def _swap(key: str) -> str:
    return key.replace(": KQ,", ": W,") if ": KQ," in key else key.replace(": W,", ": KQ,")


@listed
def readings() -> Iterator[Reading]:
    """Return the protocols tried: score gap, arithmetic with its step rule, start, and the numbering of iterations."""
    for gap in (0.0, GAP):
        for numerics in ("published", "exact"):
            for start in ("torch", "small"):
                cells = tuple(Config(p, numerics, gap, start, steps=PRINTED_END) for p in ("W", "KQ"))
                for late in (1, 0):
                    for notebook in (True, False):
                        factors = {
                            "score gap": f"{gap:g}",
                            "arithmetic": numerics,
                            "start": start,
                            "iteration 0": "after a step" if late else "before it",
                            "curves": NOTEBOOK if notebook else CAPTION,
                        }

                        def pair(rows: Sequence[Row], late: int = late, notebook: bool = notebook) -> list[Point]:
                            return points(rows, late, notebook)

                        yield Reading(FIGURE, factors, cells, pair)


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else float("nan")


def _table(rows: Sequence[Row], name: str) -> Any:
    """Return a listed field of all rows that have one, (trials, records)."""
    values = [row[name] for row in rows if row[name] is not None]
    return np.array(values, dtype=float).reshape(len(values), -1 if values else len(rows[0]["step"]))


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw -log10(1 - correlation) against steps, and the softmax probability below."""

    def ours(cell: Sequence[Row], what: str, label: str, look: int, transform: Any, **extra: Any) -> Curve | None:
        values = _table(cell, what)
        if not len(values):
            return None
        return curve_of(at_records(cell[0]["step"], values, "mean"), label, look, transform, **extra)

    def theirs(parameterization: str, what: str, transform: Any) -> Any:
        reference = _reference_curve(parameterization, what)
        x, y = (np.array(part, dtype=float) for part in reference.line_points)
        spread = np.array(reference.band, dtype=float)
        shift = 0 if what == "attention" else 1
        keep = x + shift >= 1
        bands = [transform(np.clip(part, -1, 1 - 1e-9))[keep] for part in (y - spread, y + spread)]
        return x[keep] + shift, transform(np.clip(y, -1, 1 - 1e-9))[keep], bands

    ticks = (0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)
    base = having(rows, n=rows[0]["n"], T=rows[0]["T"], d=min(row["d"] for row in rows), start=rows[0]["start"])
    main = max(row["gap"] for row in base)
    base = [row for row in base if row["gap"] == main]
    with house_style():
        n, T, d = _size(base[0])
        gap = f"score gap at least {main:g}" if main else "no score gap"
        title = f"Correlation with the SVM of the selected tokens, n = {n}, T = {T}, d = {d}, {gap}"
        result, axes = grid(2, 2, 2.6, title, width)
        for across, parameterization in enumerate(("W", "KQ")):
            ax, below = axes[0, across], axes[1, across]
            top = 1.0
            for numerics, style in (("exact", "-"), ("published", ":")):
                cell = having(base, parameterization=parameterization, numerics=numerics)
                if not cell:
                    continue
                # Their curve is drawn once, with the first of ours.
                has_reference = _size(cell[0]) == SIZE and (style == "-" or not having(base, numerics="exact"))
                for look, norm in enumerate(NORMS):
                    label = f"{NORM_TITLES[norm]} SVM" if style == "-" else ""
                    plot_line = ours(cell, norm, label, look, nines, style=style)
                    if plot_line is None:
                        continue
                    top = max(top, float(np.max(plot_line.y)))
                    line = theirs(parameterization, norm, nines) if has_reference else None
                    draw_curve(ax, plot_line, line=line)
                label = "top softmax probability" if style == "-" else ""
                plot_line = ours(cell, "attention", label, 2, np.asarray, style=style)
                if plot_line is not None:
                    line = theirs(parameterization, "attention", np.asarray) if has_reference else None
                    draw_curve(below, plot_line, line=line)
            marks = [tick for tick in ticks if nines(tick) <= top * 1.1]
            ax.set_yticks([float(nines(tick)) for tick in marks], [f"{tick:g}" for tick in marks])
            ax.set_ylim(-0.05, top * 1.12)
            name = "training W" if parameterization == "W" else "training (K, Q)"
            ax.set_title(f"{name}: direction")
            below.set_title(f"{name}: attention")
            ax.set_ylabel("mean correlation")
            below.set_ylabel("mean top probability")
            below.set_ylim(0, 1.04)
            for panel in (ax, below):
                step_axis(panel, RECORDS[-1] * 1.2)
            ax.axvline(PRINTED_END, color=QUIET, lw=0.7, ls=":")
            ax.annotate(
                "printed axis ends", (PRINTED_END, 0), xycoords=("data", "axes fraction"), xytext=(-3, 3),
                textcoords="offset points", ha="right", color=QUIET, fontsize=7,
            )  # fmt: skip
        legend(result, [axes[0, 0], axes[1, 0]], 3, "ours, published arithmetic", band=True)
    return result
