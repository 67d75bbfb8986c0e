r"""KKT residuals of K and Q in the norms of four optimisers.

arXiv 2602.16340 studies Muon, gradient descent with momentum, Signum and Adam with decaying steps on smooth homogeneous
models. It proves that each tends to KKT points of the largest margin in its norm on the parameters, see
:mod:`attsvm.theory.kkt`. The logits of attention are homogeneous in (K, Q), but its risk depends on more than the
smallest of them, so for attention this is open. The experiment measures the KKT residual at three horizons, in each
optimiser's norm and in the two others as controls, with the best multipliers. Multipliers from a single gradient say
little: after a step that is not small, the next gradient contains only one margin.

How fast must steps decay? Under steps :math:`\eta_k \sim k^{-p}` the norm grows like :math:`k^{1-p}`. Margins are
quadratic and change by the product, :math:`k^{1-2p}`. At p = 1/2, as in the atlas, this does not fall; at p = 2/3 it
does. Both are run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from attsvm.core.problem import SelectionProblem
from attsvm.plots.style import house_style, legend_below
from attsvm.theory.kkt import kkt_residual
from attsvm.training import train
from attsvm.training.optimisers.adaptive import Adam
from attsvm.training.optimisers.descent import NormalizedGD, Optimizer
from attsvm.training.optimisers.momentum import Muon, Signum
from attsvm_paper.beyond.atlas import horizons
from attsvm_paper.beyond.predictions import with_outcome
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import estimate_verdict
from attsvm_paper.judging.estimates import Measure, estimates_by
from attsvm_paper.judging.grouping import having
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import curve_of, draw_curve, grid, log_axis
from attsvm_paper.published.instances import draw, start_seeds

NAME = "parameter-margin"
NORMS = ("frobenius", "max", "spectral")
OWN = {"normalised": "frobenius", "signum": "max", "Adam": "max", "Muon": "spectral"}
POWERS = (0.5, 0.667)


@dataclass(frozen=True)
class Config:
    """An optimiser on factors, with steps like k^-power."""

    optimiser: str
    power: float = POWERS[-1]
    n: int = 6
    T: int = 6
    d: int = 8
    steps: int = 3000
    trials: int = 8

    def __post_init__(self) -> None:
        if self.optimiser not in OWN:
            raise ValueError(f"optimiser is {self.optimiser!r}; one of {', '.join(OWN)} was expected.")


def sweep(effort: Effort) -> list[Config]:
    """All four optimisers."""
    steps, count = (30_000, 12) if effort == "full" else (2000, 3)
    return [Config(name, power, steps=steps, trials=count) for power in POWERS for name in OWN]


def optimizer_of(name: str, power: float) -> Optimizer:
    """Make an optimiser whose steps fall like k^-power."""

    def schedule(k: Any) -> Any:
        return k**-power

    return {
        "normalised": NormalizedGD(0.5, schedule),
        "signum": Signum(0.05, schedule),
        "Adam": Adam(0.05, schedule, betas=(0.9, 0.95)),
        "Muon": Muon(0.2, schedule),
    }[name]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train, and measure the residuals at every horizon: one row per seed and horizon."""
    instances = draw(seeds, config.n, config.T, config.d)
    data = instances.data
    marks = horizons(config.steps)
    trace = train(
        data, instances.v, parameterization="KQ", optimizer=optimizer_of(config.optimiser, config.power),
        steps=marks[-1], record_every=marks, seed=start_seeds(seeds),
    )  # fmt: skip
    keys, asks = np.asarray(trace.K), np.asarray(trace.Q)
    rows: list[Row] = []
    for b, seed in enumerate(seeds):
        for at, horizon in enumerate(marks, 1):
            K, Q = keys[b, at], asks[b, at]
            logits = (data.tokens[b] @ (data.queries[b] @ Q @ K.T)[..., None])[..., 0]
            problem = SelectionProblem(data.tokens[b], data.queries[b], logits.argmax(-1))
            row: Row = {"seed": int(seed), "horizon": horizon}
            row |= {norm: kkt_residual(problem, K, Q, norm) for norm in NORMS}
            rows.append(row)
    return rows


MEASURES = {norm: Measure(f"KKT residual in the {norm} norm", norm) for norm in NORMS}


estimates = estimates_by(("optimiser", "power", "n", "T", "d", "horizon"), MEASURES)


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report residuals at the last horizon, in the optimiser's norm and in the others."""
    table = estimates(rows)
    for (name, power, n, T, d), stages in itertools.groupby(table.cells, lambda key: key[:-1]):
        *_, last = keys = list(stages)
        for norm, measure in MEASURES.items():
            ours = [table.of(key, norm) for key in keys]
            if ours[-1].count:
                course = ", ".join(f"{one.value:.4f}" for one in ours if one.count)
                verdict = estimate_verdict(
                    NAME, f"{measure.words}, {name}, steps like k^-{power:.3g}, n={n}, T={T}, d={d}", ours[-1],
                    trials=len(table.cells[last]), note=f"At the three horizons: {course}.",
                )  # fmt: skip
                yield with_outcome(verdict, "own" if norm == OWN[name] else "other")


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw the residuals over steps, one panel per optimiser."""
    names = [name for name in OWN if having(rows, optimiser=name)]
    powers = sorted({row["power"] for row in rows})
    with house_style():
        result, axes = grid(len(powers), len(names), 2.3, "KKT residual of K and Q, norm by norm", width)
        for (i, power), (j, name) in itertools.product(enumerate(powers), enumerate(names)):
            ax = axes[i, j]
            for look, norm in enumerate(NORMS):
                series = estimates(rows).along("horizon", norm, optimiser=name, power=power)
                draw_curve(ax, curve_of(series, norm, look), shift=0.05 * (look - 1))
            log_axis(ax, "x")
            ax.set_title(f"{name}, p = {power:.2g}")
            ax.set_xlabel(f"steps; own: {OWN[name]}")
            ax.set_ylabel("residual")
            ax.set_ylim(0, 1)
        if axes[0, 0].get_legend_handles_labels()[1]:
            legend_below(result, [axes[0, 0]], 3)
    return result
