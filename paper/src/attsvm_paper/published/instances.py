"""The published random instances, one per seed, stacked into a batch that is trained in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attsvm.core.types import AnyNorm
from attsvm.data.synthetic import gapped_trial, random_trial
from attsvm.data.token_data import TokenData
from attsvm.solution.problem_batch import BatchSolution, ProblemBatch
from attsvm.solvers.batching import solve_batch


@dataclass(frozen=True, eq=False)
class Instances:
    """Trials with a linear head.

    Attributes
    ----------
    data : TokenData
        Tokens (B, n, T, d).
    v : ndarray, shape (B, d)
    """

    data: TokenData
    v: np.ndarray

    @cached_property
    def gamma(self) -> np.ndarray:
        """Scores Y_i v^T x_it, (B, n, T)."""
        return self.data.labels[..., None] * (self.data.tokens @ self.v[:, None, :, None])[..., 0]

    @cached_property
    def optimal(self) -> np.ndarray:
        """Token with the highest score of every sequence, int (B, n)."""
        return self.gamma.argmax(-1)

    def problems(self, selected: np.ndarray) -> ProblemBatch:
        """Pose the selection of given tokens, int (B, n) or bool (B, n, T)."""
        return ProblemBatch(self.data.tokens, self.data.queries, selected)

    def solve(self, selected: np.ndarray, norm: AnyNorm = "frobenius", tol: float = 1e-9) -> BatchSolution:
        """Solve the SVM of given tokens in every trial."""
        return solve_batch(self.problems(selected), norm, tol=tol)


def draw(seeds: Sequence[int] | np.ndarray, n: int, T: int, d: int, gap: float | None = None) -> Instances:
    """Draw the published instance of each seed.

    Parameters
    ----------
    seeds : int array, shape (B,)
    n, T, d : int
    gap : float, optional
        Smallest difference between the best and the second best score; sequences are redrawn until they have it.
    """
    if gap:
        return draw_with(seeds, lambda rng: gapped_trial(rng, n, T, d, gap))
    return draw_with(seeds, lambda rng: random_trial(rng, n, T, d))


def draw_with(
    seeds: Sequence[int] | np.ndarray,
    generate: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]],
) -> Instances:
    """Draw tokens, queries, labels and head for each seed from any generator of one trial."""
    trials = [generate(np.random.default_rng(int(seed))) for seed in seeds]
    tokens, queries, labels, v = (np.stack(parts) for parts in zip(*trials, strict=True))
    return Instances(TokenData(tokens, queries, labels), v)


def start_seeds(seeds: Sequence[int] | np.ndarray) -> np.ndarray:
    """Derive seeds for random starts, so that a start is independent of the instance of the same seed."""
    states = [np.random.SeedSequence(int(seed), spawn_key=(1,)).generate_state(1, np.uint64)[0] for seed in seeds]
    return (np.array(states, dtype=np.uint64) >> np.uint64(1)).astype(np.int64)
