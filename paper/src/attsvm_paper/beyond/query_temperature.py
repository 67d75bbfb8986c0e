r"""The norm saved by a temperature for each query.

arXiv 2411.12892 scales the logits of every query by a temperature. Its abstract argues for control over the sparsity of
individual queries' attention. Two questions are measured:

* *budget*: inverse temperatures have mean one, as in plain attention. How much smaller can the W be that selects given
  tokens? :func:`attsvm.theory.temperature_saving` certifies the saving.
* *specificity*: queries come in pairs at a small angle. Both queries of a pair read the same tokens and must select the
  same one, the second s times as sharply as the first. The least :math:`\|W\|_F` whose margins over every other token
  are exactly 1 and s is the least-norm solution of linear equations. If the temperatures are 1 and s, the required
  margins are 1 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from attsvm.core.problem import SelectionProblem
from attsvm.plots.style import house_style
from attsvm.solution.solution import UnsolvedError
from attsvm.theory.temperature import temperature_saving
from attsvm_paper.beyond.predictions import with_outcome
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import estimate_verdict, mean_verdict
from attsvm_paper.judging.estimates import Measure, estimates_by
from attsvm_paper.judging.grouping import by, column, having
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import curve_of, draw_curve, grid, log_axis, own_legend, value_axis
from attsvm_paper.published.instances import draw

NAME = "query-temperature"
NORMS = ("frobenius", "nuclear")
FIELDS = ("saving_low", "saving_high", "spread", "plain", "own")
ANGLES = (0.3, 0.1, 0.03, 0.01)
SHARPER = 5.0


@dataclass(frozen=True)
class Config:
    """A setting; `angle`, in radians, is between the two queries of *specificity*."""

    setting: Literal["budget", "specificity"]
    norm: str = "frobenius"
    angle: float = 0.1
    d: int = 10
    n: int = 6
    T: int = 8
    trials: int = 40

    def __post_init__(self) -> None:
        if self.setting not in ("budget", "specificity"):
            raise ValueError(f"setting is {self.setting!r}; 'budget' or 'specificity' was expected.")
        if self.setting == "specificity" and not 2 <= self.n * (self.T - 1) <= self.d**2:
            raise ValueError(f"n (T - 1) is {self.n * (self.T - 1)}; at most d^2 = {self.d**2} margins were expected.")
        if self.setting == "specificity" and (self.n < 2 or self.T < 2 or self.d < 2):
            raise ValueError(f"n, T and d are {self.n}, {self.T} and {self.d}; at least 2 of each was expected.")
        if not 0 < self.angle < np.pi / 2:
            raise ValueError(f"angle is {self.angle}; an angle between 0 and pi / 2 was expected.")


def sweep(effort: Effort) -> list[Config]:
    """Numbers of queries in two norms, and angles."""
    count = 40 if effort == "full" else 8
    return [
        *(Config("budget", norm, n=n, trials=count) for norm in NORMS for n in (3, 6, 12)),
        *(Config("specificity", angle=angle, trials=count) for angle in ANGLES),
    ]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Run the setting."""
    run = budget if config.setting == "budget" else specificity
    return [{"seed": int(seed)} | dict.fromkeys(FIELDS) | run(config, int(seed)) for seed in seeds]


def budget(config: Config, seed: int) -> Row:
    """Certify the saving by temperatures of mean one for the best tokens of a random instance."""
    instances = draw([seed], config.n, config.T, config.d)
    problem = SelectionProblem(instances.data.tokens[0], instances.data.queries[0], instances.optimal[0])
    try:
        saving = temperature_saving(problem, config.norm)
    except UnsolvedError:
        return {}
    tau = saving.temperatures
    return {"saving_low": saving.low, "saving_high": saving.high, "spread": float(tau.max() / tau.min())}


def specificity(config: Config, seed: int) -> Row:
    """Compare the least norm for margins of 1 and s with the least norm for margins of 1 and 1."""
    rng = np.random.default_rng(seed)
    left, right = [], []
    for _ in range(config.n // 2):
        tokens = rng.standard_normal((config.T, config.d)) / np.sqrt(config.d)
        pair = np.linalg.qr(rng.standard_normal((config.d, 2)))[0].T
        left += [tokens[0] - tokens[1:]] * 2
        right += [pair[0], np.cos(config.angle) * pair[0] + np.sin(config.angle) * pair[1]]
    rows = np.einsum("ntd,ne->ntde", np.array(left), np.array(right)).reshape(-1, config.d**2)
    equal = np.ones(len(rows))
    sharp = equal.reshape(-1, 2, config.T - 1) * np.array([1.0, SHARPER])[:, None]
    plain, own = (np.linalg.lstsq(rows, margins.ravel(), rcond=None)[0] for margins in (sharp, equal))
    return {"plain": float(np.linalg.norm(plain)), "own": float(np.linalg.norm(own))}


def slopes(rows: Sequence[Row], field: str) -> list[float]:
    """Return each seed's slope of log norm over log angle."""
    fits = []
    for cell in by(rows, "n", "T", "d", "trial").values():
        if len({row["angle"] for row in cell}) > 1:
            x, y = np.log([[row["angle"], row[field]] for row in cell]).T
            fits.append(float(np.polyfit(x, y, 1)[0]))
    return fits


def _of_both(row: Row, combine: Callable[[float, float], float], *fields: str) -> float | None:
    first, second = (row[field] for field in fields)
    return None if first is None or second is None else combine(first, second)


MEASURES = {
    "saving": Measure(
        "share of the norm saved by temperatures of mean one",
        lambda row: _of_both(row, lambda low, high: (low + high) / 2, "saving_low", "saving_high"),
    ),
    "ratio": Measure(
        "norm without temperatures over the norm with them",
        lambda row: _of_both(row, lambda plain, own: plain / own, "plain", "own"),
    ),
    "plain": Measure("norm for one temperature", "plain", "mean"),
    "own": Measure("norm for a temperature of each query", "own", "mean"),
}
savings = estimates_by(("norm", "n", "T", "d"), MEASURES, lambda rows: having(rows, setting="budget"))
norms = estimates_by(("angle", "n", "T", "d"), MEASURES, lambda rows: having(rows, setting="specificity"))


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report the certified saving and the growth of both norms as the angle shrinks."""
    for key, cell in savings(rows).cells.items():
        norm, n, T, d = key
        saving = savings(rows).of(key, "saving")
        if not saving.count:
            continue
        widest = (column(cell, "saving_high") - column(cell, "saving_low")).max()
        note = f"Certified to {widest:.1g}. The largest temperature is {column(cell, 'spread').mean():.2f} "
        verdict = estimate_verdict(
            NAME, f"{MEASURES['saving'].words}, {norm} norm, n={n}, T={T}, d={d}", saving, trials=len(cell),
            infeasible=len(cell) - saving.count, note=note + "times the smallest.",
        )  # fmt: skip
        yield with_outcome(verdict, "saving")
    pairs = having(rows, setting="specificity")
    for field, what, name in (
        ("plain", "one temperature for both queries", "slope-plain"),
        ("own", "a temperature for each", "slope-own"),
    ):
        fits = slopes(pairs, field)
        if fits:
            verdict = mean_verdict(
                NAME, f"slope of log norm over log angle of two queries, {what}", fits, interval="bootstrap"
            )
            yield with_outcome(verdict, name)
    for key in norms(rows).cells:
        angle, n, T, d = key
        quantity = f"{MEASURES['ratio'].words}, angle={angle:g}, n={n}, T={T}, d={d}"
        yield estimate_verdict(NAME, quantity, norms(rows).of(key, "ratio"))


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw the saving over the number of queries, and both norms over the angle."""
    with house_style():
        result, axes = grid(1, 2, 2.5, "A temperature for each query", width)
        saving, near = axes.ravel()
        budget = having(rows, setting="budget")
        for look, norm in enumerate(NORMS):
            series = savings(rows).along("n", "saving", norm=norm)
            if having(budget, norm=norm):
                draw_curve(saving, curve_of(series, f"{norm} norm", look), shift=0.02 * look)
        if budget:
            value_axis(saving, sorted({row["n"] for row in budget}), "queries n")
            saving.set_ylim(bottom=0)
            own_legend(saving)
        saving.set_title("mean temperature one")
        saving.set_ylabel("share of the norm saved")
        saving.set_xlabel("queries n")
        pairs = having(rows, setting="specificity")
        if pairs:
            for field, label, look in (("plain", "one temperature", 1), ("own", "one for each query", 0)):
                series = norms(rows).along("angle", field)
                draw_curve(near, curve_of(series, label, look))
            log_axis(near, "y")
            value_axis(near, sorted({row["angle"] for row in pairs}), "angle")
            own_legend(near)
        near.set_title(f"two queries, one {SHARPER:g} times as sharp")
        near.set_ylabel("least norm of W")
        near.set_xlabel("angle of the two queries")
    return result
