r"""Several tokens survive under a ReLU head, and W is the SVM equivalent of what it selects (Figs 8 and 11).

The published curves average over *accepted* draws. A draw is thrown away when an attention probability ends between
1e-6 and 1e-3 (training is unfinished: *undecided*) or when none ends below (*finite*), and another one is made. That
keeps one draw in five at d = 4 and one in fifty at d = 10, and a selection of those that converge fast is what is
plotted.

Many accepted draws have a query whose output is in the flat part of the ReLU. Nothing holds its tokens together: it
has no gradient, and its attention drifts with what the other queries do to W. In the published arithmetic it stays
where it is because ||W|| stops growing. Trained on exactly, it goes to tokens that no Gen-SVM predicts; `dead` counts
such queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from attsvm.experiments.experiment import Effort, Experiment, Row, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "multi-token"
DIMENSIONS = (4, 6, 8, 10)
PUBLISHED_TRIALS = 500
PUBLISHED_SIZE = (3, 4)
# Figs 8 and 11: mean 1 - correlation of accepted draws, in the paper and, where it differs, in its notebook.
PUBLISHED = {
    "equivalent": {4: (0.029, 0.034), 6: (0.0165, 0.0165), 8: (0.0070, 0.011), 10: (0.0055, 0.0056)},
    "mm": {4: (0.07, 0.07), 6: (0.043, 0.043), 8: (0.015, 0.015), 10: (0.0087, 0.0087)},
    "single": {4: (0.155, 0.155), 6: (0.145, 0.145), 8: (0.135, 0.135), 10: (0.12, 0.12)},
}
TITLES = {"equivalent": "SVM equivalent", "mm": "max-margin part", "single": "SVM of the top tokens"}
READING = 0.0005
# Standard deviations over accepted draws among 1500. The distributions are so skewed (one run in a hundred is 20 times
# the mean) that the deviation of a few dozen underestimates the error of their mean.
DEVIATION = {
    "equivalent": {4: 0.050, 6: 0.036, 8: 0.022, 10: 0.025},
    "mm": {4: 0.15, 6: 0.079, 8: 0.11, 10: 0.025},
    "single": {4: 0.16, 6: 0.14, 8: 0.15, 10: 0.08},
}
# Draws that leave about 500 accepted ones.
FULL_DRAWS = {4: 2300, 6: 4500, 8: 11_400, 10: 24_000}
QUICK_DRAWS = {4: 400, 6: 600, 8: 800, 10: 1000}
STATES = ("accepted", "undecided", "finite", "infeasible")


@dataclass(frozen=True)
class Config:
    """One dimension and arithmetic; `trials` are draws, not accepted draws."""

    d: int
    numerics: Literal["exact", "published"] = "published"
    n: int = 3
    T: int = 4
    steps: int = 2001
    trials: int = 500


def sweep(effort: Effort) -> list[Config]:
    """Return the published protocol at all dimensions, and exact training at the two smallest."""
    draws = FULL_DRAWS if effort == "full" else QUICK_DRAWS
    exact = {4: 1000, 6: 1000} if effort == "full" else {4: 200, 6: 200}
    return [Config(d, trials=draws[d]) for d in DIMENSIONS] + [
        Config(d, "exact", trials=count) for d, count in exact.items()
    ]


def instance(seed: int, n: int, T: int, d: int) -> tuple[Any, Any, Any, Any]:
    """Draw tokens (n, T, d), queries, labels with at least one -1, and hidden weights V (d, d) of norm one."""
    import numpy as np

    from attsvm.data.synthetic import random_trial

    rng = np.random.default_rng(seed)
    tokens, queries, labels, _ = random_trial(rng, n, T, d)
    while (labels == 1).all():
        labels = rng.choice(np.array([-1.0, 1.0]), n)
    V = rng.standard_normal((d, d))
    return tokens, queries, labels, V / np.linalg.norm(V)


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train under the ReLU head, sort draws, and compare accepted ones with the SVM equivalent."""
    import numpy as np
    import torch

    from attsvm.core.correlation import correlation
    from attsvm.core.problem import SelectionProblem
    from attsvm.data.token_data import TokenData
    from attsvm.experiments.instances import start_seeds
    from attsvm.experiments.published_numerics import descent
    from attsvm.nn.heads import ReLUHead
    from attsvm.solvers.solving import solve
    from attsvm.theory.equivalence import MASKED, SELECTED, EquivalenceStatus, svm_equivalent
    from attsvm.training import train

    drawn = [instance(int(seed), config.n, config.T, config.d) for seed in seeds]
    tokens, queries, labels, V = (np.stack(part) for part in zip(*drawn, strict=True))
    data, head = TokenData(tokens, queries, labels), ReLUHead(V)
    trace = train(
        data, head, steps=config.steps, init="torch", seed=start_seeds(seeds), **descent(config.numerics, "W")
    )
    attention, W = trace.attention[:, -1], trace.W[:, -1]
    outputs = torch.as_tensor((attention[..., None, :] @ tokens)[..., 0, :])
    with torch.no_grad():
        dead = (head(outputs) == 0).sum(-1).tolist()
    rows: list[Row] = []
    for b, seed in enumerate(seeds):
        row: Row = {"seed": int(seed), "dead": dead[b], "norm": float(np.linalg.norm(W[b]))}
        row |= dict.fromkeys(("equivalent", "mm", "single", "masked", "selected"))
        own = attention[b]
        if ((own > MASKED) & (own <= SELECTED)).any():
            row["state"] = "undecided"
        elif (own > MASKED).all():
            row["state"] = "finite"
        else:
            found = svm_equivalent(data[b], own, W[b], coefficient="least-squares")
            single = solve(SelectionProblem(tokens[b], queries[b], own.argmax(-1)))
            good = found.status is EquivalenceStatus.FOUND and bool(np.isfinite(single.objective))
            row["state"] = "accepted" if good else "infeasible"
            if good:
                row["equivalent"] = 1 - found.correlation
                row["mm"] = float(1 - correlation(W[b], found.W_mm))
                row["single"] = float(1 - correlation(W[b], single.W))
                row["masked"] = float(own[~found.selected].max())
                row["selected"] = float(found.selected.sum(-1).mean())
        rows.append(row)
    return rows


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Hold the means over accepted draws against the published ones, and say how many were accepted."""
    from attsvm.experiments.grouping import by, column, having
    from attsvm.experiments.statistics import mean_verdict, share_verdict

    found = []
    for (numerics, d), cell in by(rows, "numerics", "d").items():
        kept = having(cell, state="accepted")
        infeasible = len(having(cell, state="infeasible"))
        discarded = len(cell) - len(kept) - infeasible
        counts = {state: len(having(cell, state=state)) for state in STATES}
        alive = having(kept, dead=0)
        for what, values in PUBLISHED.items():
            paper, notebook = values.get(d, (None, None))
            if (cell[0]["n"], cell[0]["T"]) != PUBLISHED_SIZE or numerics == "exact":
                # The printed curve depends on a choice of 500 runs in the arithmetic that froze them.
                paper = None
            errors = column(kept, what)
            found.append(
                mean_verdict(
                    NAME,
                    f"1 - correlation with the {TITLES[what]}, d={d}, {numerics} numerics",
                    errors,
                    published=paper,
                    published_trials=PUBLISHED_TRIALS,
                    published_deviation=_deviation(errors, DEVIATION[what].get(d, 0.0)),
                    rounding=READING + abs((paper or 0.0) - (notebook or 0.0)),
                    interval="bootstrap",
                    trials=len(cell),
                    discarded=discarded,
                    infeasible=infeasible,
                    note="" if numerics == "published" else _drift(alive, what),
                )
            )
        found.append(
            share_verdict(
                NAME,
                f"draws accepted, d={d}, {numerics} numerics",
                len(kept),
                len(cell),
                infeasible=infeasible,
                note=f"{counts['undecided']} undecided, {counts['finite']} finite, {infeasible} infeasible. "
                f"{len(kept) - len(alive)} of {len(kept)} accepted draws have a query without gradient.",
            )
        )
    return found


def _deviation(errors: Any, known: float) -> float:
    """Return the published deviation that makes up for ours being estimated from few draws."""
    if len(errors) < 2:
        return known
    ours = errors.var(ddof=1)
    true = max(known**2, ours)
    return float((true + (true - ours) * PUBLISHED_TRIALS / len(errors)) ** 0.5)


def _drift(alive: Sequence[Row], what: str) -> str:
    from attsvm.experiments.grouping import column

    if not alive:
        return "Queries in the flat part of the ReLU have no gradient and drift."
    return (
        "Queries in the flat part of the ReLU have no gradient and drift; without them the mean is "
        f"{column(alive, what).mean():.3g} ({len(alive)} draws)."
    )


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw mean errors and what became of the draws against dimension, and the published scatter."""
    from attsvm.experiments.grouping import by, column, having
    from attsvm.experiments.statistics import bootstrap_interval, wilson_interval
    from attsvm.plots.experiments import SERIES, Curve, draw_curve, grid, legend, log_axis, value_axis
    from attsvm.plots.style import QUIET, house_style

    with house_style():
        n, T = rows[0]["n"], rows[0]["T"]
        title = f"Several tokens under a ReLU head, n = {n}, T = {T}, 2000 normalised steps"
        result, axes = grid(1, 3, 3.0, title, width)
        errors, fates, scatter = axes[0]
        for numerics, style in (("published", "-"), ("exact", ":")):
            own = having(rows, numerics=numerics)
            for look, (what, values) in enumerate(PUBLISHED.items()):
                cells = {d: column(cell, what) for (d,), cell in by(own, "d").items()}
                cells = {d: known for d, known in cells.items() if len(known) > 1}
                if not cells:
                    continue
                low, high = zip(*(bootstrap_interval(known) for known in cells.values()), strict=True)
                line = (
                    (DIMENSIONS, [paper for paper, _ in values.values()])
                    if style == "-" and (n, T) == PUBLISHED_SIZE
                    else None
                )
                label = TITLES[what] if style == "-" else ""
                mean = [float(known.mean()) for known in cells.values()]
                draw_curve(errors, Curve(label, list(cells), mean, low, high, look, line, style), 0.01 * (look - 1))
        log_axis(errors, "y")
        errors.set_ylim(1e-3, 1)
        errors.set_ylabel("mean 1 - correlation\n(accepted draws)")
        errors.set_title("distance from W")
        main = "published" if having(rows, numerics="published") else "exact"
        cells = by(having(rows, numerics=main), "d")
        for look, state in enumerate(STATES[:3], start=2):
            pairs = [(len(having(cell, state=state)), len(cell)) for cell in cells.values()]
            low, high = zip(*(wilson_interval(*pair) for pair in pairs), strict=True)
            curve = Curve(
                f"draws {state}",
                [d for (d,) in cells],
                [100 * a / b for a, b in pairs],
                [100 * a for a in low],
                [100 * a for a in high],
                look + (look > 2),
            )
            draw_curve(fates, curve)
        fates.set_ylabel("share of draws (%)")
        fates.set_ylim(-3, 103)
        fates.set_title("what becomes of a draw")
        dimensions = sorted({row["d"] for row in rows})
        for ax in (errors, fates):
            value_axis(ax, dimensions, "dimension d", log=False)
        for look, d in enumerate(dimensions[:2]):
            kept = having(rows, numerics=main, state="accepted", d=d)
            color, marker = SERIES[look]
            x = [max(row["masked"], 1e-20) for row in kept]
            scatter.plot(
                x, [row["equivalent"] for row in kept], marker, color=color, ms=2.5, alpha=0.7, label=f"d = {d}"
            )
        scatter.axvline(1e-6, color=QUIET, lw=0.7, ls=":")
        log_axis(scatter, "x")
        log_axis(scatter, "y")
        scatter.set_xlim(1e-18, 1e-5)
        scatter.set_ylim(1e-5, 1)
        scatter.set_xlabel("largest masked probability")
        scatter.set_ylabel("1 - correlation\nwith the SVM equivalent")
        scatter.set_title("accepted draws")
        legend(result, list(axes[0]), 3, "ours, exact arithmetic")
    return result


EXPERIMENT = Experiment(
    name=NAME,
    title="Several tokens under a ReLU head",
    source="Figs 8 and 11",
    claim="Where a nonlinear head keeps several tokens, W is close to W_fin + c W_mm, and far from any one-token SVM.",
    config=Config,
    sweep=sweep,
    trials=trials,
    figure=figure,
    verdicts=verdicts,
    instance=("n", "T", "d"),
    # Quick as measured with two workers; full extrapolated from its rate.
    minutes={"quick": 0.6, "full": 6.0},
    batch=200,
)
