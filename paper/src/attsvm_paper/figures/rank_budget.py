"""The width of K and Q needed to reach the nuclear SVM (Fig. 10).

K and Q have m columns, so K Q^T has rank at most m. The nuclear SVM of n sequences has a rank far below n (see
svm-rank). Training reaches it once m allows that rank, almost independently of T.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from attsvm.core.correlation import correlation
from attsvm.plots.style import house_style
from attsvm.training import train
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import estimate_verdict, value_verdict
from attsvm_paper.judging.estimates import Measure, estimates_by
from attsvm_paper.judging.grouping import by, column, having, panels_of
from attsvm_paper.judging.joint import JointTest, joint_test
from attsvm_paper.judging.points import Point, by_key, curve_points, next_values, swap
from attsvm_paper.judging.readings import Reading
from attsvm_paper.judging.statistics import bootstrap_interval
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import SERIES, curve_of, draw_curve, grid, legend, log_axis, value_axis
from attsvm_paper.published.instances import draw, start_seeds
from attsvm_paper.published.ledger import curve
from attsvm_paper.published.numerics import descent

NAME = "rank-budget"
FIGURE = "Fig. 10"
WIDTHS = tuple(range(1, 11))
SIZES = ((5, 5), (10, 5), (15, 5), (5, 10), (5, 15))
PANELS = (("T = 5", ((5, 5), (10, 5), (15, 5))), ("n = 5", ((5, 5), (5, 10), (5, 15))))
DOWN = 0.01
DIMENSION = 20
# Assumed number of trials: the paper does not state it; other figures say 100.
ASSUMED_TRIALS = 100
# Margin of logarithms of distances: a quarter.
LOG_MARGIN = 0.25
GAP = 0.1
Numerics = Literal["exact", "published"]
NUMERICS: tuple[Numerics, ...] = ("exact", "published")
FULL_TRIALS = 100


@dataclass(frozen=True)
class Config:
    """One width, size and arithmetic."""

    m: int
    n: int = 5
    T: int = 5
    numerics: Numerics = "exact"
    d: int = DIMENSION
    gap: float = GAP
    steps: int = 2000
    trials: int = FULL_TRIALS


def sweep(effort: Effort) -> list[Config]:
    """Take published arithmetic at every size, exact training for varying n; a quick run takes fewer trials."""
    full = effort == "full"
    count = FULL_TRIALS if full else 30
    widths = WIDTHS if full else (1, 2, 3, 4, 5, 6, 8, 10)
    cells = [Config(m, n, T, "published", trials=count) for n, T in SIZES for m in widths]
    return cells + [Config(m, n, trials=count) for n in ((5, 10, 15) if full else (5,)) for m in widths]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train K and Q of the given width and compare with the nuclear SVM of the selected tokens."""
    instances = draw(seeds, config.n, config.T, config.d, config.gap)
    trace = train(
        instances.data, instances.v, rank=config.m, steps=config.steps, init="torch", seed=start_seeds(seeds),
        **descent(config.numerics, "KQ"),
    )  # fmt: skip
    solutions = instances.solve(trace.selected, "nuclear")
    feasible = np.isfinite(solutions.objective)
    error = 1 - correlation(trace.W[:, -1], solutions.W)
    hits = (trace.selected == instances.optimal).all(-1)
    return [
        {
            "seed": int(seed),
            "feasible": bool(feasible[b]),
            "error": float(error[b]) if feasible[b] else None,
            "rank": solutions[b].rank if feasible[b] else None,
            "global": bool(hits[b]),
        }
        for b, seed in enumerate(seeds)
    ]


def first_enough(errors: Any, widths: Sequence[int]) -> float:
    """Return the smallest width whose mean error is below one per cent; errors (widths, trials)."""
    below = np.flatnonzero(np.asarray(errors).mean(-1) < DOWN)
    return float(widths[below[0]]) if len(below) else float("nan")


def _reference_curve(n: int, T: int, d: int) -> Any:
    """Return the printed curve of a size, or None."""
    if (n, T) not in SIZES or d != DIMENSION:
        return None
    return curve(f"Fig. 10 lower: n={n}" if T == 5 else f"Fig. 10 upper: T={T}")


MEASURES = {"error": Measure("1 - correlation with the nuclear SVM", "error")}


estimates = estimates_by(("numerics", "n", "T", "d", "gap", "m"), MEASURES)


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Compare errors of the published arithmetic with the printed ones, and measure the sufficient width."""
    for (numerics, n, T, d, gap), cells in by(rows, "numerics", "n", "T", "d", "gap").items():
        widths = by(cells, "m")
        same = numerics == "published" and gap == GAP
        size = f"n={n}, T={T}, " + (f"gap {gap:g}, " if gap != GAP else "")
        line = _reference_curve(n, T, d) if same else None
        for (m,), cell in widths.items():
            reference = None if line is None else line.at(m)
            yield estimate_verdict(
                NAME, f"{MEASURES['error'].words}, m={m}, {size}{numerics} numerics",
                estimates(rows).of((numerics, n, T, d, gap, m), "error"), published=reference,
                margin=LOG_MARGIN * (reference.value if reference is not None else 1.0),
                assumed_trials=ASSUMED_TRIALS, trials=len(cell),
                infeasible=sum(not row["feasible"] for row in cell),
            )  # fmt: skip
        # All widths have the same instances: trials are resampled for all widths together.
        error_of = {m: {row["seed"]: row["error"] for row in cell if row["feasible"]} for (m,), cell in widths.items()}
        shared = sorted(set.intersection(*(set(errors) for errors in error_of.values())))
        if len(shared) < 2:
            continue
        errors = np.array([[error_of[m][seed] for m in error_of] for seed in shared])  # (trials, widths)
        low, high = bootstrap_interval(errors, lambda v, axis, m=tuple(error_of): first_enough(v.T, m))
        yield value_verdict(
            NAME,
            f"first m with 1 - correlation below {DOWN}, {size}{numerics} numerics",
            first_enough(errors.T, tuple(error_of)),
            low,
            high,
            trials=len(shared),
            note=f"Mean rank of the nuclear SVM {column(cells, 'rank').mean():.2f}.",
        )


@listed
def points(rows: Sequence[Row]) -> Iterator[Point]:
    """Pair every printed number with our trials."""
    for (n, T, d), cells in by(rows, "n", "T", "d").items():
        line = _reference_curve(n, T, d)
        if line is not None:
            widths = {m: cell for (m,), cell in by(cells, "m").items()}
            yield from curve_points(line, widths, lambda row: row["error"], LOG_MARGIN, "log", ASSUMED_TRIALS)


def joint(rows: Sequence[Row]) -> list[JointTest]:
    """Test the whole figure, and state the power of the test."""
    main = points(having(rows, numerics="published", gap=GAP))
    other = {"Fig. 10 lower: n=10": "Fig. 10 lower: n=15", "Fig. 10 lower: n=15": "Fig. 10 lower: n=10"}
    exact = points(having(rows, numerics="exact", gap=GAP))
    alternatives = {
        "m off by one": next_values(main),
        "n = 10 and 15 exchanged": swap(main, other),
        "exact arithmetic, K and Q normalised together": by_key(exact),
    }
    note = "The paper does not state its trials; they are taken to be 100."
    test = joint_test(NAME, FIGURE, main, alternatives, reading="published arithmetic, score gap 0.1", note=note)
    return [] if test is None else [test]


@listed
def readings() -> Iterator[Reading]:
    """Return the protocols tried: score gap, arithmetic with its step rule, and training steps."""
    for gap in (0.0, GAP):
        for numerics in NUMERICS:
            for steps in (1000, 2000, 4000):
                cells = tuple(
                    Config(m, n, T, numerics, gap=gap, steps=steps, trials=40)
                    for n, T in ((5, 5), (15, 5), (5, 15))
                    for m in (1, 2, 3, 4, 6, 10)
                )
                factors = {"score gap": f"{gap:g}", "arithmetic": numerics, "steps": f"{steps}"}
                yield Reading(FIGURE, factors, cells, points)


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw mean errors against the width, on a logarithmic axis."""
    with house_style():
        d, panels = rows[0]["d"], panels_of(rows, PANELS)
        title = f"Width of K and Q against distance from the nuclear SVM, d = {d}, score gap at least {GAP}"
        result, axes = grid(1, len(panels), 3.0, title, width)
        for across, (panel, sizes) in enumerate(panels):
            ax = axes[0, across]
            for look, (n, T) in enumerate(sizes):
                own = (look if across == 0 or look == 0 else look + 2) % len(SERIES)
                for numerics, style in (("published", "-"), ("exact", ":")):
                    errors = estimates(rows).along("m", "error", n=n, T=T, numerics=numerics)
                    if not errors or (across == 1 and style == ":"):
                        continue
                    reference = _reference_curve(n, T, d) if style == "-" else None
                    line = None if reference is None else reference.line_points
                    label = f"n = {n}, T = {T}" if style == "-" else ""
                    draw_curve(ax, curve_of(errors, label, own, published=line, style=style))
            log_axis(ax, "y")
            value_axis(ax, sorted({row["m"] for row in rows}), "width m of K and Q", log=False)
            ax.set_ylabel("mean 1 - correlation")
            ax.set_title(panel)
        legend(result, list(axes[0]), 4, "ours, exact arithmetic")
    return result
