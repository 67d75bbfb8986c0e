"""How often training selects the globally optimal token of every sequence, as n, T and d vary (Fig. 6).

The best score leads by at least 0.1 in every sequence, as p. 53 states. Printed shares are multiples of 1/500 within
the reading error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from attsvm.plots.style import house_style
from attsvm.solvers.batching import solve_batch
from attsvm.training import train
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import estimate_verdict
from attsvm_paper.judging.estimates import Measure, estimates_by
from attsvm_paper.judging.grouping import by, having, panels_of
from attsvm_paper.judging.joint import JointTest, joint_test
from attsvm_paper.judging.points import Point, by_key, curve_points, next_values, swap
from attsvm_paper.judging.readings import Reading
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import SERIES, curve_of, draw_curve, grid, legend, value_axis
from attsvm_paper.published.instances import draw, start_seeds
from attsvm_paper.published.ledger import curve
from attsvm_paper.published.numerics import descent

NAME = "global-probability"
FIGURE = "Fig. 6"
DIMENSIONS = (5, 10, 15, 20, 25, 30)
TRIALS = 500
# Dimensions for the alternative with d off by one, which shows the joint test's power; beyond, little changes.
OFFSET_DIMENSIONS = (6, 11, 16)
OFFSET_TRIALS = 100
PARAMETERIZATIONS: tuple[Literal["W", "KQ"], ...] = ("W", "KQ")
PANELS = (("T = 5", ((5, 5), (10, 5), (20, 5))), ("n = 5", ((5, 5), (5, 10), (5, 20))))
SIZES = ((5, 5), (10, 5), (20, 5), (5, 10), (5, 20))
GAP = 0.1
MARGIN = 0.1
# Top probability above which attention counts as one-hot.
SATURATION = 0.999


@dataclass(frozen=True)
class Config:
    """One size, parameterisation and arithmetic."""

    n: int
    T: int
    d: int
    parameterization: Literal["W", "KQ"] = "W"
    numerics: Literal["exact", "published"] = "published"
    gap: float = GAP
    steps: int = 2000
    trials: int = TRIALS


def sweep(effort: Effort) -> list[Config]:
    """All sizes of the figure and neighbouring dimensions; a quick run omits two and takes a fifth of the trials."""
    full = effort == "full"
    sizes = DIMENSIONS if full else (5, 10, 20, 30)
    count, steps = (TRIALS, 2000) if full else (100, 1000)
    sweeps = ((sizes, count), ([d for d in OFFSET_DIMENSIONS if d - 1 in sizes], OFFSET_TRIALS))
    return [
        Config(n, T, d, p, steps=steps, trials=count)
        for dimensions, count in sweeps
        for n, T in SIZES
        for p in PARAMETERIZATIONS
        for d in dimensions
    ]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train, and compare the tokens of highest attention with the optimal ones."""
    instances = draw(seeds, config.n, config.T, config.d, config.gap)
    trace = train(
        instances.data,
        instances.v,
        steps=config.steps,
        init="torch",
        seed=start_seeds(seeds),
        **descent(config.numerics, config.parameterization),
    )
    hits = (trace.selected == instances.optimal).all(-1)
    attention = trace.attention[:, -1].max(-1).min(-1)
    feasible = hits.copy()
    failures = np.flatnonzero(~hits)
    if len(failures):
        problems = instances.problems(instances.optimal)
        feasible[failures] = np.isfinite(solve_batch([problems[int(b)] for b in failures]).objective)
    return [
        {"seed": int(seed), "global": bool(g), "attention": float(a), "feasible": bool(f)}
        for seed, g, a, f in zip(seeds, hits, attention, feasible, strict=True)
    ]


def _curves(rows: Sequence[Row]) -> dict[tuple[str, int, int], dict[int, list[Row]]]:
    """Group rows by curve and dimension."""
    groups = by(rows, "parameterization", "n", "T")
    return {curve: {d: cell for (d,), cell in by(cells, "d").items()} for curve, cells in groups.items()}


def _reference_curve(parameterization: str, n: int, T: int) -> Any:
    """Return the printed curve of a size, or None."""
    if (n, T) not in SIZES:
        return None
    return curve(f"Fig. 6a: {parameterization}, n={n}" if T == 5 else f"Fig. 6b: {parameterization}, T={T}")


def _main_rows(rows: Sequence[Row]) -> Sequence[Row]:
    """Omit the dimensions that only the joint test uses; all rows if there are no others."""
    return [row for row in rows if row["d"] not in OFFSET_DIMENSIONS] or rows


MEASURES = {"global": Measure("P(global)", "global", "share")}


estimates = estimates_by(("parameterization", "n", "T", "numerics", "gap", "d"), MEASURES, _main_rows)


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Compare every probability with the published one."""
    table = estimates(rows)
    for key, cell in table.cells.items():
        p, n, T, numerics, gap, d = key
        reference = _reference_curve(p, n, T) if gap == GAP and numerics == "published" else None
        others = ([] if gap == GAP else [f"gap {gap:g}"]) + ([] if numerics == "published" else ["exact numerics"])
        yield estimate_verdict(
            NAME, ", ".join([f"P(global), {p}, n={n}, T={T}, d={d}", *others]), table.of(key, "global"),
            published=None if reference is None else reference.at(d), margin=MARGIN,
            infeasible=sum(not row["feasible"] for row in cell),
        )  # fmt: skip


@listed
def points(rows: Sequence[Row], counts: Callable[[Row], bool] | None = None, offset: int = 0) -> Iterator[Point]:
    """Pair every printed probability with our trials at d + `offset`; `counts` selects trials."""

    def value(row: Row) -> float | None:
        return float(row["global"]) if counts is None or counts(row) else None

    for (p, n, T), cells in _curves(rows).items():
        reference = _reference_curve(p, n, T)
        if reference is not None:
            own = {d - offset: cell for d, cell in cells.items()}
            yield from curve_points(reference, own, value, MARGIN, "share")


def joint(rows: Sequence[Row]) -> list[JointTest]:
    """Test the whole figure, and state the power of the test."""
    gap_rows = having(rows, gap=GAP, numerics="published")
    main = points(gap_rows)
    partner = {one.place[0]: _swap(one.place[0]) for one in main}
    alternatives = {
        "d at the next grid value (5 further)": next_values(main),
        "d off by one": by_key(points(gap_rows, offset=1)),
        "W and (K, Q) swapped": swap(main, partner),
    }
    test = joint_test(NAME, FIGURE, main, alternatives, reading="published arithmetic, score gap 0.1 (p. 53)")
    return [] if test is None else [test]


def _swap(key: str) -> str:
    return key.replace(": KQ,", ": W,") if ": KQ," in key else key.replace(": W,", ": KQ,")


@listed
def readings() -> Iterator[Reading]:
    """Return the protocols tried: score gap, arithmetic with its step rule, and counted trials."""
    filters: dict[str, Callable[[Row], bool] | None] = {
        "none": None,
        "optimal tokens have an SVM": lambda row: row["feasible"],
        "attention settled": lambda row: row["attention"] >= SATURATION,
    }
    for gap in (0.0, GAP):
        for numerics in ("exact", "published"):
            cells = tuple(
                Config(n, T, d, p, numerics, gap, 1000, 100)
                for n, T in ((10, 5), (20, 5), (5, 20))
                for p in PARAMETERIZATIONS
                for d in (5, 10, 20)
            )
            for name, keep in filters.items():
                factors = {"score gap": f"{gap:g}", "arithmetic": numerics, "filter": name}
                yield Reading(FIGURE, factors, cells, lambda rows, keep=keep: points(rows, keep))


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw probabilities against dimension: n varies in the left column, T in the right; W above, (K, Q) below."""
    table, rows = estimates(rows), _main_rows(rows)
    with house_style():
        title = "Probability that training selects every globally optimal token (score gap at least 0.1)"
        panels = panels_of(rows, PANELS)
        result, axes = grid(2, len(panels), 2.4, title, width)
        for down, parameterization in enumerate(PARAMETERIZATIONS):
            for across, (title, sizes) in enumerate(panels):
                ax = axes[down, across]
                for look, (n, T) in enumerate(sizes):
                    # The first size is in both columns; the two other sizes of each column have separate colours.
                    own = (look if across == 0 or look == 0 else look + 2) % len(SERIES)
                    series = table.along("d", "global", parameterization=parameterization, n=n, T=T)
                    if series:
                        reference = _reference_curve(parameterization, n, T)
                        line = None if reference is None else reference.line_points
                        draw_curve(ax, curve_of(series, f"n = {n}, T = {T}", own, published=line))
                name = "training W" if parameterization == "W" else "training (K, Q)"
                ax.set_title(f"{name}, {title}")
                value_axis(ax, sorted({*DIMENSIONS, *(row["d"] for row in rows)}), "dimension d", log=False)
                ax.set_ylim(-0.03, 1.03)
                ax.set_ylabel("probability")
        legend(result, list(axes[0]), 4)
    return result
