r"""Runs of the experiment on regularisation: weight decay, dropout, early stopping, and other sizes.

**Weight decay** minimises :math:`L(W) + \frac\lambda2\|W\|_F^2`, here to stationarity from W = 0. Its minimiser lies on
the regularisation path: it is stationary for L on the ball of radius :math:`R = \|W_\lambda\|_F`, and :math:`\lambda R
= \|\nabla L\|_F`. On separable data the excess risk falls like :math:`e^{-R/\|W^{mm}\|}`. R should therefore grow by
about :math:`\|W^{mm}\|` when :math:`\lambda` falls by a factor e, and a little less because of the factor R.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit, softmax

from attsvm.core.correlation import correlation
from attsvm.core.status import Status
from attsvm.functional import exact_softmax
from attsvm.theory import explore
from attsvm.theory.tokens import Trial, compare_with_neighbours
from attsvm.training import regularization_path, train
from attsvm_paper.beyond.descent import descend
from attsvm_paper.beyond.measures import finite_or_none, margin_share
from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.instances import Instances, start_seeds
from attsvm_paper.published.numerics import STEP

DROPOUTS = ("none", "tokens", "weights")
# Size of the random start of several heads, which would stay equal from zero.
HEAD_START = 0.1


def judge(instances: Instances, W: np.ndarray, reference: np.ndarray | None = None) -> list[Row]:
    """Compare each trained W (B, d, d) with the SVM of its top tokens, and these tokens with given ones."""
    logits = (instances.data.tokens @ (instances.data.queries @ W.swapaxes(-1, -2))[..., None])[..., 0]
    selected = logits.argmax(-1)
    solutions = instances.solve(selected)
    rows: list[Row] = []
    for b, matrix in enumerate(W):
        solution = solutions[b]
        feasible = bool(np.isfinite(solution.objective))
        locality = compare_with_neighbours(Trial.of(instances.data[b], instances.v[b]), solution)
        rows.append(
            {
                "infeasible": solution.status is Status.INFEASIBLE,
                "correlation": float(correlation(matrix, solution.W)) if feasible else None,
                "margin": finite_or_none(margin_share(solution, matrix)),
                "relative": float(np.linalg.norm(matrix)) / solution.objective if feasible else None,
                "local": bool(locality.holds),
                "optimal": float((selected[b] == instances.optimal[b]).mean()),
                "same": None if reference is None else float((selected[b] == reference[b]).mean()),
            }
        )
    return rows


def regularised_solution(tokens: np.ndarray, queries: np.ndarray, gamma: np.ndarray, strength: float) -> np.ndarray:
    """Minimise the logistic risk of one trial and half the squared norm times `strength`, from zero."""
    n, _, d = tokens.shape

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        W = flat.reshape(d, -1)
        weights = softmax((tokens @ (queries @ W.T)[..., None])[..., 0], axis=-1)
        score = (gamma * weights).sum(-1, keepdims=True)  # (n, 1)
        slope = -expit(-score) / n * weights * (gamma - score)
        gradient = np.einsum("nt,ntd->nd", slope, tokens).T @ queries + strength * W
        return float(np.logaddexp(0, -score).mean() + strength / 2 * (W * W).sum()), gradient.ravel()

    start = np.zeros(d * queries.shape[1])
    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-4 * strength}
    return minimize(value, start, jac=True, method="L-BFGS-B", options=options).x.reshape(d, -1)


def risk(instances: Instances, b: int, W: np.ndarray) -> float:
    """Return the logistic risk of W in trial b."""
    data = instances.data
    weights = softmax((data.tokens[b] @ (data.queries[b] @ W.T)[..., None])[..., 0], axis=-1)
    return float(np.logaddexp(0, -(instances.gamma[b] * weights).sum(-1)).mean())


def decay(instances: Instances, strength: float) -> list[Row]:
    """Train with weight decay; compare with the regularisation path at the resulting radius."""
    data = instances.data
    W = np.stack(
        [
            regularised_solution(tokens, queries, gamma, strength)
            for tokens, queries, gamma in zip(data.tokens, data.queries, instances.gamma, strict=True)
        ]
    )
    rows = judge(instances, W)
    for b, row in enumerate(rows):
        radius = float(np.linalg.norm(W[b]))
        path = regularization_path(data[b], instances.v[b], [radius])
        row["radius"] = radius
        row["path"] = float(correlation(W[b], path.W[0]))
        row["excess"] = risk(instances, b, W[b]) - float(path.loss[0])
    return rows


def dropout(instances: Instances, kind: str, rate: float, steps: int, seeds: Any) -> list[Row]:
    """Train with tokens hidden, or attention weights set to zero, at random in every step."""

    def attend(logits: Any, noise: Any) -> Any:
        keep = noise.uniform(logits) >= rate
        if kind == "tokens":
            keep = keep | ~keep.any(-1, keepdim=True)  # a sequence whose tokens are all hidden keeps them all
            return exact_softmax(logits.masked_fill(~keep, -torch.inf)), None
        return exact_softmax(logits) * keep / (1 - rate), None

    plain = descend(instances, lambda logits, noise: (exact_softmax(logits), None), steps, seeds)
    W = plain if rate == 0 else descend(instances, attend, steps, seeds)
    reference = (instances.data.tokens @ (instances.data.queries @ plain.swapaxes(-1, -2))[..., None])[..., 0].argmax(
        -1
    )
    return judge(instances, W, reference)


def early(instances: Instances, steps: int) -> list[list[Row]]:
    """Train once and judge W at several steps; one list of rows per trial."""
    marks = [int(step) for step in np.unique(np.geomspace(10, steps, 6).round())]
    trace = train(instances.data, instances.v, steps=steps, lr=STEP, record_every=marks)
    each = [
        [row | {"step": int(step)} for row in judge(instances, trace.W[:, at], trace.selected)]
        for at, step in enumerate(trace.step)
        if step
    ]
    for at, rows in zip(np.flatnonzero(trace.step), each, strict=True):
        sigma = np.linalg.svd(trace.W[:, at], compute_uv=False)  # (B, d)
        for row, own in zip(rows, sigma, strict=True):
            row["stable_rank"] = float((own**2).sum() / own[0] ** 2)
    return [list(rows) for rows in zip(*each, strict=True)]


def size(instances: Instances, heads: int, steps: int, seeds: Any) -> list[Row]:
    """Measure the SVM of the best tokens, count local optima, and train one or several heads."""
    data = instances.data
    B, _, _, d = data.tokens.shape
    start = None
    if heads > 1:
        draws = [np.random.default_rng(int(s)).standard_normal((heads, d, d)) for s in start_seeds(seeds)]
        start = HEAD_START * np.stack(draws)
    trace = train(data, instances.v, steps=steps, lr=STEP, heads=heads, init=start)
    selected = trace.selected.reshape(B, heads, -1)
    W = trace.W[:, -1].reshape(B, heads, d, d)
    best, nuclear = instances.solve(instances.optimal), instances.solve(instances.optimal, "nuclear")
    heads_of = [judge(instances, W[:, head]) for head in range(heads)]
    rows: list[Row] = []
    for b in range(B):
        own = [part[b] for part in heads_of]
        margins = [row["margin"] for row in own if row["margin"] is not None]
        row: Row = {
            "infeasible": not np.isfinite(best.objective[b]),
            "largest": finite_or_none(1 / best.objective[b]) if np.isfinite(best.objective[b]) else None,
            "rank": int(best[b].rank) if np.isfinite(best.objective[b]) else None,
            "nuclear_rank": int(nuclear[b].rank) if np.isfinite(nuclear.objective[b]) else None,
            "margin": float(np.mean(margins)) if margins else None,
            "optimal": float(np.mean([part["optimal"] for part in own])),
            "agree": float((selected[b] == selected[b, :1]).all(0).mean()),
            "local_optima": None,
        }
        if heads == 1:
            row["local_optima"] = len(explore(Trial.of(data[b], instances.v[b])).directions)
        rows.append(row)
    return rows
