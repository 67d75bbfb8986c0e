r"""Head and W trained together, compared with W under a fixed head (an open question of arXiv 2308.16898).

The theory fixes the head, and with it the scores of the tokens. In joint training the head adapts to the attention
output, and attention adapts to the head. For prompt attention the joint limit is known under conditions (arXiv
2306.13596, Section 4): v tends to the max-margin classifier of the selected tokens. If a sequence's token is not a
support vector of that classifier, its constraints on attention are relaxed from 1 to 0. The questions for W, on the
same instances from the same start of the head, are:

* Does attention still converge to the SVM of the tokens it selects, and with what share of the largest margin?
* Does it select other tokens than under the fixed head?
* Does v converge to the max-margin classifier of the selected tokens, and do constraints relax?

*Random* data are the published instances. In *planted* data one token per sequence is :math:`Y_i\mu + \nu` and the
others are noise. A query points to :math:`\nu`, the head starts as the mean-token classifier :math:`\sum_i Y_i \bar
x_i`, and fresh sequences measure accuracy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure
from scipy.special import softmax

from attsvm.core.correlation import correlation
from attsvm.plots.style import house_style, is_wide, legend_below, new_figure
from attsvm.theory.prompt import v_svm
from attsvm.training import train
from attsvm_paper.beyond.measures import finite_or_none, margin_share
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import estimate_verdict
from attsvm_paper.judging.estimates import Measure, estimates_by
from attsvm_paper.judging.grouping import by, column, having
from attsvm_paper.judging.statistics import bootstrap_interval
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import curve_of, draw_curve, log_axis
from attsvm_paper.published.instances import Instances, draw, draw_with, start_seeds
from attsvm_paper.published.numerics import STEP

NAME = "joint-training"
RATES = (0.0, 0.01, 0.1)
FRESH = 200
# Standard deviation per direction of the noise of *planted* tokens, and of the query's noise.
SPREAD, QUERY_SPREAD = 0.5, 0.3
FIELDS = {
    "correlation": "correlation of W with the SVM of its tokens",
    "margin": "margin of W as a share of the largest for its tokens",
    "same": "sequences where the token is that under the fixed head",
    "head": "correlation of v with the max-margin classifier of the selected tokens",
    "relaxed": "smallest margin of sequences that are no support of v, over that of those that are",
    "accuracy": "accuracy on fresh sequences",
}


@dataclass(frozen=True)
class Config:
    """One kind of data and dimension; `head_lr` is the head's step (W takes 0.1), 0 for a fixed head."""

    d: int
    head_lr: float
    kind: Literal["random", "planted"] = "random"
    n: int = 8
    T: int = 6
    steps: int = 3000
    trials: int = 200

    def __post_init__(self) -> None:
        if self.head_lr < 0:
            raise ValueError(f"head_lr is {self.head_lr}; zero or a positive number was expected.")
        if self.kind == "planted" and self.d < 2:
            raise ValueError(f"d is {self.d}; at least 2 was expected of planted data.")
        if self.T < 2:
            raise ValueError(f"T is {self.T}; at least 2 tokens were expected.")


def sweep(effort: Effort) -> list[Config]:
    """Three rates of the head, on random data of several dimensions and on planted data."""
    full = effort == "full"
    count, steps = (200, 4000) if full else (30, 2000)
    dimensions = (5, 10, 20) if full else (5, 20)
    cells = [Config(d, rate, steps=steps, trials=count) for d in dimensions for rate in RATES]
    return cells + [Config(10, rate, "planted", n=20, steps=steps, trials=count) for rate in RATES]


def planted(rng: np.random.Generator, n: int, T: int, d: int) -> tuple[Any, Any, Any]:
    """Draw tokens (n, T, d), queries (n, d) and labels; mu and nu are the first two axes."""
    labels = rng.choice(np.array([-1.0, 1.0]), n)
    tokens = SPREAD * rng.standard_normal((n, T, d))
    place = rng.integers(T, size=n)
    tokens[np.arange(n), place] = 0.0
    tokens[np.arange(n), place, 0] = labels
    tokens[np.arange(n), place, 1] = 1.0
    queries = QUERY_SPREAD * rng.standard_normal((n, d))
    queries[:, 1] += 1.0
    return tokens, queries, labels


def prepare(config: Config, seeds: Any) -> tuple[Instances, Any]:
    """Draw the trials with the head's start, and fresh sequences for *planted* data."""
    if config.kind == "random":
        return draw(seeds, config.n, config.T, config.d), None

    def one(rng: np.random.Generator) -> tuple[Any, Any, Any, Any]:
        tokens, queries, labels = planted(rng, config.n, config.T, config.d)
        v = labels @ tokens.mean(1)
        return tokens, queries, labels, v / np.linalg.norm(v)

    fresh = [planted(np.random.default_rng(int(s)), FRESH, config.T, config.d) for s in start_seeds(seeds)]
    return draw_with(seeds, one), fresh


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train under the fixed head and jointly, and compare both limits with their SVMs."""
    instances, fresh = prepare(config, seeds)
    data, n = instances.data, config.n
    fixed = train(data, instances.v, steps=config.steps, lr=STEP)
    trace = fixed
    heads = instances.v
    if config.head_lr:
        trace = train(data, instances.v, steps=config.steps, lr=STEP, head_lr=config.head_lr)
        heads = trace.head["v"][:, -1]
    solutions = instances.solve(trace.selected)
    rows: list[Row] = []
    for b, seed in enumerate(seeds):
        W, v, solution = trace.W[b, -1], heads[b], solutions[b]
        feasible = bool(np.isfinite(solution.objective))
        selection = data.tokens[b, np.arange(n), trace.selected[b]]
        classifier = v_svm(selection, data.labels[b])
        separable = bool(np.isfinite(classifier.objective))
        row: Row = {
            "seed": int(seed),
            "infeasible": not feasible,
            "correlation": finite_or_none(float(correlation(W, solution.W))) if feasible else None,
            "margin": finite_or_none(margin_share(solution, W)),
            "same": float((trace.selected[b] == fixed.selected[b]).mean()),
            "optimal": float((trace.selected[b] == instances.optimal[b]).mean()),
            "head": finite_or_none(float(correlation(v[:, None], classifier.W))) if separable else None,
            "separable": separable,
            "relaxed": None,
            "accuracy": None,
        }
        if separable:
            own = np.where(solution.problem.rejected, solution.problem.apply(W), np.inf).min(1)  # (n,)
            support = np.asarray(classifier.support)[:, 1]
            if not support.all() and own[support].min() > 0:
                row["relaxed"] = float(own[~support].min() / own[support].min())
        if fresh is not None:
            row["accuracy"] = accuracy(fresh[b], W, v)
        rows.append(row)
    return rows


def accuracy(fresh: tuple[Any, Any, Any], W: np.ndarray, v: np.ndarray) -> float:
    """Return the share of sequences whose label is predicted correctly."""
    tokens, queries, labels = fresh
    weights = softmax((tokens @ (queries @ W.T)[..., None])[..., 0], axis=-1)
    return float((labels * ((weights[..., None, :] @ tokens)[:, 0] @ v) > 0).mean())


MEASURES = {field: Measure(words, field) for field, words in FIELDS.items()} | {
    # A ratio whose denominator may be near zero has no meaningful mean; the figure draws medians throughout.
    f"median of {field}": Measure(f"median of {FIELDS[field]}", field, "median")
    for field in ("margin", "same", "head", "relaxed")
}


estimates = estimates_by(("kind", "d", "head_lr"), MEASURES)


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report every measure and its difference from the fixed head."""
    table = estimates(rows)
    for key, cell in table.cells.items():
        kind, d, rate = key
        fixed = having(rows, kind=kind, d=d, head_lr=0.0)
        name = "fixed head" if rate == 0 else f"head step {rate:g}"
        infeasible = sum(row["infeasible"] for row in cell)
        for field in FIELDS:
            measure = f"median of {field}" if field == "relaxed" else field
            ours, quantity = table.of(key, measure), f"{MEASURES[measure].words}, {kind} data, d={d}, {name}"
            if not ours.count or (rate == 0 and field == "same"):
                continue
            note = ""
            if rate and fixed and field not in ("same", "relaxed"):
                note = compare(field, cell, fixed)
            if field == "same":
                optimal = column(cell, "optimal").mean()
                note = f"{100 * optimal:.0f} % of the tokens are the best under the head at the start."
            if field == "relaxed":
                note, discarded = relaxation(ours.low, ours.high), len(cell) - ours.count
            else:
                discarded = 0
            if field == "head":
                note = f"The selected tokens are separable in {ours.count} of {len(cell)} trials. {note}".strip()
            yield estimate_verdict(
                NAME, quantity, ours, trials=len(cell), discarded=discarded, infeasible=infeasible, note=note
            )


def relaxation(low: float, high: float) -> str:
    """Say whether margins are smaller in sequences with no support vector, from an interval of the median ratio."""
    phrase = "smaller" if high < 1 else "larger" if low > 1 else "neither smaller nor larger for certain"
    return f"Margins of W are {phrase} where the classifier has no support; trials without both kinds are left out."


def compare(field: str, cell: Sequence[Row], fixed: Sequence[Row]) -> str:
    """Say whether joint training changes a measure, from the differences on the same instances."""
    before = {row["seed"]: row[field] for row in fixed}
    pairs = [(row[field], before.get(row["seed"])) for row in cell]
    change = [own - other for own, other in pairs if own is not None and other is not None]
    if len(change) < 2:
        return ""
    low, high = bootstrap_interval(change)
    if low <= 0 <= high:
        return f"Joint training makes no difference that {len(change)} trials could show."
    size = f"{abs(np.mean(change)):.2g} on average (95 %: {low:.2g} to {high:.2g})"
    return f"Joint training {'raises' if low > 0 else 'lowers'} it by {size}."


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw four measures against the step of the head, one curve per kind of data and dimension."""
    panels = {
        "margin": ("W: margin", "share of the largest"),
        "same": ("same token as under the fixed head", "share of sequences"),
        "head": ("v against the classifier", "correlation"),
        "relaxed": ("margins where v has no support", "relative to its supports"),
    }
    rates = sorted({row["head_lr"] for row in rows})
    with house_style():
        across = 2 if is_wide(width) else 1
        result = new_figure(width, 2.6 * (4 // across) + 0.7)
        axes = result.subplots(4 // across, across, squeeze=False).ravel()
        for look, (kind, d) in enumerate(by(rows, "kind", "d")):
            for ax, field in zip(axes, panels, strict=True):
                medians = estimates(rows).along("head_lr", f"median of {field}", kind=kind, d=d)
                series = {rates.index(rate): one for rate, one in medians.items()}
                draw_curve(ax, curve_of(series, f"{kind} data, d = {d}", look % 6))
        for ax, (field, (title, label)) in zip(axes, panels.items(), strict=True):
            ax.set_title(title)
            ax.set_ylabel(f"{label} (median)")
            ax.set_xticks(range(len(rates)), ["fixed" if rate == 0 else f"{rate:g}" for rate in rates])
            ax.set_xlim(-0.2, len(rates) - 0.8)
            ax.set_xlabel("step of the head (that of W is 0.1)")
            if field == "relaxed":
                log_axis(ax, "y")
                ax.axhline(1, color="#8a8a8a", lw=0.8, ls=":")
        legend_below(result, list(axes), 2)
    return result
