r"""Gradient flow on K and Q: the nuclear margin, and the alignment that its theorem assumes.

arXiv 2403.08699 studies gradient flow of the exponential loss with K and Q trained separately. If the flow reaches the
least loss, it minimises :math:`\|KQ^\top\|_*` under the margins. The paper proves this for diagonal K and Q, and for
matrices aligned with the data at the start.

* *diagonal* data satisfy the hypothesis: queries are axes, and tokens of a sequence differ along one axis.
* *general* data are random and violate it (:func:`attsvm.theory.condition_alignment`); they are trained from the
  aligned start and from a random one.

The flow runs in :math:`\tau = \log(1 + t)`. The limit of a share of the largest margin is bounded from four horizons,
two per decade, as in the atlas (:mod:`attsvm_paper.beyond.extrapolation`). The Frobenius share is the control. On
*diagonal* data both norms have the same SVM, so the control cannot be larger there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from attsvm.core.norms import get_norm
from attsvm.core.problem import SelectionProblem
from attsvm.plots.style import QUIET, house_style
from attsvm.theory.alignment import condition_alignment, off_diagonal, singular_spaces
from attsvm.training import train
from attsvm_paper.beyond.extrapolation import limit_interval
from attsvm_paper.beyond.predictions import with_outcome
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import estimate_verdict, value_verdict
from attsvm_paper.judging.estimates import Measure, estimates_by
from attsvm_paper.judging.grouping import by, column
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import curve_of, draw_curve, grid, log_axis, own_legend, value_axis
from attsvm_paper.published.instances import Instances, draw, draw_with, start_seeds

NAME = "factor-flow"
CASES = ("diagonal, aligned", "general, aligned", "general, random")
STEP = 0.1
HORIZONS = (10**-1.5, 0.1, 10**-0.5, 1.0)


@dataclass(frozen=True)
class Config:
    """Data and start.

    Attributes
    ----------
    case : str
        Data, then start.
    horizon : float
        The last log time; three others precede it, two per decade.
    n, T, d, trials : int
    """

    case: Literal["diagonal, aligned", "general, aligned", "general, random"]
    horizon: float = 150.0
    n: int = 4
    T: int = 5
    d: int = 6
    trials: int = 8

    def __post_init__(self) -> None:
        if self.case not in CASES:
            raise ValueError(f"case is {self.case!r}; one of {', '.join(map(repr, CASES))} was expected.")
        if not self.horizon >= 1:
            raise ValueError(f"horizon is {self.horizon}; at least 1 was expected.")


def sweep(effort: Effort) -> list[Config]:
    """All three cases; a full run has a later horizon."""
    horizon, count = (500.0, 24) if effort == "full" else (150.0, 8)
    return [Config(case, horizon, trials=count) for case in CASES]


def diagonal_trial(
    rng: np.random.Generator, n: int, T: int, d: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw tokens (n, T, d) that differ along one axis per sequence, which is its query, in a random rotation."""
    axes = np.arange(n) % d
    shortfall = np.concatenate([np.zeros((n, 1)), rng.uniform(0.5, 2.0, (n, T - 1))], axis=1)
    tokens = np.zeros((n, T, d))
    tokens[np.arange(n), :, axes] = 1.0 - shortfall
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    head = np.full(d, d**-0.5)
    return tokens @ turn.T, np.eye(d)[axes] @ turn.T, np.ones(n), turn @ head


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train, and measure shares of both margins and alignment: one row per seed and horizon."""
    n, T, d = config.n, config.T, config.d
    data, start = config.case.split(", ")
    instances: Instances = (
        draw_with(seeds, lambda rng: diagonal_trial(rng, n, T, d)) if data == "diagonal" else draw(seeds, n, T, d)
    )
    steps = round(config.horizon / STEP)
    marks = sorted({max(round(steps * share), 1) for share in HORIZONS})
    trace = train(
        instances.data, instances.v, parameterization="KQ", optimizer="flow", loss="exponential", lr=STEP,
        init="aligned" if start == "aligned" else None, steps=steps, record_every=marks, seed=start_seeds(seeds),
    )  # fmt: skip
    tops = trace.attention.argmax(-1)  # (B, records, n)
    size = np.linalg.norm(np.asarray(trace.K), axis=(-2, -1)) ** 2  # (B, records)
    drift = np.linalg.norm(trace.imbalance - trace.imbalance[:, :1], axis=(-2, -1))  # (B, records)
    rows: list[Row] = []
    for at in range(1, len(trace.step)):
        solutions = {norm: instances.solve(tops[:, at], norm) for norm in ("nuclear", "frobenius")}
        for b, seed in enumerate(seeds):
            problem = SelectionProblem(instances.data.tokens[b], instances.data.queries[b], tops[b, at])
            W = trace.W[b, at]
            row: Row = {
                "seed": int(seed),
                "horizon_step": int(trace.step[at]),
                "drift": float(drift[b, at] / max(size[b, at], 1.0)),
                "condition": condition_alignment(problem).value,
                "turned": off_diagonal(W, *singular_spaces(problem)),
            }
            for norm, batch in solutions.items():
                row[f"{norm}_share"] = None
                # Where all tokens of every sequence are equal, W stays zero and no SVM is feasible.
                if np.isfinite(batch.objective[b]):
                    unit = float(problem.apply(W)[problem.rejected].min()) / get_norm(norm).value(W)
                    row[f"{norm}_share"] = unit * float(batch.objective[b])
            rows.append(row)
    return rows


def shares(rows: Sequence[Row], norm: str) -> np.ndarray:
    """Return the shares of seeds that are measured at all horizons, (seeds, horizons)."""
    table = [[row[f"{norm}_share"] for row in one] for one in by(rows, "seed").values()]
    return np.array([line for line in table if None not in line], dtype=float)


MEASURES = {
    "turned": Measure("share of W off the diagonal in the data's bases", "turned"),
    "drift": Measure("change of the imbalance over the squared norm of K", "drift"),
    "nuclear_share": Measure("share of the largest nuclear margin", "nuclear_share", "mean"),
    "frobenius_share": Measure("share of the largest frobenius margin", "frobenius_share", "mean"),
}


estimates = estimates_by(("case", "n", "T", "d", "horizon_step"), MEASURES)


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report the limits of both shares, the alignment, and the error of the integration."""
    measured = estimates(rows)
    for (case, n, T, d), cell in by(rows, "case", "n", "T", "d").items():
        where = f"{case} start, n={n}, T={T}, d={d}"
        data = case.split(", ")[0]
        count = len({row["seed"] for row in cell})
        last = max(row["horizon_step"] for row in cell)
        end = [row for row in cell if row["horizon_step"] == last]
        for norm in ("nuclear", "frobenius"):
            table = shares(cell, norm)
            if table.ndim == 2 and table.shape[1] == len(HORIZONS):
                low, high = limit_interval(table)
                course = ", ".join(f"{share:.4f}" for share in table.mean(0))
                verdict = value_verdict(
                    NAME, f"limit of the share of the largest {norm} margin, {where}", (low + high) / 2, low, high,
                    trials=count, infeasible=count - len(table), note=f"Shares at the horizons: {course}.",
                )  # fmt: skip
                yield with_outcome(verdict, data) if norm == "nuclear" else verdict
        note = f"Of a constraint matrix up to {column(end, 'condition').max():.2g}; the hypothesis asks for none."
        turned, drift = (measured.of((case, n, T, d, last), name) for name in ("turned", "drift"))
        verdict = estimate_verdict(NAME, f"{MEASURES['turned'].words}, {where}", turned, trials=count, note=note)
        yield with_outcome(verdict, f"alignment-{data}")
        yield estimate_verdict(
            NAME, f"{MEASURES['drift'].words}, {where}", drift, trials=count,
            note="The flow keeps it; this is the error of the integration.",
        )  # fmt: skip


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw the shortfall of both shares over log time, one panel per norm, and the share of W off the diagonal."""
    with house_style():
        result, axes = grid(1, 3, 2.5, "Gradient flow on K and Q", width)
        titles = ("nuclear margin", "Frobenius margin", "alignment lost")
        fields = ("nuclear_share", "frobenius_share", "turned")
        for ax, field, title in zip(axes.ravel(), fields, titles, strict=True):
            for look, case in enumerate(CASES):
                series = estimates(rows).along("horizon_step", field, case=case)
                if series:
                    taus = {STEP * step: one for step, one in series.items()}
                    draw_curve(ax, curve_of(taus, case, look), shift=0.02 * (look - 1))
            log_axis(ax, "x")
            value_axis(ax, sorted({round(STEP * row["horizon_step"], 1) for row in rows}), "log time")
            ax.set_title(title)
            ax.set_ylabel("off the diagonal" if field == "turned" else "share of the largest")
            if field != "turned":
                ax.axhline(1, color=QUIET, lw=0.6)
                ax.set_ylim(top=1.03)
        if axes.ravel()[0].get_legend_handles_labels()[1]:
            own_legend(axes.ravel()[0])
    return result
