r"""Mirror descent selects the norm of the SVM to which it converges (arXiv 2410.14581).

Normalised mirror descent with potential :math:`\frac1p\|W\|_p^p` should end at the Att-SVM of the selected tokens in
the entrywise l_p norm. Each run is compared with the SVM of its norm and of the two others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from attsvm.core.correlation import correlation
from attsvm.plots.curves import nines
from attsvm.plots.style import house_style, legend_below, step_axis
from attsvm.training import train
from attsvm.training.optimisers.steepest import MirrorDescent
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import mean_verdict, share_verdict, value_verdict
from attsvm_paper.judging.estimates import at_records
from attsvm_paper.judging.grouping import by
from attsvm_paper.judging.statistics import bootstrap_interval
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import curve_of, draw_curve, grid
from attsvm_paper.published.instances import draw, start_seeds

NAME = "mirror-descent"
EXPONENTS = (1.75, 2.0, 3.0)
PUBLISHED_TRIALS = 100
RECORDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


@dataclass(frozen=True)
class Config:
    """The potential of one descent."""

    p: float
    n: int = 6
    T: int = 8
    d: int = 10
    lr: float = 0.1
    steps: int = RECORDS[-1]
    trials: int = PUBLISHED_TRIALS

    def __post_init__(self) -> None:
        if self.p not in EXPONENTS:
            raise ValueError(f"p is {self.p:g}; one of {', '.join(f'{p:g}' for p in EXPONENTS)} was expected.")


def sweep(effort: Effort) -> list[Config]:
    """Take the three potentials of the paper; quick and full are the same."""
    return [Config(p) for p in EXPONENTS]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train with the potential of p and compare with the SVM in each norm."""
    instances = draw(seeds, config.n, config.T, config.d)
    trace = train(
        instances.data, instances.v, steps=config.steps, optimizer=MirrorDescent(lr=config.lr, p=config.p),
        init="torch", seed=start_seeds(seeds), record_every=[step for step in RECORDS if step <= config.steps],
    )  # fmt: skip
    top = trace.attention[:, -1].max(-1).mean(-1)
    rows: list[Row] = [
        {"seed": int(seed), "step": trace.step[1:].tolist(), "attention": float(a), "feasible": True}
        for seed, a in zip(seeds, top, strict=True)
    ]
    for q in EXPONENTS:
        solutions = instances.solve(trace.selected, q)
        curves = correlation(trace.W[:, 1:], solutions.W[:, None])
        for b, row in enumerate(rows):
            feasible = bool(np.isfinite(solutions.objective[b]))
            row["feasible"] = row["feasible"] and feasible
            row[f"l{q:g}"] = curves[b].tolist() if feasible else None
    return rows


def _ends(cell: Sequence[Row]) -> Any:
    """Return the last correlation with the SVM of each norm, (trials, norms)."""
    ends = [[row[f"l{q:g}"][-1] for q in EXPONENTS] for row in cell if row["feasible"]]
    return np.array(ends, dtype=float).reshape(-1, len(EXPONENTS))


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Rank the norms by mean correlation: the claim is that the descent's norm comes first."""
    for (p,), cell in by(rows, "p").items():
        own = EXPONENTS.index(p)
        ends = _ends(cell)
        infeasible = sum(not row["feasible"] for row in cell)
        if not len(ends):
            continue

        def rank(values: Any, axis: int = 0, own: int = own) -> float:
            means = values.mean(axis)
            return 1.0 + float((means > means[own]).sum())

        low, high = bootstrap_interval(ends, rank)
        first = int((np.argmax(ends, axis=1) == own).sum())
        yield from [
            value_verdict(
                NAME,
                f"place of the l{p:g} SVM among three by mean correlation, l{p:g} descent",
                rank(ends),
                low,
                high,
                trials=len(cell),
                infeasible=infeasible,
            ),
            share_verdict(
                NAME,
                f"share of trials closest to the l{p:g} SVM, l{p:g} descent",
                first,
                len(ends),
                infeasible=infeasible,
                trials=len(cell),
            ),
        ]
        yield from [
            mean_verdict(
                NAME,
                f"1 - correlation with the l{q:g} SVM, l{p:g} descent",
                1 - ends[:, at],
                interval="bootstrap",
                infeasible=infeasible,
                trials=len(cell),
            )
            for at, q in enumerate(EXPONENTS)
        ]


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw correlation with each SVM against steps, one panel per descent."""
    ticks = (0, 0.9, 0.99, 0.999, 0.9999, 0.99999)
    with house_style():
        n, T, d = (rows[0][name] for name in ("n", "T", "d"))
        title = f"Mirror descent and the SVM of its norm, n = {n}, T = {T}, d = {d} (mean over trials, 95 % interval)"
        cells = by(rows, "p")
        result, axes = grid(1, len(cells), 2.6, title, width)
        for ax, ((p,), cell) in zip(axes[0], cells.items(), strict=True):
            feasible = [row for row in cell if row["feasible"]]
            for look, q in enumerate(EXPONENTS if feasible else ()):
                series = at_records(feasible[0]["step"], [row[f"l{q:g}"] for row in feasible], "mean")
                draw_curve(ax, curve_of(series, rf"$\ell_{{{q:g}}}$ SVM", look, nines))
            step_axis(ax, cell[0]["step"][-1] * 1.2)
            ax.set_yticks([float(nines(tick)) for tick in ticks], [f"{tick:g}" for tick in ticks])
            ax.set_ylim(-0.05, 5.6)
            ax.set_title(f"mirror descent, p = {p:g}")
            ax.set_ylabel("mean correlation")
        legend_below(result, list(axes[0]), 3)
    return result
