r"""The conjecture that strict B.1 and D make training global, tested by a search for counterexamples.

The conjecture has two hypotheses, given unique optimal tokens. Every non-optimal token is an SVM-neighbour (strict
B.1). In every other selection, some optimal token is an SVM-neighbour (D). Gradient descent then reaches the SVM of
the optimal tokens. D leaves no other direction locally optimal. On small instances D is decided by enumeration.

Training starts from zero, from random matrices at several distances, and far out along the SVM of every other
selection, where it is most likely to fail. Escape from there is slow, because the decisive part of the gradient is
exponentially small. Runs that have reached no locally optimal direction are trained longer, up to :data:`LONGEST`
times, before they are listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from attsvm.plots.style import house_style, is_wide, legend_below
from attsvm.solvers.batching import solve_batch
from attsvm.theory import Landscape, Trial, condition_b1, condition_d, explore, map_basins
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import estimate_verdict, mean_verdict, share_verdict
from attsvm_paper.judging.estimates import Measure, estimates_by
from attsvm_paper.judging.grouping import by, column
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import curve_of, draw_curve, grid, percent, value_axis
from attsvm_paper.published.instances import draw, start_seeds

NAME = "overparameterisation"
SIZES = ((2, 3), (3, 3), (4, 3), (3, 4))
DIMENSIONS = (3, 5, 8, 12, 20, 32)
# Norms of the starts; a run travels a distance of 200.
SCALES = (1.0, 10.0, 30.0)
# Number of starts along other selections, out of T^n - 1.
HOSTILE = 40
LONGER = (10, 100, 1000)
LONGEST = LONGER[-1]
GROUPS = ("B.1 and D", "B.1 only", "D only", "neither")


@dataclass(frozen=True)
class Config:
    """One size; number of random starts per scale."""

    n: int
    T: int
    d: int
    starts: int = 4
    steps: int = 2000
    trials: int = 100

    def __post_init__(self) -> None:
        if min(self.n, self.d, self.starts, self.steps) < 1 or self.T < 2:
            raise ValueError("n, d, starts and steps of at least 1 and T of at least 2 were expected.")
        if self.T**self.n > 4096:
            raise ValueError(f"n, T are {self.n}, {self.T}; at most 4096 selections T^n were expected.")


def sweep(effort: Effort) -> list[Config]:
    """Sizes whose selections can be enumerated, from few dimensions to many."""
    full = effort == "full"
    sizes, dimensions = (SIZES, DIMENSIONS) if full else (SIZES[:2], DIMENSIONS[:-1])
    return [Config(n, T, d, trials=150 if full else 24) for n, T in sizes for d in dimensions]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Decide both conditions and train from every start."""
    instances = draw(seeds, config.n, config.T, config.d)
    rows: list[Row] = []
    for b, (seed, start) in enumerate(zip(np.asarray(seeds).tolist(), start_seeds(seeds), strict=True)):
        trial = Trial.of(instances.data[b], instances.v[b])
        landscape = explore(trial)
        strict, slack = condition_b1(trial)
        row: Row = {
            "seed": seed,
            "infeasible": bool(landscape.infeasible[0]),
            "feasible": bool(landscape.feasible[0]) and trial.unique,
            "b1": strict.holds,
            "b1_slack": slack.holds,
            "D": condition_d(landscape).holds,
            "only_optimal": landscape.only_optimal,
            "local": len(landscape.directions),
            "zero_global": None, "random_global": None, "hostile_global": None, "lost": None,
            "unfinished": None, "correlation": None,
        }  # fmt: skip
        if row["feasible"]:
            row |= _train(trial, landscape, config, int(start))
        rows.append(row)
    return rows


def _train(trial: Trial, landscape: Landscape, config: Config, seed: int) -> Row:
    """Train from all starts and record which became global; the others are trained longer."""
    rng = np.random.default_rng(seed)
    unit = rng.standard_normal((len(SCALES), config.starts, config.d, config.d))
    unit /= np.linalg.norm(unit, axis=(2, 3), keepdims=True)
    indices = 1 + np.flatnonzero(landscape.feasible[1:])
    if len(indices) > HOSTILE:
        indices = rng.choice(indices, HOSTILE, replace=False)
    hostile = np.zeros((0, config.d, config.d))
    if len(indices):
        solutions = solve_batch([trial.problem(landscape.selections[k]) for k in indices])
        hostile = SCALES[-1] * solutions.W / np.linalg.norm(solutions.W, axis=(1, 2), keepdims=True)
    random = (np.array(SCALES)[:, None, None, None] * unit).reshape(-1, config.d, config.d)
    starts = np.concatenate([np.zeros((1, config.d, config.d)), random, hostile])
    best = landscape.index(trial.optimal)
    basins = map_basins(trial, starts, landscape=landscape, steps=config.steps)
    destination = basins.destination.copy()
    for factor in LONGER:
        open_ = np.flatnonzero(destination < 0)
        if not len(open_):
            break
        longer = map_basins(trial, starts[open_], landscape=landscape, steps=factor * config.steps)
        destination[open_] = longer.destination
    hits = destination == best
    parts = np.split(hits, [1, 1 + len(random)])
    return {
        "zero_global": bool(parts[0][0]),
        "random_global": float(parts[1].mean()),
        "hostile_global": float(parts[2].mean()) if len(hostile) else None,
        "lost": int((~hits).sum()),
        "unfinished": int((destination < 0).sum()),
        "correlation": float(basins.correlation[0]) if basins.destination[0] == best else None,
    }


def group_of(row: Row) -> str:
    """Name the conditions that a row satisfies; an undecided D counts as violated."""
    if row["b1"]:
        return GROUPS[0] if row["D"] else GROUPS[1]
    return GROUPS[2] if row["D"] else GROUPS[3]


MEASURES = {
    "b1": Measure("strict B.1", lambda row: bool(row["b1"]), "share"),
    "D": Measure("D", lambda row: bool(row["D"]), "share"),
    "both": Measure("strict B.1 and D", lambda row: bool(row["b1"] and row["D"]), "share"),
    "single": Measure("nothing else locally optimal", lambda row: bool(row["only_optimal"]), "share"),
    "global": Measure("global from every start", lambda row: row["lost"] == 0, "share"),
    "zero": Measure("global from zero", lambda row: bool(row["zero_global"]), "share"),
}


estimates = estimates_by(("n", "T", "d"), MEASURES, lambda rows: [row for row in rows if row["feasible"]])


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Count global convergence under each combination of conditions, and list counterexamples."""
    solvable = [row for row in rows if row["feasible"]]
    infeasible = sum(row["infeasible"] for row in rows)
    for name in GROUPS:
        group = [row for row in solvable if group_of(row) == name]
        feasible = [row for row in group if not row["lost"]]
        against = [row for row in group if row["lost"]]
        if name == GROUPS[0]:
            listed = "; ".join(
                f"n={row['n']}, T={row['T']}, d={row['d']}, trial {row['trial']} (seed {row['seed']}): "
                f"{row['lost']} starts, {row['unfinished']} of them at no local direction"
                for row in against[:20]
            )
            note = (
                f"Of {len(group)} instances with strict B.1 and D, {len(against)} have a start that does not become "
                f"global: {listed}." if against else f"No counterexample: every start of all {len(group)} instances "
                "with strict B.1 and D became global, those along other selections included."
            )  # fmt: skip
        else:
            note = f"{len(feasible)} of {len(group)} instances became global from every start without both conditions."
        yield share_verdict(
            NAME, f"global from every start, {name}", len(feasible), len(group), trials=len(group),
            infeasible=infeasible, note=note,
        )  # fmt: skip
        for key, what in (("zero_global", "zero start"), ("random_global", "random starts"),
                          ("hostile_global", "starts along other selections")):  # fmt: skip
            values = column(group, key)
            if len(values):
                yield mean_verdict(
                    NAME, f"share global, {what}, {name}", values, interval="bootstrap", trials=len(group)
                )
    single = [row for row in solvable if row["only_optimal"]]
    successes = sum(row["lost"] == 0 for row in single)
    without = sum(not (row["b1"] and row["D"]) for row in single)
    yield share_verdict(
        NAME,
        "global from every start, nothing else locally optimal",
        successes,
        len(single),
        infeasible=infeasible,
        note=f"{without} of these {len(single)} instances lack strict B.1 or D; that nothing else is locally "
        "optimal asks less than the two conditions.",
    )  # fmt: skip
    near = column(solvable, "correlation")
    if len(near):
        yield mean_verdict(
            NAME, "1 - correlation with the SVM of the optimal tokens, global runs from zero", 1 - near,
            interval="bootstrap", trials=len(solvable), note=f"After {solvable[0]['steps']} steps.",
        )  # fmt: skip
    table = estimates(rows)
    for key, cell in table.cells.items():
        n, T, d = key
        yield estimate_verdict(
            NAME, f"{MEASURES['both'].words} hold, n={n}, T={T}, d={d}", table.of(key, "both"),
            note=f"Global from every start: {table.of(key, 'global').hits} of {len(cell)}.",
        )  # fmt: skip


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw, for each size against d, how often the conditions hold and how often every start becomes global."""
    sizes = by([row for row in rows if row["feasible"]], "n", "T")
    with house_style():
        columns = min(2 if is_wide(width) else 1, max(len(sizes), 1))
        down = max(1, -(-len(sizes) // columns))
        result, axes = grid(down, columns, 2.6, "Conditions and global convergence", width)
        for ax in axes.ravel()[len(sizes) :]:
            ax.set_visible(False)
        for ax, ((n, T), group) in zip(axes.ravel(), sizes.items(), strict=False):
            cells = by(group, "d")
            for look, (name, measure) in enumerate(MEASURES.items()):
                series = estimates(rows).along("d", name, n=n, T=T)
                draw_curve(ax, curve_of(series, measure.words, look, percent), 0.02 * (look - 2.5))
            value_axis(ax, [d for (d,) in cells], "dimension d")
            ax.set_ylim(-3, 103)
            ax.set_ylabel("share of instances (%)")
            ax.set_title(f"n = {n}, T = {T}")
        if sizes:
            legend_below(result, list(axes.ravel()), 3)
    return result
