r"""Sensitivity of the equivalence to similar tokens and small score gaps, on digits and on text.

The data are images of threes and eights, cut into patches, and sentences of the documentation of two libraries, as word
vectors. Both are prepared as in a study (:func:`attsvm.study.run.prepare`): centred queries, unit scales, and a head
fitted to mean tokens.
Each then gets one more token, a *rival* of its best-scoring token x, at distance :math:`\delta` and with a score that
is lower by :math:`g = f\delta`,

.. math:: x' = x - \delta\,(f\,Yv + \sqrt{1-f^2}\,u), \qquad u \perp v \text{ random},\ \|u\| = \|v\| = 1.

Similarity (:math:`\delta`, in units of a token's mean length) and score gap (the fraction f of the distance that the
head measures) thus vary independently, on otherwise real tokens. If there is no rival, the natural variation is used.
Over the images (or texts) of a trial, the margin of each is rank-correlated with the distance of its selected token to
the nearest other one, and with their smallest score gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import rankdata

from attsvm.core.correlation import correlation
from attsvm.core.status import Status
from attsvm.data.dataset import Dataset
from attsvm.data.digits import digits
from attsvm.data.docstrings import docstrings
from attsvm.data.text import word_dataset
from attsvm.data.token_data import TokenData
from attsvm.plots.style import QUIET, house_style, legend_below
from attsvm.solvers.solving import solve
from attsvm.study.controls import shuffle
from attsvm.study.results import Settings, Setup
from attsvm.study.run import prepare
from attsvm.theory.tokens import Trial
from attsvm.training import train
from attsvm_paper.beyond.measures import finite_or_none, margin_share
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import mean_verdict
from attsvm_paper.judging.estimates import Measure, along
from attsvm_paper.judging.grouping import by, column, having
from attsvm_paper.judging.statistics import bootstrap_interval, mean_interval
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import curve_of, draw_curve, grid, log_axis, value_axis

NAME = "token-similarity"
CLASSES = ("3-8", "numpy-scipy")
DISTANCES = (1.0, 0.3, 0.1, 0.03, 0.01)
SHARES = (0.9, 0.1)
# Fraction of the steps after which the correlation is first measured.
EARLY = 0.05
# Seconds per SVM.
PATIENCE = 10.0


@dataclass(frozen=True)
class Config:
    """Distance of the rivals (0: no rivals) and the fraction of it that the head measures, on `n` images or texts.

    `classes` are two digits, or two libraries whose documentation is distinguished.
    """

    distance: float
    share: float = 0.9
    classes: str = "3-8"
    n: int = 20
    steps: int = 2000
    lr: float = 1.0
    trials: int = 20

    def __post_init__(self) -> None:
        if self.distance < 0 or not 0 < self.share <= 1:
            raise ValueError(
                f"distance is {self.distance} and share {self.share}; a distance from 0 and a share in (0, 1] expected."
            )


def sweep(effort: Effort) -> list[Config]:
    """No rivals, then every distance with every fraction, on digits and on text."""
    count, steps = (50, 10_000) if effort == "full" else (10, 2000)
    both = [(0.0, 1.0), *((distance, share) for share in SHARES for distance in DISTANCES)]
    return [
        Config(distance, share, classes, steps=steps, trials=count) for classes in CLASSES for distance, share in both
    ]


@cache
def real_data(classes: str) -> Dataset:
    """Return the digits of two classes, or the texts of two libraries."""
    return word_dataset(docstrings(classes)) if is_text(classes) else digits(classes)


def is_text(classes: str) -> bool:
    """Whether the classes are libraries (text) rather than digits."""
    return classes.replace("-", "").isalpha() and classes != "odd-even"


def with_rivals(setup: Setup, distance: float, share: float, rng: np.random.Generator) -> Trial:
    """Append a rival of the best token to every sequence; its direction does not depend on the distance."""
    trial, v = setup.trial, setup.head.v
    direction = rng.standard_normal((len(trial.labels), len(v)))
    direction -= np.outer(direction @ v, v)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    if distance == 0:
        return trial
    best = trial.tokens[np.arange(len(trial.labels)), trial.optimal]
    rival = best - distance * (share * trial.labels[:, None] * v + np.sqrt(1 - share**2) * direction)
    tokens = np.concatenate([trial.tokens, rival[:, None]], axis=1)
    mask = np.concatenate([trial.mask, np.ones((len(rival), 1), dtype=bool)], axis=1)
    return Trial.of(TokenData(tokens, trial.queries, trial.labels, mask), v)


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train with and without rivals; compare W with the SVM of its tokens, and sequences with each other."""
    data = real_data(config.classes)
    rows: list[Row] = []
    for seed in seeds:
        setup = prepare(data, Settings(train=config.n, seed=int(seed)))
        rng = np.random.default_rng((int(seed), 1))
        trial = with_rivals(setup, config.distance, config.share, rng)
        early = int(EARLY * config.steps)
        trace = train(trial.data, setup.head.v, steps=config.steps, lr=config.lr, record_every=[early])
        W, selected = np.asarray(trace.W)[-1], np.asarray(trace.selected)
        solution = solve(trial.problem(selected), time_limit=PATIENCE)
        feasible = bool(np.isfinite(solution.objective))
        other = shuffle(selected, trial.mask, rng)
        control = None if other is None else solve(trial.problem(other), time_limit=PATIENCE)
        attention = np.asarray(trace.attention)[-1].max(-1)
        row: Row = {
            "seed": int(seed),
            "infeasible": solution.status is Status.INFEASIBLE,
            "correlation": float(correlation(W, solution.W)) if feasible else None,
            "error": float(1 - correlation(W, solution.W)) if feasible else None,
            "early": float(1 - correlation(np.asarray(trace.W)[-2], solution.W)) if feasible else None,
            "control": None,
            "margin": finite_or_none(margin_share(solution, W)),
            "optimal": float((selected == trial.optimal).mean()),
            "rival": float((selected == setup.trial.tokens.shape[1]).mean()),
            "attention": float(attention.mean()),
            "svm_norm": finite_or_none(solution.objective),
        }
        if control is not None and np.isfinite(control.objective):
            row["control"] = float(correlation(W, control.W))
        rows.append(row | (by_sequence(trial, W, selected) if config.distance == 0 else {}))
    return rows


def by_sequence(trial: Trial, W: np.ndarray, selected: np.ndarray) -> Row:
    """Rank-correlate the margin of each sequence with the similarity and the score gap of its tokens."""
    problem = trial.problem(selected)
    rejected = problem.rejected
    index = np.arange(len(selected))
    delta = trial.tokens[index, selected][:, None] - trial.tokens
    gap = np.abs(trial.gamma[index, selected][:, None] - trial.gamma)
    margin, distance, score = (
        np.where(rejected, value, np.inf).min(1) for value in (problem.apply(W), np.linalg.norm(delta, axis=-1), gap)
    )

    def rank(value: np.ndarray) -> float | None:
        spread = len(set(value.tolist())) > 1 and len(set(margin.tolist())) > 1
        return float(np.corrcoef(rankdata(margin), rankdata(value))[0, 1]) if spread else None

    return {"by_distance": rank(distance), "by_gap": rank(score)}


DRAWN = {
    field: Measure(words, field, "median")
    for field, words in (
        ("error", "1 - correlation of W with the SVM of its tokens"),
        ("control", "correlation of W with the SVM of shuffled selections"),
        ("optimal", "share of sequences that select their best token"),
        ("early", "1 - correlation at an early step"),
    )
}


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Report the correlation at every distance and gap, and its relation to similarity and gap."""
    # If there are no rivals, their gap is meaningless: cells that differ only in it are the same runs.
    shares = [row["share"] for row in rows if row["distance"] == 0][:1]
    subset = [row for row in rows if row["distance"] > 0 or row["share"] in shares]
    return [
        verdict
        for (classes,), own in by(subset, "classes").items()
        for verdict in (*correlations(own, *nouns_of(classes)), *differences(own, nouns_of(classes)[0]))
    ]


def nouns_of(classes: str) -> tuple[str, str]:
    """Return the nouns for the data and for one sequence of them."""
    return ("text", "text") if is_text(classes) else ("digits", "image")


@listed
def correlations(rows: Sequence[Row], data: str, one: str) -> Iterator[Verdict]:
    """Report the distance of W from its SVM for every rival, and which sequences get larger margins."""
    for (distance, share), cell in by(rows, "distance", "share").items():
        infeasible = sum(row["infeasible"] for row in cell)
        where = "no rivals" if distance == 0 else f"rivals at distance {distance:g}, gap {share * distance:.2g}"
        control = column(cell, "control")
        note = f"{100 * column(cell, 'optimal').mean():.0f} % of the {one}s select their best token"
        note += "." if distance == 0 else f", {100 * column(cell, 'rival').mean():.0f} % the rival."
        if len(column(cell, "early")):
            note += f" After {100 * EARLY:.0f} % of the steps: {1 - column(cell, 'early').mean():.3f}."
        note += f" Attention to the selected token is {column(cell, 'attention').mean():.2f}."
        if len(control):
            note += f" Shuffled selections: {control.mean():.2f}."
        yield mean_verdict(
            NAME,
            f"correlation of W with the SVM of its tokens, {data}, {where}",
            column(cell, "correlation"),
            trials=len(cell),
            infeasible=infeasible,
            interval="bootstrap",
            note=note,
        )
    baseline = having(rows, distance=0.0)
    for what, field in (("distance to the nearest token", "by_distance"), ("smallest score gap", "by_gap")):
        values = column(baseline, field) if baseline else np.array([])
        if len(values) > 1:
            low, high = mean_interval(values)
            note = f"The margin of one {one} with a larger {what} is {'larger' if low > 0 else 'smaller'}."
            if low <= 0 <= high:
                note = f"Between the margin of one {one} and its {what} there is no relation that these trials show."
            quantity = f"rank correlation of margin and {what}, {data}, no rivals"
            yield mean_verdict(NAME, quantity, values, note=note)


@listed
def differences(rows: Sequence[Row], data: str) -> Iterator[Verdict]:
    """Report the factors by which distance and score gap change 1 - correlation on the same sequences."""
    rivals = [row for row in rows if row["distance"] > 0 and (row["error"] or 0) > 0]
    distances, shares = (sorted({row[name] for row in rivals}) for name in ("distance", "share"))
    for name, ends, other in (("distance", distances, "share"), ("share", shares, "distance")):
        if len(ends) < 2:
            continue
        high = {(row["seed"], row[other]): row["error"] for row in having(rivals, **{name: ends[-1]})}
        low = having(rivals, **{name: ends[0]})
        change = [np.log10(row["error"] / high[key]) for row in low if (key := (row["seed"], row[other])) in high]
        if len(change) < 2:
            continue
        least, most = bootstrap_interval(change)
        phrase = "brings W nearer to" if most < 0 else "keeps W farther from" if least > 0 else "makes no difference to"
        what = "distance of rivals" if name == "distance" else "gap, as a share of the distance,"
        note = f"A {what} of {ends[0]:g} instead of {ends[-1]:g} {phrase} its SVM: 1 - correlation "
        note += f"is multiplied by {10 ** np.median(change):.2g} (median)."
        yield mean_verdict(
            NAME,
            f"log10 of the change of 1 - correlation, {data}, {what} from {ends[-1]:g} to {ends[0]:g}",
            change,
            interval="bootstrap",
            note=note,
        )


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw 1 - correlation, the control and the selection against the distance of the rivals."""
    panels = {
        "error": ("W and its SVM", "median 1 - correlation"),
        "control": ("shuffled selections", "median correlation"),
        "optimal": ("optimal token", "median share selected"),
    }
    kinds = by(rows, "classes")
    with house_style():
        result, axes = grid(len(kinds), 3, 2.4, "W and the SVM of its tokens, with near rivals", width)
        for line, ((classes,), own) in zip(axes, kinds.items(), strict=True):
            rivals = [row for row in own if row["distance"] > 0]
            baseline = having(own, distance=0.0)
            for look, ((share,), some) in enumerate(by(rivals, "share").items()):
                cells = by(some, "distance")
                for ax, field in zip(line, panels, strict=True):
                    label = f"gap {share:g} of the distance"
                    draw_curve(ax, curve_of(along(cells, DRAWN[field]), label, look % 6), 0.03 * (look - 0.5))
                label = f"after {100 * EARLY:.0f} % of the steps"
                early = curve_of(along(cells, DRAWN["early"]), label, look % 6, style=":")
                draw_curve(line[0], early, 0.03 * (look - 0.5))
            for ax, (field, (title, label)) in zip(line, panels.items(), strict=True):
                if len(column(baseline, field)):
                    level = float(np.median(column(baseline, field)))
                    ax.axhline(level, color=QUIET, lw=0.9, ls="--", label="without rivals")
                if rivals:
                    value_axis(ax, sorted({row["distance"] for row in rivals}), "distance of the rival")
                ax.set_xlabel("distance of the rival")
                ax.set_title(f"{nouns_of(classes)[0]}: {title}")
                ax.set_ylabel(label)
            log_axis(line[0], "y")
        legend_below(result, list(axes.ravel()), 2)
    return result
