r"""The atlas: for each optimiser, the norm whose margin it maximises, measured on four models.

A cell is an optimiser, a norm and a model. Its number is the certified share of that norm's largest margin,
:math:`\frac{\min A(W)}{\|W\|}\cdot\min\{\|V\|: A(V)\ge1\}`, at five horizons, two per decade. The interval of the limit
(:mod:`attsvm_paper.beyond.extrapolation`) decides whether the share tends to 1, or leaves it open. An optimiser's
other norms are its controls.

Theorems and predictions are in :mod:`attsvm_paper.beyond.atlas_cells` and ``atlas_predictions.toml``; the
predictions were written before the first run. Most predictions say "below 1". Their score is therefore printed next to
the score of "never 1", a baseline that predicts this for every cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.core.norms import get_norm
from attsvm.platform.summary import counted
from attsvm.training import train
from attsvm_paper.beyond.atlas_cells import MODELS, NORMS, OPTIMISERS, expectations, optimizer_of, parameterization_of
from attsvm_paper.beyond.atlas_models import Sizes, margin, problem_of, smallest_norms, training_set
from attsvm_paper.beyond.extrapolation import limit_interval
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import share_verdict, value_verdict
from attsvm_paper.judging.verdict import Row, Verdict
from attsvm_paper.published.instances import start_seeds

NAME = "atlas"
SIZES = {"attention": (6, 6, 8), "factors": (6, 6, 8), "multiclass": (15, 5, 8), "next-token": (8, 6, 8)}
# Limit of a share from which it counts as one.
LIMIT_FLOOR = 0.99
# Number of records per decade.
_PER_DECADE = 2


@dataclass(frozen=True)
class Config:
    """One optimiser on one model.

    Attributes
    ----------
    model, optimiser : str
    n, T, d : int
        Number of queries, inputs or contexts; number of tokens, classes or words; dimension.
    steps : int
        The last horizon; the others are a tenth and a hundredth of it.
    trials : int
    """

    model: str
    optimiser: str
    n: int
    T: int
    d: int
    steps: int = 10_000
    trials: int = 8

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"model is {self.model!r}; one of {', '.join(MODELS)} was expected.")
        names = OPTIMISERS[parameterization_of(self.model)]
        if self.optimiser not in names:
            raise ValueError(f"optimiser is {self.optimiser!r}; one of {', '.join(names)} was expected.")


def sweep(effort: Effort) -> list[Config]:
    """Every optimiser on every model."""
    steps, trials = (100_000, 20) if effort == "full" else (10_000, 8)
    return [
        Config(model, name, *SIZES[model], steps=steps, trials=trials)
        for model in MODELS
        for name in OPTIMISERS[parameterization_of(model)]
    ]


def horizons(steps: int, per_decade: int = 1) -> list[int]:
    """Return numbers of steps that rise to `steps` over two decades: three, or `per_decade` in each."""
    count = 2 * per_decade
    return [max(round(steps * 10 ** (-j / per_decade)), count + 1 - j) for j in range(count, -1, -1)]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train, and measure the share in every norm: one row per seed and horizon, five horizons."""
    sizes = Sizes(config.model, config.n, config.T, config.d)
    data = training_set(seeds, sizes)
    marks = horizons(config.steps, _PER_DECADE)
    trace = train(
        data.data,
        data.head,
        loss=data.loss,
        sample_weight=data.weight,
        optimizer=optimizer_of(config.model, config.optimiser),
        parameterization=parameterization_of(config.model),
        steps=marks[-1],
        record_every=marks,
        seed=start_seeds(seeds),
    )
    tops = trace.attention.argmax(-1)  # (B, records, n)
    rows: list[Row] = []
    for b, seed in enumerate(seeds):
        for horizon, at in zip(marks, range(1, len(marks) + 1), strict=True):
            W, selected = trace.W[b, at], tops[b, at]
            row: Row = {"seed": int(seed), "horizon": horizon, "ended": bool(trace.last_step[b] < horizon)}
            bounds = smallest_norms(int(seed), sizes, selected)
            size = np.abs(W).max()
            lead = margin(problem_of(int(seed), sizes, selected), W / size) if size > 0 else 0.0
            for name, norm in NORMS.items():
                low, high = bounds[name]
                has_margin = bool(np.isfinite(high)) and size > 0
                unit = lead / get_norm(norm).value(W / size) if has_margin else 0.0
                row[f"{name}_low"], row[f"{name}_high"] = (
                    sorted((unit * low, unit * high)) if has_margin else (None, None)
                )
            rows.append(row)
    return rows


@dataclass(frozen=True)
class Cell:
    """Measured shares of an optimiser, a norm and a model.

    Attributes
    ----------
    shares : ndarray, shape (instances, 5)
        Midpoints of the certified intervals at the horizons.
    interval : tuple of float
        The 95 % interval of the mean limit.
    """

    shares: np.ndarray
    interval: tuple[float, float]

    @property
    def outcome(self) -> str:
        """Whether the share tends to one: "one", "below" or "undecided"."""
        low, high = self.interval
        return "one" if low >= LIMIT_FLOOR else "below" if high < LIMIT_FLOOR else "undecided"


def cells(rows: Sequence[Row]) -> dict[tuple[str, str, str], Cell]:
    """Return the cells by model, optimiser and norm that have an instance measured at all horizons."""
    groups: dict[tuple[str, str], dict[int, list[Row]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["optimiser"]), {}).setdefault(row["seed"], []).append(row)
    result = {}
    for (model, name), instances in groups.items():
        for norm in NORMS:
            table = [
                [(row[f"{norm}_low"] + row[f"{norm}_high"]) / 2 for row in sorted(one, key=lambda row: row["horizon"])]
                for one in instances.values()
                if all(row[f"{norm}_low"] is not None for row in one)
            ]
            if table:
                shares = np.array(table)
                result[model, name, norm] = Cell(shares, limit_interval(shares))
    return result


Outcome = tuple[str, str, str, Cell, str]
"""Model, optimiser, norm, cell and kind."""


def outcomes(rows: Sequence[Row]) -> Iterator[Outcome]:
    """Yield model, optimiser, norm, cell and one of "settled", "slow", "hit", "miss", "undecided" for each."""
    expected = expectations()
    for (model, name, norm), cell in cells(rows).items():
        expectation = expected[model, name]
        if expectation.from_theorem and norm == expectation.norm:
            yield model, name, norm, cell, "slow" if expectation.slow else "settled"
        elif cell.outcome == "undecided":
            yield model, name, norm, cell, "undecided"
        else:
            yield model, name, norm, cell, "hit" if (cell.outcome == "one") == (norm == expectation.norm) else "miss"


@dataclass(frozen=True)
class Score:
    """Outcomes of the predictions of open cells.

    Attributes
    ----------
    hits, misses, undecided : int
    """

    hits: int
    misses: int
    undecided: int

    def __str__(self) -> str:
        return f"{counted(self.hits, 'hit')}, {counted(self.misses, 'miss', 'misses')}, {self.undecided} undecided"


def scores(table: Sequence[Outcome]) -> dict[str, Score]:
    """Score the predictions that a share reaches 1, the baseline "never 1", and all predictions.

    Parameters
    ----------
    table : sequence of (model, optimiser, norm, cell, kind)
        From :func:`outcomes`; cells that a theorem settles do not count.

    Returns
    -------
    dict
        Keys "reaching 1", "never 1" and "all", in this order. "never 1" predicts "below 1" of every open cell.
    """
    expected = expectations()
    open_cells = [one for one in table if one[-1] in ("hit", "miss", "undecided")]
    rising = Counter(kind for model, name, norm, _, kind in open_cells if norm == expected[model, name].norm)
    never = Counter(cell.outcome for *_, cell, _ in open_cells)
    every = Counter(kind for *_, kind in open_cells)
    return {
        "reaching 1": Score(rising["hit"], rising["miss"], rising["undecided"]),
        "never 1": Score(never["below"], never["one"], never["undecided"]),
        "all": Score(every["hit"], every["miss"], every["undecided"]),
    }


_QUANTITIES = {
    "reaching 1": "predictions of a share that tends to 1 that came out",
    "never 1": 'open cells that the baseline "never 1" gets right',
    "all": "open cells that came out as predicted",
}


def _score_verdicts(table: Sequence[Outcome], where: str) -> Iterator[Verdict]:
    for name, score in scores(table).items():
        decided = score.hits + score.misses
        if decided + score.undecided:
            yield share_verdict(
                NAME, f"{_QUANTITIES[name]}, {where}", score.hits, decided, trials=decided + score.undecided,
                discarded=score.undecided, note=f"{score}.",
            )  # fmt: skip


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Report the scores of predictions and baseline, the cells that theorems settle, and each optimiser's best norm."""
    expected = expectations()
    table = list(outcomes(rows))
    trial_counts = {(row["model"], row["optimiser"]): row["trials"] for row in rows}
    results = list(_score_verdicts(table, "all models"))
    for model, name, norm, cell, kind in table:
        if kind in ("settled", "slow"):
            others = [one for m, o, other, one, _ in table if (m, o) == (model, name) and other != norm]
            exclusions = sum(one.interval[1] < 1 for one in others)
            results.append(
                _limit_verdict(
                    f"limit of the share in the {norm} norm, {name}, {MODELS[model]} (theorem)", cell,
                    trial_counts[model, name],
                    f"{expected[model, name].reason}"
                    + ("; its rate is 1/log k, and no horizon shows the limit. " if kind == "slow" else ". ")
                    + f"The intervals of {exclusions} of {len(others)} other norms exclude 1.",
                )
            )  # fmt: skip
    for model, title in MODELS.items():
        results += _score_verdicts([one for one in table if one[0] == model], title)
    for model, name in trial_counts:
        own = {norm: cell for m, o, norm, cell, _ in table if (m, o) == (model, name)}
        if own:
            best = max(own, key=lambda norm: own[norm].shares[:, -1].mean())
            misses = [norm for m, o, norm, _, kind in table if (m, o) == (model, name) and kind == "miss"]
            foreseen = expected[model, name]
            results.append(
                _limit_verdict(
                    f"limit of the largest share, {name}, {MODELS[model]}", own[best], trial_counts[model, name],
                    f"In the {best} norm. Expected: {foreseen.norm or 'none'}. "
                    + (f"Missed: {', '.join(misses)}." if misses else "No miss."),
                )
            )  # fmt: skip
    return results


def _limit_verdict(quantity: str, cell: Cell, trials: int, note: str) -> Verdict:
    """Report the interval of a limit, and its middle."""
    low, high = cell.interval
    course = ", ".join(f"{share:.4f}" for share in cell.shares.mean(0))
    return value_verdict(
        NAME, quantity, (low + high) / 2, low, high, trials=trials, infeasible=trials - len(cell.shares),
        note=f"Shares at the horizons: {course}. {note}",
    )  # fmt: skip
