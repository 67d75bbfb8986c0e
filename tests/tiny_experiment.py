"""A small experiment for the tests of the engine: means and signs of Gaussian vectors, in cells of a few trials.

`pause` makes a trial as slow as a test needs; `log` names a file to which every call appends its process and its seeds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from attsvm_paper.engine.experiment import Effort, Experiment
from attsvm_paper.judging.comparison import correction, mean_verdict, share_verdict
from attsvm_paper.judging.points import Point
from attsvm_paper.judging.readings import Reading
from attsvm_paper.judging.verdict import Row, Verdict
from attsvm_paper.published.ledger import LedgerNumber


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
    picture = Figure(figsize=(7.6, 3.0), layout="constrained")
    ax = picture.subplots()
    for d in sorted({row["d"] for row in rows}):
        ax.hist([row["mean"] for row in rows if row["d"] == d], histtype="step", label=f"d = {d}")
    ax.set_xlabel("mean of the coordinates")
    ax.set_ylabel("trials")
    ax.legend()
    return picture


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    # The keys are of no ledger: what a test calls published is told apart from what a paper prints.
    verdict_list = []
    for d in sorted({row["d"] for row in rows}):
        half, nine, one = (LedgerNumber(f"tiny: {value} @ {d}", value, 500, 0.0) for value in (0.5, 9.0, 1.0))
        mine = [row for row in rows if row["d"] == d]
        hits = sum(row["positive"] for row in mine)
        values = [row["mean"] for row in mine]
        noise = mean_verdict("tiny", f"mean, as corrected, d={d}", values, published=one, margin=2.0)
        restoration = mean_verdict(
            "tiny", f"mean, as corrected, d={d}", [1.0 + x for x in values], published=one, margin=2.0
        )
        verdict_list += [
            share_verdict("tiny", f"P(x > 0), d={d}", hits, len(mine), published=half, margin=0.9),
            mean_verdict("tiny", f"mean, d={d}", values, published=nine, margin=1.0),
            correction(replace(noise, verdict="differs"), restoration, "It was added."),
            mean_verdict("tiny", f"mean, unpublished, d={d}", values, discarded=1),
        ]
    return verdict_list


def readings() -> list[Reading]:
    """Three scales of the vectors, of which the first gives the printed standard deviation."""
    references = [LedgerNumber(f"tiny: {k}", value, 500, 0.0) for k, value in enumerate((1.0, 3.0))]

    def pair(rows: Sequence[Row]) -> list[Point]:
        powers = ({row["seed"]: row["x"][0] ** k for row in rows} for k in (2, 4))
        return [Point(one, values, 1.0) for one, values in zip(references, powers, strict=True)]

    scales = (4.0, 1.0, 2.0)
    return [Reading("Fig. 0", {"scale": f"{a:g}"}, (Config(scale=a, trials=60),), pair) for a in scales]


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
