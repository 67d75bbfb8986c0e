r"""Adaptive steps in data settings where convergence is proved global: rates from random starts.

arXiv 2402.05738 identifies data settings in which training W converges to the SVM of the optimal tokens from any start.
It proves rates for normalised and Polyak steps, in direction and for the sparsity of attention (abstract; the full text
was not at hand). The two settings here are of the kinds it names; their numbers are ours:

* *orthogonal*: all tokens are orthonormal, and the non-optimal tokens of a sequence have equal scores.
* *gaussian*: the optimal token carries a signal along its label's direction. The other tokens are Gaussian noise,
  scaled by the dimension, with small scores.

The query is the first token of its sequence (self-attention). Every run starts from a random W of length one. Rates are
slopes over the last decade of steps. One is the slope of the margin's shortfall against steps; the other is the slope
of the attention left on other tokens against the norm in units of the SVM's norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from matplotlib.figure import Figure

from attsvm.plots.style import QUIET, house_style
from attsvm.training import train
from attsvm.training.optimisers.registry import OptimizerName
from attsvm_paper.beyond.predictions import with_outcome
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import estimate_verdict
from attsvm_paper.judging.estimates import Measure, estimates_by
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import curve_of, draw_curve, grid, own_legend
from attsvm_paper.published.instances import draw_with, start_seeds

NAME = "adaptive-steps"
SETTINGS = ("orthogonal", "gaussian")
Rule: TypeAlias = Literal["plain", "normalised", "polyak"]
RULES: dict[Rule, OptimizerName] = {"plain": "gd", "normalised": "normalized_gd", "polyak": "polyak"}
SIGNAL, NOISE = 2.0, 1.0
# Smallest shortfall that is known: the norm of the SVM is certified to 1e-9.
SMALLEST_SHORTFALL = 1e-8


@dataclass(frozen=True)
class Config:
    """A data setting and a rule; `d` is the dimension of the gaussian setting, n T of the orthogonal one."""

    setting: Literal["orthogonal", "gaussian"]
    rule: Rule
    n: int = 6
    T: int = 5
    d: int = 40
    steps: int = 3000
    trials: int = 20

    def __post_init__(self) -> None:
        if self.setting not in SETTINGS or self.rule not in RULES:
            raise ValueError(
                f"setting is {self.setting!r} and rule {self.rule!r}; one of {', '.join(SETTINGS)} and one of "
                f"{', '.join(RULES)} were expected."
            )
        if self.n < 1 or self.T < 2 or self.d < 2:
            raise ValueError(f"n, T and d are {self.n}, {self.T} and {self.d}; at least 1, 2 and 2 were expected.")


def sweep(effort: Effort) -> list[Config]:
    """Both settings and all rules."""
    steps, count = (30_000, 60) if effort == "full" else (2000, 24)
    return [Config(setting, rule, steps=steps, trials=count) for setting in SETTINGS for rule in RULES]


def draw_data(
    rng: np.random.Generator, setting: str, n: int, T: int, d: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw tokens, queries, labels and head of one trial."""
    labels = rng.choice([-1.0, 1.0], n)
    best = rng.integers(T, size=n)
    at = np.arange(n)
    if setting == "orthogonal":
        basis = np.linalg.qr(rng.standard_normal((n * T, n * T)))[0]
        tokens = basis.reshape(n, T, n * T)
        head = labels @ tokens[at, best]
    else:
        head = np.linalg.qr(rng.standard_normal((d, 1)))[0][:, 0]
        tokens = NOISE * rng.standard_normal((n, T, d)) / np.sqrt(d)
        tokens[at, best] += SIGNAL * labels[:, None] * head
    return tokens, tokens[:, 0], labels, head


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train from random starts; one row per seed with its end and its rates."""
    instances = draw_with(seeds, lambda rng: draw_data(rng, config.setting, config.n, config.T, config.d))
    d = instances.data.d
    starts = np.stack([np.random.default_rng(int(seed)).standard_normal((d, d)) for seed in start_seeds(seeds)])
    starts /= np.linalg.norm(starts, axis=(-2, -1), keepdims=True)
    marks = np.unique(np.geomspace(max(config.steps // 10, 1), max(config.steps, 2), 7).round().astype(int)).tolist()
    trace = train(
        instances.data, instances.v, optimizer=RULES[config.rule], steps=marks[-1], record_every=marks, init=starts
    )
    solutions = instances.solve(instances.optimal)
    rows: list[Row] = []
    for b, seed in enumerate(seeds):
        problem, least = solutions[b].problem, float(solutions[b].objective)
        row: Row = {"seed": int(seed), "feasible": bool(np.isfinite(least))}
        W = trace.W[b, 1:]
        norms = np.linalg.norm(W, axis=(-2, -1))
        share = np.array([float(problem.apply(one)[problem.rejected].min()) for one in W]) / norms * least
        others = np.arange(config.T) != instances.optimal[b][:, None]
        remainder = (trace.attention[b, 1:] * others).sum(-1).max(-1)
        row["selects"] = bool((np.asarray(trace.selected)[b] == instances.optimal[b]).all())
        row["share"] = float(share[-1]) if row["feasible"] else None
        comparable = row["feasible"] and row["selects"]
        near = comparable & (share < 1 - SMALLEST_SHORTFALL)
        row["rate"] = float(np.polyfit(np.log(marks)[near], np.log(1 - share[near]), 1)[0]) if near.sum() > 1 else None
        usable = comparable & (remainder > 0)
        slope = np.polyfit(norms[usable] / least, np.log(remainder[usable]), 1)[0] if usable.sum() > 1 else None
        row["sparsification"] = None if slope is None else float(slope)
        rows.append(row)
    return rows


MEASURES = {
    "selects": Measure("share of random starts that select the optimal tokens", "selects", "share"),
    "rate": Measure("slope of the margin's log shortfall over log steps", "rate"),
    "sparsification": Measure(
        "slope of the log of attention left over the norm in units of the SVM's", "sparsification"
    ),
    "share": Measure("margin as a share of the largest, at the end", "share"),
}


estimates = estimates_by(("setting", "rule", "n", "T", "d"), MEASURES)


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report where runs end, and the rates."""
    table = estimates(rows)
    for key, cell in table.cells.items():
        setting, rule, n, T, d = key
        where = f"{rule} steps, {setting} data, n={n}, T={T}" + (f", d={d}" if setting == "gaussian" else "")
        verdict = estimate_verdict(NAME, f"{MEASURES['selects'].words}, {where}", table.of(key, "selects"))
        yield with_outcome(verdict, "global")
        for field in ("rate", "sparsification"):
            ours = table.of(key, field)
            if ours.count:
                verdict = estimate_verdict(
                    NAME, f"{MEASURES[field].words}, {where}", ours, trials=len(cell),
                    infeasible=sum(not row["feasible"] for row in cell),
                    note=f"Share of the largest margin at the end {table.of(key, 'share').value:.4f}.",
                )  # fmt: skip
                yield with_outcome(verdict, rule if field == "rate" else field)


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw end, rate and sparsification of every rule, both settings next to each other."""
    panels = (
        ("share", "margin at the end", "share of the largest"),
        ("rate", "rate", "slope over log steps"),
        ("sparsification", "sparsification", "slope over the norm"),
    )
    places: list[str] = list(RULES)
    with house_style():
        result, axes = grid(1, 3, 2.5, "Adaptive steps from random starts", width)
        for ax, (field, title, label) in zip(axes.ravel(), panels, strict=True):
            for look, setting in enumerate(SETTINGS):
                ours = estimates(rows).along("rule", field, setting=setting)
                series = {places.index(r) + 0.16 * (look - 0.5): ours[r] for r in RULES if r in ours}
                if series:
                    draw_curve(ax, curve_of(series, f"{setting} data", look, style=" "))
            ax.set_xticks(range(len(places)), places)
            ax.set_xlim(-0.5, len(RULES) - 0.5)
            ax.set_title(title)
            ax.set_xlabel("steps")
            ax.set_ylabel(label)
            ax.axhline(1 if field == "share" else -1, color=QUIET, lw=0.6)
        if axes.ravel()[0].get_legend_handles_labels()[1]:
            own_legend(axes.ravel()[0])
    return result
