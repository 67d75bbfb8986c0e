r"""Phase diagrams over dimension, sequences and tokens: feasibility, assumptions of the theory, and training outcomes.

Two planes of random instances, d against n and d against T. Every cell measures:

* **feasible**: whether the optimal tokens have an SVM, and whether a random selection has one. Theorem 1 is about the
  latter: every selection of almost all data is realisable if :math:`d \ge \max(T-1, n)`;
* **B.1**, strictly and as in the published test (average margin at most 1.1), expected at :math:`d` of the order of
  :math:`(T+n)\log(T+n)`;
* **D not refuted**: up to :data:`EXCHANGES` selections that differ from the optimal one in a single sequence are drawn
  and checked. These are nearest to a violation; a refutation is a proof;
* **global, local**: the end of normalised descent on W and on (K, Q); local optimality is tested with the SVM of the
  matched norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from attsvm.core.status import Status
from attsvm.plots.style import house_style, legend_below
from attsvm.solution.problem_batch import ProblemBatch
from attsvm.solvers.batching import solve_batch
from attsvm.theory.tokens import Trial, compare_with_neighbours
from attsvm.training import train
from attsvm_paper.beyond.power_law import crossing, exponents
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import share_verdict, value_verdict
from attsvm_paper.judging.grouping import by, having
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import grid
from attsvm_paper.plots.heat_maps import draw_line, draw_map
from attsvm_paper.published.instances import Instances, draw, start_seeds
from attsvm_paper.published.numerics import descent

NAME = "phase-diagram"
Part = Literal["conditions", "D", "W", "KQ"]
SIZES = (2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 26, 32)
DIMENSIONS = (2, 3, 4, 5, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)
QUICK_SIZES = (2, 4, 7, 12, 20)
QUICK_DIMENSIONS = (2, 3, 4, 6, 10, 16, 28, 56, 112)
# Dimension above which nothing is trained: training costs n T d steps, and nearly everything is global there.
TRAINED_UP_TO = 48
FIXED = 5
STEPS = {"conditions": 0, "D": 0, "W": 3000, "KQ": 1000}
EXCHANGES = 24
SLACK = 1.1
PANELS: tuple[tuple[Part, str, str], ...] = (
    ("conditions", "feasible", "optimum feasible"),
    ("conditions", "random_feasible", "random feasible"),
    ("conditions", "b1_slack", "B.1, slack"),
    ("conditions", "b1_strict", "B.1, strict"),
    ("D", "d_open", "D not refuted"),
    ("W", "global", "W: global"),
    ("W", "only_local", "W: local only"),
    ("KQ", "global", "(K, Q): global"),
    ("KQ", "only_local", "(K, Q): local only"),
    ("W", "neither", "W: neither"),
)
LINES: tuple[tuple[str, str, Callable[[float, float], float]], ...] = (
    ("d = max(T - 1, n)", "-", lambda n, T: max(T - 1, n)),
    ("d = (T + n) log(T + n)", "--", lambda n, T: (T + n) * math.log(T + n)),
)


@dataclass(frozen=True)
class Config:
    """One cell: feasibility and B.1, optionally with D or a training."""

    n: int
    T: int
    d: int
    part: Part = "conditions"
    steps: int = 0
    trials: int = 100

    def __post_init__(self) -> None:
        if min(self.n, self.d) < 1 or self.T < 2:
            raise ValueError(f"n, T, d are {self.n}, {self.T}, {self.d}; at least 1, 2 and 1 were expected.")


def sweep(effort: Effort) -> list[Config]:
    """Both planes; conditions on many trials, training on few trials and up to a dimension."""
    full = effort == "full"
    sizes, dimensions = (SIZES, DIMENSIONS) if full else (QUICK_SIZES, QUICK_DIMENSIONS)
    shapes = dict.fromkeys([(n, FIXED) for n in sizes] + [(FIXED, T) for T in sizes])
    cells = []
    counts: dict[Part, int] = {"conditions": 30, "D": 5, "W": 6, "KQ": 6}
    if full:
        counts = {"conditions": 100, "D": 16, "W": 16, "KQ": 16}
    for part, count in counts.items():
        top = TRAINED_UP_TO if STEPS[part] else dimensions[-1]
        cells += [Config(n, T, d, part, STEPS[part], count) for n, T in shapes for d in dimensions if d <= top]
    return cells


def trials(config: Config, seeds: Any) -> list[Row]:
    """Check the conditions of every instance; train if the config says so."""
    instances = draw(seeds, config.n, config.T, config.d)
    best = instances.solve(instances.optimal)
    feasible = np.isfinite(best.objective)
    rows: list[Row] = []
    for b, seed in enumerate(np.asarray(seeds).tolist()):
        margins = best.margins[b][best.problems[b].rejected]
        rows.append(
            {
                "seed": seed,
                "feasible": bool(feasible[b]),
                "infeasible": best.status[b] is Status.INFEASIBLE,
                "b1_slack": bool(feasible[b] and margins.mean() <= SLACK),
                "b1_strict": bool(feasible[b] and best[b].support[best.problems[b].rejected].all()),
            }
        )
    if config.part == "conditions":
        picks = [np.random.default_rng(int(s)).integers(config.T, size=config.n) for s in start_seeds(seeds)]
        solutions = instances.solve(np.stack(picks))
        for b, row in enumerate(rows):
            row["random_feasible"] = bool(np.isfinite(solutions.objective[b]))
    if config.part == "D":
        for b, row in enumerate(rows):
            row["d_open"] = not _refutes_d(instances, b, int(start_seeds(seeds)[b])) if feasible[b] else None
    if config.part not in ("W", "KQ"):
        return rows
    hits, local = _train(instances, config, start_seeds(seeds))
    for b, row in enumerate(rows):
        row["global"], row["only_local"] = bool(hits[b]), bool(local[b] and not hits[b])
        row["neither"] = not (hits[b] or local[b])
    return rows


def _train(instances: Instances, config: Config, starts: Any) -> tuple[Any, Any]:
    """Train; return which trials end at the optimal tokens and which at a locally optimal selection."""
    trace = train(
        instances.data, instances.v, steps=config.steps, init="torch", seed=starts, **descent("exact", config.part)
    )
    hits = (trace.selected == instances.optimal).all(-1)
    local = hits.copy()
    failures = [int(b) for b in np.flatnonzero(~hits)]
    if failures:
        problems = instances.problems(trace.selected)
        norm = "frobenius" if config.part == "W" else "nuclear"
        for b, solution in zip(failures, solve_batch([problems[b] for b in failures], norm), strict=True):
            local[b] = compare_with_neighbours(Trial.of(instances.data[b], instances.v[b]), solution).holds
    return hits, local


def _refutes_d(instances: Instances, b: int, seed: int) -> bool:
    """Look for a realisable selection one exchange from the optimal one, with no optimal token among its neighbours."""
    optimal = instances.optimal[b]
    n, T = instances.gamma.shape[1:]
    exchanges = [(i, t) for i in range(n) for t in range(T) if t != optimal[i]]
    order = np.random.default_rng(seed).permutation(len(exchanges))[:EXCHANGES]
    selections = np.tile(optimal, (len(order), 1))
    for row, k in enumerate(order):
        selections[row, exchanges[k][0]] = exchanges[k][1]
    tokens, queries = (
        np.broadcast_to(part[b], (len(order), *part[b].shape))
        for part in (instances.data.tokens, instances.data.queries)
    )
    solutions = solve_batch(ProblemBatch(tokens, queries, selections))
    for row, k in enumerate(order):
        i = exchanges[k][0]
        if np.isfinite(solutions.objective[row]) and not solutions[row].support[i, optimal[i]]:
            return True
    return False


def planes(rows: Sequence[Row]) -> list[tuple[str, str, int, list[Row]]]:
    """Find the planes among rows: (varied, fixed, value of the fixed, rows), with the most common fixed value."""
    result = []
    for variable, fixed in (("n", "T"), ("T", "n")):
        others: dict[int, set[int]] = {}
        for row in rows:
            others.setdefault(row[fixed], set()).add(row[variable])
        value = max(others, key=lambda v, o=others: (len(o[v]), v == FIXED))
        if len(others[value]) > 1 or variable == "n":
            result.append((variable, fixed, value, [row for row in rows if row[fixed] == value]))
    return result


def shares(rows: Sequence[Row], part: str, key: str, variable: str) -> dict[tuple[int, int], tuple[int, int]]:
    """Count hits and trials of every cell, by (varied value, d)."""
    counts = {}
    for cell, own in by(having(rows, part=part), variable, "d").items():
        outcomes = [row[key] for row in own if row.get(key) is not None]
        if outcomes:
            counts[cell] = (sum(outcomes), len(outcomes))
    return counts


def half_way(
    counts: dict[tuple[int, int], tuple[int, int]], draw: np.random.Generator | None = None
) -> dict[int, float]:
    """Dimension at which the share passes one half, for each varied value; `draw` resamples every share.

    Resampled shares come from the posterior under Jeffreys' prior, in which 6 hits of 6 are no certainty.
    """
    crossings = {}
    for value in sorted({value for value, _ in counts}):
        column = sorted((d, *pair) for (other, d), pair in counts.items() if other == value)
        share = [h / m if draw is None else draw.beta(h + 0.5, m - h + 0.5) for _, h, m in column]
        at = crossing([d for d, _, _ in column], share)
        if np.isfinite(at):
            crossings[value] = at
    return crossings


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Compare both theoretical lines with the outcomes above and below, and fit where each share passes one half."""
    panels = [(LINES[0], PANELS[at]) for at in (1, 0)] + [(LINES[1], PANELS[at]) for at in (3, 4, 5, 7)]
    for (name, _, line), (part, key, what) in panels:
        own = [row for row in having(rows, part=part) if row[key] is not None]
        above = [row for row in own if row["d"] >= line(row["n"], row["T"])]
        below = [row for row in own if row["d"] < line(row["n"], row["T"])]
        for word, side, other in (("at or above", above, below), ("below", below, above)):
            if not side:
                continue
            hits = sum(bool(row[key]) for row in side)
            note = ""
            if word == "below" and other:
                share = sum(bool(row[key]) for row in other) / len(other)
                note = f"{what}: {share:.1%} of instances at or above the line {name}, {hits / len(side):.1%} below it."
            infeasible = sum(row["infeasible"] for row in side)
            yield share_verdict(NAME, f"{what}, {word} {name}", hits, len(side), infeasible=infeasible, note=note)
    for part in ("W", "KQ"):
        own = having(rows, part=part)
        if own:
            yield share_verdict(
                NAME, f"neither global nor local, {part}", sum(row["neither"] for row in own), len(own),
                infeasible=sum(row["infeasible"] for row in own),
                note=f"After {own[0]['steps']} steps, all cells together.",
            )  # fmt: skip
    for plane in planes(rows):
        yield from _thresholds(*plane)


@listed
def _thresholds(variable: str, fixed: str, value: int, rows: list[Row]) -> Iterator[Verdict]:
    """Fit the dimension at which each share passes one half as a power of the varied size."""
    for part, key, what in PANELS:
        counts = shares(rows, part, key, variable)
        at = half_way(counts)
        if len(at) < 3:
            continue
        rng = np.random.default_rng(0)
        draws = [half_way(counts, rng) for _ in range(300)]
        fits = [exponents(list(one.values()), list(one))[0] for one in draws if len(one) >= 3]
        low, high = np.nanquantile(fits, [0.025, 0.975])
        text = ", ".join(f"{variable} = {v}: {d:.1f}" for v, d in at.items())
        name, _, line = LINES[0] if "feasible" in key else LINES[1]
        ratios = [d / (line(v, value) if variable == "n" else line(value, v)) for v, d in at.items()]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        yield value_verdict(
            NAME, f"{what}: exponent of the half-way d in {variable}, {fixed}={value}",
            float(exponents(list(at.values()), list(at))[0]), float(low), float(high),
            trials=sum(m for _, m in counts.values()),
            note=f"Half of the instances at d: {text}; {spread} times {name[4:]}.",
        )  # fmt: skip


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw a heat map of every share in both planes, with the theoretical lines."""
    columns = 5
    with house_style():
        maps = [
            (variable, fixed, value, title, own, counts)
            for variable, fixed, value, own in planes(rows)
            for part, key, title in PANELS
            if (counts := shares(own, part, key, variable))
        ]
        down = max(1, -(-len(maps) // columns))
        result, axes = grid(down, columns, 1.6, "Share of random instances", width, narrow_columns=2)
        for ax in axes.ravel()[len(maps) :]:
            ax.set_visible(False)
        for ax, (variable, fixed, value, title, own, counts) in zip(axes.ravel(), maps, strict=False):
            xs, ys = sorted({row[variable] for row in own}), sorted({row["d"] for row in own})
            draw_map(ax, {cell: hits / m for cell, (hits, m) in counts.items()}, xs, ys)
            for label, style, line in LINES:
                draw_line(
                    ax, lambda x, v=variable, k=value, f=line: f(x, k) if v == "n" else f(k, x), xs, ys, style, label
                )
            ax.set_title(title, fontsize=8)
            ax.set_xlabel(f"{variable}   ({fixed} = {value})")
            if ax.get_subplotspec().is_first_col():
                ax.set_ylabel("d")
        if maps:
            panels = list(axes.ravel()[: len(maps)])
            result.colorbar(
                panels[0].collections[0], ax=panels, location="bottom", shrink=0.6, fraction=0.02, pad=0.01, aspect=40,
                label="share of instances",
            )  # fmt: skip
            legend_below(result, panels, 2)
    return result
