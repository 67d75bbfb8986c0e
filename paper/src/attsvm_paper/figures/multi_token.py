r"""Under a ReLU head several tokens are selected, and W is the SVM equivalent of this selection (Figs 8 and 11).

The published curves average over *accepted* draws. A draw is discarded, and replaced by a new one, in two cases: an
attention probability ends between 1e-6 and 1e-3 (unfinished training: *undecided*), or none ends below (*finite*). This
accepts one draw in four at d = 4 and one in fifty at d = 10: the plot shows a selection of draws that converge fast.
Pages 14 to 16 state the filter and call it a caveat; they do not state how few draws are accepted.

Many accepted draws have a query whose output is in the flat part of the ReLU. Such a query has no gradient, and its
attention drifts as the other queries change W. In the published arithmetic it stays, because ||W|| stops growing. In
exact training it moves to tokens that no Gen-SVM predicts; `dead` counts these queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from attsvm_paper.engine.experiment import Effort, Experiment
from attsvm_paper.judging.verdict import Row, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attsvm_paper.judging.joint import JointTest
    from attsvm_paper.judging.readings import Reading

NAME = "multi-token"
FIGURE = "Fig. 8"
DIMENSIONS = (4, 6, 8, 10)
SIZE = (3, 4)
WORDS = {"equivalent": "W^SVMeq", "mm": "W^mm", "single": "W^1token"}
TITLES = {"equivalent": "SVM equivalent", "mm": "max-margin part", "single": "SVM of the top tokens"}
# Iteration k of the official code is W after k + 1 steps.
ITERATIONS = tuple(range(0, 2001, 100))
MARKS = (200, 500, 1000, 1500, 2000)
# Fig. 11b: upper limits of the largest masked probability, as powers of ten.
THRESHOLDS = tuple(range(-16, -5))
# Margin of logarithms of distances: a third.
LOG_MARGIN = 0.33
# Numbers of draws that give about 500 accepted ones.
FULL_DRAWS = {4: 2300, 6: 4500, 8: 11_400, 10: 24_000}
QUICK_DRAWS = {4: 400, 6: 600, 8: 800, 10: 1000}
# Start of the scatter's axis: smaller probabilities are drawn there.
TINY = 10**-17.4
Numerics = Literal["exact", "published"]
NUMERICS: tuple[Numerics, ...] = ("exact", "published")
STATES = ("accepted", "undecided", "finite", "infeasible")


@dataclass(frozen=True)
class Config:
    """One dimension and arithmetic; `trials` counts draws, not accepted draws."""

    d: int
    numerics: Numerics = "published"
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
    """Train with the ReLU head, classify draws, and compare accepted ones with the SVM equivalent."""
    import numpy as np
    import torch

    from attsvm.core.correlation import correlation
    from attsvm.core.problem import SelectionProblem
    from attsvm.data.token_data import TokenData
    from attsvm.nn.heads import ReLUHead
    from attsvm.solvers.solving import solve
    from attsvm.theory.equivalence import MASKED, SELECTED_SHARE, EquivalenceStatus, svm_equivalent
    from attsvm.training import train
    from attsvm_paper.published.instances import start_seeds
    from attsvm_paper.published.numerics import descent

    instances = [instance(int(seed), config.n, config.T, config.d) for seed in seeds]
    tokens, queries, labels, V = (np.stack(part) for part in zip(*instances, strict=True))
    data, head = TokenData(tokens, queries, labels), ReLUHead(V)
    trace = train(
        data, head, steps=config.steps, init="torch", seed=start_seeds(seeds),
        record_every=sorted({min(step + 1, config.steps) for step in ITERATIONS}), **descent(config.numerics, "W"),
    )  # fmt: skip
    attention, W = trace.attention[:, -1], trace.W[:, -1]
    outputs = torch.as_tensor((attention[..., None, :] @ tokens)[..., 0, :])
    with torch.no_grad():
        dead = (head(outputs) == 0).sum(-1).tolist()
    rows: list[Row] = []
    for b, seed in enumerate(seeds):
        row: Row = {"seed": int(seed), "dead": dead[b], "norm": float(np.linalg.norm(W[b]))}
        row |= dict.fromkeys(("equivalent", "mm", "single", "step", "masked", "selected"))
        own = attention[b]
        if ((own > MASKED) & (own <= SELECTED_SHARE)).any():
            row["state"] = "undecided"
        elif (own > MASKED).all():
            row["state"] = "finite"
        else:
            equivalent = svm_equivalent(data[b], own, W[b], coefficient="least-squares")
            single = solve(SelectionProblem(tokens[b], queries[b], own.argmax(-1)))
            good = equivalent.status is EquivalenceStatus.FOUND and bool(np.isfinite(single.objective))
            row["state"] = "accepted" if good else "infeasible"
            if good:
                row["step"] = trace.step[1:].tolist()
                for name, target in (("equivalent", equivalent.W), ("mm", equivalent.W_mm), ("single", single.W)):
                    row[name] = (1 - correlation(trace.W[b, 1:], np.asarray(target)[None])).tolist()
                row["masked"] = float(own[~equivalent.selected].max())
                row["selected"] = float(equivalent.selected.sum(-1).mean())
        rows.append(row)
    return rows


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Compare distances with the published ones, see :mod:`attsvm_paper.figures.multi_token_verdicts`."""
    from attsvm_paper.figures.multi_token_verdicts import verdicts

    return verdicts(rows)


def joint(rows: Sequence[Row]) -> list[JointTest]:
    """Test each figure as a whole."""
    from attsvm_paper.figures.multi_token_verdicts import joint

    return joint(rows)


def readings() -> list[Reading]:
    """Return the protocols tried."""
    from attsvm_paper.figures.multi_token_verdicts import readings

    return readings()


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw distances along training for every dimension, the classification of draws, and the masking threshold."""
    import numpy as np

    from attsvm.plots.style import house_style
    from attsvm_paper.figures.multi_token_verdicts import below, end, printed_curve, printed_scatter
    from attsvm_paper.judging.grouping import by, having
    from attsvm_paper.judging.points import FEWEST
    from attsvm_paper.judging.statistics import bootstrap_interval, wilson_interval
    from attsvm_paper.plots.experiments import SERIES, Curve, draw_curve, grid, legend, log_axis, own_legend, value_axis
    from attsvm_paper.published.ledger import curve

    def along(ax: Any, sample: Sequence[Row], d: int, style: str, has_reference: bool) -> None:
        for look, what in enumerate(WORDS):
            table = np.array([row[what] for row in sample])
            low, high = zip(*(bootstrap_interval(part, resamples=400) for part in table.T), strict=True)
            label = TITLES[what] if style == "-" else ""
            ours = Curve(label, sample[0]["step"], table.mean(0).tolist(), low, high, look, None, style)
            line = printed_curve(d, what)
            if has_reference and line is not None:
                x, y = (np.array(part, dtype=float) for part in line.line_points)
                ax.plot(x[x > 0] + 1, y[x > 0], "--", color=SERIES[look][0], lw=1.3, zorder=2)
            draw_curve(ax, ours)

    def scatter(ax: Any, sample: Sequence[Row], d: int, has_reference: bool) -> None:
        look = {"s": 7, "linewidths": 0.6, "rasterized": True}
        if has_reference and d in DIMENSIONS:
            theirs = printed_scatter(d)
            ax.scatter(
                theirs["x"],
                [10.0**y for y in theirs["y"]],
                facecolors="none",
                edgecolors=SERIES[5][0],
                label="published draw",
                **look,
            )
        ours = [(math.log10(max(row["masked"], TINY)), end(row)) for row in sample]
        if ours:
            ax.scatter(*zip(*ours, strict=True), color=SERIES[0][0], alpha=0.6, label="accepted draw of ours", **look)
        log_axis(ax, "y")
        ax.set_xlim(-17.5, -5.8)
        ax.set_ylim(1e-4, 1)
        ax.set_xlabel("log10 of the largest masked probability")
        ax.set_ylabel("1 - correlation")
        ax.set_title(f"SVM equivalent by draw, d = {d}")

    main = "published" if having(rows, numerics="published") else "exact"
    cells = {d: cell for (d,), cell in by(having(rows, numerics=main), "d").items()}
    with house_style():
        n, T = rows[0]["n"], rows[0]["T"]
        title = f"Several tokens under a ReLU head, n = {n}, T = {T}, 2000 normalised steps"
        down = -(-len(cells) // 2)
        result, axes = grid(2 * down + 1, 2, 2.5, title, width)
        evolving, scatters = axes[:down].ravel(), axes[down : 2 * down].ravel()
        for ax, cloud, d in zip(evolving, scatters, cells, strict=False):
            has_reference = (n, T) == SIZE and main == "published"
            for numerics in dict.fromkeys((main, "exact")):
                sample = having(rows, numerics=numerics, d=d, state="accepted")
                if len(sample) > 1:
                    along(ax, sample, d, "-" if numerics == main else ":", has_reference and numerics == main)
            log_axis(ax, "y")
            ax.set_ylim(2e-3, 1)
            ax.set_xlim(60, ITERATIONS[-1] * 1.05)
            ax.set_xlabel("training step")
            ax.set_ylabel("mean 1 - correlation")
            ax.set_title(f"accepted draws, d = {d}")
            scatter(cloud, having(rows, numerics=main, d=d, state="accepted"), d, has_reference)
        for ax in (*evolving[len(cells) :], *scatters[len(cells) :]):
            ax.remove()
        fates, masked = axes[2 * down]
        for look, state in enumerate(STATES[:3], start=3):
            pairs = [(len(having(cell, state=state)), len(cell)) for cell in cells.values()]
            low, high = zip(*(wilson_interval(*pair) for pair in pairs), strict=True)
            share, low, high = ([100 * part for part in parts] for parts in ([a / b for a, b in pairs], low, high))
            draw_curve(fates, Curve(state, list(cells), share, low, high, look))
        fates.set_ylabel("share of draws (%)")
        fates.set_ylim(-3, 103)
        fates.set_title("what becomes of a draw")
        value_axis(fates, list(cells), "dimension d", log=False)
        for look, (d, cell) in enumerate(cells.items()):
            look = look % len(SERIES)
            ends = {t: [end(row) for row in cell if below(row, t) is not None] for t in THRESHOLDS}
            ends = {t: np.array(values, dtype=float) for t, values in ends.items() if len(values) >= FEWEST}
            line = curve(f"Fig. 11b: d={d}").line_points if d in DIMENSIONS and (n, T) == SIZE else None
            bounds = [bootstrap_interval(values) for values in ends.values()]
            mean = [float(values.mean()) for values in ends.values()]
            low, high = [low for low, _ in bounds], [high for _, high in bounds]
            draw_curve(masked, Curve(f"d = {d}", list(ends), mean, low, high, look, line))
        log_axis(masked, "y")
        masked.set_xlabel("log10 of the masking threshold")
        masked.set_ylabel("mean 1 - correlation")
        masked.set_title("SVM equivalent by threshold")
        own_legend(fates)
        own_legend(masked)
        legend(result, list(axes[: 2 * down].ravel()), 3, "ours, exact arithmetic")
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
    # Processor seconds of the full run, divided by two cores; the quick time in proportion to trials.
    minutes={"quick": 0.4, "full": 4.1},
    batch=200,
    joint=joint,
    readings=readings,
)
