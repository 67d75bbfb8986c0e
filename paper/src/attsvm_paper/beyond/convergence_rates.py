r"""The rate at which every optimiser and schedule converges to the SVM of the tokens it selects.

Two errors are measured. One is 1 - correlation with the SVM of the rule's norm. The other is the missing share of the
largest margin, :math:`1 - \min A(W) \|W^{mm}\| / \|W\|`. Solutions in the nuclear, spectral and max-norm need not be
unique, so only the second must go to zero there. Exponents are slopes over the last decade of steps, one per trial;
their median and its bootstrap interval are reported.

Near the limit the direction error is of the order of :math:`1/\|W\|` unless steps outgrow it, and 1 - correlation is
its square. Constant normalised steps therefore give :math:`k^{-2}`, and steps like :math:`1/\sqrt k` give
:math:`k^{-1}`. Under plain gradient descent the norm grows like :math:`\log k`, which gives no power.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from attsvm.core.correlation import correlation
from attsvm.plots.style import house_style, is_wide, step_axis
from attsvm.theory.tokens import SELECTED
from attsvm.training import train
from attsvm_paper.beyond.measures import finite_or_none
from attsvm_paper.beyond.optimisers import RULES, rule_of, shortfall
from attsvm_paper.beyond.power_law import exponents
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import estimate_verdict
from attsvm_paper.judging.estimates import Measure, estimates_by
from attsvm_paper.judging.grouping import having
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import SERIES, grid, log_axis
from attsvm_paper.published.instances import draw, start_seeds

NAME = "convergence-rates"
# Smallest difference from 1 of a correlation between float64 matrices that can be resolved.
SMALLEST_ERROR = 1e-13
FAMILIES = {
    "gradient, normalised": ("gradient", "gradient, exponential", "normalised", "normalised, sqrt",
                             "normalised, linear", "normalised, exponential"),
    "accelerated, adaptive": ("momentum", "momentum, sqrt", "Polyak"),
    "other norms (* experimental)": ("mirror p=1.75", "mirror p=3", "sign", "sign, sqrt", "Adam", "Adam, sqrt",
                                     "Adam, beta2=0.95", "spectral", "spectral, sqrt"),
    "(K, Q), nuclear": ("(K, Q) relative", "(K, Q) constant", "(K, Q) apart", "(K, Q) gradient"),
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """One optimiser with its schedule."""

    rule: str
    n: int = 6
    T: int = 8
    d: int = 10
    steps: int = 10_000
    trials: int = 40

    def __post_init__(self) -> None:
        rule_of(self.rule)
        if self.steps < 10:
            raise ValueError(f"steps is {self.steps}; at least 10 were expected.")


def sweep(effort: Effort) -> list[Config]:
    """Every rule; a quick run is shorter and omits two slow schedules."""
    full = effort == "full"
    rules = [name for name, rule in RULES.items() if full or not (rule.slow and rule.schedule != "constant")]
    steps = {False: 100_000, True: 10_000} if full else {False: 10_000, True: 1000}
    return [Config(name, steps=steps[RULES[name].slow], trials=40 if full else 16) for name in rules]


def record_steps(steps: int) -> list[int]:
    """Four records per decade, including the end of the last decade."""
    down = np.arange(0, np.log10(steps) + 1e-9, 0.25)
    return sorted({max(1, round(steps / 10**one)) for one in down})


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train and compare every record with the SVM of the tokens selected at the end."""
    rule = rule_of(config.rule)
    instances = draw(seeds, config.n, config.T, config.d)
    trace = train(
        instances.data, instances.v, optimizer=rule.optimizer(), parameterization=rule.parameterization,
        steps=config.steps, record_every=record_steps(config.steps), seed=start_seeds(seeds),
    )  # fmt: skip
    solutions = instances.solve(trace.selected, rule.norm, tol=1e-12 if rule.norm in ("frobenius", "nuclear") else 1e-9)
    errors = np.maximum(1 - correlation(trace.W[:, 1:], solutions.W[:, None]), 0)
    lacking = np.maximum(shortfall(instances, trace.selected, trace.W[:, 1:], solutions), 0)
    saturation = (trace.attention[:, -1].max(-1) >= SELECTED).all(-1)
    return [
        {
            "seed": int(seed),
            "feasible": bool(np.isfinite(solutions.objective[b])),
            "settled": bool(saturation[b]),
            "step": trace.step[1:].tolist(),
            "error": errors[b].tolist() if np.isfinite(solutions.objective[b]) else None,
            "lacking": lacking[b].tolist() if np.isfinite(solutions.objective[b]) else None,
            "norm": float(trace.norm[b, -1]),
        }
        for b, seed in enumerate(seeds)
    ]


def slope(row: Row, key: str) -> float:
    """Fit the exponent of an error over the last decade of steps, as far as float64 resolves it; otherwise NaN."""
    step, error = np.array(row["step"]), np.array(row[key])
    usable = (step >= step[-1] / 10 * 0.999) & (error > SMALLEST_ERROR)
    return float(exponents(error[usable], step[usable])[0]) if usable.sum() >= 3 else float("nan")


def _exponent(key: str) -> Callable[[Row], float | None]:
    return lambda row: finite_or_none(slope(row, key))


MEASURES = {
    "error": Measure("1 - correlation", _exponent("error"), "median"),
    "lacking": Measure("1 - share of the largest margin", _exponent("lacking"), "median"),
    "error at the end": Measure("1 - correlation", lambda row: row["error"][-1], "median"),
    "lacking at the end": Measure("1 - share of the largest margin", lambda row: row["lacking"][-1], "median"),
}
estimates = estimates_by(("rule",), MEASURES, lambda rows: [row for row in rows if row["feasible"]])


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report the median exponent of both errors, and their final values."""
    table, last = estimates(rows), {}
    for name in sorted((name for (name,) in table.cells), key=list(RULES).index):
        feasible, asked = table.cells[name,], len(having(rows, rule=name))
        rule = RULES[name]
        for key in ("error", "lacking"):
            what, fits, end = MEASURES[key].words, table.of((name,), key), table.of((name,), f"{key} at the end")
            if not fits.count:
                continue
            if key == "lacking":
                last[name] = end
            failures = sum(not row["settled"] for row in feasible)
            text = f"{what} falls like k^{fits.value:.2f} over the last decade and is {end.value:.1e} after "
            text += f"{feasible[0]['step'][-1]} steps"
            text += f"; {failures} of {len(feasible)} runs still share attention." if failures else "."
            yield estimate_verdict(
                NAME, f"exponent of {what}, {name}, {rule.norm} SVM" + (", experimental" * rule.experimental),
                fits, trials=asked, infeasible=asked - len(feasible), discarded=len(feasible) - fits.count,
                note=text,
            )  # fmt: skip
    if len(last) > 1:
        first, second = sorted(last, key=lambda name: last[name].value)[:2]
        note = (
            f"{first} is closest to the largest margin of its norm, 1 - share {last[first].value:.1e}; then {second}, "
        )
        quantity = "least median of 1 - share of the largest margin at the end"
        note += f"{last[second].value:.1e}."
        yield estimate_verdict(NAME, quantity, last[first], trials=len(rows), note=note)


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw the median of 1 - correlation against steps, one panel per family."""
    table = estimates(rows)
    cells = {name: cell for (name,), cell in table.cells.items()}
    panels = {title: [name for name in names if name in cells] for title, names in FAMILIES.items()}
    panels = {title: names for title, names in panels.items() if names}
    with house_style():
        columns = min(2 if is_wide(width) else 1, max(len(panels), 1))
        down = max(1, -(-len(panels) // columns))
        result, axes = grid(down, columns, 3.3, "Distance from the SVM, median of trials", width)
        for ax in axes.ravel()[len(panels) :]:
            ax.set_visible(False)
        for ax, (title, names) in zip(axes.ravel(), panels.items(), strict=False):
            for look, name in enumerate(names):
                color, marker = SERIES[look % len(SERIES)]
                feasible = cells[name]
                values = np.maximum(np.median([row["error"] for row in feasible], axis=0), SMALLEST_ERROR)
                fits = table.of((name,), "error")
                label = name + "*" * RULES[name].experimental + (f", {fits.value:.2f}" if fits.count else "")
                ax.plot(feasible[0]["step"], values, "-" if look < len(SERIES) else "--", color=color, marker=marker,
                        ms=3, lw=1.2, label=label)  # fmt: skip
            step_axis(ax, max(row["step"][-1] for name in names for row in cells[name]) * 1.2)
            log_axis(ax, "y")
            ax.set_ylabel("1 - correlation")
            ax.set_title(title)
            ax.legend(
                loc="lower left", fontsize=7, handlelength=2.6, labelspacing=0.3, title="slope of the last decade",
                title_fontsize=7, alignment="left",
            )  # fmt: skip
    return result
