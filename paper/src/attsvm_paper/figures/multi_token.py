r"""Under a ReLU head several tokens are selected, and W is the SVM equivalent of this selection (Figs 8 and 11).

The published curves average over *accepted* draws. A draw is discarded, and replaced by a new one, in two cases: an
attention probability ends between 1e-6 and 1e-3 (unfinished training: *undecided*), or none ends below 1e-6 (*finite*).
This accepts one draw in four at d = 4 and one in fifty at d = 10, so the plot shows draws that converge fast. Pages 14
to 16 state the filter and call it a caveat; they do not state how few draws are accepted.

Many accepted draws have a query whose output is in the flat part of the ReLU. Such a query has no gradient, and its
attention drifts as the other queries change W. In the published arithmetic it stays, because ||W|| stops growing. In
exact training it moves to tokens that no Gen-SVM predicts; `dead` counts these queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from attsvm.core.correlation import correlation
from attsvm.core.problem import SelectionProblem
from attsvm.data.synthetic import random_trial
from attsvm.data.token_data import TokenData
from attsvm.nn.heads import ReLUHead
from attsvm.solvers.solving import solve
from attsvm.theory.equivalence import MASKED, SELECTED_SHARE, EquivalenceStatus, svm_equivalent
from attsvm.training import train
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.instances import start_seeds
from attsvm_paper.published.numerics import descent

NAME = "multi-token"
FIGURE = "Fig. 8"
DIMENSIONS = (4, 6, 8, 10)
SIZE = (3, 4)
WORDS = {"equivalent": "W^SVMeq", "mm": "W^mm", "single": "W^1token"}
TITLES = {"equivalent": "SVM equivalent", "mm": "max-margin part", "single": "SVM of the top tokens"}
# Iteration k of the official code is W after k + 1 steps.
ITERATIONS = tuple(range(0, 2001, 100))
MARKS = (200, 500, 1000, 1500, 2000)
# Fig. 11b: upper limits of the largest masked probability, as powers of ten.
THRESHOLDS = tuple(range(-16, -5))
# Margin of logarithms of distances: a third.
LOG_MARGIN = 0.33
# Numbers of draws that give about 500 accepted ones.
FULL_DRAWS = {4: 2300, 6: 4500, 8: 11_400, 10: 24_000}
QUICK_DRAWS = {4: 400, 6: 600, 8: 800, 10: 1000}
# Start of the scatter's axis: smaller probabilities are drawn there.
TINY = 10**-17.4
Numerics = Literal["exact", "published"]
NUMERICS: tuple[Numerics, ...] = ("exact", "published")
STATES = ("accepted", "undecided", "finite", "infeasible")


@dataclass(frozen=True)
class Config:
    """One dimension and arithmetic; `trials` counts draws, not accepted draws."""

    d: int
    numerics: Numerics = "published"
    n: int = 3
    T: int = 4
    steps: int = 2001
    trials: int = 500


def sweep(effort: Effort) -> list[Config]:
    """Return the published protocol at all dimensions, and exact training at the two smallest."""
    draws = FULL_DRAWS if effort == "full" else QUICK_DRAWS
    exact = {4: 1000, 6: 1000} if effort == "full" else {4: 200, 6: 200}
    return [Config(d, trials=draws[d]) for d in DIMENSIONS] + [
        Config(d, "exact", trials=count) for d, count in exact.items()
    ]


def instance(seed: int, n: int, T: int, d: int) -> tuple[Any, Any, Any, Any]:
    """Draw tokens (n, T, d), queries, labels with at least one -1, and hidden weights V (d, d) of norm one."""
    rng = np.random.default_rng(seed)
    tokens, queries, labels, _ = random_trial(rng, n, T, d)
    while (labels == 1).all():
        labels = rng.choice(np.array([-1.0, 1.0]), n)
    V = rng.standard_normal((d, d))
    return tokens, queries, labels, V / np.linalg.norm(V)


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train with the ReLU head, classify draws, and compare accepted ones with the SVM equivalent."""
    instances = [instance(int(seed), config.n, config.T, config.d) for seed in seeds]
    tokens, queries, labels, V = (np.stack(part) for part in zip(*instances, strict=True))
    data, head = TokenData(tokens, queries, labels), ReLUHead(V)
    trace = train(
        data, head, steps=config.steps, init="torch", seed=start_seeds(seeds),
        record_every=sorted({min(step + 1, config.steps) for step in ITERATIONS}), **descent(config.numerics, "W"),
    )  # fmt: skip
    attention, W = trace.attention[:, -1], trace.W[:, -1]
    outputs = torch.as_tensor((attention[..., None, :] @ tokens)[..., 0, :])
    with torch.no_grad():
        dead = (head(outputs) == 0).sum(-1).tolist()
    rows: list[Row] = []
    for b, seed in enumerate(seeds):
        row: Row = {"seed": int(seed), "dead": dead[b], "norm": float(np.linalg.norm(W[b]))}
        row |= dict.fromkeys(("equivalent", "mm", "single", "step", "masked", "selected"))
        own = attention[b]
        if ((own > MASKED) & (own <= SELECTED_SHARE)).any():
            row["state"] = "undecided"
        elif (own > MASKED).all():
            row["state"] = "finite"
        else:
            equivalent = svm_equivalent(data[b], own, W[b], coefficient="least-squares")
            single = solve(SelectionProblem(tokens[b], queries[b], own.argmax(-1)))
            good = equivalent.status is EquivalenceStatus.FOUND and bool(np.isfinite(single.objective))
            row["state"] = "accepted" if good else "infeasible"
            if good:
                row["step"] = trace.step[1:].tolist()
                for name, target in (("equivalent", equivalent.W), ("mm", equivalent.W_mm), ("single", single.W)):
                    row[name] = (1 - correlation(trace.W[b, 1:], np.asarray(target)[None])).tolist()
                row["masked"] = float(own[~equivalent.selected].max())
                row["selected"] = float(equivalent.selected.sum(-1).mean())
        rows.append(row)
    return rows
