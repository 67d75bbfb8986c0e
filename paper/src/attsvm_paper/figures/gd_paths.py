"""Paths of gradient descent in the plane (Fig. 1): W z_i and K Q^T z_i turn into the rays of their SVMs.

Two instances with n = d = 2, drawn as in the official notebooks (torch's generator, seeds 1 and 3). W starts at zero; Q
at zero and K at 0.1 N(0, 1). The seed of K is not published: we use several starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure

from attsvm.core.correlation import correlation
from attsvm.core.types import FactorNorm
from attsvm.data.token_data import TokenData
from attsvm.plots.style import NORM_COLOURS, NORM_TITLES, house_style, legend_below
from attsvm.solvers.solving import solve
from attsvm.theory.tokens import Trial
from attsvm.training import train
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import value_verdict
from attsvm_paper.judging.grouping import by, having
from attsvm_paper.judging.statistics import bootstrap_interval
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import SERIES, grid, log_radius
from attsvm_paper.published.instances import start_seeds
from attsvm_paper.published.numerics import descent

NAME = "gd-paths"
LENGTHS = (3, 5)
STEPS = 2000
# Number of steps from the start that are all recorded.
DENSE = 60
# Smallest angle visible in the printed figures, in degrees.
READABLE = 2.0
NORMS: dict[str, FactorNorm] = {"W": "frobenius", "KQ": "nuclear"}


@dataclass(frozen=True)
class Config:
    """One instance (T = 3 or 5), parameterisation and arithmetic."""

    T: Literal[3, 5]
    parameterization: Literal["W", "KQ"] = "W"
    numerics: Literal["exact", "published"] = "exact"
    steps: int = STEPS
    trials: int = 1

    def __post_init__(self) -> None:
        if self.steps < DENSE:
            raise ValueError(f"steps is {self.steps}; at least {DENSE} were expected.")


def sweep(effort: Effort) -> list[Config]:
    """Return both instances, parameterisations and arithmetics; W has one start, (K, Q) several."""
    starts = 50 if effort == "full" else 10
    return [
        Config(T, parameterization, numerics, trials=1 if parameterization == "W" else starts)
        for T in LENGTHS
        for parameterization in ("W", "KQ")
        for numerics in ("exact", "published")
    ]


def instance(T: int) -> tuple[Any, Any]:
    """Draw the published instance: data of one trial, and v (2,)."""
    generator = torch.Generator().manual_seed({3: 1, 5: 3}[T])

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator)

    v = normal(2)
    v = v / v.norm()
    if T == 3:
        tokens = 0.3 * normal(2, T, 2) + torch.tensor([[[-1.0, 0.0]], [[1.0, 0.0]]])
    else:
        tokens = 0.5 * normal(2, T, 2)
        tokens[:, 0] = torch.tensor([[1.0, 0.5], [1.0, -0.5]])
        tokens[:, 1:] += torch.tensor([-1.0, 0.0])
    queries = normal(2, 2)
    queries = queries / queries.norm(dim=-1, keepdim=True)
    tokens, queries, v = (part.double().numpy() for part in (tokens, queries, v))
    return TokenData(tokens, queries, [1.0, 1.0]), v


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train from each start and convert the records into paths."""
    data, v = instance(config.T)
    trial = Trial.of(data, v)
    target = np.asarray(solve(trial.problem(trial.optimal), NORMS[config.parameterization]).W)
    copies = [np.repeat(np.asarray(part)[None], len(seeds), 0) for part in (data.tokens, data.queries, data.labels)]
    steps = np.unique(np.concatenate([np.arange(60), np.geomspace(60, config.steps, 60)]).astype(int))
    trace = train(
        TokenData(*copies), v, steps=config.steps, seed=start_seeds(seeds), record_every=steps.tolist(),
        **descent(config.numerics, config.parameterization),
    )  # fmt: skip
    paths = np.einsum("brde,ne->bnrd", trace.W, data.queries)  # (B, 2, records, 2)
    rays = target @ np.asarray(data.queries).T  # (2, n)
    angles = np.arctan2(paths[..., 1], paths[..., 0]) - np.arctan2(rays[1], rays[0])[:, None]
    degrees = np.degrees((angles + np.pi) % (2 * np.pi) - np.pi)[:, :, -1]
    return [
        {
            "seed": int(seed),
            "global": bool((trace.selected[b] == trial.optimal).all()),
            "correlation": float(correlation(trace.W[b, -1], target)),
            "angles": degrees[b].tolist(),
            **{f"{axis}{i + 1}": paths[b, i, :, at].tolist() for i in range(2) for at, axis in enumerate("xy")},
            **{f"ray_{axis}{i + 1}": float(rays[at, i]) for i in range(2) for at, axis in enumerate("xy")},
        }
        for b, seed in enumerate(seeds)
    ]


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Measure the largest angle between path and ray; the paper prints no number."""
    for (T, parameterization, numerics), cell in by(rows, "T", "parameterization", "numerics").items():
        angles = np.array([max(map(abs, row["angles"])) for row in cell])
        middle = float(np.median(angles))
        low, high = bootstrap_interval(angles, np.median) if len(cell) > 1 else (middle, middle)
        local = sum(not row["global"] for row in cell)
        notes = [
            f"Median over starts, {local} of {len(cell)} select other tokens; {READABLE:g} degrees show in print.",
            f"Smallest correlation {min(row['correlation'] for row in cell):.6f}.",
        ]
        if numerics == "published":
            notes.append("Published arithmetic stops turning when the gradient is rounded to zero.")
        yield value_verdict(
            NAME,
            f"largest angle to the SVM ray in degrees, {parameterization}, T={T}, {numerics} numerics",
            middle,
            low,
            high,
            trials=len(cell),
            note=" ".join(notes),
        )


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw the paths of both queries with their rays, W solid and K Q^T dashed."""
    names = {"W": ("W", "-"), "KQ": (r"$KQ^\top$", "--")}
    with house_style():
        title = f"Paths of gradient descent from zero, exact numerics, n = d = 2, {rows[0]['steps']} steps"
        result, axes = grid(1, 2, 3.6, title, width)
        for ax, T in zip(axes[0], LENGTHS, strict=True):
            for parameterization, norm in NORMS.items():
                cell = having(rows, T=T, parameterization=parameterization, numerics="exact")[:1]
                name, style = names[parameterization]
                color = NORM_COLOURS[norm]
                for row in cell:
                    for i in (1, 2):
                        path = np.array([row[f"x{i}"], row[f"y{i}"]])
                        scaled = log_radius(path)
                        scaled /= np.linalg.norm(scaled[:, -1])
                        label = f"{name} z, z = first and second query"
                        marker = SERIES[i - 1][1]
                        ax.plot(*scaled, style, color=color, lw=1.6, label=label)
                        ax.plot(*scaled[:, -1], marker, color=color, ms=5)
                        ray = np.array([row[f"ray_x{i}"], row[f"ray_y{i}"]])
                        end = ray / np.linalg.norm(ray) * 1.12
                        ax.plot(
                            [0, end[0]], [0, end[1]], "-", color=color, lw=4, alpha=0.22,
                            label=f"ray of the SVM ({NORM_TITLES[norm]} norm)",
                        )  # fmt: skip
            ax.set_aspect("equal", adjustable="datalim")
            ax.locator_params(nbins=5)
            ax.set_title(f"T = {T} tokens")
            ax.set_xlabel("first coordinate, radius log(1 + length)")
            ax.set_ylabel("second coordinate")
        legend_below(result, list(axes[0]), 2)
    return result
