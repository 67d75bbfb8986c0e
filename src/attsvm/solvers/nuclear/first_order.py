r"""First-order steps for the nuclear norm on a working set of a reduced problem (:mod:`.steps`)."""

from __future__ import annotations

import numpy as np

from attsvm.core.norms import spectral
from attsvm.core.reduction import Reduced
from attsvm.platform.kernels import call, compiles
from attsvm.solvers.nuclear.steps import BEST, STEPS_PER_TEST, StepConstraints, advance, begin
from attsvm.solvers.schedule import STEPS_TO_FACE

# Ratio of the primal weight to the Frobenius solution's estimate.
WEIGHT_FACTOR = 2.5
# Number of steps at a time while they run in the interpreter.
PORTION = 3 * STEPS_PER_TEST


class FirstOrder:
    """Over-relaxed primal-dual steps with restarts, on a working set of a reduced problem.

    Parameters
    ----------
    working : ndarray of bool, shape (n, T)
        The working set; every equality must be in it.
    W : ndarray, shape (p, r)
        Starting point.
    dual : ndarray, shape (n, T)
        Multipliers of W as the Frobenius solution, on any scale.

    Attributes
    ----------
    expected_steps : float
        Estimate of the steps until the face can be identified.
    """

    def __init__(self, reduced: Reduced, working: np.ndarray, W: np.ndarray, dual: np.ndarray) -> None:
        self.reduced = reduced
        length = spectral(reduced.adjoint(dual))
        weight = WEIGHT_FACTOR * float(np.linalg.norm(dual)) / (length * float(np.linalg.norm(W)))
        self._begin(working, W, dual / length, weight)
        scale = float(dual[reduced.rejected].sum()) / float(np.linalg.norm(reduced.adjoint(dual))) ** 2
        spread = scale * float(np.linalg.norm(dual)) / np.sqrt(max(1, np.count_nonzero(dual)))
        self.expected_steps = STEPS_TO_FACE * self.norm * float(np.sqrt(spread))

    def _begin(self, working: np.ndarray, W: np.ndarray, dual: np.ndarray, weight: float) -> None:
        reduced = self.reduced
        self.working = working
        self._place = np.nonzero(working)
        self._constraints = StepConstraints.of_reduced(reduced, self._place)
        start = np.ascontiguousarray(W, dtype=float), np.ascontiguousarray(dual[self._place])
        # Operations outside NumPy when a step is interpreted: loops over W and the multipliers.
        self._step = 5.0 * (W.size + len(self._place[0]))
        self._memory = call(begin, self._step, self._constraints, *start, weight)
        pairs, _, self._state = self._memory
        self._W, self._dual = np.split(pairs[BEST], [W.size])  # views

    @property
    def norm(self) -> float:
        """The norm of A on the working set, as estimated."""
        return float(self._state[0])

    @property
    def gap(self) -> float:
        """Certified gap on the working set when last tested."""
        return float(self._state[5])

    @property
    def W(self) -> np.ndarray:
        """The better of the last iterate and the average, (p, r)."""
        return self._W.reshape(self.reduced.shape)

    def scattered_dual(self) -> np.ndarray:
        """Multipliers that belong to :attr:`W`, on all constraints, (n, T)."""
        dual = np.zeros(self.working.shape)
        dual[self._place] = self._dual
        return dual

    def extend(self, entering: np.ndarray) -> None:
        """Let inequalities join the working set, with multipliers zero."""
        self._begin(self.working | entering, self.W, self.scattered_dual(), float(self._state[1]))

    def advance(self, target: float, limit: int) -> int:
        """Make at most ``limit`` steps, until the gap on the working set is below the target; return their number."""
        count = 0
        while count < limit and (count == 0 or self.gap >= target):
            rest = limit - count
            steps = rest if compiles(advance, self._step * rest) else min(PORTION, rest)
            arguments = self._constraints, self._memory, target, steps
            count += call(advance, self._step * steps, *arguments)
        return count
