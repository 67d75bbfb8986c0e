"""A small experiment for the tests of the engine: means and signs of Gaussian vectors, in cells of a few trials.

`pause` makes a trial as slow as a test needs; `log` names a file to which every call appends its process and its seeds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from attsvm.experiments.experiment import Effort, Experiment, Row, Verdict
from attsvm.experiments.statistics import mean_verdict, share_verdict


@dataclass(frozen=True)
class Config:
    d: int = 2
    numerics: Literal["exact", "published"] = "exact"
    scale: float = 1.0
    pause: float = 0.0
    strict: bool = False
    log: str = ""
    trials: int = 7

    def __post_init__(self) -> None:
        if self.d < 1:
            raise ValueError(f"d is {self.d}; at least 1 was expected.")


def sweep(effort: Effort) -> list[Config]:
    trials = 7 if effort == "quick" else 31
    return [Config(d, numerics, trials=trials) for d in (2, 3, 5) for numerics in ("exact", "published")]


def trials(config: Config, seeds: Any) -> list[Row]:
    if config.log:
        with open(config.log, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {' '.join(str(seed) for seed in seeds)}\n")
    rows = []
    for seed in seeds:
        time.sleep(config.pause)
        x = config.scale * np.random.default_rng(seed).standard_normal(config.d)
        positive = x[0] > 0
        # Every kind of value that a row may have, one of them absent at times.
        row = {"seed": seed, "mean": x.mean(), "largest": int(x.argmax()), "x": x, "positive": positive}
        rows.append(row if positive else row | {"depth": None if x[0] > -1 else -x[0]})
    return rows


def figure(rows: Sequence[Row]) -> Figure:
    drawn = Figure(figsize=(7.6, 3.0), layout="constrained")
    ax = drawn.subplots()
    for d in sorted({row["d"] for row in rows}):
        ax.hist([row["mean"] for row in rows if row["d"] == d], histtype="step", label=f"d = {d}")
    ax.set_xlabel("mean of the coordinates")
    ax.set_ylabel("trials")
    ax.legend()
    return drawn


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    found = []
    for d in sorted({row["d"] for row in rows}):
        mine = [row for row in rows if row["d"] == d]
        hits = sum(row["positive"] for row in mine)
        values = [row["mean"] for row in mine]
        found += [
            share_verdict("tiny", f"P(x > 0), d={d}", hits, len(mine), published=0.5, published_trials=500),
            mean_verdict("tiny", f"mean, d={d}", values, published=9.0, published_trials=500),
            mean_verdict("tiny", f"mean, as corrected, d={d}", values, published=1.0, artefact="It was added."),
            mean_verdict("tiny", f"mean, unpublished, d={d}", values, discarded=1),
        ]
    return found


EXPERIMENT = Experiment(
    name="tiny",
    title="Tiny <experiment>",
    source="Fig. 0",
    claim="Coordinates of a Gaussian vector are positive half of the time.",
    config=Config,
    sweep=sweep,
    trials=trials,
    figure=figure,
    verdicts=verdicts,
    instance=("d",),
    minutes={"quick": 0.1, "full": 0.2},
    batch=3,
)
