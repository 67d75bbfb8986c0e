r"""Trained embeddings: the effect of the first step on them, and the margin that the query then maximises.

arXiv 2505.17282 trains :math:`v^\top E_X^\top\,\mathrm{softmax}(E_X p)` in two stages. After one gradient step from
small embeddings E, the row of a word is aligned with v in proportion to its signed frequency, :math:`a_s =
\frac1n\sum_i Y_i \frac{\#\{t : x_{it} = s\}}{T}`. Gradient flow in p with E fixed then selects the words that predict
the label, and maximises the margin of that selection (abstract; the full text was not at hand, and the data here are
ours).

Sequences of T words have labels Y; each holds one to three words of its class and otherwise neutral words. The first
step is taken with :func:`attsvm.train` on the table alone. Then p is trained by normalised steps, whose limit direction
is the flow's, and compared with the certified SVM of the top tokens. After a start at E = 0 all rows are multiples of
v: p can then rank the words of only one class above the neutral ones. After other starts the time that p takes depends
on the random rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from attsvm.core.problem import SelectionProblem
from attsvm.data.token_data import TokenData
from attsvm.plots.style import QUIET, house_style
from attsvm.solvers.solving import solve
from attsvm.training import Vocabulary, train
from attsvm_paper.beyond.measures import finite_or_none, margin_share
from attsvm_paper.beyond.predictions import with_outcome
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import estimate_verdict
from attsvm_paper.judging.estimates import Measure, estimates_by
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import curve_of, draw_curve, grid, short

NAME = "trained-embeddings"
# Numbers of words per class, and of neutral words.
TELLING, NEUTRAL = 2, 6
FIRST_STEP = 30.0


@dataclass(frozen=True)
class Config:
    """Sequences and the size of the random embeddings at the start."""

    start: float
    n: int = 60
    T: int = 8
    d: int = 24
    steps: int = 2000
    trials: int = 12

    def __post_init__(self) -> None:
        if self.n < 2 or self.T < 4 or self.d < 2 or self.start < 0:
            raise ValueError(
                f"n, T, d and start are {self.n}, {self.T}, {self.d} and {self.start}; at least 2, 4, 2 and 0 were "
                "expected."
            )


def sweep(effort: Effort) -> list[Config]:
    """Sweep the start from zero, where the first step is exact, to embeddings as large as the step."""
    steps, count = (100_000, 40) if effort == "full" else (10_000, 10)
    return [Config(start, steps=steps, trials=count) for start in (0.0, 0.01, 0.1, 1.0)]


def sentences(rng: np.random.Generator, n: int, T: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw words (n, T) and labels (n,): one to three words of the label's class, the rest neutral."""
    labels = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    words = 2 * TELLING + rng.integers(NEUTRAL, size=(n, T))
    for i, label in enumerate(labels):
        places = rng.permutation(T)[: rng.integers(1, 4)]
        words[i, places] = rng.integers(TELLING, size=len(places)) + (0 if label > 0 else TELLING)
    return words, labels


def trials(config: Config, seeds: Any) -> list[Row]:
    """Take the first step on the embeddings, then train p; one row per seed."""
    words_count = 2 * TELLING + NEUTRAL
    rows: list[Row] = []
    for seed in seeds:
        rng = np.random.default_rng(int(seed))
        words, labels = sentences(rng, config.n, config.T)
        v = np.linalg.qr(rng.standard_normal((config.d, 1)))[0][:, 0]
        table = config.start * rng.standard_normal((words_count, config.d)) / np.sqrt(config.d)
        vocabulary = Vocabulary(table, words)
        ask = np.ones((config.n, 1))
        first = train(
            vocabulary.data(labels, ask), v, vocabulary=vocabulary, embedding_lr=FIRST_STEP, optimizer="gd", lr=1e-12,
            steps=1,
        )  # fmt: skip
        assert first.embeddings is not None
        E = first.embeddings[-1]
        frequency = (labels[:, None, None] * (words[..., None] == np.arange(words_count))).mean((0, 1))
        aligned = E @ v
        tokens = E[words]
        trace = train(TokenData(tokens, ask, labels), v, steps=config.steps)
        p = trace.W[-1]
        top = np.asarray(trace.selected)
        telling = words[np.arange(config.n), top] < 2 * TELLING
        # Equal words of a sequence are one choice: all positions of the top word are selected together.
        places = words == words[np.arange(config.n), top][:, None]
        solution = solve(SelectionProblem(tokens, ask, places))
        rows.append(
            {
                "seed": int(seed),
                "first": float(np.corrcoef(aligned, frequency)[0, 1]),
                "telling": float(telling.mean()),
                "share": finite_or_none(margin_share(solution, p)),
                "feasible": bool(np.isfinite(solution.objective)),
            }
        )
    return rows


MEASURES = {
    "first": Measure("correlation of E v with the signed frequencies after one step", "first"),
    "selection": Measure("share of sequences that select a word of their class", "telling"),
    "margin": Measure("margin of p as a share of the largest", "share"),
}


estimates = estimates_by(("start", "n", "T", "d"), MEASURES)


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report the alignment after one step, the top words, and the margin's share."""
    table = estimates(rows)
    for key, cell in table.cells.items():
        start, n, T, d = key
        for name, measure in MEASURES.items():
            ours = table.of(key, name)
            if ours.count:
                verdict = estimate_verdict(
                    NAME, f"{measure.words}, start {start:g}, n={n}, T={T}, d={d}", ours,
                    trials=len(cell), infeasible=sum(not row["feasible"] for row in cell),
                )  # fmt: skip
                yield with_outcome(verdict, name)


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw the three measures over the size of the start."""
    panels = (
        ("first", "after one step", "correlation of E v with frequency"),
        ("selection", "after training p", "share selecting a telling word"),
        ("margin", "margin of p", "share of the largest"),
    )
    starts = sorted({row["start"] for row in rows})
    with house_style():
        result, axes = grid(1, 3, 2.5, "Embeddings trained for one step, then the query", width)
        for look, (ax, (name, title, label)) in enumerate(zip(axes.ravel(), panels, strict=True)):
            # A logarithmic axis cannot show zero: starts are evenly spaced.
            series = {starts.index(start): one for start, one in estimates(rows).along("start", name).items()}
            if series:
                draw_curve(ax, curve_of(series, name, look))
            ax.set_xticks(range(len(starts)), [short(start) for start in starts])
            ax.set_title(title)
            ax.set_xlabel("size of the start")
            ax.set_ylabel(label)
            ax.axhline(1, color=QUIET, lw=0.6)
            ax.set_ylim(0, 1.08)
    return result
