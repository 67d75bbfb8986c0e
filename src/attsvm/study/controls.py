r"""Control directions that are not the SVM of the realised selection.

A correlation near one means little by itself: W could be close to many matrices. Three controls put it into context.

* **Shuffled**: the SVM of the same tokens after the selections were permuted among the sequences. This keeps how often
  each position is selected and destroys which query selected it. If no W satisfies a shuffled selection, the direction
  of the squared-hinge soft margin replaces the SVM, and the report says so.
* **Hebbian**: :math:`\sum_i (x_{i\alpha_i} - \bar x_i) z_i^\top`, selected token minus the mean of the others. It uses
  the realised tokens and weights all of them equally, whereas the SVM weights only support tokens.
* **Optimal**: the SVM of the globally optimal tokens, the limit of training if it always selected them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from attsvm.core.correlation import correlation
from attsvm.core.problem import SelectionProblem
from attsvm.core.status import Status
from attsvm.core.types import FactorNorm
from attsvm.solvers.solving import solve
from attsvm.study.results import ControlDirections, Setup
from attsvm.study.watch import Watch

# Weight C of the squared hinge: for lengths near one, a shortfall of 0.1 and a Frobenius norm of one cost the same.
PRICE = 50.0
# Number of permutations tried before a selection counts as unchanged by shuffling.
TRIES = 20


def hebbian(problem: SelectionProblem) -> np.ndarray:
    """Sum over queries of (selected token - mean of the other visible tokens) z^T, shape (d, dz)."""
    others = problem.rejected.sum(axis=1, keepdims=True)
    return problem.adjoint(problem.rejected / np.maximum(others, 1))


def direction_of(
    problem: SelectionProblem, norm: FactorNorm, time_limit: float, watch: Watch
) -> tuple[np.ndarray, str]:
    """Return the SVM of a selection, or its soft margin with the reason why there is no SVM: (W, reason or "")."""
    solution = solve(problem, norm, time_limit=time_limit, callback=watch.poll)
    if np.isfinite(solution.objective):
        return solution.W, ""
    soft = solve(problem, norm, C=PRICE, loss="squared_hinge", time_limit=time_limit, callback=watch.poll)
    return soft.W, "infeasible" if solution.status is Status.INFEASIBLE else "undecided in time"


def shuffle(selected: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """Permute selections among the rows; a row that cannot see its new token draws a visible one.

    Returns None if every permutation tried gives the same selection, for example with one row, or with one token
    selected in all rows.
    """
    for _ in range(TRIES):
        shuffled = rng.permutation(selected)
        for i in np.flatnonzero(~mask[np.arange(len(mask)), shuffled]):
            shuffled[i] = rng.choice(np.flatnonzero(mask[i]))
        if (shuffled != selected).any():
            return shuffled
    return None


def _shuffled(
    setup: Setup, selected: np.ndarray, norm: FactorNorm, count: int, seed: int, time_limit: float, watch: Watch
) -> tuple[list[np.ndarray], str]:
    rng = np.random.default_rng((seed, 2))
    directions: list[np.ndarray] = []
    counts: Counter[str] = Counter()
    for _ in range(count):
        shuffled = shuffle(selected, setup.train.mask, rng)
        if shuffled is None:
            break
        W, reason = direction_of(setup.trial.problem(shuffled), norm, time_limit, watch)
        if watch.stopped:
            break
        directions.append(W)
        counts[reason] += 1
    reasons = [f"{number} of {count} {reason}" for reason, number in counts.items() if reason]
    note = f"{' and '.join(reasons)}: the soft-margin direction stands for it." if reasons else ""
    return directions, note


def controls(
    setup: Setup,
    W: np.ndarray,
    selected: np.ndarray,
    norm: FactorNorm,
    count: int,
    seed: int,
    time_limit: float,
    watch: Watch,
) -> tuple[ControlDirections, ...]:
    """Compute the controls of a run and the correlation of its recorded matrices with each.

    Parameters
    ----------
    setup : Setup
    W : ndarray, shape (records, d, dz)
    selected : ndarray of int, shape (n,)
        The realised tokens.
    norm : {"frobenius", "nuclear"}
        Norm of the SVM controls; the norm paired with the run.
    count, seed : int
        Number of shuffles, and the root seed.
    time_limit : float
    watch : Watch
    """

    def against(
        key: str, label: str, directions: list[np.ndarray], note: str = "", coincides: bool = False
    ) -> ControlDirections:
        curves = np.stack([correlation(W, direction) for direction in directions])
        return ControlDirections(key, label, tuple(directions), curves, note, coincides)

    result = []
    directions, note = _shuffled(setup, selected, norm, count, seed, time_limit, watch)
    if directions:
        result.append(against("shuffled", "SVM of shuffled selections", directions, note))
    result.append(against("hebbian", "Hebbian mean difference", [hebbian(setup.trial.problem(selected))]))
    if watch.stopped:
        return tuple(result)
    direction, reason = direction_of(setup.trial.problem(setup.optimal), norm, time_limit, watch)
    if watch.stopped:
        return tuple(result)
    note = f"It is {reason}: the soft-margin direction stands for it." if reason else ""
    same = bool((selected == setup.optimal).all())
    if same:
        note = "Training realised the optimal tokens, so this is the reference itself and controls for nothing."
    result.append(against("optimal", "SVM of the optimal tokens", [direction], note, same))
    return tuple(result)
