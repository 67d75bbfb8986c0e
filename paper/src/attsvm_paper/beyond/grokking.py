r"""Grokking with no weight decay, and whether softmax collapse prevents it.

arXiv 2501.04697 argues that rounding in the softmax stops cross-entropy's gradient before modular addition generalises.
StableMax, or gradients orthogonal to the weights, would let it generalise even if weights do not decay. StableMax
differs from cross-entropy in two ways: it collapses later, and its tail is polynomial. This experiment varies both
separately (:func:`attsvm_paper.beyond.modular_addition.risk`):

* *exact* does not collapse before the exponential underflows, *scaled* never collapses; both have the exponential tail;
* *power* has a polynomial tail and the softmax of cross-entropy, computed with no cancellation;
* every loss is run in three precisions.

There are three optimisers. *Adam* is as published. *perpendicular* is Adam on gradients made orthogonal to the weights.
*normalised* is descent whose step is a fixed fraction of the weights' length, which a small gradient cannot slow down.
Weight decay is the control that should generalise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from attsvm_paper.beyond.modular_addition import LOSSES, PRECISIONS, fit
from attsvm_paper.beyond.predictions import with_outcome
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import mean_verdict, share_verdict
from attsvm_paper.judging.grouping import by, column
from attsvm_paper.judging.verdict import Row, Verdict, listed

NAME = "grokking"
FIELDS = (
    "optimiser",
    "loss",
    "precision",
    "lr",
    "decay",
    "epsilon",
    "p",
    "width",
    "share",
    "steps",
    "records",
    "device",
)
# Pairs of cells with one difference: a field, its value, the other value, and the question that they answer.
CONTRASTS = (
    ("loss", "scaled", "plain", "arithmetic, the tail being exponential"),
    ("loss", "power", "scaled", "tail, neither of them collapsing"),
    ("loss", "stablemax", "scaled", "StableMax against cross-entropy that cannot collapse"),
    ("precision", "float64", "float32", "arithmetic of StableMax"),
)
# Accuracy on held-out pairs from which a model counts as generalising.
GENERALISES = 0.95


@dataclass(frozen=True)
class Config:
    """A loss, its arithmetic and an optimiser; `share` of the p^2 pairs are training pairs.

    In bfloat16 logits and loss are rounded, while weights stay in float32. `epsilon` is Adam's.
    """

    loss: Literal["plain", "exact", "scaled", "stablemax", "power"]
    precision: Literal["float32", "float64", "bfloat16"] = "float32"
    optimiser: Literal["Adam", "perpendicular", "normalised"] = "Adam"
    lr: float = 0.01
    decay: float = 0.0
    epsilon: float = 1e-25
    p: int = 23
    width: int = 100
    share: float = 0.8
    steps: int = 1000
    records: int = 40
    device: str = "cpu"
    trials: int = 10

    def __post_init__(self) -> None:
        if self.p < 2 or self.width < 1 or not 0 < self.share < 1:
            raise ValueError(
                f"p, width and share are {self.p}, {self.width} and {self.share}; at least 2 and 1, and a number "
                "between 0 and 1, were expected."
            )
        if not 1 <= int(self.share * self.p**2) < self.p**2:
            raise ValueError(f"share is {self.share}; one training pair and one held-out pair were expected.")
        if self.steps < 1 or self.records < 1 or not self.lr > 0 or self.decay < 0 or self.epsilon < 0:
            raise ValueError(
                f"steps, records, lr, decay and epsilon are {self.steps}, {self.records}, {self.lr}, {self.decay} and "
                f"{self.epsilon}; at least 1 and 1, a positive number, and none below 0 were expected."
            )


def sweep(effort: Effort) -> list[Config]:
    """Losses by precisions under both optimisers, controls, and in a full run the published size.

    Under normalised steps only losses that collapse are tried in every precision.
    """
    full = effort == "full"
    count = 10 if full else 2
    cells = [
        *(
            Config(loss, precision, "normalised", steps=1200, trials=count)
            for loss in LOSSES
            for precision in (PRECISIONS if loss in ("plain", "stablemax") else PRECISIONS[:1])
        ),
        Config("plain", decay=0.5, steps=1200, trials=count),
        Config("plain", optimiser="perpendicular", lr=0.005, steps=200, trials=count),
        Config("scaled", "float64", "perpendicular", lr=0.005, steps=200, trials=count),
        *(Config(loss, precision, steps=2000, trials=count) for loss in LOSSES[:4] for precision in PRECISIONS),
        Config("power", steps=2000, trials=count),
        Config("exact", "float64", epsilon=1e-8, steps=1000, trials=count),
    ]
    if not full:
        return cells
    size: dict[str, Any] = {"p": 113, "width": 200, "share": 0.4, "records": 20, "trials": 1}
    return [
        *cells,
        # Smaller steps, at which the exponential tail passes the margins where float32 collapses.
        *(Config(loss, optimiser="normalised", lr=0.005, steps=2000) for loss in ("plain", "scaled")),
        *(Config(loss, optimiser="perpendicular", lr=0.005, steps=200, **size) for loss in ("plain", "scaled")),
        Config("plain", decay=1.0, steps=800, **size),
        *(Config(loss, steps=200, **size) for loss in ("plain", "scaled", "stablemax")),
    ]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train one model per seed; a row holds its curves and quantities derived from them."""
    rows: list[Row] = []
    for seed, curves in zip(seeds, fit(config, seeds), strict=True):
        test = np.array(curves["test"])
        above = np.flatnonzero(test >= GENERALISES)
        rows.append(
            {
                "seed": int(seed),
                "generalised": len(above) > 0,
                "when": float(curves["step"][above[0]]) if len(above) else None,
                "best": float(test.max()),
            }
            | {f"last_{name}": curves[name][-1] for name in ("train", "test", "margin", "normalised", "lost")}
            | curves
        )
    return rows


def foreseen(cell: Row) -> str | None:
    """Return the name of the prediction about the share of a cell's models that generalise."""
    if cell["optimiser"] == "perpendicular":
        return "perpendicular-scaled" if cell["loss"] == "scaled" else "perpendicular"
    if cell["decay"]:
        return "decay"
    if cell["optimiser"] == "normalised" and cell["loss"] in ("exact", "scaled"):
        return "normalised"
    return cell["loss"] if cell["optimiser"] == "Adam" or cell["loss"] in ("stablemax", "power") else None


def words(cell: Row, *left_out: str) -> str:
    """Name a cell by the fields in which it differs from others."""
    parts = [str(cell[name]) for name in ("loss", "precision", "optimiser") if name not in left_out]
    parts += [f"{name} {cell[name]:g}" for name in ("decay", "epsilon") if cell[name] != getattr(Config, name)]
    return ", ".join([*parts, *(f"{name}={cell[name]:g}" for name in ("lr", "p", "width", "share", "steps"))])


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report how many models generalise and their margins, then the effects of arithmetic and tail, seed by seed."""
    cells = by(rows, *FIELDS)
    for cell in cells.values():
        where, name = words(cell[0]), foreseen(cell[0])
        verdict = share_verdict(
            NAME, f"share of models that reach {GENERALISES:.0%} on held-out pairs, {where}",
            sum(row["generalised"] for row in cell), len(cell),
        )  # fmt: skip
        yield verdict if name is None else with_outcome(verdict, name)
        for field, what in (
            ("best", "best accuracy on held-out pairs"),
            ("when", f"step at which {GENERALISES:.0%} is reached, of those that reach it"),
            ("last_margin", "least margin at the end"),
            ("last_normalised", "least margin at the end over the cubed norm"),
            ("last_lost", "share of pairs whose gradient is zero at the label, at the end"),
        ):
            values = column(cell, field)
            if not len(values) or not np.isfinite(values).all():
                continue
            verdict = mean_verdict(NAME, f"{what}, {where}", values, interval="bootstrap", trials=len(cell))
            fate = {"scaled": "alive", "exact": "alive", "plain": "collapsed"}.get(cell[0]["loss"])
            has_claim = field == "last_lost" and not cell[0]["decay"] and cell[0]["optimiser"] != "perpendicular"
            if has_claim and fate and (fate == "alive" or cell[0]["precision"] == "float32"):
                verdict = with_outcome(verdict, fate)
            yield verdict
    for field, first, second, what in CONTRASTS:
        for key, cell in cells.items():
            if cell[0][field] != first:
                continue
            other = cells.get(
                tuple(second if name == field else value for name, value in zip(FIELDS, key, strict=True))
            )
            if other is None or (field == "precision" and cell[0]["loss"] != "stablemax"):
                continue
            has_claim = {row["trial"]: row["best"] for row in other}
            gains = [row["best"] - has_claim[row["trial"]] for row in cell if row["trial"] in has_claim]
            if len(gains) > 1:
                quantity = f"{what}: gain in best held-out accuracy of {first} over {second}, {words(cell[0], field)}"
                yield mean_verdict(NAME, quantity, gains, interval="bootstrap")
