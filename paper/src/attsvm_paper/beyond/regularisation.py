r"""Effects of weight decay, dropout, early stopping and sizes on margin, rank and local optima.

The runs are described in :mod:`attsvm_paper.beyond.shrinkage`:

* *decay*: the radius R of the regularisation path that corresponds to a weight decay of :math:`\lambda`.
* *tokens*, *weights*: dropout of tokens, or of attention weights, compared with no dropout on the same instances.
* *early*: margin, correlation and stable rank :math:`\|W\|_F^2/\|W\|_2^2` when training stops early.
* *size*: the largest margin, the ranks of the SVM in both norms, and all locally optimal selections of small instances,
  as dimension, length and number of heads change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from attsvm.plots.style import QUIET, house_style, is_wide, new_figure
from attsvm_paper.beyond import shrinkage
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import mean_verdict, value_verdict
from attsvm_paper.judging.estimates import Measure, along
from attsvm_paper.judging.grouping import by, column, having
from attsvm_paper.judging.statistics import bootstrap_interval
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import curve_of, draw_curve, log_axis, value_axis
from attsvm_paper.published.instances import draw

NAME = "regularisation"
STRENGTHS = (1e-2, 1e-3, 1e-4, 1e-5)
# Correlation from which two minimisers count as the same; different local minima differ by far more.
ON_PATH = 1 - 1e-5
RATES = (0.0, 0.1, 0.3, 0.5)
WHAT = {
    "largest": "largest margin per norm",
    "local_optima": "number of locally optimal selections",
    "nuclear_rank": "rank of the nuclear SVM",
}
# Fields of rows, in addition to the seed; a row of one topic leaves the other topics' fields empty.
FIELDS = (
    "infeasible", "correlation", "margin", "relative", "local", "optimal", "same", "radius", "path", "excess", "step",
    "stable_rank", "largest", "rank", "nuclear_rank", "agree", "local_optima",
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """A topic; `strength` is the weight decay, or the dropped share."""

    topic: Literal["decay", "tokens", "weights", "early", "size"]
    strength: float = 0.0
    d: int = 10
    n: int = 6
    T: int = 8
    heads: int = 1
    steps: int = 1000
    trials: int = 100

    def __post_init__(self) -> None:
        if self.topic == "decay" and self.strength <= 0:
            raise ValueError(f"strength is {self.strength}; a positive weight decay was expected.")
        if not 0 <= self.strength < 1:
            raise ValueError(f"strength is {self.strength}; a number from 0 and below 1 was expected.")
        if self.heads < 1:
            raise ValueError(f"heads is {self.heads}; at least 1 was expected.")
        if self.T < 2:
            raise ValueError(f"T is {self.T}; at least 2 tokens were expected.")


def sweep(effort: Effort) -> list[Config]:
    """All topics; sizes change one at a time from n = 3, T = 5, d = 8 and one head."""
    count = 100 if effort == "full" else 20
    cells = [Config("decay", strength, trials=count) for strength in STRENGTHS]
    topics: tuple[Any, ...] = ("tokens", "weights")
    cells += [Config(topic, rate, trials=count) for topic in topics for rate in RATES]
    cells.append(Config("early", steps=3000, trials=count))
    sizes = [(d, 5, 1) for d in (3, 5, 8, 16)] + [(8, T, 1) for T in (3, 8)] + [(8, 5, heads) for heads in (2, 4)]
    return cells + [Config("size", 0.0, d, 3, T, heads, trials=count) for d, T, heads in sizes]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Run the topic."""
    instances = draw(seeds, config.n, config.T, config.d)
    if config.topic == "decay":
        each = [[row] for row in shrinkage.decay(instances, config.strength)]
    elif config.topic == "early":
        each = shrinkage.early(instances, config.steps)
    elif config.topic == "size":
        each = [[row] for row in shrinkage.size(instances, config.heads, config.steps, seeds)]
    else:
        each = [[row] for row in shrinkage.dropout(instances, config.topic, config.strength, config.steps, seeds)]
    empty = dict.fromkeys(FIELDS)
    return [{"seed": int(seed)} | empty | row for seed, rows in zip(seeds, each, strict=True) for row in rows]


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report every topic in the rows."""
    for topic, report in (
        ("decay", decay),
        ("tokens", dropout),
        ("weights", dropout),
        ("early", early),
        ("size", size),
    ):
        own = having(rows, topic=topic)
        if own:
            yield from report(own)


@listed
def decay(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report the radius of each weight decay."""
    for (strength, n, T, d), cell in by(rows, "strength", "n", "T", "d").items():
        path = column(cell, "path")
        off_path = [row["excess"] for row in cell if row["path"] < ON_PATH]
        where = f"It is on the path in {len(cell) - len(off_path)} of {len(cell)} trials"
        if off_path:
            where += f", and elsewhere at a local minimum whose risk is higher by {np.mean(off_path):.2g}"
        note = f"{where}. R is {column(cell, 'radius').mean():.2f} on average"
        relative = column(cell, "relative")
        note += f", {relative.mean():.2f} times the norm of the SVM of the tokens on top." if len(relative) else "."
        yield mean_verdict(
            NAME,
            f"correlation of weight decay {strength:g} with the path at its norm, n={n}, T={T}, d={d}",
            path,
            interval="bootstrap",
            infeasible=sum(row["infeasible"] for row in cell),
            note=note,
        )
    slopes = []
    for cell in by(rows, "seed").values():
        points = sorted((np.log(1 / row["strength"]), row["relative"]) for row in cell if row["relative"] is not None)
        if len(points) > 1:
            logarithm, relative = np.array(points).T
            slopes.append(np.polyfit(logarithm, relative, 1)[0])
    if len(slopes) > 1:
        mean = float(np.mean(slopes))
        yield mean_verdict(
            NAME,
            "growth of R over the norm of the SVM when weight decay falls by a factor e",
            slopes,
            note=f"Which R? It grows by {mean:.2f} norms of the SVM whenever the decay falls by a factor e; "
            "the exponential tail of the loss alone would make it 1.",
        )


@listed
def dropout(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Compare with no dropout on the same instances."""
    plain = {row["seed"]: row["margin"] for row in rows if row["strength"] == 0}
    for (topic, rate), cell in by(rows, "topic", "strength").items():
        infeasible = sum(row["infeasible"] for row in cell)
        pairs = [(row["margin"], plain.get(row["seed"])) for row in cell]
        change = [own - other for own, other in pairs if own is not None and other is not None]
        note = f"Locally optimal in {sum(row['local'] for row in cell)} of {len(cell)} trials."
        if rate and len(change) > 1:
            low, high = bootstrap_interval(change)
            phrase = "a larger" if low > 0 else "a smaller" if high < 0 else "no measurably different"
            note = f"Dropping {topic} gives {phrase} margin than dropping none. {note}"
        for field, what in (("margin", "margin as a share of the largest"), ("same", "same tokens as without")):
            if field == "margin" or rate:
                yield mean_verdict(
                    NAME,
                    f"{what}, dropout of {topic} {rate:g}",
                    column(cell, field),
                    trials=len(cell),
                    interval="bootstrap",
                    infeasible=infeasible,
                    note=note,
                )


@listed
def early(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report the loss of margin and the lower rank from stopping early."""
    for (step,), cell in by(rows, "step").items():
        note = f"Stable rank {column(cell, 'stable_rank').mean():.2f}, correlation with the own SVM "
        note += f"{column(cell, 'correlation').mean():.3f}; " if len(column(cell, "correlation")) else "unknown; "
        note += f"{100 * column(cell, 'same').mean():.0f} % of the final tokens are on top already."
        yield mean_verdict(
            NAME,
            f"margin as a share of the largest, stopped after {step} steps",
            column(cell, "margin"),
            trials=len(cell),
            interval="bootstrap",
            infeasible=sum(row["infeasible"] for row in cell),
            note=note,
        )


@listed
def size(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report margin, rank and local optima of every size, and agreement of heads."""
    for (d, T, heads), cell in by(rows, "d", "T", "heads").items():
        where = f"d={d}, T={T}, n={cell[0]['n']}"
        infeasible = sum(row["infeasible"] for row in cell)
        if heads > 1:
            agree = column(cell, "agree")
            phrase = "all heads select alike" if agree.mean() > 0.95 else "heads select different tokens"
            margin = column(cell, "margin")
            note = f"In {100 * agree.mean():.0f} % of the sequences all heads agree: {phrase}."
            if len(margin):
                note += f" Margin of a head as a share of the largest for its tokens: {margin.mean():.3f}."
            yield mean_verdict(
                NAME, f"sequences where {heads} heads agree, {where}", agree, infeasible=infeasible, note=note
            )
            continue
        for field in ("largest", "local_optima"):
            note = ""
            if len(column(cell, "rank")):
                note = f"Rank {column(cell, 'rank').mean():.2f} in the Frobenius norm and "
                note += f"{column(cell, 'nuclear_rank').mean():.2f} in the nuclear."
            if field == "local_optima":
                note = f"Of {T ** cell[0]['n']} selections; trained from zero, "
                note += f"{100 * column(cell, 'optimal').mean():.0f} % of the tokens are the best."
            yield mean_verdict(
                NAME, f"{WHAT[field]}, {where}", column(cell, field), trials=len(cell), infeasible=infeasible, note=note
            )
    yield from trends(rows)


@listed
def trends(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report the changes from the smallest to the largest dimension, and length, for one head."""
    single = having(rows, heads=1)
    for name, other in (("d", "T"), ("T", "d")):
        if not single:
            continue
        base = most([row[other] for row in single])
        cells = {x: cell for (x,), cell in by(having(single, **{other: base}), name).items()}
        ends = (min(cells), max(cells))
        for field, what in WHAT.items():
            small, large = (column(cells[x], field) for x in ends)
            if ends[0] == ends[1] or min(len(small), len(large)) < 2:
                continue
            change = float(large.mean() - small.mean())
            # Two independent samples; 1.96 standard errors of the difference of their means.
            half = 1.96 * float(np.sqrt(small.var(ddof=1) / len(small) + large.var(ddof=1) / len(large)))
            phrase = "rises" if change - half > 0 else "falls" if change + half < 0 else "does not measurably change"
            yield value_verdict(
                NAME,
                f"change of {what}, {name} from {ends[0]} to {ends[1]} at {other}={base}",
                change,
                change - half,
                change + half,
                trials=len(cells[ends[0]]) + len(cells[ends[1]]),
                infeasible=sum(row["infeasible"] for x in ends for row in cells[x]),
                note=f"The {what} {phrase}: {small.mean():.2f} at {name}={ends[0]}, {large.mean():.2f} at "
                f"{name}={ends[1]}.",
            )


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw one panel per topic."""

    def lines(ax: Any, cells: Any, fields: Sequence[tuple[str, str, int]]) -> None:
        for field, label, look in fields:
            if any(row[field] is not None for cell in cells.values() for row in cell):
                draw_curve(ax, curve_of(along(cells, Measure(label, field, "mean")), label, look))

    with house_style():
        across = 3 if is_wide(width) else 1
        result = new_figure(width, 2.5 * (6 // across) + 0.9)
        axes = result.subplots(6 // across, across, squeeze=False).ravel()
        radius, drop, stop, dimension, length, heads = axes
        decays = by(having(rows, topic="decay"), "strength")
        lines(radius, decays, [("relative", "R over the SVM's norm", 0)])
        if decays:
            value_axis(radius, [x for (x,) in decays], "weight decay")
        radius.set_title("weight decay: which R")
        radius.set_ylabel("R, norms of the SVM")
        for topic, look in (("tokens", 1), ("weights", 2)):
            lines(drop, by(having(rows, topic=topic), "strength"), [("margin", f"dropout of {topic}", look)])
        drop.set_xlabel("share dropped")
        drop.set_title("dropout: margin")
        drop.set_ylabel("share of the largest")
        steps = by(having(rows, topic="early"), "step")
        lines(stop, steps, [("margin", "margin", 0), ("correlation", "correlation", 3)])
        log_axis(stop, "x")
        stop.set_xlabel("step")
        stop.set_title("early stopping")
        stop.set_ylabel("share of the largest, correlation")
        if steps:
            stop.axhline(1, color=QUIET, lw=0.6)
        sizes = having(rows, topic="size")
        single = having(sizes, heads=1)
        ranks = [
            ("local_optima", "local optima", 1),
            ("rank", "rank, Frobenius", 0),
            ("nuclear_rank", "rank, nuclear", 3),
        ]
        common = {name: most([row[name] for row in single]) for name in ("d", "T")} if single else {}
        for ax, name, other, label in ((dimension, "d", "T", "dimension d"), (length, "T", "d", "length T")):
            cells = by(having(single, **{other: common[other]}), name) if single else {}
            lines(ax, cells, ranks)
            if cells:
                value_axis(ax, [x for (x,) in cells], label)
                ax.set_title(f"{label}, {other} = {common[other]}")
            ax.set_ylabel("mean number")
        several = by(having(sizes, **common), "heads") if common else by(sizes, "heads")
        lines(heads, several, [("agree", "heads agree", 4), ("margin", "margin", 0)])
        heads.set_xticks([x for (x,) in several])
        heads.set_xlabel("heads")
        heads.set_title("several heads")
        heads.set_ylabel("share of sequences, of the largest")
        for ax in axes:
            if len(ax.get_legend_handles_labels()[1]) > 1:
                ax.legend(fontsize=7, handlelength=1.6)
            if not ax.has_data():
                ax.remove()
    return result


def most(values: Sequence[int]) -> int:
    """Return the most frequent value."""
    return max(set(values), key=lambda value: (values.count(value), -value))
