r"""Prompt attention in the plane: the path of a tuned prompt, alone and with its head (arXiv 2306.13596).

* *One input*: three tokens, fixed head. If the two lower tokens score the same, every start ends at the SVM of the best
  token. If the third scores less, the second beats its only neighbour, is locally optimal, and attracts some starts.
* *Head and prompt together*: three inputs whose selected tokens must also be classified. An input that is a support
  vector of the head requires a margin of the prompt; other inputs do not. If the third input moves from (0.5, 1) to
  (0.5, 1.5), it is no support vector any more, and the prompt turns from (4/3, 1/3) to (1, 0).
* *The loss decides only the finite part*: for scores 1 and C of the two selected tokens, normalised descent on any loss
  ends at the direction (1, 0) with offset :math:`\frac12\log(C|l'(C)|/|l'(1)|)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from attsvm.data.token_data import TokenData
from attsvm.plots.style import INK, QUIET, house_style, legend_below
from attsvm.training import train
from attsvm.training.optimisers.descent import NormalizedGD
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import value_verdict
from attsvm_paper.judging.grouping import by, having
from attsvm_paper.judging.verdict import Row, Verdict
from attsvm_paper.plots.experiments import SERIES, grid, log_radius

NAME = "prompt-attention"
STARTS = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)
Setting = Literal["equal scores", "third scores less", "tight", "relaxed", "losses"]
THIRD: dict[Setting, float] = {"equal scores": 0.9, "third scores less": 0.0}
JOINT: dict[Setting, float] = {"tight": 1.0, "relaxed": 1.5}
LOSSES: tuple[Literal["logistic", "exponential", "correlation"], ...] = ("logistic", "exponential", "correlation")
RATIOS = (0.5, 2.0, 3.0)
JOINT_START = -1.0
# Limits predicted by theory, up to length.
BEST, SECOND = (-0.1 / 1.01, 1 / 1.01), (1.0, 0.0)
LIMITS = {"tight": (4 / 3, 1 / 3), "relaxed": (1.0, 0.0)}
# Bound on the finite part of a path's end: logarithms of ratios of score differences (at most log 10 here) plus the
# start.
FINITE_PART = 3.0
# Number of steps from the start that are all recorded.
DENSE = 60


@dataclass(frozen=True)
class Config:
    """One run: its setting, and the start, loss and score ratio if they vary."""

    setting: Setting
    start: float = 0.0
    loss: Literal["logistic", "exponential", "correlation"] = "logistic"
    C: float = 1.0
    lr: float = 0.1
    steps: int = 2000
    trials: int = 1

    def __post_init__(self) -> None:
        if self.steps < DENSE:
            raise ValueError(f"steps is {self.steps}; at least {DENSE} were expected.")


def sweep(effort: Effort) -> list[Config]:
    """All runs of the figures; quick and full are the same."""
    single = [Config(setting, start=start) for setting in THIRD for start in STARTS]
    joint = [Config(setting, start=JOINT_START) for setting in JOINT]
    return single + joint + [Config("losses", loss=loss, C=C) for loss in LOSSES for C in RATIOS]


def _problem(config: Config) -> tuple[Any, Any, Any]:
    """Return the data, the head, and the start of the prompt."""
    if config.setting in THIRD:
        tokens = np.array([[[-0.1, 1, 1], [1, 0, 0.9], [0, 0, THIRD[config.setting]]]])
        data = TokenData.prompt(tokens, np.ones(1), np.diag([1.0, 1, 0]))
        return data, np.array([0.0, 0, 1]), np.array([0, config.start, 0.0])
    if config.setting in JOINT:
        tokens = np.array([[[0, 0], [1, 1]], [[0, 0], [1, -1]], [[0, 0], [0.5, JOINT[config.setting]]]])
        return TokenData.prompt(tokens, np.array([1.0, -1, 1])), np.array([-1.0, 0]), np.array([0, config.start])
    tokens = np.array([[[1, -1, 1.0], [0, 0, 0]], [[1, 1, config.C], [0, 0, 0]]])
    return TokenData.prompt(tokens, np.ones(2), np.eye(3)[:2]), np.array([0.0, 0, 1]), np.zeros(2)


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train the prompt; nothing is random."""
    data, v, start = _problem(config)
    steps = np.unique(np.concatenate([np.arange(60), np.geomspace(60, config.steps, 60)]).astype(int))
    trace = train(
        data, v, optimizer=NormalizedGD(config.lr), steps=config.steps, init=start[:, None], loss=config.loss,
        head_lr=config.lr if config.setting in JOINT else None, record_every=steps.tolist(),
    )  # fmt: skip
    path = trace.W[:, :, 0]
    head = trace.head["v"][-1].tolist() if config.setting in JOINT else None
    row: Row = {
        "x": path[:, 0].tolist(), "y": path[:, 1].tolist(), "head": head, "selected": trace.selected.tolist(),
    }  # fmt: skip
    return [{"seed": int(seed), **row} for seed in seeds]


def _angle(p: Sequence[float], limit: Sequence[float]) -> float:
    """Return the angle from `limit` to `p` in degrees."""
    turn = math.degrees(math.atan2(p[1], p[0]) - math.atan2(limit[1], limit[0]))
    return (turn + 180) % 360 - 180


def offset(loss: str, C: float) -> float:
    """Return the finite part at the stationary point, 1/2 log(C |l'(C)| / |l'(1)|)."""
    slope = {
        "logistic": lambda u: 1 / (1 + math.exp(u)), "exponential": lambda u: math.exp(-u), "correlation": lambda u: 1.0
    }[loss]  # fmt: skip
    return 0.5 * math.log(C * slope(C) / slope(1.0))


def _end(row: Row) -> tuple[float, float]:
    return row["x"][-1], row["y"][-1]


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Measure end directions from the limits, and offsets against the formula; the paper prints neither."""
    results = []
    # Nothing is random: every trial of a cell is the same run.
    rows = having(rows, trial=0)

    def direction(quantity: str, row: Row, limit: Sequence[float], note: str = "") -> None:
        end = _end(row)
        angle = _angle(end, limit)
        tolerance = math.degrees(FINITE_PART / math.hypot(*end))
        results.append(
            value_verdict(
                NAME,
                f"degrees off the limit, {quantity}",
                angle,
                angle,
                angle,
                note=note or f"A finite part up to {FINITE_PART:g} is {tolerance:.2g} degrees at the length reached.",
            )
        )

    for setting in THIRD:
        own = [cell[0] for cell in by(having(rows, setting=setting), "start").values()]
        for row in own:
            limit = BEST if setting == "equal scores" or row["selected"][0] == 0 else SECOND
            direction(f"{setting}, start {row['start']:g}, token {row['selected'][0] + 1}", row, limit)
        captures = sum(row["selected"][0] == 1 for row in own)
        if {row["start"] for row in own} != set(STARTS):
            continue
        results.append(
            value_verdict(
                NAME,
                f"some of the six starts kept by the second token, {setting}",
                float(captures > 0),
                float(captures > 0),
                float(captures > 0),
                trials=len(STARTS),
                note=f"{captures} of {len(STARTS)}.",
            )
        )
    for setting, limit in LIMITS.items():
        for (start,), cell in by(having(rows, setting=setting), "start").items():
            elsewhere = "" if start == JOINT_START else f", start {start:g}"
            direction(f"head and prompt, {setting}{elsewhere}", cell[0], limit)
    for row, *_ in by(having(rows, setting="losses"), "loss", "C").values():
        value = row["y"][-1]
        results.append(
            value_verdict(
                NAME,
                f"offset, {row['loss']} loss, C={row['C']:g}",
                value,
                value,
                value,
                note=f"1/2 log(C |l'(C)| / |l'(1)|) is {offset(row['loss'], row['C']):.6g}.",
            )
        )
    return results


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw prompt paths in the plane with their limits, and offsets against the score ratio."""
    reach = 6.0

    def ray(ax: Any, limit: Sequence[float], label: str) -> None:
        end = np.array(limit) / np.linalg.norm(limit) * reach * 1.6
        ax.plot([0, end[0]], [0, end[1]], "--", color=QUIET, lw=1.2, label=label, zorder=1)

    def path(ax: Any, row: Row, look: int, label: str) -> None:
        color, marker = SERIES[look]
        points = log_radius(np.array([row["x"], row["y"]]))
        ax.plot(*points, "-", color=color, lw=1.4, label=label)
        ax.plot(*points[:, 0], marker, color=color, ms=4)

    with house_style():
        title = "Paths of the prompt p in the plane, radius log(1 + length)"
        result, axes = grid(2, 2, 2.9, title, width)
        for ax, setting in zip(axes[0], THIRD, strict=True):
            ray(ax, BEST, "limits")
            if setting != "equal scores":
                ray(ax, SECOND, "limits")
            for row in having(rows, setting=setting):
                path(ax, row, row["selected"][0], f"ends at token {row['selected'][0] + 1}")
            ax.set_title(f"one input, {setting}")
        ax = axes[1, 0]
        for look, setting in enumerate(JOINT, start=2):
            ray(ax, LIMITS[setting], "limits")
            for row in having(rows, setting=setting):
                path(ax, row, look, f"head and prompt, {setting}")
        ax.set_title("head and prompt together")
        for ax in (axes[0, 0], axes[0, 1], axes[1, 0]):
            ax.set_xlim(-2, reach)
            ax.set_ylim(-1.7, reach * 0.95)
            ax.set_aspect("equal")
            ax.set_xlabel("first coordinate of p")
            ax.set_ylabel("second coordinate of p")
        ax = axes[1, 1]
        dense = np.linspace(0.3, 3.3, 60)
        for look, loss in enumerate(LOSSES):
            color, marker = SERIES[look]
            ax.plot(dense, [offset(loss, C) for C in dense], "--", color=color, lw=1.0)
            cell = having(rows, setting="losses", loss=loss)
            ax.plot(
                [row["C"] for row in cell], [row["y"][-1] for row in cell], marker, color=color, ms=5,
                label=f"{loss} loss",
            )  # fmt: skip
        ax.axhline(0, color=INK, lw=0.5)
        ax.set_title("offset by loss (dashed: the formula)")
        ax.set_xlabel("score C of the second selected token")
        ax.set_ylabel("second coordinate of p at the end")
        legend_below(result, list(axes.ravel()), 4)
    return result
