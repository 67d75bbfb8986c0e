r"""Every optimiser compared with the SVM of every norm, to find the norm whose margin it maximises.

Each run is compared, in six norms, with the SVM of the tokens it selects. The measures are the correlation and the
share of the largest margin, :math:`\min A(W)\,\|W^{mm}\| / \|W\|`. The share is 1 if and only if W is a solution, even
if solutions are not unique. For descent on W the Frobenius norm is the theory of arXiv 2308.16898; for (K, Q) the
nuclear norm is its experiment. For mirror descent the l_p norm follows arXiv 2410.14581. Sign descent and Adam in the
max-norm and spectral descent in the spectral norm are proved only for linear multiclass models (arXiv 2502.04664): here
they are an experiment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attsvm.core.correlation import correlation
from attsvm.core.types import AnyNorm
from attsvm.plots.style import SECOND, house_style, is_wide
from attsvm.training import train
from attsvm_paper.beyond.optimisers import RULES, rule_of, shortfall
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import estimate_verdict, share_verdict
from attsvm_paper.judging.estimates import Measure, estimates_by
from attsvm_paper.judging.grouping import having
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import grid
from attsvm_paper.plots.heat_maps import annotate, draw_map
from attsvm_paper.published.instances import draw, start_seeds

NAME = "optimiser-geometry"
NORMS: dict[str, AnyNorm] = {
    "nuclear": "nuclear", "l1.75": 1.75, "frobenius": "frobenius", "l3": 3.0, "spectral": "spectral", "max": "max",
}  # fmt: skip
RULE_ORDER = (
    "(K, Q) relative", "(K, Q) apart", "mirror p=1.75", "gradient, exponential", "normalised", "momentum", "Polyak",
    "mirror p=3", "spectral", "sign", "Adam", "Adam, beta2=0.95", "Adam, sqrt",
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """One optimiser."""

    rule: str
    n: int = 6
    T: int = 8
    d: int = 10
    steps: int = 10_000
    trials: int = 40

    def __post_init__(self) -> None:
        rule_of(self.rule)


def sweep(effort: Effort) -> list[Config]:
    """Every optimiser with its usual schedule; quick runs are shorter if the loop is not compiled."""
    full = effort == "full"
    steps = {False: 100_000, True: 20_000} if full else {False: 10_000, True: 1000}
    rules = [name for name in RULE_ORDER if full or name != "Adam, sqrt"]
    return [Config(name, steps=steps[RULES[name].slow], trials=40 if full else 16) for name in rules]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train, and compare the end with the SVM of every norm."""
    rule = rule_of(config.rule)
    instances = draw(seeds, config.n, config.T, config.d)
    trace = train(
        instances.data, instances.v, optimizer=rule.optimizer(), parameterization=rule.parameterization,
        steps=config.steps, seed=start_seeds(seeds),
    )  # fmt: skip
    rows: list[Row] = [{"seed": int(seed), "feasible": True} for seed in seeds]
    for name, norm in NORMS.items():
        solutions = instances.solve(trace.selected, norm)
        near = correlation(trace.W[:, -1], solutions.W)
        lacking = shortfall(instances, trace.selected, trace.W[:, -1:], solutions)[:, 0]
        for b, row in enumerate(rows):
            feasible = bool(np.isfinite(lacking[b]))
            row["feasible"] = row["feasible"] and feasible
            row[f"{name}_correlation"] = float(near[b]) if feasible else None
            row[f"{name}_efficiency"] = float(1 - lacking[b]) if feasible else None
    return rows


def own_norm(rule: str) -> str:
    """Name the norm that a rule is matched with."""
    return next(name for name, norm in NORMS.items() if norm == RULES[rule].norm)


def by_rule(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group the rows that have every SVM by rule, in the order of the figures."""
    feasible = [row for row in rows if row["feasible"]]
    order = [*RULE_ORDER, *(name for name in RULES if name not in RULE_ORDER)]
    groups = {name: [row for row in feasible if row["rule"] == name] for name in order}
    return {name: group for name, group in groups.items() if group}


MEASURES = {
    f"{norm}_{key}": Measure(f"{key} in the {norm} norm", f"{norm}_{key}")
    for norm in NORMS
    for key in ("efficiency", "correlation")
}
estimates = estimates_by(("rule",), MEASURES, lambda rows: [row for row in rows if row["feasible"]])


def means(rows: Sequence[Row], key: str) -> np.ndarray:
    """Return means over trials, (rules, norms)."""
    table = estimates(rows)
    return np.array([[table.of((rule,), f"{norm}_{key}").value for norm in NORMS] for rule in by_rule(rows)])


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report each optimiser's share in its norm, its best norm, and each norm's best optimiser."""
    groups = by_rule(rows)
    for name, group in groups.items():
        own = own_norm(name)
        label = ", experimental" if RULES[name].experimental else ""
        asked = having(rows, rule=name)
        for key in ("efficiency", "correlation"):
            order = list(NORMS)
            ours = [estimates(rows).of((name,), f"{norm}_{key}") for norm in NORMS]
            mean = [one.value for one in ours]
            best = order[int(np.argmax(mean))]
            hits = int((np.argmax([one.values for one in ours], axis=0) == order.index(own)).sum())
            word = "its own" if best == own else f"not its own, {own},"
            yield from [
                estimate_verdict(
                    NAME, f"{key} in its norm ({own}), {name}{label}", ours[order.index(own)], trials=len(asked),
                    infeasible=len(asked) - len(group),
                    note=f"{name} is nearest to the largest {best} margin, {word} by mean {key}: "
                    + ", ".join(f"{norm} {value:.4f}" for norm, value in zip(order, mean, strict=True)) + ".",
                ),
                share_verdict(
                    NAME, f"share of trials in which its norm has the highest {key}, {name}{label}", hits, len(group),
                    trials=len(asked), infeasible=len(asked) - len(group),
                ),
            ]  # fmt: skip
    if groups:
        table = means(rows, "efficiency")
        for at, norm in enumerate(NORMS):
            order = np.argsort(-table[:, at])
            names = list(groups)
            winner = names[order[0]]
            text = f"The {norm} margin is largest under {winner}, efficiency {table[order[0], at]:.5f}"
            text += f"; then {names[order[1]]}, {table[order[1], at]:.5f}." if len(names) > 1 else "."
            yield estimate_verdict(
                NAME, f"highest mean efficiency in the {norm} norm",
                estimates(rows).of((winner,), f"{norm}_efficiency"), note=text,
                trials=len(rows), infeasible=len(rows) - sum(len(group) for group in groups.values()),
            )  # fmt: skip


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw mean share and correlation, optimisers by norms; a frame marks the matched norm."""
    groups = by_rule(rows)
    names, norms = list(groups), list(NORMS)
    with house_style():
        title = "Optimisers and norms: means over trials (frame: matched norm; *: experimental)"
        result, axes = grid(1, 2, 0.9 + 0.27 * max(len(names), 1), title, width)
        for ax, key in zip(axes.ravel(), ("efficiency", "correlation"), strict=True):
            ax.set_title("share of the largest margin" if key == "efficiency" else "correlation with the SVM")
            if not names:
                continue
            table = means(rows, key)[::-1]
            cells = {(x, y): table[y, x] for y in range(len(names)) for x in range(len(norms))}
            draw_map(ax, cells, range(len(norms)), range(len(names)))
            annotate(ax, table, lambda value: f"{value:.3f}" if value < 0.9995 else "1.000")
            ax.set_xticks(range(len(norms)), norms, rotation=40, ha="right", rotation_mode="anchor")
            labels = [name + "*" * RULES[name].experimental for name in names[::-1]]
            ax.set_yticks(range(len(names)), labels if key == "efficiency" or not is_wide(width) else [""] * len(names))
            for y, name in enumerate(names[::-1]):
                x = norms.index(own_norm(name))
                ax.add_patch(Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, fill=False, ec=SECOND, lw=1.8))
    return result
