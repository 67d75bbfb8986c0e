r"""The atlas: which norm's margin does each optimiser maximise, on four models, measured.

A cell is an optimiser, a norm and a model; its number is the certified share of that norm's largest margin,
:math:`\frac{\min A(W)}{\|W\|}\cdot\min\{\|V\|: A(V)\ge1\}`, at three horizons a factor of ten apart. The shortfalls of
the three are extrapolated (Aitken): a share that tends to 1 is told from one that stays below. This rule was fixed with
the predictions and decides hits and misses. It counts nothing of the extrapolation's error, which an interval of the
limit from two records a decade does (:mod:`attsvm.experiments.beyond.extrapolation`). Norms other than an optimiser's
own are its controls. Theorems and predictions, the latter written down before the first run, are in
:mod:`attsvm.experiments.beyond.atlas_cells` and ``atlas_predictions.toml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attsvm.experiments.beyond.atlas_cells import (
    MODELS,
    NORMS,
    OPTIMISERS,
    expectations,
    optimizer_of,
    parameterization_of,
)
from attsvm.experiments.experiment import Effort, Experiment, Row, Verdict

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

NAME = "atlas"
SIZES = {"attention": (6, 6, 8), "factors": (6, 6, 8), "multiclass": (15, 5, 8), "next-token": (8, 6, 8)}
# A share whose limit is this near to one counts as one.
LIMIT_FLOOR = 0.99
# Records to a decade.
_PER_DECADE = 2
# Ratio of two gains up to which they are extrapolated; a gain that is none.
_RATIO_CAP, _STILL = 0.6, 1e-3


@dataclass(frozen=True)
class Config:
    """One optimiser on one model.

    Attributes
    ----------
    model, optimiser : str
    n, T, d : int
        Queries, inputs or contexts; tokens, classes or words; dimension.
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
    """Return numbers of steps that rise to `steps` over two decades: three of them, or as many as asked for."""
    count = 2 * per_decade
    return [max(round(steps * 10 ** (-j / per_decade)), count + 1 - j) for j in range(count, -1, -1)]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train, and measure the share in every norm: a row for each seed and each of five horizons."""
    import numpy as np

    from attsvm.core.norms import get_norm
    from attsvm.experiments.beyond.atlas_models import Sizes, margin, problem_of, smallest_norms, training_set
    from attsvm.experiments.instances import start_seeds
    from attsvm.training import train

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
    """What was measured of an optimiser, a norm and a model.

    Attributes
    ----------
    shares : ndarray, shape (instances, 3)
        Middles of the certified intervals at the three horizons.
    limits : ndarray, shape (instances,)
        Extrapolated; the last share where that says nothing.
    low, high : float
        Bootstrap interval, 95 %, of the mean limit: what decides the outcome.
    interval : tuple of float
        The 95 % interval of the mean limit that counts the extrapolation's error.
    """

    shares: np.ndarray
    limits: np.ndarray
    low: float
    high: float
    interval: tuple[float, float]

    @property
    def outcome(self) -> str:
        """Whether the share tends to one: "one", "below" or "undecided"."""
        return "one" if self.low >= LIMIT_FLOOR else "below" if self.high < LIMIT_FLOOR else "undecided"


def limits_of(shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bound the limits of shares (instances, 3) at horizons in geometric progression.

    A shortfall that falls like c + a r^j has the limit c by Aitken's formula, which is trusted up to r = 0.6 (1/sqrt(k)
    has r = 0.32). A share that rises more evenly may end anywhere up to one; one that does not rise is
    taken to stay.
    """
    import numpy as np

    first, second, third = shares.T
    gain, last = second - first, third - second
    rising = last > _STILL
    reliable = rising & (gain > 0) & (last <= _RATIO_CAP * gain)
    aim = third + np.where(reliable, last**2 / np.where(reliable, gain - last, 1.0), 0.0)
    low = np.minimum(aim, np.maximum(third, 1.0))
    return low, np.where(rising & ~reliable, np.maximum(third, 1.0), low)


def _cell(records: np.ndarray) -> Cell:
    from attsvm.experiments.beyond.extrapolation import limit_interval
    from attsvm.experiments.statistics import bootstrap_interval

    shares = records[:, ::_PER_DECADE]
    lows, highs = limits_of(shares)
    if len(lows) == 1:
        return Cell(shares, lows, float(lows[0]), float(highs[0]), limit_interval(records))
    return Cell(shares, lows, bootstrap_interval(lows)[0], bootstrap_interval(highs)[1], limit_interval(records))


def cells(rows: Sequence[Row]) -> dict[tuple[str, str, str], Cell]:
    """Return the cells by model, optimiser and norm that have an instance with all horizons known."""
    import numpy as np

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
                result[model, name, norm] = _cell(np.array(table))
    return result


def outcomes(rows: Sequence[Row]) -> Iterator[tuple[str, str, str, Cell, str]]:
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


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Report the settled cells, then how the predictions fared, then the nearest norm of every optimiser."""
    from attsvm.experiments.comparison import share_verdict

    expected = expectations()
    table = list(outcomes(rows))
    trial_counts = {(row["model"], row["optimiser"]): row["trials"] for row in rows}
    results = []
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
    for model in MODELS:
        open_cells = [kind for where, _, _, _, kind in table if where == model and kind in ("hit", "miss")]
        vague = sum(where == model and kind == "undecided" for where, *_, kind in table)
        if open_cells:
            results.append(
                share_verdict(
                    NAME, f"open cells that came out as predicted, {MODELS[model]}", open_cells.count("hit"),
                    len(open_cells), trials=len(open_cells) + vague, discarded=vague,
                    note=f"{open_cells.count('hit')} hits, {open_cells.count('miss')} misses, {vague} undecided.",
                )
            )  # fmt: skip
    for model, name in trial_counts:
        own = {norm: cell for m, o, norm, cell, _ in table if (m, o) == (model, name)}
        if own:
            best = max(own, key=lambda norm: own[norm].limits.mean())
            misses = [norm for m, o, norm, _, kind in table if (m, o) == (model, name) and kind == "miss"]
            foreseen = expected[model, name]
            results.append(
                _limit_verdict(
                    f"largest limit of a share, {name}, {MODELS[model]}", own[best], trial_counts[model, name],
                    f"In the {best} norm. Expected: {foreseen.norm or 'none'}. "
                    + (f"Missed: {', '.join(misses)}." if misses else "No miss."),
                )
            )  # fmt: skip
    return results


def _limit_verdict(quantity: str, cell: Cell, trials: int, note: str) -> Verdict:
    """Report the interval of a limit that counts the extrapolation's error, and its middle."""
    from attsvm.experiments.comparison import value_verdict

    low, high = cell.interval
    course = ", ".join(f"{share:.4f}" for share in cell.shares.mean(0))
    return value_verdict(
        NAME, quantity, (low + high) / 2, low, high, trials=trials, infeasible=trials - len(cell.limits),
        note=f"Shares at the three horizons: {course}; from these alone {cell.low:.4f} to {cell.high:.4f}. {note}",
    )  # fmt: skip


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw the shares at the last horizon, optimisers by norms, a panel a model."""
    from attsvm.experiments.beyond.atlas_figure import draw_atlas

    return draw_atlas(list(outcomes(rows)), width)


EXPERIMENT = Experiment(
    name=NAME,
    title="The atlas: which norm's margin each optimiser maximises",
    source="Atlas of optimisers",
    claim="Each optimiser maximises the margin in one norm at most, which a theorem or a prediction names beforehand.",
    config=Config,
    sweep=sweep,
    trials=trials,
    figure=figure,
    verdicts=verdicts,
    instance=("n", "T", "d"),
    # Processor time over two, from the rate of 150 steps of every cell; the full time is extrapolated.
    minutes={"quick": 4.5, "full": 110.0},
    batch=8,
)
