r"""Every token is a query: sequence-to-sequence, causal and next-token attention, each compared with its SVM.

* **sequence** and **causal** (arXiv 2308.16898, Section 7): each token of a sequence is a query with a label. Under the
  causal mask query k sees tokens up to k. Trained W is compared with the SVM of the selected tokens (SAtt-SVM,
  :meth:`attsvm.SelectionProblem.from_sequences`), and with the SVM of the same selections shuffled.
* **acyclic** and **cyclic** next-token prediction (arXiv 2403.08081): the label of a sequence is one of its tokens. In
  acyclic data it is the first of them in an order that depends on the last token. In cyclic data tokens come in pairs
  of equal rank, and either token of the leading pair is the label; paired tokens then lie on a cycle of the next-token
  graph. W is split into its projection on the span of tied differences, which is compared with W^fin, and the rest,
  which is compared with the Graph-SVM.

Plain gradient descent trains cyclic data, because normalised steps never become small enough to converge to W^fin. Its
norm grows like log k, so its direction is still far from the limit. The other settings take normalised steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from attsvm.core.correlation import correlation
from attsvm.core.status import Status
from attsvm.data.synthetic import random_trial
from attsvm.data.token_data import TokenData
from attsvm.plots.style import house_style, is_wide, legend_below, new_figure
from attsvm.solution.problem_batch import ProblemBatch
from attsvm.solvers.batching import solve_batch
from attsvm.study.controls import shuffle
from attsvm.theory.finite_part import finite_part
from attsvm.theory.graph import graph_svm
from attsvm.training import train
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import mean_verdict
from attsvm_paper.judging.estimates import Measure, along
from attsvm_paper.judging.grouping import by, column, having
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import curve_of, draw_curve, log_axis
from attsvm_paper.published.instances import start_seeds
from attsvm_paper.published.numerics import STEP

NAME = "sequences"
SETTINGS = ("sequence", "causal", "acyclic", "cyclic")
RECORDS = (30, 100, 300, 1000, 3000, 10_000, 30_000)
# Fields that only some settings fill.
FIELDS = ("control", "optimal", "acyclic", "whole", "finite", "finite_early", "finite_share")
# Fraction of the steps after which the distance to W^fin is first recorded.
EARLY = 0.1
# Step of plain descent on cyclic data, with tokens of length one.
PLAIN_STEP = 1.0


@dataclass(frozen=True)
class Config:
    """One setting: `n` sequences of `T` tokens, drawn from a vocabulary in the next-token settings."""

    setting: Literal["sequence", "causal", "acyclic", "cyclic"]
    d: int = 10
    n: int = 4
    T: int = 5
    vocabulary: int = 6
    steps: int = 3000
    trials: int = 100

    def __post_init__(self) -> None:
        if self.setting in ("acyclic", "cyclic") and self.vocabulary < 2:
            raise ValueError(f"vocabulary is {self.vocabulary}; at least 2 was expected.")
        if self.d < 2 or self.T < 2:
            raise ValueError(f"d and T are {self.d} and {self.T}; at least 2 of each was expected.")
        if self.steps <= RECORDS[0]:
            raise ValueError(f"steps is {self.steps}; more than {RECORDS[0]} were expected.")


def sweep(effort: Effort) -> list[Config]:
    """Two dimensions for the settings with a query per token, one vocabulary for next tokens."""
    full = effort == "full"
    count = 100 if full else 20
    configurations = [Config(setting, d, trials=count) for setting in ("sequence", "causal") for d in (5, 10, 20)]
    return [
        *configurations,
        Config("acyclic", 6, n=48, T=4, vocabulary=4, steps=2000, trials=count),
        Config("cyclic", 6, n=48, T=4, vocabulary=4, steps=30_000 if full else 4000, trials=count),
    ]


def records(steps: int) -> list[int]:
    """Return the steps to record."""
    return [step for step in RECORDS if step < steps]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train, and compare W over time with the SVM of the setting."""
    rows = every_token(config, seeds) if config.setting in ("sequence", "causal") else next_token(config, seeds)
    return [dict.fromkeys(FIELDS) | row for row in rows]


def every_token(config: Config, seeds: Any) -> list[Row]:
    """Train with a query per token; compare with the SAtt-SVM and with the SVM of shuffled selections."""
    tokens, labels, v = [], [], []
    for seed in seeds:
        rng = np.random.default_rng(int(seed))
        x, _, _, head = random_trial(rng, config.n, config.T, config.d, "self")
        tokens.append(x)
        labels.append(rng.choice(np.array([-1.0, 1.0]), (config.n, config.T)))
        v.append(head)
    data = TokenData.from_sequences(np.stack(tokens), np.stack(labels), causal=config.setting == "causal")
    mask = np.ones(data.tokens.shape[:-1], dtype=bool) if data.mask is None else np.asarray(data.mask)
    trace = train(data, np.stack(v), steps=config.steps, lr=STEP, record_every=records(config.steps))
    selected = np.asarray(trace.selected)
    solutions = solve_batch(ProblemBatch(data.tokens, data.queries, selected, mask))
    rows: list[Row] = []
    for b, seed in enumerate(seeds):
        other = shuffle(selected[b], mask[b], np.random.default_rng(int(start_seeds([seed])[0])))
        control = None
        if other is not None:
            shuffled = solve_batch(
                ProblemBatch(data.tokens[b : b + 1], data.queries[b : b + 1], other[None], mask[b : b + 1])
            )
            if np.isfinite(shuffled.objective[0]):
                control = float(correlation(trace.W[b, -1], shuffled.W[0]))
        feasible = bool(np.isfinite(solutions.objective[b]))
        gamma = np.where(mask[b], data.labels[b][:, None] * (data.tokens[b] @ v[b]), -np.inf)
        curve = correlation(trace.W[b], solutions.W[b]) if feasible else None
        rows.append(
            {
                "seed": int(seed),
                "infeasible": solutions.status[b] is Status.INFEASIBLE,
                "step": trace.step.tolist(),
                "curve": None if curve is None else curve.tolist(),
                "correlation": None if curve is None else float(curve[-1]),
                "control": control,
                "optimal": float((selected[b] == gamma.argmax(-1)).mean()),
            }
        )
    return rows


def corpus(rng: np.random.Generator, config: Config) -> tuple[Any, Any, Any]:
    """Draw embeddings (K, d) of length one, sequences (n, T) and the token that follows each, (n,)."""
    embeddings = rng.standard_normal((config.vocabulary, config.d))
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    sequences = rng.integers(config.vocabulary, size=(config.n, config.T))
    # rank[k, j]: position of token j in the order for last token k; in cyclic data pairs share a rank.
    rank = rng.permuted(np.tile(np.arange(config.vocabulary), (config.vocabulary, 1)), axis=1)
    if config.setting == "cyclic":
        rank = rank // 2
    own = rank[sequences[:, -1:], sequences]  # (n, T)
    leading = own == own.min(1, keepdims=True)
    place = (leading * (1 + rng.random(own.shape))).argmax(1)
    return embeddings, sequences, sequences[np.arange(config.n), place]


def next_token(config: Config, seeds: Any) -> list[Row]:
    """Train next-token prediction; compare both projections of W with the Graph-SVM and its finite part."""
    corpora = [corpus(np.random.default_rng(int(seed)), config) for seed in seeds]
    each = [TokenData.next_token(*parts) for parts in corpora]
    data = TokenData(
        *(np.stack([getattr(one, name) for one in each]) for name in ("tokens", "queries", "labels")),
        values=np.stack([one.values for one in each]),
    )
    rule: dict[str, Any] = {"lr": STEP}
    if config.setting == "cyclic":
        rule = {"lr": PLAIN_STEP, "optimizer": "gd"}
    trace = train(data, [1.0], steps=config.steps, loss="log", record_every=records(config.steps), **rule)
    early = int(np.flatnonzero(trace.step <= max(EARLY * config.steps, trace.step[1]))[-1])
    rows: list[Row] = []
    for b, seed in enumerate(seeds):
        graph = graph_svm(*corpora[b])
        feasible = bool(np.isfinite(graph.solution.objective))
        inside = [finite_part(graph.problem, graph.problem.apply(W)).W for W in trace.W[b]]
        outside = trace.W[b] - np.stack(inside)
        curve = correlation(outside, graph.W_svm) if feasible else None
        length = float(np.linalg.norm(graph.W_fin))
        distances = [float(np.linalg.norm(part - graph.W_fin)) / length if length > 0 else None for part in inside]
        rows.append(
            {
                "seed": int(seed),
                "infeasible": graph.solution.status is Status.INFEASIBLE,
                "acyclic": graph.acyclic,
                "step": trace.step.tolist(),
                "curve": None if curve is None else curve.tolist(),
                "correlation": None if curve is None else float(curve[-1]),
                "whole": float(correlation(trace.W[b, -1], graph.W_svm)) if feasible else None,
                "finite": distances[-1],
                "finite_early": distances[early],
                "finite_share": length / float(np.linalg.norm(trace.W[b, -1])),
            }
        )
    return rows


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report the distance of W from the SVM of its setting, next to its controls."""
    for (setting, d, n, T), cell in by(rows, "setting", "d", "n", "T").items():
        where = f"{setting}, d={d}, n={n}, T={T}"
        near = column(cell, "correlation")
        infeasible = sum(row["infeasible"] for row in cell)
        if setting in ("sequence", "causal"):
            control = column(cell, "control")
            note = f"{len(near)} of {len(cell)} selections have an SVM."
            if len(control):
                note = f"Shuffled selections: {control.mean():.2f}. {note}"
            note += f" {100 * column(cell, 'optimal').mean():.0f} % of the queries select their best token."
            yield mean_verdict(
                NAME,
                f"correlation of W with its SAtt-SVM, {where}",
                near,
                trials=len(cell),
                infeasible=infeasible,
                interval="bootstrap",
                note=note,
            )
            continue
        acyclic = sum(row["acyclic"] for row in cell)
        whole = column(cell, "whole")
        note = f"The graphs have no cycle in {acyclic} of {len(cell)} trials."
        if len(whole):
            note += f" W as a whole, finite part included: {whole.mean():.3f}."
        yield mean_verdict(
            NAME,
            f"correlation with the Graph-SVM outside the span of ties, {where}",
            near,
            trials=len(cell),
            infeasible=infeasible,
            interval="bootstrap",
            note=note,
        )
        finite = column(cell, "finite")
        if len(finite):
            yield mean_verdict(
                NAME,
                f"distance of W inside the span of ties from W^fin, relative to W^fin, {where}",
                finite,
                trials=len(cell),
                interval="bootstrap",
                note=f"{column(cell, 'finite_early').mean():.2f} after a tenth of the steps. W^fin is "
                f"{column(cell, 'finite_share').mean():.2f} of the length of W; none would be at distance 1.",
            )


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw 1 - correlation with the SVM against steps, one panel per setting."""
    titles = {
        "sequence": "every token is a query",
        "causal": "every token is a query, causal",
        "acyclic": "next token, no cycles",
        "cyclic": "next token, cycles",
    }
    settings = [setting for setting in SETTINGS if having(rows, setting=setting)]
    with house_style():
        across = 2 if is_wide(width) else 1
        down = -(-len(settings) // across)
        result = new_figure(width, 2.5 * down + 0.6)
        axes = result.subplots(down, across, squeeze=False).ravel()
        for ax in axes[len(settings) :]:
            ax.remove()
        looks = {d: look for look, d in enumerate(sorted({row["d"] for row in rows}))}
        for ax, setting in zip(axes, settings, strict=False):
            for (d, _n), cell in by(having(rows, setting=setting), "d", "n").items():
                points: dict[Any, list[Row]] = {}
                for row in cell:
                    for step, value in zip(row["step"], row["curve"] or (), strict=False):
                        if step:
                            points.setdefault(step, []).append({"error": 1 - value})
                error = along(points, Measure("1 - correlation with the SVM", "error", "median"))
                draw_curve(ax, curve_of(error, f"d = {d}", looks[d] % 6))
                control = [1 - row["control"] for row in cell if row["control"] is not None]
                if control:
                    ax.axhline(float(np.median(control)), color="#8a8a8a", lw=0.8, ls=":", label="shuffled selections")
            log_axis(ax, "x")
            log_axis(ax, "y")
            ax.set_xlabel("step")
            ax.set_ylabel("median 1 - correlation")
            ax.set_title(titles[setting])
        legend_below(result, list(axes[: len(settings)]), 4)
    return result
