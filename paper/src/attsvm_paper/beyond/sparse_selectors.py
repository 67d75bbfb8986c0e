r"""Four ways to select tokens: softmax, sparsemax, an entropy penalty, and straight-through Gumbel.

The paper's selection is implicit: softmax never becomes sparse, its norm grows, and its direction tends to a margin.
The alternatives ask for sparsity explicitly. All run on the same instances, from W = 0, with normalised steps of the
same size:

* **softmax**: exact gradients, :func:`attsvm.train`;
* **sparsemax**: the projection of the logits onto the simplex. Once the selected token leads by one everywhere, the
  gradient is exactly zero and W stops: it has the margin of the SVM, but nothing maximises the margin;
* **entropy**: softmax with :math:`\tau H(s_i)` added to the loss;
* **gumbel**: a token drawn from the softmax in the forward pass, the softmax of the same noisy logits in the backward
  pass (Jang et al. 2017, arXiv 1611.01144; straight-through).

Two selectors agree on a sequence if the token of largest logit is the same. The margin share is the smallest margin of
a selector's tokens per norm of W, relative to the SVM of these tokens: 1 is max-margin selection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from attsvm.functional import exact_softmax, sparsemax
from attsvm.plots.style import house_style, legend_below, panels
from attsvm.theory.tokens import Trial, compare_with_neighbours
from attsvm.training import train
from attsvm_paper.beyond.descent import descend
from attsvm_paper.beyond.measures import finite_or_none, margin_share
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import estimate_verdict
from attsvm_paper.judging.estimates import Measure, estimates_by
from attsvm_paper.judging.grouping import column
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import curve_of, draw_curve, value_axis
from attsvm_paper.published.instances import draw
from attsvm_paper.published.numerics import descent

NAME = "sparse-selectors"
DIMENSIONS = (4, 6, 10, 20)
SELECTORS = {
    "softmax": "softmax, exact gradients",
    "sparsemax": "sparsemax",
    "entropy": "softmax with entropy penalty",
    "gumbel": "straight-through Gumbel",
}
# Attention above which a token counts as kept, as everywhere in the paper.
ATTENTION_FLOOR = 1e-3


@dataclass(frozen=True)
class Config:
    """One size of the published instances; every trial is trained with every selector."""

    d: int
    n: int = 6
    T: int = 8
    steps: int = 2000
    penalty: float = 0.1
    temperature: float = 1.0
    trials: int = 200

    def __post_init__(self) -> None:
        if self.temperature <= 0 or self.penalty < 0:
            raise ValueError(f"temperature {self.temperature} and penalty {self.penalty}; positive ones were expected.")


def sweep(effort: Effort) -> list[Config]:
    """Four dimensions; a quick run takes three."""
    if effort == "full":
        return [Config(d) for d in DIMENSIONS]
    return [Config(d, trials=30) for d in (4, 10, 20)]


def attentions(config: Config) -> dict[str, Any]:
    """Return the maps from logits to attention of the three selectors that :func:`attsvm.train` does not have."""

    def entropy(logits: Any, noise: Any) -> Any:
        weights = exact_softmax(logits)
        # The derivative of the entropy in a weight is minus its log plus a constant, which softmax's backward ignores.
        surprise = -torch.log_softmax(logits.detach(), -1)
        return weights, config.penalty * (weights * surprise).sum(-1).mean(-1)

    def gumbel(logits: Any, noise: Any) -> Any:
        noisy = logits - noise.uniform(logits).log().neg().log()
        choice = torch.nn.functional.one_hot(noisy.argmax(-1), noisy.shape[-1]).to(noisy)
        soft = exact_softmax(noisy / config.temperature)
        return choice + soft - soft.detach(), None

    return {"sparsemax": lambda logits, noise: (sparsemax(logits), None), "entropy": entropy, "gumbel": gumbel}


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train with every selector; compare its tokens with softmax's, and its margin with the SVM of its tokens."""
    instances = draw(seeds, config.n, config.T, config.d)
    trained = {"softmax": train(instances.data, instances.v, steps=config.steps, **descent("exact", "W")).W[:, -1]}
    for name, attend in attentions(config).items():
        trained[name] = descend(instances, attend, config.steps, seeds)
    rows: list[Row] = []
    reference = None
    for name, W in trained.items():
        logits = (instances.data.tokens @ (instances.data.queries @ W.swapaxes(-1, -2))[..., None])[..., 0]
        scores = torch.as_tensor(logits)
        weights = (sparsemax(scores) if name == "sparsemax" else torch.softmax(scores, -1)).numpy()
        selected = logits.argmax(-1)
        reference = selected if reference is None else reference
        solutions = instances.solve(selected)
        for b, seed in enumerate(seeds):
            solution = solutions[b]
            locality = compare_with_neighbours(Trial.of(instances.data[b], instances.v[b]), solution)
            rows.append(
                {
                    "seed": int(seed),
                    "selector": name,
                    "same": float((selected[b] == reference[b]).mean()),
                    "optimal": float((selected[b] == instances.optimal[b]).mean()),
                    "kept": float((weights[b] > ATTENTION_FLOOR).sum(-1).mean()),
                    "local": bool(locality.holds),
                    "infeasible": not locality.feasible,
                    "margin": finite_or_none(margin_share(solution, W[b])),
                    "norm": float(np.linalg.norm(W[b])),
                }
            )
    return rows


MEASURES = {
    "same": Measure("sequences where {} selects as softmax does", "same", "mean"),
    "margin": Measure("margin of {} as a share of the largest for its tokens", "margin", "mean"),
    "kept": Measure("tokens that {} keeps in a sequence", "kept", "mean"),
}


estimates = estimates_by(("d", "selector"), MEASURES)


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report agreement with softmax and margin shares, and which selector has the largest margin."""
    table = estimates(rows)
    for (d, selector), cell in table.cells.items():
        infeasible = sum(row["infeasible"] for row in cell)
        same, margin, kept = (table.of((d, selector), name) for name in MEASURES)
        softmax = table.of((d, "softmax"), "margin") if (d, "softmax") in table.cells else None
        if selector != "softmax":
            chance = 1 / cell[0]["T"]
            beyond = "more than" if same.low > chance else "no better than"
            note = (
                f"It chooses the token of softmax in {100 * same.value:.0f} % of "
                f"sequences, {beyond} the {100 * chance:.0f} % of chance, and the best-scoring token in "
                f"{100 * column(cell, 'optimal').mean():.0f} %."
            )
            quantity = f"{MEASURES['same'].words.format(selector)}, d={d}"
            yield estimate_verdict(NAME, quantity, same, infeasible=infeasible, note=note)
        note = (
            f"It keeps {kept.value:.2f} tokens a sequence; the selection is locally optimal in "
            f"{sum(row['local'] for row in cell)} of {len(cell)} trials."
        )
        if selector != "softmax" and margin.count and softmax is not None and softmax.count:
            smaller, larger = margin.high < softmax.low, margin.low > softmax.high
            relation = "smaller than" if smaller else "larger than" if larger else "not distinguished from"
            note = f"A margin {relation} that of softmax, {softmax.value:.3f}. " + note
        quantity = f"{MEASURES['margin'].words.format(selector)}, d={d}"
        yield estimate_verdict(NAME, quantity, margin, trials=len(cell), infeasible=infeasible, note=note)


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw agreement, margin share and tokens kept against dimension."""
    with house_style():
        result, axes = panels(width, 2.9, 3)
        dimensions = sorted({row["d"] for row in rows})
        for look, (selector, label) in enumerate(SELECTORS.items()):
            for ax, field in zip(axes, MEASURES, strict=True):
                if selector != "softmax" or field != "same":
                    series = estimates(rows).along("d", field, selector=selector)
                    draw_curve(ax, curve_of(series, label, look), 0.02 * (look - 1.5))
        chance = 1 / rows[0]["T"]
        axes[0].axhline(chance, color="#8a8a8a", lw=0.8, ls=":", label="chance")
        axes[0].set_ylim(0, 1.03)
        axes[0].set_ylabel("share of sequences")
        axes[0].set_title("same token as softmax")
        axes[1].set_ylabel("margin, share of the largest")
        axes[1].set_title("margin of the own tokens")
        axes[1].set_ylim(top=1.03)
        axes[2].set_ylabel("tokens above 0.001")
        axes[2].set_title("tokens kept")
        axes[2].set_ylim(bottom=0.9)
        for ax in axes:
            value_axis(ax, dimensions, "dimension d")
        legend_below(result, axes, 3)
    return result
