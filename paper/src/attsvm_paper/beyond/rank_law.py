r"""Growth of the rank of the nuclear SVM with n, T and d.

A unique solution of :math:`\min \|W\|_*` under m active constraints is an extreme point, and a matrix of rank r lies
inside a face of the nuclear ball of dimension :math:`r(r+1)/2 - 1`. Hence :math:`r(r+1)/2 \le m` (the bound of
Barvinok, 1995, and Pataki, 1998, for the semidefinite form of the problem). Conversely, if the multipliers are unique,
the m constraints are independent on the tangent space of the matrices of rank r. Its dimension is :math:`r(p+q-r)` if
the token differences span p dimensions and the queries q, so :math:`m \le r(p+q-r)`.

The rank is measured between the two bounds, on solutions certified to 1e-12, along three axes. It is compared with the
rank that training (K, Q) of full width has reached: singular values above :data:`CUT` of the largest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from attsvm.core.correlation import correlation
from attsvm.core.status import Status
from attsvm.plots.style import INK, QUIET, house_style, is_wide, legend_below
from attsvm.training import train
from attsvm_paper.beyond.power_law import exponents
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import estimate_verdict, mean_verdict, share_verdict, value_verdict
from attsvm_paper.judging.estimates import Estimate, Measure, estimates_by
from attsvm_paper.judging.grouping import column, having
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import curve_of, draw_curve, grid, log_axis, value_axis
from attsvm_paper.published.instances import draw, start_seeds

NAME = "rank-law"
ACCURACY = 1e-12
# Ratio to the largest singular value above which a singular value of trained (K, Q) counts.
CUT = 0.02
N, T, D = 20, 5, 40
AXES = {"n": (5, 10, 20, 50, 100, 200), "T": (2, 5, 10, 20, 50), "d": (10, 20, 40, 80, 160)}
QUICK = {"n": (5, 10, 20, 50, 100), "T": (2, 5, 10, 20), "d": (10, 20, 40, 80)}


@dataclass(frozen=True)
class Config:
    """One size; `steps` is the number of training steps of (K, Q)."""

    n: int = N
    T: int = T
    d: int = D
    steps: int = 4000
    trials: int = 40

    def __post_init__(self) -> None:
        if min(self.n, self.d) < 1 or self.T < 2:
            raise ValueError(f"n, T, d are {self.n}, {self.T}, {self.d}; at least 1, 2 and 1 were expected.")


def sweep(effort: Effort) -> list[Config]:
    """Three axes through one point."""
    full = effort == "full"
    base = Config(trials=40 if full else 6, steps=4000 if full else 2000)
    axes = AXES if full else QUICK
    cells = [Config(**{**vars(base), name: value}) for name, values in axes.items() for value in values]
    return list(dict.fromkeys(cells))


def trials(config: Config, seeds: Any) -> list[Row]:
    """Solve for the optimal tokens; train (K, Q) and solve for the tokens it selects."""
    instances = draw(seeds, config.n, config.T, config.d)
    best = instances.solve(instances.optimal, "nuclear", tol=ACCURACY)
    trace = train(instances.data, instances.v, parameterization="KQ", steps=config.steps, seed=start_seeds(seeds))
    own = instances.solve(trace.selected, "nuclear", tol=ACCURACY)
    rows: list[Row] = []
    for b, seed in enumerate(np.asarray(seeds).tolist()):
        solution, end = best[b], own[b]
        row: Row = {
            "seed": seed,
            "infeasible": solution.status is Status.INFEASIBLE,
            "certified": solution.status is Status.OPTIMAL,
            "rank": None, "active": None, "trained_rank": None, "own_rank": None, "error": None,
        }  # fmt: skip
        if row["certified"]:
            row |= {"rank": solution.rank, "active": int(solution.support.sum())}
        if end.status is Status.OPTIMAL:
            sigma = np.linalg.svd(trace.W[b, -1], compute_uv=False)
            row |= {
                "own_rank": end.rank,
                "trained_rank": int((sigma > CUT * sigma[0]).sum()),
                "error": float(1 - correlation(trace.W[b, -1], end.W)),
            }
        rows.append(row)
    return rows


def most(active: float) -> int:
    """Largest rank r with r(r+1)/2 <= active."""
    return int((math.sqrt(8 * active + 1) - 1) / 2)


def least(active: float, p: int, q: int) -> int:
    """Smallest rank r with r(p+q-r) >= active."""
    return next((r for r in range(1, min(p, q)) if r * (p + q - r) >= active), min(p, q))


def bounds(row: Row) -> tuple[int, int]:
    """Return the least and the largest rank allowed by the active constraints of a certified row."""
    p, q = min(row["d"], row["n"] * (row["T"] - 1)), min(row["n"], row["d"])
    return least(row["active"], p, q), min(most(row["active"]), q)


def axes_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Split rows into axes: cells that differ in only one of n, T, d."""
    axes = {}
    for name in AXES:
        others = [other for other in AXES if other != name]
        groups: dict[tuple[int, ...], list[Row]] = {}
        for row in rows:
            groups.setdefault(tuple(row[other] for other in others), []).append(row)
        longest = max(groups.values(), key=lambda group, n=name: len({row[n] for row in group}))
        if len({row[name] for row in longest}) > 1 or not axes:
            axes[name] = longest
    return axes


def fitted(cells: Sequence[tuple[float, Any]]) -> tuple[float, float, float]:
    """Fit a power to mean values by cell, with a bootstrap over the trials of every cell."""
    x = [value for value, _ in cells]
    rng = np.random.default_rng(0)
    draws = [exponents([v[rng.integers(len(v), size=len(v))].mean() for _, v in cells], x)[0] for _ in range(1000)]
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(exponents([v.mean() for _, v in cells], x)[0]), float(low), float(high)


MEASURES = {
    "rank": Measure("certified nuclear rank", "rank", "mean"),
    "trained_rank": Measure("rank of trained (K, Q)", "trained_rank", "mean"),
}


estimates = estimates_by(("n", "T", "d"), MEASURES)


def _ranks_along(rows: Sequence[Row], name: str, own: Sequence[Row], measure: str) -> dict[int, Estimate]:
    """Return the estimates of a rank in the cells of an axis that have one."""
    table = estimates(rows)
    cells = sorted({tuple(row[key] for key in table.keys) for row in own})
    ranks = {cell[table.keys.index(name)]: table.of(cell, measure) for cell in cells}
    return {x: one for x, one in ranks.items() if one.count}


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Fit the exponents, and count how often the bounds hold and how tight they are."""
    feasible = [row for row in rows if row["certified"]]
    infeasible = sum(row["infeasible"] for row in rows)
    undecided = len(rows) - len(feasible) - infeasible
    inside = sum(bounds(row)[0] <= row["rank"] <= bounds(row)[1] for row in feasible)
    yield from [
        share_verdict(
            NAME, "rank between the bounds that the active constraints set", inside, len(feasible), trials=len(rows),
            discarded=undecided, infeasible=infeasible,
            note="r(r+1)/2 <= active constraints <= r(p+q-r), in every certified instance counted.",
        )
    ]  # fmt: skip
    if feasible:
        ratio = np.array([row["rank"] / most(row["active"]) for row in feasible])
        yield mean_verdict(
            NAME, "certified rank over the largest r with r(r+1)/2 <= active constraints", ratio, trials=len(rows),
            infeasible=infeasible, discarded=undecided,
            note=f"Between {ratio.min():.2f} and {ratio.max():.2f} in {len(feasible)} instances; of min(n, d) the "
            f"rank is {np.mean([row['rank'] / min(row['n'], row['d']) for row in feasible]):.0%} on average.",
        )  # fmt: skip
    for name, own in axes_of(rows).items():
        failures = sum(row["infeasible"] for row in own)
        for key, measure in MEASURES.items():
            ranks = _ranks_along(rows, name, own, key)
            if len(ranks) < 2:
                continue
            exponent, low, high = fitted([(value, one.values) for value, one in ranks.items()])
            text = ", ".join(f"{name} = {value}: {one.value:.2f}" for value, one in ranks.items())
            yield value_verdict(
                NAME, f"exponent of the {measure.words} in {name}", exponent, low, high, trials=len(own),
                infeasible=failures,
                note=f"Mean rank grows like {name}^{exponent:.2f}: {text}.",
            )  # fmt: skip
    for key, cell in estimates(rows).cells.items():
        n, T, d = key
        sure = [row for row in cell if row["certified"]]
        ranks = estimates(rows).of(key, "rank")
        if not ranks.count:
            continue
        lower, upper = (np.mean([bounds(row)[at] for row in sure]) for at in (0, 1))
        trained, own = column(cell, "trained_rank"), column(cell, "own_rank")
        note = f"Bounds {lower:.1f} and {upper:.1f}, min(n, d) = {min(n, d)}."
        if len(trained):
            note += (
                f" Trained (K, Q): {trained.mean():.2f} where its own SVM has {own.mean():.2f}, after "
                f"{cell[0]['steps']} steps (1 - correlation {np.median(column(cell, 'error')):.1e})."
            )
        yield estimate_verdict(
            NAME, f"{MEASURES['rank'].words}, n={n}, T={T}, d={d}", ranks, trials=len(cell),
            infeasible=sum(row["infeasible"] for row in cell), note=note,
        )  # fmt: skip


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw ranks and their bounds along every axis, on logarithmic scales."""
    axes_rows = axes_of(rows)
    with house_style():
        shape = (1, len(axes_rows)) if is_wide(width) else (len(axes_rows), 1)
        result, axes = grid(*shape, 2.9, "Rank of the nuclear SVM", width)
        for ax, (name, own) in zip(axes.ravel(), axes_rows.items(), strict=True):
            x = list(_ranks_along(rows, name, own, "rank"))
            for look, key, label in ((0, "rank", "certified"), (1, "trained_rank", "trained (K, Q)")):
                ranks = {value: one for value, one in _ranks_along(rows, name, own, key).items() if value in x}
                # A single trial has no interval.
                series = {
                    value: one if one.count > 1 else replace(one, low=one.value, high=one.value)
                    for value, one in ranks.items()
                }
                draw_curve(ax, curve_of(series, label, look), 0.03 * look)
            sure = [having(own, certified=True, **{name: value}) for value in x]
            low, high = ([float(np.mean([bounds(row)[at] for row in part])) for part in sure] for at in (0, 1))
            ax.plot(x, high, "--", color=QUIET, lw=1.2, label="r(r+1)/2 = active constraints")
            ax.plot(x, low, ":", color=QUIET, lw=1.2, label="r(p+q-r) = active constraints")
            ax.plot(x, [min(part[0]["n"], part[0]["d"]) for part in sure], "-", color=INK, lw=0.9, label="min(n, d)")
            others = ", ".join(f"{other} = {own[0][other]}" for other in AXES if other != name)
            log_axis(ax, "y")
            value_axis(ax, x or [1], name)
            ax.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
            ax.minorticks_off()
            ax.set_ylim(bottom=0.8)
            ax.set_title(others)
            ax.set_ylabel("mean rank")
        legend_below(result, list(axes.ravel()), 3)
    return result
