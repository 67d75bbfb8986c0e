"""The Frobenius SVM of a few constraints that are given by their inner products only.

Projected Newton solves the dual after a few coordinate passes (:mod:`attsvm.solvers.frobenius.newton`). If it does not
converge, active-set updates do (:mod:`attsvm.solvers.frobenius.active_set`). The multipliers carry no certificate: the
caller knows the matrices and checks them.
"""

from __future__ import annotations

import numpy as np

from attsvm.platform.kernels import call
from attsvm.solvers.compiled.frobenius import PASSES, guess_by_gram
from attsvm.solvers.frobenius.active_set import SOLVED, by_gram, least_multipliers
from attsvm.solvers.frobenius.newton import ascend
from attsvm.solvers.schedule import finish

# Squared norm, over its guess, from which on another attempt starts at the result, and largest number of attempts.
WEIGHT_RATIO, WEIGHT_ATTEMPTS = 1e3, 4
# Shortfall of margins at which a working set counts as solved, and squared norm, over the smallest that one constraint
# needs, above which rounding may hide that no W exists, so that active-set updates decide.
SLOPE, DOUBTFUL_NORM = 1e-12, 1e8


def multipliers_of(gram: np.ndarray, guess: np.ndarray, C: float | None) -> np.ndarray | None:
    """Maximise 1.lam - lam.G.lam/2 over lam >= 0.

    Parameters
    ----------
    gram : ndarray, shape (m, m)
        Inner products of the constraints' matrices.
    guess : ndarray, shape (m,)
        Multipliers from which active-set updates start.
    C : float or None
        Weight of the squared hinge; None for the hard margin.

    Returns
    -------
    ndarray, shape (m,), or None
        None if no W meets the constraints, so that the maximum is infinite to rounding.
    """
    size = float(np.diag(gram).max())
    if size == 0:
        return None
    scaled = gram / size
    if C is not None:
        scaled[np.diag_indices(len(scaled))] += 1.0 / (2.0 * C * size)
    no_ties = np.zeros(len(scaled), dtype=bool)
    start = call(guess_by_gram, 2.0 * PASSES * scaled.size, scaled, no_ties, PASSES)
    values = finish(ascend(scaled, 1.0 - scaled @ start, start, no_ties, np.inf, SLOPE))
    slope = 1.0 - scaled @ values
    if np.abs(np.where(values > 0, slope, np.maximum(slope, 0.0))).max() <= SLOPE and values.sum() < DOUBTFUL_NORM:
        return values / size
    constraints, start = call(by_gram, float(len(scaled)), scaled, no_ties), guess * size
    work = float(len(scaled)) ** 3  # one step per constraint, at the cost of the square of their number
    for _ in range(WEIGHT_ATTEMPTS):
        state, values = call(least_multipliers, work, constraints, start, len(scaled), np.empty((0, 0)))
        if state != SOLVED:
            return None
        if values.sum() < WEIGHT_RATIO * max(1.0, start.sum()):
            break
        start = values
    return np.asarray(values) / size
