r"""Basins of attraction: the directions in which training can end, and the starts that lead to each.

On small instances every selection can be enumerated; descent can end at the locally optimal ones. Training starts at
several distances from zero, and each start is assigned to the direction that it reaches. As the dimension grows, all
selections become realisable, but fewer stay locally optimal. The basin of the global selection then fills the space,
near zero first. Each picture shows a plane through the space of W, spanned by the two shortest local directions; each
point is a start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from attsvm.plots.style import house_style, is_wide, legend_below
from attsvm.theory import Landscape, Trial, explore, map_basins
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import estimate_verdict, share_verdict
from attsvm_paper.judging.estimates import Measure, estimates_by
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import SERIES, curve_of, draw_curve, grid, value_axis
from attsvm_paper.published.instances import draw, start_seeds

NAME = "basins"
DIMENSIONS = (2, 3, 4, 5, 6, 8, 12, 16)
SCALES = (0.1, 2.0, 20.0)
# Half the width of the plane in the pictures, in Frobenius norm.
REACH = 20.0
PICTURES = 3


@dataclass(frozen=True)
class Config:
    """One dimension; `grid` is the number of points per side of a picture, 0 for no picture."""

    d: int
    n: int = 3
    T: int = 3
    starts: int = 24
    grid: int = 0
    steps: int = 2000
    trials: int = 60

    def __post_init__(self) -> None:
        if min(self.n, self.d) < 1 or self.T < 2 or self.starts < 1 or self.grid < 0:
            raise ValueError("n, d and starts of at least 1, T of at least 2 and grid of at least 0 were expected.")


def sweep(effort: Effort) -> list[Config]:
    """Every dimension, and pictures at d = 2."""
    full = effort == "full"
    dimensions = DIMENSIONS if full else DIMENSIONS[:-1:2] + DIMENSIONS[-1:]
    cells = [Config(d, starts=48 if full else 16, trials=100 if full else 24) for d in dimensions]
    # Half of the instances have only one direction, and give no picture.
    return [*cells, Config(2, starts=1, grid=61 if full else 31, trials=8)]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Enumerate the selections of every instance; train from starts at every scale, or from a plane of starts."""
    instances = draw(seeds, config.n, config.T, config.d)
    rows: list[Row] = []
    for b, (seed, start) in enumerate(zip(np.asarray(seeds).tolist(), start_seeds(seeds), strict=True)):
        trial = Trial.of(instances.data[b], instances.v[b])
        landscape = explore(trial)
        best = landscape.index(trial.optimal)
        row: Row = {
            "seed": seed,
            "infeasible": bool(landscape.infeasible[0]),
            "feasible": bool(landscape.feasible[0]),
            "selections": len(landscape.selections),
            "realisable": int(landscape.feasible.sum()),
            "local": len(landscape.directions),
            "best": best,
        }
        if config.grid:
            row["plane"] = _plane(trial, landscape, config) if len(landscape.directions) > 1 else None
        else:
            unit = np.random.default_rng(start).standard_normal((config.starts, config.d, config.d))
            unit /= np.linalg.norm(unit, axis=(1, 2), keepdims=True)
            near = [map_basins(trial, scale * unit, landscape=landscape, steps=config.steps) for scale in SCALES]
            zero = map_basins(trial, np.zeros((1, config.d, config.d)), landscape=landscape, steps=config.steps)
            row |= {
                "to_global": [float((one.destination == best).mean()) if best >= 0 else 0.0 for one in near],
                "to_none": [float((one.destination < 0).mean()) for one in near],
                "zero_global": bool(best >= 0 and zero.destination[0] == best),
                "reached": len({int(k) for one in near for k in one.destination if k >= 0}),
            }
        rows.append(row)
    return rows


def _plane(trial: Trial, landscape: Landscape, config: Config) -> list[int]:
    """Train from every point of a plane through zero and the two shortest directions; destinations row by row."""
    basis = plane_basis([direction.W for direction in landscape.directions[:2]])
    side = np.linspace(-REACH, REACH, config.grid)
    points = np.stack([x * basis[0] + y * basis[1] for y in side for x in side])
    basins = map_basins(trial, points, landscape=landscape, steps=config.steps)
    return basins.destination.tolist()


def plane_basis(pair: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return orthonormal matrices, the first along the first direction, the second towards the other."""
    first = pair[0] / np.linalg.norm(pair[0])
    second = pair[1] - np.vdot(first, pair[1]) * first
    return first, second / np.linalg.norm(second)


def _of_scale(at: int) -> Callable[[Row], float | None]:
    return lambda row: row["to_global"][at] if row["feasible"] else None


GLOBAL = {f"global-{at}": scale for at, scale in enumerate(SCALES)}
MEASURES = {
    "local": Measure("locally optimal directions", "local"),
    "realisable": Measure("share realisable", lambda row: row["realisable"] / row["selections"]),
    "zero_global": Measure(
        "zero start reaches the global direction", lambda row: row["zero_global"] if row["feasible"] else None, "share"
    ),
} | {
    name: Measure(f"share of starts that reach the global direction, |W(0)|={scale:g}", _of_scale(at))
    for at, (name, scale) in enumerate(GLOBAL.items())
}


estimates = estimates_by(("d",), MEASURES, lambda rows: [row for row in rows if not row["grid"]])


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report local directions and the share of starts that reach the global direction, by dimension and scale."""
    table = estimates(rows)
    shares: dict[int, tuple[float, float]] = {}
    for (d,), cell in table.cells.items():
        infeasible = sum(row["infeasible"] for row in cell)
        feasible = [row for row in cell if row["feasible"]]
        realisable = np.mean([row["realisable"] for row in cell])
        yield estimate_verdict(
            NAME, f"{MEASURES['local'].words}, d={d}", table.of((d,), "local"), infeasible=infeasible,
            note=f"Of {cell[0]['selections']} selections {realisable:.1f} are realisable on average; starts "
            f"reached {np.mean([row['reached'] for row in cell]):.2f} directions.",
        )  # fmt: skip
        if not feasible:
            continue
        none = np.array([row["to_none"] for row in feasible])
        ours = [table.of((d,), name) for name in GLOBAL]
        shares[d] = ours[0].value, ours[-1].value
        for at, (name, own) in enumerate(zip(GLOBAL, ours, strict=True)):
            yield estimate_verdict(
                NAME, f"{MEASURES[name].words}, d={d}", own, trials=len(cell), infeasible=infeasible,
                note=f"{none[:, at].mean():.1%} reach no local direction within {cell[0]['steps']} steps.",
            )  # fmt: skip
        yield estimate_verdict(
            NAME, f"{MEASURES['zero_global'].words}, d={d}", table.of((d,), "zero_global"), trials=len(cell),
            infeasible=infeasible,
        )  # fmt: skip
    if len(shares) > 1:
        low, high = min(shares), max(shares)
        fewest, most = (table.of((d,), "local").value for d in (low, high))
        feasible = [row for row in rows if not row["grid"] and row["d"] == high]
        single = sum(row["local"] == 1 for row in feasible)
        yield share_verdict(
            NAME, f"instances with one locally optimal direction only, d={high}", single, len(feasible),
            note=f"From d = {low} to {high} the mean number of local directions goes from {fewest:.2f} to "
            f"{most:.2f}, and the share of starts at distance {SCALES[0]:g} / {SCALES[-1]:g} that reach "
            f"the global one from {shares[low][0]:.2f} / {shares[low][1]:.2f} to {shares[high][0]:.2f} / "
            f"{shares[high][1]:.2f}.",
        )  # fmt: skip


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw local directions and basins against dimension, and planes of starts for instances with two directions."""
    table = estimates(rows)
    cells = [d for (d,) in table.cells]
    pictures = [row for row in rows if row["grid"] and row["plane"] is not None][:PICTURES]

    def draw(ax: Axes, name: str, label: str, look: int, shift: float = 0.0) -> None:
        # A single trial is drawn without an end of its interval.
        series = {
            d: replace(one, low=max(one.low, 0.0), high=min(one.high, 1e6))
            for d in cells
            if (one := table.of((d,), name)).count
        }
        if series:
            draw_curve(ax, curve_of(series, label, look), shift)

    with house_style():
        blocks = (3 if cells else 0) + len(pictures)
        columns = min(3 if is_wide(width) else 1, max(blocks, 1))
        down = max(1, -(-blocks // columns))
        result, axes = grid(down, columns, 2.5, "Where starts end", width)
        places = list(axes.ravel())
        lines = []
        if cells:
            draw(places[0], "local", "mean over instances", 0)
            places[0].set_title("locally optimal directions")
            for at, (name, scale) in enumerate(GLOBAL.items()):
                draw(places[1], name, f"starts at |W(0)| = {scale:g}", at + 1, 0.02 * (at - 1))
            places[1].set_title("share that ends globally")
            draw(places[2], "realisable", "mean over instances", 0)
            places[2].set_title("share realisable")
            for ax in places[:3]:
                value_axis(ax, cells, "dimension d")
            lines = places[:3]
        for ax, row in zip(places[len(lines) :], pictures, strict=False):
            plane = np.array(row["plane"]).reshape(row["grid"], row["grid"])
            color = np.array([_rgb("#e8e8e8"), _rgb(SERIES[0][0]), *(_rgb(c) for c, _ in SERIES[1:])])
            # The global direction is blue regardless of its index; starts that reach no direction are grey.
            order = np.where(plane < 0, 0, np.where(plane == row["best"], 1, 2 + plane % (len(SERIES) - 1)))
            ax.imshow(color[order], origin="lower", extent=(-REACH, REACH, -REACH, REACH), interpolation="nearest")
            ax.set_title(f"trial {row['trial']}: {row['local']} directions", fontsize=8)
            ax.set_xlabel("W(0) along the shortest")
            ax.set_ylabel("and across it")
            lines.append(ax)
        for ax in places:
            ax.set_visible(ax in lines)
        if pictures:
            ax = lines[-1]
            ax.plot([], [], "s", color=SERIES[0][0], label="ends globally")
            ax.plot([], [], "s", color=SERIES[1][0], label="another local direction (other colours: others)")
        if lines:
            legend_below(result, lines, 3)
    return result


def _rgb(color: str) -> tuple[float, float, float]:
    return to_rgb(color)
