r"""Compute by how much a temperature per query lowers the norm of W.

Selective attention (arXiv 2411.12892) gives every query an inverse temperature, so that the logits are
:math:`\tau_i x_{it}^\top W z_i`. Unlimited temperatures would make W arbitrarily small, so their mean is one here, as
in plain attention. (This budget is ours, not the paper's.) The smallest norm is

.. math:: \nu = \min\{\|W\| : \tau_i A_{it}(W) \ge 1,\ \tau \ge 0,\ {\textstyle\sum_i\tau_i} = m\}

over the m queries that have a rejected token. This is convex in W and :math:`r_i = 1/\tau_i`. Take multipliers
:math:`\lambda \ge 0` with :math:`\|A^\top\lambda\|_* \le 1`, and let :math:`\lambda_i = \sum_t\lambda_{it}`. By
Cauchy's inequality,

.. math:: \|W\| \ge \langle A^\top\lambda, W\rangle \ge \sum_i \frac{\lambda_i}{\tau_i}
   \ge \frac{1}{m}\Bigl(\sum_i\sqrt{\lambda_i}\Bigr)^2,

with equality for :math:`\tau_i \propto \sqrt{\lambda_i}`. The problem is solved by cutting planes. Temperatures scale
queries, so :func:`attsvm.solve` gives W and multipliers for given temperatures. The best mixture of all multipliers so
far gives the bound and the next temperatures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.core.norms import Norm, get_norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.status import Status
from attsvm.platform.summary import Worded
from attsvm.solution.solution import Solution
from attsvm.solvers.solving import solve

# Largest number of multiplicative steps per mixture.
_MIXING = 300
# Smallest temperature, as a share of the mean; below it a query would lose its accuracy.
_COLDEST = 1e-6
# Relative rounding of sums of n products and roots in double precision, n below a million.
_ROUNDING = 1e-10


@dataclass(frozen=True, eq=False, repr=False)
class TemperatureSaving(Worded):
    """Temperatures of mean one with the smallest W.

    Attributes
    ----------
    temperatures : ndarray, shape (n,)
        Inverse temperatures tau; one for queries without a rejected token.
    solution : Solution
        Solution of the problem whose queries are scaled by the temperatures; its W is the smallest found.
    plain : Solution
        Solution of the original problem.
    lower_bound : float
        Lower bound on the norm of W for all temperatures of mean one, up to rounding of the multipliers.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import SelectionProblem, theory
    >>> problem = SelectionProblem(np.array([[[1.0], [0.0]], [[8.0], [0.0]]]), np.eye(2), [0, 0])
    >>> saving = theory.temperature_saving(problem)
    >>> saving.low <= 1 - 5**1.5 / (2 * 65**0.5) <= saving.high
    True
    """

    temperatures: np.ndarray
    solution: Solution
    plain: Solution
    lower_bound: float

    @property
    def low(self) -> float:
        """Certified lower bound on the share of the norm that the best temperatures save."""
        return max(1 - self.solution.objective / self.plain.lower_bound, 0.0) if self.plain.lower_bound else 0.0

    @property
    def high(self) -> float:
        """Certified upper bound on the share of the norm that the best temperatures save."""
        return 1 - self.lower_bound / self.plain.objective if self.plain.objective else 0.0

    @property
    def sentence(self) -> str:
        """State the saving."""
        return (
            f"A temperature for each query saves between {100 * self.low:.3g} and {100 * self.high:.3g} % of the "
            f"{self.plain.norm.name} norm."
        )


def temperature_saving(
    problem: SelectionProblem, norm: str | float | Norm = "frobenius", *, tol: float = 1e-4, max_iter: int = 200
) -> TemperatureSaving:
    """Find the temperatures of mean one with the smallest W, and bound the share of the norm that they save.

    Parameters
    ----------
    problem : SelectionProblem
    norm : str, float or Norm
    tol : float
        Relative gap between the norm of W and the bound at which to stop.
    max_iter : int
        Largest number of temperatures tried.

    Returns
    -------
    TemperatureSaving

    Raises
    ------
    UnsolvedError
        If the problem has no solution, or none was found.
    ValueError
        If tol is not positive or max_iter is below one.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import SelectionProblem, theory
    >>> problem = SelectionProblem(np.array([[[1.0], [0.0]], [[8.0], [0.0]]]), np.eye(2), [0, 0])
    >>> theory.temperature_saving(problem).temperatures.round(2).tolist()
    [1.6, 0.4]
    """
    if not tol > 0:
        raise ValueError(f"tol is {tol!r}; a positive number was expected.")
    if max_iter < 1:
        raise ValueError(f"max_iter is {max_iter!r}; a positive integer was expected.")
    measure = get_norm(norm)
    plain = solve(problem, measure).raise_for_status()
    active = problem.rejected.any(-1)
    m = int(active.sum())
    best, bound, tau = plain, 0.0, np.ones(problem.shape[0])
    current, cuts = plain, np.empty((0, m))
    mass, mixture = tau, np.empty(0)
    for _ in range(max_iter if m else 0):
        cuts = np.vstack([cuts, _cut(problem, measure, current, tau)[active]])
        mixture = _mix(cuts, np.append(mixture * (1 - 1 / len(cuts)), 1 / len(cuts)))
        roots = np.sqrt(mixture @ cuts)
        bound = max(bound, float(roots.sum()) ** 2 / m * (1 - _ROUNDING))
        if best.objective - bound <= tol * best.objective:
            break
        shares = np.maximum(roots / roots.mean(), _COLDEST)
        tau = np.ones(problem.shape[0])
        tau[active] = shares / shares.mean()
        current = solve(_scaled(problem, tau), measure)
        if current.status is not Status.OPTIMAL:
            break
        if current.objective < best.objective:
            best, mass = current, tau
    return TemperatureSaving(mass, best, plain, bound)


def _scaled(problem: SelectionProblem, tau: np.ndarray) -> SelectionProblem:
    return SelectionProblem(
        problem.tokens, problem.queries * tau[:, None], problem.selected, mask=problem.mask, sequence=problem.sequence
    )


def _cut(problem: SelectionProblem, measure: Norm, solution: Solution, tau: np.ndarray) -> np.ndarray:
    """Return sums over tokens of the unscaled problem's multipliers, scaled to the unit ball of the dual norm, (n,)."""
    dual: Any = np.asarray(solution.dual) * tau[:, None]
    size = measure.dual(problem.adjoint(dual))
    return np.where(problem.rejected, np.maximum(dual, 0.0), 0.0).sum(-1) / size


def _mix(cuts: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Maximise the sum of roots of a mixture of cuts (k, m) over shares (k,), by monotone multiplicative steps."""
    shares = start
    for _ in range(_MIXING):
        roots = np.sqrt(np.maximum(shares @ cuts, np.finfo(float).tiny))
        slope = (cuts / roots).sum(-1)
        shares = shares * slope / roots.sum()
        if slope.max() <= roots.sum() * (1 + 1e-12):
            break
    return shares / shares.sum()
