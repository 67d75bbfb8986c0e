"""Choose the selections to examine when there are too many: the ends of training, and selections one swap away.

A random selection of a large instance is rarely an end of training. Eight sequences of six tokens have 1.7 million
selections: 512 draws find one locally optimal direction, and training from thirty starts ends in several. Locally
optimal selections lie close together, because each selects a good token in most sequences. So the selections one swap
away from known ones are examined too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.core.correlation import correlation
from attsvm.data.token_data import TokenData
from attsvm.platform.summary import Listed
from attsvm.theory.tokens import SELECTED, LocalOptimality, Trial

# Number of random starts.
STARTS = 30
# Number of training steps per start.
SEARCH_STEPS = 2000
# Frobenius norms of random starts relative to the SVM of the optimal tokens: near zero, and large enough to select.
SIZES = (0.1, 1.0)


@dataclass(frozen=True, eq=False, repr=False)
class End(Listed):
    """A selection in which training ended.

    Attributes
    ----------
    locality : LocalOptimality
        The selection with its SVM.
    count : int
        Number of starts that ended here.
    share : float
        Share of all starts.
    swaps : int
        Number of sequences whose selected token is not the optimal one.
    shared : int
        Number of starts whose attention was still shared among tokens, so that the selection may still change.
    correlation : float
        Correlation of the trained matrices with the SVM, mean over the starts; NaN if there is no SVM.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> end = theory.explore(trial, starts=10, steps=200).ends[0]
    >>> end.selected.shape, end.swaps, 0 < end.share <= 1
    ((3,), 0, True)
    """

    locality: LocalOptimality
    count: int
    share: float
    swaps: int
    shared: int
    correlation: float

    @property
    def selected(self) -> np.ndarray:
        """The selected tokens, int (n,)."""
        return self.locality.selected

    def __str__(self) -> str:
        kind = "locally optimal" if self.locality.holds else "not locally optimal"
        distance = f"{self.swaps} {'swap' if self.swaps == 1 else 'swaps'} from the optimal tokens, {kind}"
        open_ = f"; attention still shared in {self.shared} of {self.count}" if self.shared else ""
        where = distance if self.swaps else "the optimal tokens"
        return f"{100 * self.share:5.1f} %  {where}, correlation {self.correlation:.4g}{open_}"


@dataclass(frozen=True, eq=False)
class TrainedStarts:
    """The ends of training from several starts.

    Attributes
    ----------
    W : ndarray, shape (B, d, dz)
        The trained matrices.
    selected : ndarray of int, shape (B, n)
        The token each query attends to most.
    least_attention : ndarray, shape (B,)
        The largest probability of a query, smallest over queries.
    """

    W: np.ndarray
    selected: np.ndarray
    least_attention: np.ndarray

    def ends(self, optimal: np.ndarray, localities: dict[tuple[int, ...], LocalOptimality]) -> tuple[End, ...]:
        """Count the starts that ended in each selection, most frequent first."""
        rows = [tuple(int(t) for t in selected) for selected in self.selected]
        result = []
        for row in dict.fromkeys(rows):
            here = np.array([other == row for other in rows])
            locality = localities[row]
            near = float(correlation(self.W[here], locality.W).mean()) if locality.feasible else float("nan")
            count, distance = int(here.sum()), int((locality.selected != optimal).sum())
            shared = int((self.least_attention[here] < SELECTED).sum())
            result.append(End(locality, count, count / len(rows), distance, shared, near))
        return tuple(sorted(result, key=lambda end: (-end.count, end.swaps)))


def random_starts(trial: Trial, count: int, seed: int) -> np.ndarray:
    """Draw starts: first zero, then Gaussian matrices whose norms cycle through :data:`SIZES`.

    Returns
    -------
    ndarray, shape (count, d, dz)
    """
    shape = (trial.tokens.shape[2], trial.queries.shape[1])
    norm = trial.optimal_solution.objective
    if not 0 < norm < np.inf:  # without an SVM, logits have size one
        lengths = np.linalg.norm(trial.tokens, axis=2)[trial.mask].mean() * np.linalg.norm(trial.queries, axis=1).mean()
        norm = np.sqrt(shape[0] * shape[1]) / (lengths or 1.0)
    starts = np.random.default_rng((seed, 1)).standard_normal((count, *shape))
    sizes = norm * np.resize(SIZES, count) / np.linalg.norm(starts, axis=(1, 2))
    sizes[:1] = 0.0
    return starts * sizes[:, None, None]


def train_starts(trial: Trial, starts: np.ndarray, steps: int, **options: Any) -> TrainedStarts:
    """Train from every start, as trials of one batch.

    Parameters
    ----------
    starts : ndarray, shape (B, d, dz)
    **options
        Passed to :func:`attsvm.train`.
    """
    from attsvm.training import train

    head = trial.head if trial.v is None else trial.v
    trace = train(_repeat(trial, len(starts)), head, init=starts, steps=steps, **options)
    attention = np.asarray(trace.attention)[:, -1]
    return TrainedStarts(np.asarray(trace.W)[:, -1], np.asarray(trace.selected), attention.max(axis=-1).min(axis=-1))


def _repeat(trial: Trial, count: int) -> TokenData:
    """Copy the trial for each start."""

    def copies(array: np.ndarray) -> np.ndarray:
        return np.broadcast_to(array, (count, *array.shape)).copy()

    same = trial.data.values is trial.data.tokens
    values = None if same else copies(trial.values)
    return TokenData(copies(trial.tokens), copies(trial.queries), copies(trial.labels), copies(trial.mask), values)


def swaps(direction: LocalOptimality) -> Iterator[tuple[int, ...]]:
    """Yield the selections one swap away, in the order of the margins of the new tokens, smallest first.

    ``direction`` is a feasible selection with its margins.
    """
    margins = np.where(direction.solution.problem.mask, np.asarray(direction.solution.margins), np.inf)
    margins[np.arange(len(margins)), direction.selected] = np.inf
    for flat in np.argsort(margins, axis=None, kind="stable"):
        i, t = np.unravel_index(flat, margins.shape)
        if not np.isfinite(margins[i, t]):
            return
        selected = direction.selected.copy()
        selected[i] = t
        yield tuple(int(token) for token in selected)
