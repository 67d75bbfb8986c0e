r"""A concave head selects the sparsemax of the scores (Figs 9 and 12, Lemma 6).

One sequence of orthonormal tokens, label 1, head :math:`v^\top x - \lambda\|x\|^2`. The best attention is
:math:`\mathrm{sparsemax}(\gamma/2\lambda)`. The number of selected tokens is therefore known exactly, for any
decreasing loss. Trained attention agrees with it; the printed numbers are larger from :math:`\lambda = 1` on.

The filter of p. 16 explains the sign of this difference but not its size. It omits instances with an output between an
edge and 1e-3. The stated edge of 1e-8 leaves almost only instances that select every token, because masked tokens decay
slowly (median 1e-4 at :math:`\lambda = 1`). An edge near 6e-5, fitted to the figure, comes nearest to the printed
numbers, but no edge gives them within their errors. The edge that was used is unknown.

W is compared with the SVM equivalent of the tokens above 1e-3; every other token counts as masked.

For Fig. 12 the paper states neither the distribution of the random lambda nor the filter: ours is uniform and counts
the tokens that Lemma 6 selects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from attsvm_paper.engine.experiment import Effort, Experiment
from attsvm_paper.judging.verdict import Row, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attsvm_paper.judging.joint import JointTest
    from attsvm_paper.judging.readings import Reading

NAME = "lambda-head"
TRIALS = 100
SIZE = (10, 10)
LAMBDAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.5, 2.8, 3.0)
ERROR_LAMBDAS = (0.0, 0.1, 0.2, 1.0)
TAUS = tuple(range(2, 10))
TAU_TRIALS = 500
LARGEST_LAMBDA = 2.5
LEMMA_DRAWS = 1000
# Iterations of Fig. 9b and c; as in the official code, iteration k is W after k + 1 steps.
ITERATIONS = (*range(0, 700, 100), *range(800, 5001, 200))
STEPS = ITERATIONS[-1] + 1
# Number of steps after which tokens are first counted.
EARLY = 1001
SELECTED, MASKED = 1e-3, 1e-8
Numerics = Literal["exact", "published", "lemma"]


@dataclass(frozen=True)
class Config:
    """One lambda and arithmetic; "lemma" only counts the tokens of Lemma 6, and `tau` > 1 draws lambda too."""

    lam: float
    numerics: Numerics = "exact"
    tau: int = 0
    T: int = 10
    d: int = 10
    steps: int = STEPS
    trials: int = TRIALS


def sweep(effort: Effort) -> list[Config]:
    """Return all values of lambda, published arithmetic for Fig. 9b, and Lemma 6 with no training."""
    full = effort == "full"
    lambdas = sorted({*LAMBDAS, *ERROR_LAMBDAS}) if full else (0.0, 0.1, 0.2, 0.4, 0.6, 1.0, 1.2, 1.4, 2.0, 3.0)
    return [
        # The filter accepts at least a fifth of the trials.
        *(Config(lam, trials=4 * TRIALS if full else TRIALS) for lam in lambdas),
        *(Config(lam, "published") for lam in ERROR_LAMBDAS),
        *(Config(lam, "lemma", steps=0, trials=LEMMA_DRAWS) for lam in LAMBDAS),
        *(Config(0.0, "lemma", tau=tau, steps=0, trials=TAU_TRIALS if full else TRIALS) for tau in TAUS),
    ]


def instance(seed: int, T: int, d: int) -> tuple[Any, Any, Any]:
    """Draw orthonormal tokens (1, T, d), a query (1, d) and v (d,) on the sphere."""
    import numpy as np

    from attsvm.data.synthetic import random_trial

    rng = np.random.default_rng(seed)
    _, queries, _, v = random_trial(rng, 1, 1, d)
    tokens = np.linalg.qr(rng.standard_normal((d, T)))[0].T
    return tokens[None], queries, v


def best_attention(tokens: Any, v: Any, lam: float) -> Any:
    """Return the attention that maximises the head, (B, T): sparsemax of the scores over 2 lambda."""
    import torch

    from attsvm.functional import sparsemax

    gamma = torch.as_tensor((tokens[:, 0] @ v[..., None])[..., 0])
    if lam == 0:
        return torch.nn.functional.one_hot(gamma.argmax(-1), gamma.shape[-1]).double().numpy()
    return sparsemax(gamma / (2 * lam)).numpy()


def constrained(seed: int, tau: int, T: int, d: int) -> tuple[float, Any, Any]:
    """Draw lambda in (0, 2.5) and an instance until tau gap_tau / 2 > lambda > gap_1 (eq. 8): lambda, tokens, v."""
    import numpy as np

    rng = np.random.default_rng(seed)
    while True:
        tokens, _, v = instance(int(rng.integers(2**62)), T, d)
        gamma = np.sort(tokens[0] @ v)[::-1]
        gaps = gamma[:-1] - gamma[1:]
        lam = LARGEST_LAMBDA * rng.random()
        if tau * gaps[tau - 1] / 2 > lam > gaps[0]:
            return lam, tokens, v


def trials(config: Config, seeds: Any) -> list[Row]:
    """Train with the lambda-head; compare attention with sparsemax and W with the SVM equivalent."""
    import numpy as np

    from attsvm.data.token_data import TokenData
    from attsvm.nn.heads import LambdaHead
    from attsvm.training import train
    from attsvm_paper.published.instances import start_seeds
    from attsvm_paper.published.numerics import descent

    if config.tau:
        rows: list[Row] = []
        for seed in seeds:
            if config.tau >= min(config.T, config.d + 1):  # a gap that so few tokens do not have
                rows.append({"seed": int(seed), "lemma": None, "drawn": None})
                continue
            lam, one, v = constrained(int(seed), config.tau, config.T, config.d)
            number = int((best_attention(one[None], v[None], lam)[0] > 0).sum())
            rows.append({"seed": int(seed), "lemma": number, "drawn": lam})
        return rows
    tokens, queries, v = (
        np.stack(part) for part in zip(*(instance(int(s), config.T, config.d) for s in seeds), strict=True)
    )
    best = best_attention(tokens, v, config.lam)
    if config.numerics == "lemma":
        return [{"seed": int(seed), "lemma": int(count)} for seed, count in zip(seeds, (best > 0).sum(-1), strict=True)]
    data = TokenData(tokens, queries, np.ones((len(seeds), 1)))
    records = sorted({min(step + 1, config.steps) for step in (*ITERATIONS, EARLY - 1)})
    trace = train(
        data, LambdaHead(v, config.lam), steps=config.steps, init="torch", seed=start_seeds(seeds),
        record_every=records, **descent(config.numerics, "W"),
    )  # fmt: skip
    attention, step = trace.attention[:, :, 0], trace.step.tolist()
    early = step.index(min(EARLY, config.steps))
    rows = []
    for b, seed in enumerate(seeds):
        own = attention[b, -1]
        number = own > SELECTED
        rows.append(
            {
                "seed": int(seed),
                "count": int(number.sum()),
                "early": int((attention[b, early] > SELECTED).sum()),
                "lemma": int((best[b] > 0).sum()),
                "off": float(np.abs(own - best[b]).max()),
                "masked": None if number.all() else float(own[~number].max()),
                "decided": bool((number | (own < MASKED)).all()),
                "step": step[1:],
                **_errors(data[b], own, trace.W[b]),
            }
        )
    return rows


def _errors(data: Any, attention: Any, W: Any) -> Row:
    """Return 1 - correlation of each record (r, d, d) after the start with the last SVM equivalent and its part."""
    from attsvm.core.correlation import correlation
    from attsvm.theory.equivalence import EquivalenceStatus, svm_equivalent

    nothing = {"equivalent": None, "mm": None}
    if (attention > SELECTED).all():
        return nothing
    equivalent = svm_equivalent(
        data, attention[None], W[-1], coefficient="least-squares", selected_above=SELECTED, masked_below=SELECTED
    )
    if equivalent.status is not EquivalenceStatus.FOUND:
        return nothing
    pair = (("equivalent", equivalent.W), ("mm", equivalent.W_mm))
    return {name: (1 - correlation(W[1:], target[None])).tolist() for name, target in pair}


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Compare counts and distances with the published ones, see :mod:`attsvm_paper.figures.lambda_verdicts`."""
    from attsvm_paper.figures.lambda_verdicts import verdicts

    return verdicts(rows)


def joint(rows: Sequence[Row]) -> list[JointTest]:
    """Test each figure as a whole."""
    from attsvm_paper.figures.lambda_verdicts import joint

    return joint(rows)


def readings() -> list[Reading]:
    """Return the filters tried."""
    from attsvm_paper.figures.lambda_verdicts import readings

    return readings()


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw counts against lambda, distances of W against training, and counts under the constraint on tau."""
    import numpy as np

    from attsvm.plots.style import house_style
    from attsvm_paper.figures.lambda_verdicts import (
        DISTRIBUTIONS,
        EDGE,
        NINE_A,
        by_count,
        error_curve,
        number_curve,
        passes,
    )
    from attsvm_paper.judging.grouping import by, column, having
    from attsvm_paper.judging.statistics import bootstrap_interval, mean_interval, wilson_interval
    from attsvm_paper.plots.experiments import SERIES, Curve, draw_curve, grid, legend, log_axis, own_legend
    from attsvm_paper.published.ledger import curve

    def draw(ax: Any, cells: dict[Any, Any], label: str, look: int, line: Any = None, **extra: Any) -> None:
        samples = {x: np.asarray(values, dtype=float) for x, values in cells.items() if len(values) > 1}
        if samples:
            low, high = zip(*(mean_interval(values) for values in samples.values()), strict=True)
            mean = [float(values.mean()) for values in samples.values()]
            draw_curve(ax, Curve(label, list(samples), mean, low, high, look, **extra), line=line)

    def banded(key: str) -> Any:
        reference = curve(key)
        x, y, sd = (np.array(part, dtype=float) for part in (*reference.line_points, reference.band))
        return x, y, [y - sd, y + sd]

    def errors(ax: Any, cell: Sequence[Row], name: str, label: str, look: int, key: str, style: str) -> None:
        sample = [row for row in cell if row[name] is not None]
        if len(sample) > 1 and sample[0]["step"]:
            table = np.array([row[name] for row in sample])
            low, high = zip(*(bootstrap_interval(part, resamples=400) for part in table.T), strict=True)
            draw_curve(ax, Curve(label, sample[0]["step"], table.mean(0).tolist(), low, high, look, None, style))
            if key:
                x, y = (np.array(part, dtype=float) for part in curve(key).line_points)
                keep = x > 0
                ax.plot(x[keep] + 1, y[keep], "--", color=SERIES[look][0], lw=1.3, zorder=2)

    trained = [row for row in rows if row["numerics"] != "lemma" and not row["tau"]]
    exact = having(trained, numerics="exact")
    free = [row for row in rows if row["numerics"] == "lemma" and not row["tau"]]
    bound = [row for row in rows if row["tau"]]
    with house_style():
        T, has_reference = rows[0]["T"], (rows[0]["T"], rows[0]["d"]) == SIZE
        title = rf"Head $v^\top\!x-\lambda\|x\|^2$ on one sequence of {T} orthonormal tokens, normalised descent"
        result, axes = grid(3, 2, 2.6, title, width)
        (counts, distances), (numbers, lambdas), (taus, shares) = axes
        cells = {lam: cell for (lam,), cell in by(exact, "lam").items()}
        line = banded(NINE_A) if has_reference else None
        draw(counts, {lam: column(cell, "count") for lam, cell in cells.items()}, "all trials", 0, line)
        subset = {lam: [row["count"] for row in cell if passes(row, EDGE)] for lam, cell in cells.items()}
        draw(counts, subset, "without outputs in (7e-5, 1e-3]", 5, style=":")
        lemma = {lam: column(cell, "lemma") for (lam,), cell in by(free, "lam").items()}
        draw(counts, lemma, "sparsemax (Lemma 6)", 4)
        counts.set_ylim(0, T + 0.7)
        counts.set_ylabel("mean number of tokens")
        counts.set_xlabel(r"$\lambda$")
        counts.set_title("how many tokens survive")
        sample = exact or trained
        for look, lam in enumerate(ERROR_LAMBDAS):
            cell = having(sample, lam=lam)
            for name, style in (("equivalent", "-"), ("mm", ":")):
                label = rf"$\lambda$ = {lam:g}" if style == "-" else ""
                errors(distances, cell, name, label, look, error_curve(lam, name) if has_reference else "", style)
        for look, count in enumerate(by_count(exact) if has_reference else ()):
            cell = [row for row in exact if row["count"] == count]
            for name, style in (("equivalent", "-"), ("mm", ":")):
                label = f"{count} token{'s' * (count > 1)}" if style == "-" else ""
                errors(numbers, cell, name, label, look, number_curve(count, name), style)
        for ax, name in ((distances, r"by $\lambda$"), (numbers, "by tokens kept")):
            log_axis(ax, "x")
            log_axis(ax, "y")
            ax.set_xlim(90, STEPS * 1.1)
            ax.set_ylim(4e-3, 1)
            ax.set_xlabel("training step")
            ax.set_ylabel("mean 1 - correlation")
            ax.set_title(f"distance from the SVM, {name}")
        by_tau = {tau: cell for (tau,), cell in by(bound, "tau").items()}
        for ax, field, label, look, key in (
            (lambdas, "drawn", r"$\lambda$ drawn uniformly", 1, "Fig. 12a: lambda"),
            (taus, "lemma", "sparsemax (Lemma 6)", 4, "Fig. 12b: selected tokens"),
        ):
            samples = {tau: column(cell, field) for tau, cell in by_tau.items()}
            draw(ax, samples, label, look, banded(key) if has_reference else None)
            ax.set_xlabel(r"$\tau$ of Lemma 6")
        for look, tau in enumerate(tau for tau in DISTRIBUTIONS if tau in by_tau):
            values = column(by_tau[tau], "lemma")
            hits = [int((values == count).sum()) for count in TAUS]
            low, high = zip(*(wilson_interval(hit, len(values)) for hit in hits), strict=True)
            line = curve(f"Fig. 12c: tau={tau}").line_points if has_reference else None
            share = [hit / max(len(values), 1) for hit in hits]
            draw_curve(shares, Curve(rf"$\tau$ = {tau}", list(TAUS), share, low, high, look, line))
        lambdas.set_ylabel(r"mean $\lambda$")
        lambdas.set_title(r"$\lambda$ under the constraint on $\tau$")
        taus.set_ylabel("mean number of tokens")
        taus.set_title(r"tokens under the constraint on $\tau$")
        shares.set_xlabel("number of tokens kept")
        shares.set_ylabel("share of trials")
        shares.set_title("how many tokens survive, by constraint")
        for ax in (distances, numbers, shares):
            if ax.get_legend_handles_labels()[1]:
                own_legend(ax, 2)
        legend(result, [counts, taus, lambdas], 3, "ours filtered; with the margin part", band=True)
    return result


EXPERIMENT = Experiment(
    name=NAME,
    title="Tokens kept by a concave head",
    source="Figs 9 and 12",
    claim="The larger lambda, the more tokens survive, and W is close to the SVM equivalent of the set.",
    config=Config,
    sweep=sweep,
    trials=trials,
    figure=figure,
    verdicts=verdicts,
    instance=("T", "d", "tau"),
    # Processor seconds of the full run, 280, divided by two cores; the quick time from a part of it.
    minutes={"quick": 0.5, "full": 2.3},
    batch=100,
    joint=joint,
    readings=readings,
)
