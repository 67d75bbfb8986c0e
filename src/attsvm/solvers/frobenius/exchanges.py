r"""Hard margins in the Frobenius norm by active-set updates (:mod:`attsvm.solvers.frobenius.active_set`).

Coordinate descent, or the solution of a similar problem, supplies the first passive set; only a few constraints then
enter one at a time. LAPACK factors the whole set once; each update changes the factor at the cost of the square of its
size. The method therefore also solves problems with nearly one active constraint per entry of W. Newton's method is
slow on these: its matrix :math:`A_J A_J^\top` is nearly singular, so its steps are long, soon meet a bound, and remove
only a few multipliers per factor.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, solve_triangular

from attsvm.core.cholesky import lower_factor
from attsvm.core.reduction import Reduced
from attsvm.platform.kernels import call, compiles, interpreted
from attsvm.solvers.common import farkas
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius.active_set import RESIDUE, exchange, hold
from attsvm.solvers.frobenius.constraints import Constraints
from attsvm.solvers.frobenius.newton import newton, refine
from attsvm.solvers.frobenius.passive_set import DEPENDENT_PIVOT, PassiveSet, empty_set
from attsvm.solvers.schedule import BLAS_RATE, LOOP_RATE, PRICING_RATE, SMALL_SET, Steps

# Largest size of a passive set, which limits the memory.
CAPACITY = 2000
# rho below which it may tend to zero.
DOUBTFUL_RHO = 1e-3
# Number of weights that are tried.
ATTEMPTS = 3
# Number of steps of most runs from a guess.
EXPECTED_STEPS = 6
# Seconds of work after which other methods run and the time limit is checked, and smallest number of steps before that,
# larger than the number of steps without progress; in the interpreter it is the number of steps.
SLICE_SECONDS, LEAST_STEPS = 0.02, 8


def solve_by_exchanges(setting: Setting, control: Control, start: np.ndarray, share: float = 1.0) -> Steps:
    """Solve a hard margin without a prior, leaving W and multipliers with ``control``.

    ``start`` (n, T) is a guess of the multipliers, on the scale of W = A^T start, and not modified. The first passive
    set takes at most the share ``share`` of its capacity.
    """
    reduced, terms = setting.reduced, setting.terms
    n, T, p = reduced.delta.shape
    entries, constraints = int(np.prod(reduced.shape)), Constraints.of_reduced(reduced)
    guess = terms.clip(start).ravel()
    capacity = min(int((terms.rejected | terms.tied).sum()), entries + 1)
    capacity = min(capacity, max(CAPACITY, int(1.2 * np.count_nonzero(guess))))
    pricing = 2.0 * n * (T * p + 2 * entries)
    weight = max(1.0, float(guess[constraints.rejected].sum()))
    for _ in range(ATTEMPTS):
        passive, size = _first_set(reduced, constraints, guess, weight, capacity, int(share * capacity))
        yield size**3 / 3.0 / BLAS_RATE
        complete, rho, record = False, 1.0, np.inf
        while not complete:
            before, work = record, EXPECTED_STEPS * (pricing + size * size)
            patience = LEAST_STEPS
            if compiles(exchange, work):
                patience = max(patience, int(SLICE_SECONDS * LOOP_RATE / (pricing + size * size)))
            arguments = constraints, passive, size, weight, record, patience
            size, rho, record, steps, complete = call(exchange, work, *arguments)
            complete = complete or not record < before
            control.iterations += steps
            yield steps * (pricing / PRICING_RATE + 4.0 * size**2 / LOOP_RATE)
        dual = np.zeros(n * T)
        dual[passive.members[:size]] = passive.values[:size]
        if rho > RESIDUE:
            values = (dual * (weight / rho)).reshape(n, T)
            V = reduced.adjoint(values)
            if setting.report(V, values, control, adjoint=V, steps=0) or refine(setting, V, values, control):
                return None
            yield from newton(setting, values, control, rounds=3)
            if control.solved or control.stopped or setting.ends_in_rounding(control):
                return None
        if rho < DOUBTFUL_RHO:
            multipliers = farkas.certificate(reduced, dual.reshape(n, T), control)
            if multipliers is not None:
                return multipliers
            yield farkas.work(reduced, dual.reshape(n, T))
        larger = max(1.0, 1.0 / max(rho, RESIDUE) - 1.0)
        guess, weight, share = dual * weight * larger, weight * larger, 1.0
    return None


def _first_set(
    reduced: Reduced, constraints: Constraints, guess: np.ndarray, weight: float, capacity: int, most: int
) -> tuple[PassiveSet, int]:
    """Put ties and the largest multipliers of a guess (m,) into a passive set: ``most`` in all, or all ties if more.

    LAPACK factors the set at once. If constraints depend on each other, or are few, they enter one at a time.
    """
    passive = interpreted(empty_set)(capacity)
    strength = np.where(constraints.tied, np.inf, guess * reduced.lengths.ravel())
    order = np.argsort(-strength, kind="stable")[: min(capacity, max(most, int(constraints.tied.sum())))]
    members = order[strength[order] > 0]
    if len(members) > SMALL_SET and _factor(reduced, constraints, passive, members, weight):
        passive.values[: len(members)] = guess[members] / weight
        return passive, len(members)
    start = np.zeros_like(guess)
    start[members] = guess[members]
    return passive, call(hold, len(members) ** 3 / 3.0, constraints, passive, start, weight)


def _factor(
    reduced: Reduced, constraints: Constraints, passive: PassiveSet, members: np.ndarray, weight: float
) -> bool:
    """Let constraints (k,) enter an empty passive set without multipliers; False if they depend on each other."""
    size, free = len(members), constraints.tied[members]
    cost = np.where(free, 0.0, 1.0)
    gram = reduced.gram(*np.divmod(members, reduced.delta.shape[1]))
    gram *= weight
    np.add(gram, cost, out=gram, where=~free[:, None])
    squares = gram.diagonal().copy()
    try:
        lower, _ = lower_factor(gram)
    except LinAlgError:
        return False
    passive.factor[:size, :size] = lower
    passive.solved[:size] = solve_triangular(lower, cost, lower=True, check_finite=False)
    passive.members[:size], passive.free[:size] = members, free
    return bool((np.square(lower.diagonal()) > DEPENDENT_PIVOT * squares).all())
