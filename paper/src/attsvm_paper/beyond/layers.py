r"""Whether every layer of a deeper network is a max-margin selector, and how composition changes by layer.

Networks of two and three layers (:mod:`attsvm_paper.beyond.layered`) are trained as a whole, by Adam. Each layer
is then analysed separately: its input states are tokens, and some of them are queries.

* The *kept set* of a query is the smallest set of tokens that holds nine tenths of its attention.
* W of the layer is compared with the SVM of the top tokens (with its soft margin if it is infeasible), and with the
  Gen-SVM that ties the kept sets if that is feasible. Controls are the SVM of the same selections shuffled among the
  queries, and the Hebbian mean difference.
* Composition is the number of tokens over which attention is spread: the exponential of its entropy.

In the *chain* task the right tokens are known: the first token's layer k should select the token that k pointers lead
to. The share of sequences in which it does is *hops found*.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure

from attsvm.core.correlation import correlation
from attsvm.core.problem import SelectionProblem
from attsvm.plots.style import QUIET, house_style, is_wide, legend_below, new_figure
from attsvm.solvers.solving import solve
from attsvm.study.controls import direction_of, hebbian, shuffle
from attsvm.study.watch import Watch
from attsvm_paper.beyond.layered import Layers, chain_task, digits_task, fit
from attsvm_paper.beyond.measures import finite_or_none, margin_share
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import mean_verdict
from attsvm_paper.judging.estimates import Measure, along
from attsvm_paper.judging.grouping import by, column, having
from attsvm_paper.judging.statistics import mean_interval
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import curve_of, draw_curve

NAME = "layers"
# Share of a query's attention that its kept set holds.
KEPT_SHARE = 0.9
SHUFFLES = 2
FRESH = 500
LOOKS = ("linear", "mlp", "residual")
# Seconds per SVM after which it is omitted.
PATIENCE = 5.0


@dataclass(frozen=True)
class Config:
    """One task and architecture; `queries` is the number of the layer's states that are analysed."""

    task: Literal["chain", "digits"]
    layers: int = 2
    between: Literal["residual", "linear", "mlp"] = "linear"
    n: int = 1500
    T: int = 5
    steps: int = 250
    lr: float = 0.03
    queries: int = 30
    trials: int = 10

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"layers is {self.layers}; at least 1 was expected.")
        if self.task == "chain" and self.T < 3:
            raise ValueError(f"T is {self.T}; at least 3 tokens were expected of a chain of two pointers.")
        if self.task == "digits" and not 2 <= self.n < 350:
            raise ValueError(f"n is {self.n}; 2 to 349 training images were expected.")


def sweep(effort: Effort) -> list[Config]:
    """Both tasks, one to three layers, three kinds of layer; a quick run varies them one at a time."""
    full = effort == "full"
    shapes: list[tuple[int, Any]] = [(1, "linear"), (2, "residual"), (2, "linear"), (2, "mlp"), (3, "linear")]
    shapes += [(3, "residual"), (3, "mlp")] if full else []
    count, steps = (10, 400) if full else (3, 200)
    return [
        Config("chain", layers, between, n=3000 if full else 1500, steps=steps, trials=count)
        for layers, between in shapes
    ] + [
        Config("digits", layers, between, n=100, T=16, steps=steps, lr=0.01, trials=count) for layers, between in shapes
    ]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train the networks, then analyse every layer."""
    pairs = []
    for seed in seeds:
        rng = np.random.default_rng(int(seed))
        if config.task == "chain":
            pairs.append((chain_task(rng, config.n, config.T), chain_task(rng, FRESH, config.T)))
        else:
            pairs.append(digits_task(rng, config.n))
    train, test = zip(*pairs, strict=True)
    tokens, labels = (torch.as_tensor(np.stack([getattr(s, name) for s in train])) for name in ("tokens", "labels"))
    model = Layers(seeds, tokens.shape[-1], config.layers, config.between, config.task == "chain")
    fit(model, tokens, labels, config.steps, config.lr)
    rows: list[Row] = []
    with torch.no_grad():
        fresh = torch.as_tensor(np.stack([s.tokens for s in test]))
        truth = np.stack([s.labels for s in test])
        right = (model.predict(fresh).numpy() * truth > 0).mean(-1)
        accuracy = (model.predict(tokens).numpy() * labels.numpy() > 0).mean(-1)
        states, attention = model.states(fresh)
        for layer in range(config.layers):
            x, weights, W = (part.numpy() for part in (states[layer], attention[layer], model.W[layer]))
            last = layer == config.layers - 1
            for b, seed in enumerate(seeds):
                rng = np.random.default_rng((int(seed), layer))
                row: Row = {"seed": int(seed), "layer": layer + 1, "accuracy": float(right[b])}
                row["learned"] = float(accuracy[b])
                chain = test[b].chain
                # The last layer of a chain uses only the first state.
                asking = 1 if chain is not None and last else x.shape[2]
                row["hop"] = None
                if chain is not None and layer < chain.shape[1]:
                    row["hop"] = float((weights[b, :, 0].argmax(-1) == chain[:, layer]).mean())
                rows.append(row | comparison(x[b], weights[b], W[b], config.queries, asking, rng))
    return rows


def kept_sets(weights: np.ndarray) -> np.ndarray:
    """Return the smallest sets of tokens that hold :data:`KEPT_SHARE` of the attention, bool (m, T)."""
    order = np.argsort(-weights, axis=1)
    ahead = np.cumsum(np.take_along_axis(weights, order, 1), axis=1) - np.take_along_axis(weights, order, 1)
    sets = np.zeros(weights.shape, dtype=bool)
    np.put_along_axis(sets, order, ahead < KEPT_SHARE, axis=1)
    return sets


def comparison(
    x: np.ndarray, weights: np.ndarray, W: np.ndarray, count: int, asking: int, rng: np.random.Generator
) -> Row:
    """Compare one layer with its SVMs and controls, on some of its queries.

    Parameters
    ----------
    x : ndarray, shape (n, T, d)
        Input states of the layer.
    weights : ndarray, shape (n, T, T)
        Its attention, one row per query.
    W : ndarray, shape (d, d)
    count : int
        Number of queries to draw.
    asking : int
        Number of states per sequence, from the first, that may be queries.
    rng : Generator
    """
    watch = Watch(None, {"": 1.0})
    n = len(x)
    picks = rng.choice(n * asking, min(count, n * asking), replace=False)
    at, place = picks // asking, picks % asking
    tokens, queries, own = x[at], x[at, place], weights[at, place]  # (m, T, d), (m, d), (m, T)
    top, support = own.argmax(1), kept_sets(own)

    def similar(problem: SelectionProblem) -> tuple[float, str]:
        direction, reason = direction_of(problem, "frobenius", PATIENCE, watch)
        return float(correlation(W, direction)), reason

    problem = SelectionProblem(tokens, queries, top)
    svm, reason = similar(problem)
    shuffled = [shuffle(top, problem.mask, rng) for _ in range(SHUFFLES)]
    controls = [similar(SelectionProblem(tokens, queries, other))[0] for other in shuffled if other is not None]
    gen = solve(SelectionProblem(tokens, queries, support), time_limit=PATIENCE)
    entropy = -(own * np.log(np.maximum(own, np.finfo(float).tiny))).sum(1)
    return {
        "infeasible": reason == "infeasible",
        "svm": svm,
        "control": float(np.mean(controls)) if controls else None,
        "hebbian": float(correlation(W, hebbian(problem))),
        "gen": float(correlation(W, gen.W)) if np.isfinite(gen.objective) and gen.objective > 0 else None,
        "margin": None if reason else finite_or_none(margin_share(solve(problem), W)),
        "kept": float(support.sum(1).mean()),
        "spread": float(np.exp(entropy).mean()),
        "oneself": float((top == place).mean()),
    }


DRAWN = {
    field: Measure(words, field, "median")
    for field, words in (
        ("svm", "correlation of W with the SVM of its top tokens"),
        ("control", "correlation of W with the SVM of shuffled selections"),
        ("spread", "tokens that attention is spread over"),
        ("hop", "hops found"),
    )
}


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report each layer's correlation with its SVM next to the controls, and how attention composes."""
    for (task, layers, between, layer), cell in by(rows, "task", "layers", "between", "layer").items():
        where = f"layer {layer} of {layers}, {between}, {task}"
        own, control, gen = (column(cell, name) for name in ("svm", "control", "gen"))
        infeasible = sum(row["infeasible"] for row in cell)
        lead = [row["svm"] - row["control"] for row in cell if row["control"] is not None]
        phrase = "Not distinguished from shuffled selections"
        if len(lead) > 1 and mean_interval(lead)[0] > 0:
            phrase = "Closer than shuffled selections"
        note = f"{phrase}, {control.mean():.2f}; Hebbian {column(cell, 'hebbian').mean():.2f}." if len(control) else ""
        note += f" A query keeps {column(cell, 'kept').mean():.1f} tokens and is its own top token in "
        note += f"{100 * column(cell, 'oneself').mean():.0f} % of the cases."
        note += f" The Gen-SVM of the kept sets is feasible in {len(gen)} of {len(cell)} trials"
        note += f", correlation {gen.mean():.2f}." if len(gen) else "."
        yield mean_verdict(
            NAME,
            f"correlation of W with the SVM of its top tokens, {where}",
            own,
            infeasible=infeasible,
            note=note.strip(),
        )
        hops = column(cell, "hop")
        if len(hops) and layers > 1:
            note = f"Accuracy {column(cell, 'accuracy').mean():.2f} on fresh chains."
            chance = 1 / cell[0]["T"]
            if mean_interval(hops)[0] <= chance:
                note = f"{len(hops)} trials do not distinguish it from chance, {chance:.2f}. {note}"
            yield mean_verdict(NAME, f"hop {layer} found by {where}", hops, note=note)
    for (task, layers, between), cell in by(rows, "task", "layers", "between").items():
        cell = [row for row in cell if row["layer"] == 1]
        yield mean_verdict(
            NAME,
            f"accuracy on fresh sequences, {layers} layers, {between}, {task}",
            column(cell, "accuracy"),
            note=f"{column(cell, 'learned').mean():.2f} on those trained on.",
        )
    for (task,), cell in by([row for row in rows if row["layers"] > 1], "task").items():
        yield against_hebbian(task, cell)
        first, last = ([row for row in cell if row["layer"] == (1 if side else row["layers"])] for side in (1, 0))
        change = column(last, "spread") - column(first, "spread")
        low, high = mean_interval(change)
        phrase = "narrower" if high < 0 else "wider" if low > 0 else "as wide as far as these trials tell"
        yield mean_verdict(
            NAME,
            f"tokens that attention is spread over, last layer less the first, {task}",
            change,
            note=f"The last layer is {phrase}: {column(first, 'spread').mean():.2f} tokens in the first layer, "
            f"{column(last, 'spread').mean():.2f} in the last.",
        )


def against_hebbian(task: str, rows: Sequence[Row]) -> Verdict:
    """Say whether the SVM describes the layers better than the mean difference, which needs no margin."""
    lead = [row["svm"] - row["hebbian"] for row in rows]
    low, high = mean_interval(lead)
    phrase = "closer to" if low > 0 else "farther from" if high < 0 else "no closer to"
    other = "from" if high < 0 else "to"
    note = f"Over all layers W is {phrase} the SVM than {other} the Hebbian mean difference of the same selections."
    return mean_verdict(NAME, f"correlation with the SVM less that with Hebbian, {task}", lead, note=note)


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw correlations by layer with their controls, and the spread of attention, one row per task."""
    tasks = sorted({row["task"] for row in rows})
    depth = max(row["layers"] for row in rows)
    with house_style():
        titles = {
            "svm": ("W and its SVM", "median correlation"),
            "spread": ("spread of attention", "median number of tokens"),
            "hop": ("hops found", "median share of sequences"),
        }
        panels = [(t, f) for t in tasks for f in titles if any(row[f] is not None for row in having(rows, task=t))]
        across = 3 if is_wide(width) else 1
        down = len(tasks) if across == 3 else len(panels)
        result = new_figure(width, 2.5 * down + 0.7)
        axes = result.subplots(down, across, squeeze=False)
        for place, (task, field) in enumerate(panels):
            ax = axes[tasks.index(task), list(titles).index(field)] if across == 3 else axes[place, 0]
            own = by(having(rows, task=task), "layers", "between")
            for at, ((layers, between), cells) in enumerate(own.items()):
                label = f"{layers} layer{'s' if layers > 1 else ''}, {between}"
                look, style = (3, "-") if layers == 1 else (LOOKS.index(between), "-" if layers == 2 else ":")
                shift = 0.02 * (at - len(own) / 2)
                if any(row[field] is not None for row in cells):
                    draw_curve(ax, curve_of(along(by(cells, "layer"), DRAWN[field]), label, look, style=style), shift)
                if field == "svm":
                    control = curve_of(along(by(cells, "layer"), DRAWN["control"]), "", 5)
                    x = np.asarray(control.x) * (1 + shift)
                    ax.plot(x, control.y, "_", color=QUIET, ms=9, mew=1.6, label="shuffled")
            if field == "svm":
                ax.axhline(0, color=QUIET, lw=0.6)
            title, label = titles[field]
            ax.set_title(f"{task}: {title}")
            ax.set_ylabel(label)
            ax.set_xticks(range(1, depth + 1))
            ax.set_xlim(0.8, depth + 0.3)
            ax.set_xlabel("layer")
        for ax in axes.ravel():
            if not ax.has_data():
                ax.remove()
        legend_below(result, [axes[0, 0]], 3)
    return result
