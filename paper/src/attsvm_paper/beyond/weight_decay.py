r"""Weight decay on K and Q compared with the nuclear penalty on W, whose minimum is certified if it is convex.

arXiv 2410.23819 relates weight decay on K and Q to a nuclear penalty on W, for any loss L. It proves that a local
minimum of :math:`L(KQ^\top) + \frac\lambda2(\|K\|^2 + \|Q\|^2)` is a local minimum of :math:`L(W) + \lambda\|W\|_*`,
and that the two penalties approach each other exponentially in time.

* *margin*: L is the squared hinge of the SVM's margins with weight C. The penalised problem in W is convex.
  :func:`attsvm.solve` certifies its minimum, which is compared with a local minimum on the factors.
* *attention*: L is the logistic risk of an attention layer, which is not convex. The check is that W is stationary for
  the penalised risk: :math:`\|\nabla L(W)\|_2 \le \lambda` and :math:`-\langle\nabla L(W), W\rangle = \lambda\|W\|_*`.
  A penalty :math:`\frac\lambda2\|W\|_F^2` on W itself is the control for the rank.
* *descent*: gradient descent with decay. :math:`K^\top K - Q^\top Q` should shrink at the rate :math:`2\lambda` in the
  sum of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import minimize
from scipy.special import expit, softmax

from attsvm.core.problem import SelectionProblem
from attsvm.plots.style import QUIET, house_style
from attsvm.solvers.solving import solve
from attsvm.training import train
from attsvm_paper.beyond.predictions import with_outcome
from attsvm_paper.beyond.shrinkage import regularised_solution
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.judging.comparison import estimate_verdict
from attsvm_paper.judging.estimates import Measure, estimates_by
from attsvm_paper.judging.grouping import by, having
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.plots.experiments import curve_of, draw_curve, grid, log_axis, own_legend, value_axis
from attsvm_paper.published.instances import Instances, draw, start_seeds

NAME = "weight-decay"
FIELDS = ("excess", "balance", "stationarity", "rank", "reference_rank", "rate")
# Singular value, relative to the largest, up to which it counts as noise; descent on factors leaves 1e-6.
NEGLIGIBLE = 1e-3
START = 0.3
STEP = 0.05


@dataclass(frozen=True)
class Config:
    """A setting; `strength` is the weight C of the hinge, or the weight decay."""

    setting: Literal["margin", "attention", "descent"]
    strength: float
    d: int = 10
    n: int = 6
    T: int = 8
    steps: int = 2000
    trials: int = 40

    def __post_init__(self) -> None:
        if self.setting not in ("margin", "attention", "descent"):
            raise ValueError(f"setting is {self.setting!r}; 'margin', 'attention' or 'descent' was expected.")
        if not self.strength > 0:
            raise ValueError(f"strength is {self.strength}; a positive number was expected.")


def sweep(effort: Effort) -> list[Config]:
    """Weights C and decays over two orders of magnitude each."""
    count = 100 if effort == "full" else 8
    return [
        *(Config("margin", C, trials=count) for C in (0.1, 1.0, 10.0)),
        *(Config("attention", decay, trials=count) for decay in (1e-2, 1e-3, 1e-4)),
        *(Config("descent", decay, trials=count) for decay in (0.02, 0.05)),
    ]


def trials(config: Config, seeds: Any) -> list[Row]:
    """Run the setting."""
    instances = draw(seeds, config.n, config.T, config.d)
    run = {"margin": margins, "attention": attention, "descent": descent}[config.setting]
    empty = dict.fromkeys(FIELDS)
    return [{"seed": int(seed)} | empty | row for seed, row in zip(seeds, run(config, instances, seeds), strict=True)]


def minimum_on_factors(
    risk: Callable[[np.ndarray], tuple[float, np.ndarray]], strength: float, d: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Minimise risk(K Q^T) + strength/2 (||K||^2 + ||Q||^2) from a random start; return K and Q.

    Parameters
    ----------
    risk : callable
        Maps W to value and gradient.
    strength : float
    d : int
        Number of rows, columns and width.
    seed : int
    """

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        K, Q = flat.reshape(2, d, d)
        number, G = risk(K @ Q.T)
        slope = np.stack([G @ Q, G.T @ K]) + strength * np.stack([K, Q])
        return number + strength / 2 * float(flat @ flat), slope.ravel()

    flat = START * np.random.default_rng(seed).standard_normal(2 * d * d)
    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 0.0, "gtol": 1e-9 * strength, "maxcor": 30}
    K, Q = minimize(value, flat, jac=True, method="L-BFGS-B", options=options).x.reshape(2, d, d)
    return K, Q


def balance(K: np.ndarray, Q: np.ndarray) -> float:
    """Return how far the nuclear norm of K Q^T falls below half the squared norms of K and Q, as a fraction."""
    half = (float(np.linalg.norm(K)) ** 2 + float(np.linalg.norm(Q)) ** 2) / 2
    return 1 - float(np.linalg.norm(K @ Q.T, "nuc")) / half if half else 0.0


def rank_of(W: np.ndarray) -> int:
    """Count the singular values that are not negligible."""
    sigma = np.linalg.svd(W, compute_uv=False)
    return int((sigma > NEGLIGIBLE * sigma[0]).sum()) if sigma[0] > 0 else 0


def margins(config: Config, instances: Instances, seeds: Any) -> list[Row]:
    """Compare a minimum on the factors with the certified minimum of the convex problem in W."""
    rows: list[Row] = []
    for b, seed in enumerate(start_seeds(seeds)):
        problem = SelectionProblem(instances.data.tokens[b], instances.data.queries[b], instances.optimal[b])
        rejected = problem.rejected

        def risk(
            W: np.ndarray, problem: SelectionProblem = problem, rejected: np.ndarray = rejected
        ) -> tuple[float, np.ndarray]:
            lacking = np.where(rejected, np.maximum(1 - problem.apply(W), 0), 0)
            return config.strength * float((lacking**2).sum()), -2 * config.strength * problem.adjoint(lacking)

        K, Q = minimum_on_factors(risk, 1.0, config.d, int(seed))
        least = solve(problem, "nuclear", C=config.strength, loss="squared_hinge")
        value = risk(K @ Q.T)[0] + (float(np.linalg.norm(K)) ** 2 + float(np.linalg.norm(Q)) ** 2) / 2
        rows.append(
            {
                "excess": value / least.lower_bound - 1,
                "balance": balance(K, Q),
                "rank": rank_of(K @ Q.T),
                "reference_rank": int(least.rank),
            }
        )
    return rows


def attention(config: Config, instances: Instances, seeds: Any) -> list[Row]:
    """Check stationarity for the nuclear penalty, and compare the rank with the rank under a penalty on W itself."""
    rows: list[Row] = []
    data, decay = instances.data, config.strength
    for b, seed in enumerate(start_seeds(seeds)):
        tokens, queries, gamma = data.tokens[b], data.queries[b], instances.gamma[b]

        def risk(
            W: np.ndarray, tokens: np.ndarray = tokens, queries: np.ndarray = queries, gamma: np.ndarray = gamma
        ) -> tuple[float, np.ndarray]:
            weights = softmax((tokens @ (queries @ W.T)[..., None])[..., 0], axis=-1)
            score = (gamma * weights).sum(-1, keepdims=True)
            slope = -expit(-score) / len(tokens) * weights * (gamma - score)
            return float(np.logaddexp(0, -score).mean()), np.einsum("nt,ntd->nd", slope, tokens).T @ queries

        K, Q = minimum_on_factors(risk, decay, config.d, int(seed))
        W = K @ Q.T
        _, G = risk(W)
        nuclear = float(np.linalg.norm(W, "nuc"))
        slack = abs(float((G * W).sum()) + decay * nuclear) / (decay * nuclear) if nuclear else 0.0
        rows.append(
            {
                "stationarity": max(float(np.linalg.norm(G, 2)) / decay - 1, 0.0, slack),
                "balance": balance(K, Q),
                "rank": rank_of(W),
                "reference_rank": rank_of(regularised_solution(tokens, queries, gamma, decay)),
            }
        )
    return rows


def descent(config: Config, instances: Instances, seeds: Any) -> list[Row]:
    """Measure the rate at which K^T K - Q^T Q shrinks under gradient descent with decay."""
    # Until the imbalance has shrunk by e^-6; below that, the finite steps show.
    steps = min(config.steps, round(3 / (config.strength * STEP)))
    trace = train(
        instances.data, instances.v, parameterization="KQ", optimizer="gd", lr=STEP, weight_decay=config.strength,
        steps=steps, record_every=max(steps // 20, 1), init="torch", seed=start_seeds(seeds),
    )  # fmt: skip
    size = np.linalg.norm(trace.imbalance, axis=(-2, -1))  # (B, records)
    time = STEP * trace.step
    return [{"rate": float(-np.polyfit(time, np.log(own), 1)[0] / (2 * config.strength))} for own in size]


def _rank_lost(row: Row) -> float | None:
    return None if row["rank"] is None else row["reference_rank"] - row["rank"]


MEASURES = {
    "excess": Measure("objective on the factors over the certified minimum, less one", "excess"),
    "balance": Measure("share by which the nuclear norm is below half the squared norms", "balance"),
    "stationarity": Measure("residual of the nuclear-penalised problem", "stationarity"),
    "rate": Measure("rate at which the imbalance shrinks, over twice the decay", "rate"),
    "rank": Measure("rank on the factors", "rank", "mean"),
    "reference_rank": Measure("rank under a penalty on W", "reference_rank", "mean"),
    "lost": Measure("rank {} less that on the factors", _rank_lost),
}


estimates = estimates_by(("setting", "strength", "n", "T", "d"), MEASURES)


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Report excess, balance, stationarity, ranks and rates, each with its prediction."""
    table = estimates(rows)
    for key, cell in table.cells.items():
        setting, strength, n, T, d = key
        word = {"margin": "C", "attention": "decay", "descent": "decay"}[setting]
        where = f"{setting}, {word}={strength:g}, n={n}, T={T}, d={d}"
        for field in ("excess", "balance", "stationarity", "rate"):
            ours = table.of(key, field)
            if ours.count:
                note = f"At most {ours.values.max():.2g}." if field != "rate" else ""
                quantity = f"{MEASURES[field].words}, {where}"
                yield with_outcome(estimate_verdict(NAME, quantity, ours, trials=len(cell), note=note), field)
        ranks, other, lost = (table.of(key, field) for field in ("rank", "reference_rank", "lost"))
        if ranks.count:
            same = setting == "margin"
            against = "of the certified nuclear solution" if same else "under a penalty on W itself"
            verdict = estimate_verdict(
                NAME, f"{MEASURES['lost'].words.format(against)}, {where}", lost, trials=len(cell),
                note=f"{ranks.value:.2f} on the factors, {other.value:.2f} {against}.",
            )  # fmt: skip
            yield verdict if same else with_outcome(verdict, "rank")


def figure(rows: Sequence[Row], width: float = 7.6) -> Figure:
    """Draw the excess over the certified minimum, ranks under the two penalties, and the rates."""
    cells = {setting: by(having(rows, setting=setting), "strength") for setting in ("margin", "attention", "descent")}
    with house_style():
        result, axes = grid(1, 3, 2.5, "Weight decay on K, Q: a nuclear penalty on W", width)
        least, ranks, rate = axes.ravel()
        for (C,), cell in cells["margin"].items():
            least.plot([C] * len(cell), [max(row["excess"], 1e-16) for row in cell], ".", color=QUIET, ms=4)
        if cells["margin"]:
            log_axis(least, "y")
            value_axis(least, [x for (x,) in cells["margin"]], "weight C")
        least.set_title("over the certified minimum")
        least.set_ylabel("relative excess")
        least.set_xlabel("weight C")
        table = estimates(rows)
        if cells["attention"]:
            for field, label, look in (("reference_rank", "penalty on W", 1), ("rank", "penalty on K, Q", 0)):
                draw_curve(ranks, curve_of(table.along("strength", field, setting="attention"), label, look))
            value_axis(ranks, [x for (x,) in cells["attention"]], "weight decay")
            own_legend(ranks)
        ranks.set_title("attention: rank of W")
        ranks.set_ylabel("mean rank")
        ranks.set_xlabel("weight decay")
        if cells["descent"]:
            draw_curve(rate, curve_of(table.along("strength", "rate", setting="descent"), "measured", 0))
            value_axis(rate, [x for (x,) in cells["descent"]], "weight decay")
        rate.axhline(1, color=QUIET, lw=0.6)
        rate.set_ylim(0.8, 1.2)
        rate.set_title("descent: imbalance")
        rate.set_ylabel("rate over twice the decay")
        rate.set_xlabel("weight decay")
    return result
