"""How wide K and Q must be to reach the nuclear SVM (Fig. 10).

K and Q have m columns, so K Q^T has rank m at most. The nuclear SVM of n sequences has a rank far below n (see
svm-rank), and training reaches it as soon as m allows that rank, hardly whatever T is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from attsvm.experiments.experiment import Effort, Experiment, Row, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "rank-budget"
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10)
SIZES = ((5, 5), (10, 5), (15, 5), (5, 10), (5, 15))
PANELS = (("T = 5", ((5, 5), (10, 5), (15, 5))), ("n = 5", ((5, 5), (5, 10), (5, 15))))
# Fig. 10, mean 1 - correlation at n = 5 by m, with the error of reading it off; the number of trials is not stated.
PUBLISHED = {1: (0.4, 0.05), 2: (0.06, 0.01), 3: (0.003, 0.001)} | dict.fromkeys((4, 5, 6, 8, 10), (0.0025, 0.001))
# "n = 10 needs m about 4 to 5, n = 15 about 6": the first m whose curve has come down.
ENOUGH = {5: (3.0, 0.5), 10: (4.5, 1.0), 15: (6.0, 1.0)}
DOWN = 0.01
PUBLISHED_SIZE = (5, 5, 20)
GAP = 0.1
FULL_TRIALS = 100


@dataclass(frozen=True)
class Config:
    """One width, size and arithmetic."""

    m: int
    n: int = 5
    T: int = 5
    numerics: Literal["exact", "published"] = "exact"
    d: int = 20
    steps: int = 2000
    trials: int = FULL_TRIALS


def sweep(effort: Effort) -> list[Config]:
    """Return exact training at every size, published arithmetic at T = 5; a quick run takes fewer trials."""
    full = effort == "full"
    cells = [Config(m, n, T, trials=FULL_TRIALS if full else 30) for n, T in SIZES for m in WIDTHS]
    shown = (5, 10, 15) if full else (5,)
    return cells + [
        Config(m, n, numerics="published", trials=FULL_TRIALS if full else 30) for n in shown for m in WIDTHS
    ]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train K and Q of that width and compare with the nuclear SVM of the selected tokens."""
    import numpy as np

    from attsvm.core.correlation import correlation
    from attsvm.experiments.instances import draw, start_seeds
    from attsvm.experiments.published_numerics import descent
    from attsvm.training import train

    instances = draw(seeds, config.n, config.T, config.d, GAP)
    trace = train(
        instances.data, instances.v, rank=config.m, steps=config.steps, init="torch", seed=start_seeds(seeds),
        **descent(config.numerics, "KQ"),
    )  # fmt: skip
    solved = instances.solve(trace.selected, "nuclear")
    feasible = np.isfinite(solved.objective)
    error = 1 - correlation(trace.W[:, -1], solved.W)
    reached = (trace.selected == instances.optimal).all(-1)
    return [
        {
            "seed": int(seed),
            "feasible": bool(feasible[b]),
            "error": float(error[b]) if feasible[b] else None,
            "rank": solved[b].rank if feasible[b] else None,
            "global": bool(reached[b]),
        }
        for b, seed in enumerate(seeds)
    ]


def first_enough(errors: Any, widths: Sequence[int]) -> float:
    """Return the smallest width whose mean error is below one per cent; errors (widths, trials)."""
    import numpy as np

    below = np.flatnonzero(np.asarray(errors).mean(-1) < DOWN)
    return float(widths[below[0]]) if len(below) else float("nan")


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Hold errors at n = T = 5 and the width that is enough against the published ones."""
    import numpy as np

    from attsvm.experiments.grouping import by, column
    from attsvm.experiments.statistics import bootstrap_interval, mean_verdict, value_verdict

    found = []
    for (numerics, n, T, d), cells in by(rows, "numerics", "n", "T", "d").items():
        widths = by(cells, "m")
        for (m,), cell in widths.items() if (n, T) == PUBLISHED_SIZE[:2] else ():
            published, rounding = PUBLISHED.get(m, (None, 0.0)) if d == PUBLISHED_SIZE[2] else (None, 0.0)
            found.append(
                mean_verdict(
                    NAME,
                    f"1 - correlation with the nuclear SVM, m={m}, n={n}, T={T}, {numerics} numerics",
                    column(cell, "error"),
                    published=published,
                    rounding=rounding,
                    trials=len(cell),
                    interval="bootstrap",
                    infeasible=sum(not row["feasible"] for row in cell),
                )
            )
        # Widths see the same instances: trials are resampled for all of them at once.
        known = {m: {row["seed"]: row["error"] for row in cell if row["feasible"]} for (m,), cell in widths.items()}
        shared = sorted(set.intersection(*(set(errors) for errors in known.values())))
        if len(shared) < 2:
            continue
        errors = np.array([[known[m][seed] for m in known] for seed in shared])  # (trials, widths)
        low, high = bootstrap_interval(errors, lambda v, axis, m=tuple(known): first_enough(v.T, m))
        published, tolerance = ENOUGH.get(n, (None, 0.0)) if (T, d) == PUBLISHED_SIZE[1:] else (None, 0.0)
        first = first_enough(errors.T, tuple(known))
        found.append(
            value_verdict(
                NAME,
                f"first m with 1 - correlation below {DOWN}, n={n}, T={T}, {numerics} numerics",
                first,
                low,
                high,
                published=published,
                tolerance=tolerance + max(high - first, first - low),
                trials=len(shared),
                note=f"Mean rank of the nuclear SVM {column(cells, 'rank').mean():.2f}.",
            )
        )
    return found


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw mean errors against the width, on a logarithmic axis."""
    from attsvm.experiments.grouping import by, column, having, panels_of
    from attsvm.experiments.statistics import bootstrap_interval
    from attsvm.plots.experiments import SERIES, Curve, draw_curve, grid, legend, log_axis, value_axis
    from attsvm.plots.style import house_style

    with house_style():
        d, panels = rows[0]["d"], panels_of(rows, PANELS)
        title = f"Width of K and Q against distance from the nuclear SVM, d = {d}, score gap at least {GAP}"
        result, axes = grid(1, len(panels), 3.0, title, width)
        for across, (panel, sizes) in enumerate(panels):
            ax = axes[0, across]
            for look, (n, T) in enumerate(sizes):
                own = (look if across == 0 or look == 0 else look + 2) % len(SERIES)
                for numerics, style in (("exact", "-"), ("published", ":")):
                    cells = by(having(rows, n=n, T=T, numerics=numerics), "m")
                    if not cells or (across == 1 and style == ":"):
                        continue
                    cells = {m: errors for (m,), cell in cells.items() if len(errors := column(cell, "error")) > 1}
                    if not cells:
                        continue
                    low, high = zip(*(bootstrap_interval(errors) for errors in cells.values()), strict=True)
                    line = None
                    if (n, T, d) == PUBLISHED_SIZE and style == "-":
                        line = (list(PUBLISHED), [value for value, _ in PUBLISHED.values()])
                    label = f"n = {n}, T = {T}" if style == "-" else ""
                    mean = [float(errors.mean()) for errors in cells.values()]
                    draw_curve(ax, Curve(label, list(cells), mean, low, high, own, line, style))
            log_axis(ax, "y")
            value_axis(ax, sorted({row["m"] for row in rows}), "width m of K and Q", log=False)
            ax.set_ylabel("mean 1 - correlation")
            ax.set_title(panel)
        legend(result, list(axes[0]), 4, "ours, published arithmetic")
    return result


EXPERIMENT = Experiment(
    name=NAME,
    title="How wide K and Q must be",
    source="Fig. 10",
    claim="K and Q of a few columns already reach the nuclear SVM; the width needed grows with n and hardly with T.",
    config=Config,
    sweep=sweep,
    trials=trials,
    figure=figure,
    verdicts=verdicts,
    instance=("n", "T", "d"),
    # Quick as measured with two workers; full extrapolated from its rate.
    minutes={"quick": 0.8, "full": 2.0},
    batch=30,
)
