r"""Benign overfitting in token selection: flipped labels are fitted, yet fresh sequences are classified by the signal.

* *trained* follows the setting of arXiv 2409.17625 as in its published code. Sequences have T Gaussian tokens of d
  entries. The first carries a signal :math:`\mu_{\pm}` of its class; the second and third carry a tenth of the signals
  of its class and of the other class. The query is fixed, the head is along :math:`\mu_+ - \mu_-`, and a fifth of the
  labels is flipped. Attention is trained by gradient descent. It is compared with the certified interpolator: the
  smallest W that selects, in every sequence, the best token for the given label.
* *two tokens* follows arXiv 2410.07746 (abstract; the full text was not at hand): one signal and one noise token, with
  min-norm head and attention. The selection is a benign overfit: signal where the label is right, noise where it is
  flipped. Both classifiers are certified, and accuracy on fresh sequences uses hard selection. The least
  signal-to-noise ratio with 95 % accuracy should scale like :math:`1/\sqrt n`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from attsvm.core.problem import SelectionProblem
from attsvm.data.token_data import TokenData
from attsvm.plots.style import house_style
from attsvm.solvers.solving import solve
from attsvm.training import train
from attsvm_paper.beyond.predictions import with_outcome
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import estimate_verdict, mean_verdict
from attsvm_paper.judging.estimates import Measure, estimates_by
from attsvm_paper.judging.grouping import by, having
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import curve_of, draw_curve, grid, own_legend, short, value_axis
from attsvm_paper.plots.heat_maps import annotate, draw_map

NAME = "benign-overfitting"
FIELDS = ("train", "held_out", "interpolator", "feasible")
WEAK = 0.1
FLIP_RATE = 0.2
FRESH = 400
RATIOS = (0.05, 0.1, 0.2, 0.4, 0.8)
SIZES = (10, 20, 40, 80)
# Accuracy on fresh sequences at which overfitting counts as benign.
BENIGN = 0.95
STEP = 0.3


@dataclass(frozen=True)
class Config:
    """A setting and a signal-to-noise ratio."""

    setting: Literal["trained", "two tokens"]
    ratio: float
    n: int = 20
    T: int = 8
    d: int = 400
    steps: int = 500
    trials: int = 20

    def __post_init__(self) -> None:
        if self.setting not in ("trained", "two tokens"):
            raise ValueError(f"setting is {self.setting!r}; 'trained' or 'two tokens' was expected.")
        if self.n < 2 or self.T < 3 or self.d < 2 or not self.ratio > 0:
            raise ValueError(
                f"n, T, d and ratio are {self.n}, {self.T}, {self.d} and {self.ratio}; at least 2, 3 and 2, and a "
                "positive ratio, were expected."
            )


def sweep(effort: Effort) -> list[Config]:
    """Ratios on a logarithmic scale; *two tokens* also takes several numbers of sequences."""
    full = effort == "full"
    d, count, steps = (2000, 20, 2000) if full else (400, 6, 500)
    return [
        *(Config("trained", ratio, d=d, steps=steps, trials=count) for ratio in RATIOS),
        *(Config("two tokens", ratio, n=n, d=d, trials=count) for n in SIZES for ratio in RATIOS),
    ]


def labels_of(rng: np.random.Generator, n: int, flip_rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw n classes, half each, and labels, with a share of them flipped."""
    classes = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    wrong = rng.permutation(n) < round(flip_rate * n)
    return classes, np.where(wrong, -classes, classes)


def sequences(
    rng: np.random.Generator, n: int, T: int, d: int, ratio: float, flip_rate: float
) -> tuple[np.ndarray, np.ndarray]:
    """Draw tokens (n, T, d) and labels (n,) of the *trained* setting; signals are along the first two axes."""
    classes, labels = labels_of(rng, n, flip_rate)
    tokens = rng.standard_normal((n, T, d))
    size = ratio * np.sqrt(d)
    for token, strength, sign in ((0, 1.0, 1.0), (1, WEAK, 1.0), (2, WEAK, -1.0)):
        tokens[np.arange(n), token, np.where(sign * classes > 0, 0, 1)] += strength * size
    return tokens, labels


def trials(config: Config, seeds: Any) -> list[Row]:
    """Run the setting."""
    run = trained if config.setting == "trained" else two_tokens
    return [
        {"seed": int(seed)} | dict.fromkeys(FIELDS) | row for seed, row in zip(seeds, run(config, seeds), strict=True)
    ]


def trained(config: Config, seeds: Any) -> list[Row]:
    """Train attention; compare it with the certified interpolator on fresh sequences."""
    rows: list[Row] = []
    for seed in seeds:
        rng = np.random.default_rng(int(seed))
        tokens, labels = sequences(rng, config.n, config.T, config.d, config.ratio, FLIP_RATE)
        fresh, right = sequences(rng, FRESH, config.T, config.d, config.ratio, 0.0)
        v = np.zeros(config.d)
        v[:2] = np.array([1.0, -1.0]) / (np.sqrt(2) * config.ratio * np.sqrt(config.d))
        data = TokenData(tokens, np.ones((config.n, 1)), labels)
        held_out = TokenData(fresh, np.ones((FRESH, 1)), right)
        trace = train(
            data, v, optimizer="gd", lr=STEP, steps=config.steps, record_every=config.steps, held_out=held_out
        )
        solution = solve(SelectionProblem(tokens, np.ones((config.n, 1)), (labels[:, None] * (tokens @ v)).argmax(-1)))
        row: Row = {
            "train": float(trace.accuracy[-1]),
            "held_out": float(trace.held_out_accuracy[-1]),
            "feasible": bool(np.isfinite(solution.objective)),
        }
        if row["feasible"]:
            top = (fresh @ solution.W[:, 0]).argmax(-1)
            row["interpolator"] = float((right * (fresh[np.arange(FRESH), top] @ v) > 0).mean())
        rows.append(row)
    return rows


def two_tokens(config: Config, seeds: Any) -> list[Row]:
    """Certify the min-norm head and attention of the benign selection, and test both on fresh sequences."""
    rows: list[Row] = []
    size = config.ratio * np.sqrt(config.d)

    def draw(rng: np.random.Generator, n: int, flip_rate: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        classes, labels = labels_of(rng, n, flip_rate)
        tokens = rng.standard_normal((n, 2, config.d))
        tokens[:, 0] = 0.0
        tokens[np.arange(n), 0, np.where(classes > 0, 0, 1)] = size
        tokens[:, 1, :2] = 0.0
        return tokens, classes, labels

    for seed in seeds:
        rng = np.random.default_rng(int(seed))
        tokens, classes, labels = draw(rng, config.n, FLIP_RATE)
        fresh, right, _ = draw(rng, FRESH, 0.0)
        signal = np.where(classes == labels, 0, 1)
        attention = solve(SelectionProblem(tokens, np.ones((config.n, 1)), signal))
        # The head is the SVM of the selected tokens: their product with the label must be positive.
        tokens_kept = labels[:, None] * tokens[np.arange(config.n), signal]
        head = solve(
            SelectionProblem(
                np.stack([tokens_kept, 0 * tokens_kept], 1), np.ones((config.n, 1)), np.zeros(config.n, int)
            )
        )
        row: Row = {"feasible": bool(np.isfinite(attention.objective) and np.isfinite(head.objective))}
        if row["feasible"]:
            top = (fresh @ attention.W[:, 0]).argmax(-1)
            row["interpolator"] = float((right * (fresh[np.arange(FRESH), top] @ head.W[:, 0]) > 0).mean())
        rows.append(row)
    return rows


def threshold(cells: dict[float, float]) -> float | None:
    """Return the ratio at which accuracy crosses 95 %, interpolated in logarithms; None outside the sweep."""
    points = sorted(cells.items())
    for (low, before), (high, after) in itertools.pairwise(points):
        if before < BENIGN <= after:
            share = (BENIGN - before) / (after - before)
            return float(np.exp((1 - share) * np.log(low) + share * np.log(high)))
    return None


def exponents(rows: Sequence[Row]) -> list[float]:
    """Return, per trial, the slope of the log threshold over log n."""
    fits = []
    for (_,), own in by(rows, "trial").items():
        points = []
        for (n,), cell in by(own, "n").items():
            risks = {row["ratio"]: row["interpolator"] for row in cell if row["interpolator"] is not None}
            crossing = threshold(risks)
            if crossing is not None:
                points.append((np.log(n), np.log(crossing)))
        if len(points) > 1:
            x, y = np.array(points).T
            fits.append(float(np.polyfit(x, y, 1)[0]))
    return fits


MEASURES = {
    "train": Measure("accuracy on the training labels, flipped ones included, by descent", "train"),
    "held_out": Measure("accuracy on fresh sequences, descent", "held_out"),
    "interpolator": Measure("accuracy on fresh sequences, certified interpolator", "interpolator"),
}


trained_estimates = estimates_by(("ratio", "n", "T", "d"), MEASURES, lambda rows: having(rows, setting="trained"))
pair_estimates = estimates_by(("ratio", "n", "d"), MEASURES, lambda rows: having(rows, setting="two tokens"))


def _counts(cell: Sequence[Row]) -> dict[str, Any]:
    return {"trials": len(cell), "infeasible": sum(not row["feasible"] for row in cell)}


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report training accuracy, fresh accuracy and interpolators by ratio, and the scaling of the threshold."""
    table, own = trained_estimates(rows), having(rows, setting="trained")
    ends = {min(row["ratio"] for row in own): "low", max(row["ratio"] for row in own): "high"} if own else {}
    for key, cell in table.cells.items():
        ratio, n, T, d = key
        for field, measure in MEASURES.items():
            ours = table.of(key, field)
            if ours.count:
                quantity = f"{measure.words}, SNR={ratio:g}, n={n}, T={T}, d={d}"
                verdict = estimate_verdict(NAME, quantity, ours, **_counts(cell))
                has_prediction = ratio in RATIOS and field != "train" and ratio in ends
                yield with_outcome(verdict, ends[ratio]) if has_prediction else verdict
    table = pair_estimates(rows)
    for key, cell in table.cells.items():
        ratio, n, d = key
        ours = table.of(key, "interpolator")
        if ours.count:
            quantity = f"accuracy on fresh sequences, certified pair, two tokens, SNR={ratio:g}, n={n}, d={d}"
            yield estimate_verdict(NAME, quantity, ours, **_counts(cell))
    fits = exponents(having(rows, setting="two tokens"))
    if fits:
        verdict = mean_verdict(
            NAME, "exponent of n in the least SNR of benign overfitting, two tokens", fits, interval="bootstrap"
        )
        yield with_outcome(verdict, "threshold")


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw accuracies over the ratio, and the phase diagram of two tokens."""
    with house_style():
        result, axes = grid(1, 2, 2.8, "Benign overfitting in token selection", width)
        curves, plane = axes.ravel()
        table = trained_estimates(rows)
        trained = having(rows, setting="trained")
        for field, label, look in (
            ("train", "training labels", 1),
            ("held_out", "fresh, descent", 0),
            ("interpolator", "fresh, interpolator", 2),
        ):
            if any(row[field] is not None for row in trained):
                series = table.along("ratio", field)
                draw_curve(curves, curve_of(series, label, look))
        if trained:
            value_axis(curves, sorted({row["ratio"] for row in trained}), "signal-to-noise ratio")
            own_legend(curves)
        curves.set_title("trained attention")
        curves.set_ylabel("accuracy")
        curves.set_xlabel("signal-to-noise ratio")
        pairs = having(rows, setting="two tokens")
        plane.set_title("two tokens: accuracy, fresh")
        plane.set_xlabel("signal-to-noise ratio")
        plane.set_ylabel("sequences n")
        if pairs:
            ratios, sizes = (sorted({row[name] for row in pairs}) for name in ("ratio", "n"))
            shares = np.full((len(sizes), len(ratios)), np.nan)
            for ratio, n, d in pair_estimates(rows).cells:
                share = pair_estimates(rows).of((ratio, n, d), "interpolator").value
                shares[sizes.index(n), ratios.index(ratio)] = share
            map_values = {(x, y): shares[y, x] for y in range(len(sizes)) for x in range(len(ratios))}
            draw_map(
                plane,
                {at: value for at, value in map_values.items() if np.isfinite(value)},
                range(len(ratios)),
                range(len(sizes)),
            )
            annotate(plane, shares, lambda value: f"{value:.2f}")
            plane.set_xticks(range(len(ratios)), [short(ratio) for ratio in ratios])
            plane.set_yticks(range(len(sizes)), [str(n) for n in sizes])
    return result
