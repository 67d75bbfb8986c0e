"""Training converges to the SVM of the tokens it selects, each parameterisation to its own (Fig. 7).

W tends to the Frobenius SVM of the realised tokens, whichever they are, and K Q^T to the nuclear one. The runs go on
five times longer than the published ones: in the published arithmetic ||W|| then stands still (the gradient is divided
by its norm plus 2.2e-16, and what is left of it comes from rounding), while exact training goes on to converge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from attsvm.experiments.experiment import Effort, Experiment, Row, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "local-convergence"
PUBLISHED_TRIALS = 100
PUBLISHED_SIZE = (6, 8, 10)
PUBLISHED_STEPS = (200, 500, 1000, 2000)
# Fig. 7: mean correlation with the SVM of the realised tokens at PUBLISHED_STEPS, by parameterisation and norm.
PUBLISHED = {
    ("W", "frobenius"): (0.859, 0.953, 0.975, 0.9935),
    ("W", "nuclear"): (0.777, 0.838, 0.848, 0.860),
    ("KQ", "nuclear"): (0.925, 0.981, 0.995, 0.997),
    ("KQ", "frobenius"): (0.839, 0.867, 0.865, 0.858),
}
ROUNDING = 0.002  # of numbers read from the curves
RECORDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
NORMS = ("frobenius", "nuclear")
OFFICIAL = (
    "Training on the official instances themselves (torch seeds 0 to 99) in the published arithmetic gives 0.883, "
    "0.971, 0.990 and 0.996 here: the curve as printed lies below its own protocol by 0.003 to 0.02."
)


@dataclass(frozen=True)
class Config:
    """One parameterisation and arithmetic."""

    parameterization: Literal["W", "KQ"] = "W"
    numerics: Literal["exact", "published"] = "exact"
    n: int = 6
    T: int = 8
    d: int = 10
    steps: int = RECORDS[-1]
    trials: int = PUBLISHED_TRIALS


def sweep(effort: Effort) -> list[Config]:
    """Both parameterisations in both arithmetics; quick and full are the same."""
    return [Config(p, numerics) for p in ("W", "KQ") for numerics in ("exact", "published")]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train, and compare all records with both SVMs of the tokens selected at the end."""
    import numpy as np

    from attsvm.core.correlation import correlation
    from attsvm.experiments.instances import draw, start_seeds
    from attsvm.experiments.published_numerics import descent
    from attsvm.training import train

    instances = draw(seeds, config.n, config.T, config.d)
    trace = train(
        instances.data, instances.v, steps=config.steps, init="torch", seed=start_seeds(seeds),
        record_every=[step for step in RECORDS if step <= config.steps],
        **descent(config.numerics, config.parameterization),
    )  # fmt: skip
    curves = {}
    for norm in NORMS:
        solved = instances.solve(trace.selected, norm)
        feasible = np.isfinite(solved.objective)
        curves[norm] = correlation(trace.W[:, 1:], solved.W[:, None])
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


def _table(rows: Sequence[Row], name: str) -> Any:
    """Return a listed field of all rows that have one, (trials, records)."""
    import numpy as np

    known = [row[name] for row in rows if row[name] is not None]
    return np.array(known, dtype=float).reshape(len(known), -1 if known else len(rows[0]["step"]))


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Hold published arithmetic against every published number, exact training against those that should not depend."""
    from attsvm.experiments.grouping import by
    from attsvm.experiments.statistics import mean_verdict

    found = []
    for (parameterization, numerics), cell in by(rows, "parameterization", "numerics").items():
        step = cell[0]["step"]
        infeasible = sum(not row["feasible"] for row in cell)
        same = _size(cell[0]) == PUBLISHED_SIZE
        for norm in NORMS:
            values = _table(cell, norm)
            for mark, printed in zip(PUBLISHED_STEPS, PUBLISHED[parameterization, norm], strict=True):
                if mark not in step:
                    continue
                # The exact rule on (K, Q) takes other steps: only where both have settled is there one number.
                note = OFFICIAL if (parameterization, norm, numerics) == ("W", "frobenius", "published") else ""
                ours = numerics == "exact" and parameterization == "KQ" and mark < PUBLISHED_STEPS[-1]
                found.append(
                    mean_verdict(
                        NAME,
                        f"correlation of {parameterization} with the {norm} SVM, step {mark}, {numerics} numerics",
                        values[:, step.index(mark)],
                        published=printed if same and not ours else None,
                        published_trials=PUBLISHED_TRIALS,
                        rounding=ROUNDING,
                        infeasible=infeasible,
                        note="K and Q normalised together, other step sizes." if ours else note,
                    )
                )
        own = "frobenius" if parameterization == "W" else "nuclear"
        last = max(mark for mark in step if mark <= max(PUBLISHED_STEPS[-1], step[0]))
        found += [
            mean_verdict(
                NAME,
                f"1 - correlation of {parameterization} with its SVM, step {step[-1]}, {numerics} numerics",
                1 - _table(cell, own)[:, -1],
                infeasible=infeasible,
                interval="bootstrap",
                note=f"Median norm of W at the end {_median(_table(cell, 'norm')[:, -1]):.4g}.",
            ),
            mean_verdict(
                NAME,
                f"mean top softmax probability, {parameterization}, step {last}, {numerics} numerics",
                _table(cell, "attention")[:, step.index(last)],
                published=1.0 if same and last == PUBLISHED_STEPS[-1] else None,
                published_trials=PUBLISHED_TRIALS,
                rounding=ROUNDING,
                infeasible=infeasible,
            ),
        ]
    return found


def _size(row: Row) -> tuple[int, int, int]:
    return row["n"], row["T"], row["d"]


def _median(values: Any) -> float:
    import numpy as np

    return float(np.median(values)) if len(values) else float("nan")


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw correlation against steps on an axis of nines, and the softmax probability below."""
    import numpy as np

    from attsvm.experiments.grouping import having
    from attsvm.experiments.statistics import mean_interval
    from attsvm.plots.curves import nines
    from attsvm.plots.experiments import Curve, draw_curve, grid, legend
    from attsvm.plots.style import NORM_TITLES, QUIET, house_style, step_axis

    def curve(values: Any, step: Sequence[int], label: str, look: int, transform: Any, **extra: Any) -> Curve:
        low, high = zip(*(mean_interval(part) for part in values.T), strict=True)
        return Curve(
            label, step, transform(values.mean(0)), transform(np.array(low)), transform(np.array(high)), look, **extra
        )

    ticks = (0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)
    with house_style():
        n, T, d = _size(rows[0])
        title = f"Correlation with the SVM of the selected tokens, n = {n}, T = {T}, d = {d}"
        result, axes = grid(2, 2, 2.6, title, width)
        for across, parameterization in enumerate(("W", "KQ")):
            ax, below = axes[0, across], axes[1, across]
            top = 1.0
            for numerics, style in (("exact", "-"), ("published", ":")):
                cell = having(rows, parameterization=parameterization, numerics=numerics)
                if not cell:
                    continue
                step = cell[0]["step"]
                for look, norm in enumerate(NORMS):
                    line = (PUBLISHED_STEPS, nines(np.array(PUBLISHED[parameterization, norm])))
                    label = f"{NORM_TITLES[norm]} SVM" if numerics == "exact" else ""
                    values = _table(cell, norm)
                    if not len(values):
                        continue
                    top = max(top, float(nines(values.mean(0)).max()))
                    published = line if numerics == "exact" and (n, T, d) == PUBLISHED_SIZE else None
                    draw_curve(ax, curve(values, step, label, look, nines, style=style, published=published))
                label = "top softmax probability" if numerics == "exact" else ""
                draw_curve(below, curve(_table(cell, "attention"), step, label, 2, np.asarray, style=style))
            shown = [tick for tick in ticks if nines(tick) <= top * 1.1]
            ax.set_yticks([float(nines(tick)) for tick in shown], [f"{tick:g}" for tick in shown])
            ax.set_ylim(-0.05, top * 1.12)
            name = "training W" if parameterization == "W" else "training (K, Q)"
            ax.set_title(f"{name}: direction")
            below.set_title(f"{name}: attention")
            ax.set_ylabel("mean correlation")
            below.set_ylabel("mean top probability")
            below.set_ylim(0, 1.04)
            for panel in (ax, below):
                step_axis(panel, RECORDS[-1] * 1.2)
            ax.axvline(PUBLISHED_STEPS[-1], color=QUIET, lw=0.7, ls=":")
            ax.annotate(
                "published runs end", (PUBLISHED_STEPS[-1], 0), xycoords=("data", "axes fraction"), xytext=(-3, 3),
                textcoords="offset points", ha="right", color=QUIET, fontsize=7,
            )  # fmt: skip
        legend(result, [axes[0, 0], axes[1, 0]], 3, "ours, published arithmetic")
    return result


EXPERIMENT = Experiment(
    name=NAME,
    title="Convergence to the SVM of the selected tokens",
    source="Fig. 7",
    claim="Whatever tokens it selects, training W ends at their Frobenius SVM and training (K, Q) at the nuclear one.",
    config=Config,
    sweep=sweep,
    trials=trials,
    figure=figure,
    verdicts=verdicts,
    instance=("n", "T", "d"),
    minutes={"quick": 0.6, "full": 0.6},
    batch=25,
)
