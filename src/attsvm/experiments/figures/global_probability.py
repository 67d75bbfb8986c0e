"""How often training selects the globally optimal token of every sequence, as n, T and d vary (Fig. 6).

The figure does not say so, but its numbers are those of instances whose best score leads by 0.1 or more. Without that
gap they are much lower: a token that trails by little is a competitor that any direction may prefer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from attsvm.experiments.experiment import Effort, Experiment, Row, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "global-probability"
DIMENSIONS = (5, 10, 15, 20, 25, 30)
PUBLISHED_TRIALS = 500
# Fig. 6: (parameterisation, n, T) to the probabilities at DIMENSIONS.
PUBLISHED: dict[tuple[Literal["W", "KQ"], int, int], tuple[float, ...]] = {
    ("W", 5, 5): (0.784, 0.966, 1.0, 0.998, 1.0, 1.0),
    ("W", 10, 5): (0.288, 0.80, 0.958, 0.994, 1.0, 1.0),
    ("W", 20, 5): (0.004, 0.253, 0.68, 0.936, 0.984, 0.996),
    ("KQ", 5, 5): (0.786, 0.961, 0.98, 0.994, 1.0, 1.0),
    ("KQ", 10, 5): (0.274, 0.772, 0.908, 0.978, 0.994, 0.998),
    ("KQ", 20, 5): (0.008, 0.19, 0.574, 0.794, 0.908, 0.962),
    ("W", 5, 10): (0.595, 0.836, 0.938, 0.982, 0.986, 0.998),
    ("W", 5, 20): (0.606, 0.719, 0.854, 0.898, 0.948, 0.976),
    ("KQ", 5, 10): (0.732, 0.884, 0.946, 0.974, 0.984, 0.99),
    ("KQ", 5, 20): (0.794, 0.902, 0.944, 0.952, 0.98, 0.984),
}
PANELS = (("T = 5", ((5, 5), (10, 5), (20, 5))), ("n = 5", ((5, 5), (5, 10), (5, 20))))
# Numbers without a third digit in the source were read from the plot.
ROUNDING = 0.005
GAP = 0.1
# Sizes that are also drawn without a gap.
UNGAPPED: tuple[tuple[Literal["W", "KQ"], int, int], ...] = (("W", 5, 5), ("W", 10, 5), ("W", 20, 5), ("W", 5, 20))


@dataclass(frozen=True)
class Config:
    """One size, parameterisation and arithmetic."""

    n: int
    T: int
    d: int
    parameterization: Literal["W", "KQ"] = "W"
    numerics: Literal["exact", "published"] = "exact"
    gap: float = GAP
    steps: int = 2000
    trials: int = PUBLISHED_TRIALS


def sweep(effort: Effort) -> list[Config]:
    """All sizes of the figure; a quick run leaves out two dimensions and takes a fifth of the trials."""
    full = effort == "full"
    shown = DIMENSIONS if full else (5, 10, 20, 30)
    count, steps = (PUBLISHED_TRIALS, 2000) if full else (100, 1000)
    sizes = [(size, GAP) for size in PUBLISHED] + [(size, 0.0) for size in UNGAPPED]
    return [
        Config(n, T, d, parameterization, gap=gap, steps=steps, trials=count)
        for (parameterization, n, T), gap in sizes
        for d in shown
    ]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train and compare the tokens attended to most with the optimal ones."""
    import numpy as np

    from attsvm.experiments.instances import draw, start_seeds
    from attsvm.experiments.published_numerics import descent
    from attsvm.solvers.batching import solve_batch
    from attsvm.training import train

    instances = draw(seeds, config.n, config.T, config.d, config.gap)
    trace = train(
        instances.data,
        instances.v,
        steps=config.steps,
        init="torch",
        seed=start_seeds(seeds),
        **descent(config.numerics, config.parameterization),
    )
    reached = (trace.selected == instances.optimal).all(-1)
    attention = trace.attention[:, -1].max(-1).min(-1)
    feasible = reached.copy()
    missed = np.flatnonzero(~reached)
    if len(missed):
        problems = instances.problems(instances.optimal)
        feasible[missed] = np.isfinite(solve_batch([problems[int(b)] for b in missed]).objective)
    return [
        {"seed": int(seed), "global": bool(g), "attention": float(a), "feasible": bool(f)}
        for seed, g, a, f in zip(seeds, reached, attention, feasible, strict=True)
    ]


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Hold every probability against the published one; those without a gap are measured."""
    from attsvm.experiments.grouping import by
    from attsvm.experiments.statistics import share_verdict

    found = []
    for (parameterization, n, T, gap, d), cell in by(rows, "parameterization", "n", "T", "gap", "d").items():
        values = dict(zip(DIMENSIONS, PUBLISHED.get((parameterization, n, T), ()), strict=False))
        published = values.get(d)
        found.append(
            share_verdict(
                NAME,
                f"P(global), {parameterization}, n={n}, T={T}, d={d}" + ("" if gap else ", without a score gap"),
                sum(row["global"] for row in cell),
                len(cell),
                published=published if gap == GAP else None,
                published_trials=PUBLISHED_TRIALS,
                rounding=ROUNDING,
                infeasible=sum(not row["feasible"] for row in cell),
                note=""
                if gap or published is None
                else f"The published {published} needs instances with a gap of {GAP}.",
            )
        )
    return found


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw probabilities against dimension: n varies in the left column, T in the right; W above, (K, Q) below."""
    from attsvm.experiments.grouping import by, having, panels_of
    from attsvm.experiments.statistics import wilson_interval
    from attsvm.plots.experiments import SERIES, Curve, draw_curve, grid, legend, value_axis
    from attsvm.plots.style import house_style

    def curve(cells: dict[Any, list[Row]], label: str, look: int, **extra: Any) -> Curve:
        hits = [(sum(row["global"] for row in cell), len(cell)) for cell in cells.values()]
        low, high = zip(*(wilson_interval(*pair) for pair in hits), strict=True)
        return Curve(label, [d for (d,) in cells], [a / b for a, b in hits], low, high, look, **extra)

    with house_style():
        title = "Probability that training selects every globally optimal token (score gap at least 0.1)"
        panels = panels_of(rows, PANELS)
        result, axes = grid(2, len(panels), 2.4, title, width)
        for down, parameterization in enumerate(("W", "KQ")):
            for across, (title, sizes) in enumerate(panels):
                ax = axes[down, across]
                for look, (n, T) in enumerate(sizes):
                    # The first size is in both columns; the two others of each take their own colours.
                    own = (look if across == 0 or look == 0 else look + 2) % len(SERIES)
                    here = having(rows, parameterization=parameterization, n=n, T=T)
                    cells, open_cells = (by(having(here, gap=gap), "d") for gap in (GAP, 0.0))
                    if cells:
                        values = PUBLISHED.get((parameterization, n, T))
                        line = None if values is None else (DIMENSIONS, values)
                        draw_curve(ax, curve(cells, f"n = {n}, T = {T}", own, published=line))
                    if open_cells:
                        draw_curve(ax, curve(open_cells, "", own, style=":"))
                name = "training W" if parameterization == "W" else "training (K, Q)"
                ax.set_title(f"{name}, {title}")
                value_axis(ax, sorted({row["d"] for row in rows}), "dimension d", log=False)
                ax.set_ylim(-0.03, 1.03)
                ax.set_ylabel("probability")
        legend(result, list(axes[0]), 4, "ours, no gap asked for")
    return result


EXPERIMENT = Experiment(
    name=NAME,
    title="Global convergence against size",
    source="Fig. 6",
    claim="Global convergence becomes certain as d grows, the later the larger n and T are.",
    config=Config,
    sweep=sweep,
    trials=trials,
    figure=figure,
    verdicts=verdicts,
    instance=("n", "T", "d", "gap"),
    # Quick as measured with two workers; full extrapolated from its rate.
    minutes={"quick": 0.7, "full": 4.0},
    batch=50,
)
