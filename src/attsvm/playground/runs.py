"""One training on the page, and its SVM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.core.correlation import correlation
from attsvm.solution.solution import Solution
from attsvm.theory.equivalence import Equivalence
from attsvm.theory.tokens import Trial
from attsvm.training import Trace


@dataclass(frozen=True, eq=False)
class PlaygroundRun:
    """A training and its SVM.

    Attributes
    ----------
    trace : Trace
    selected : ndarray of int, shape (n,)
        The tokens of the SVM.
    solution : Solution
    target : ndarray, shape (2, dz)
        The direction for comparison: W of the solution, or the SVM equivalent if several tokens are selected.
    correlation : ndarray, shape (records,)
    equivalence : Equivalence or None
        Also None if training never moved W from zero.
    """

    trace: Trace
    selected: np.ndarray
    solution: Solution
    target: np.ndarray
    correlation: np.ndarray
    equivalence: Equivalence | None


def correlations(trace: Trace, target: np.ndarray) -> np.ndarray:
    """Correlate each record with the target; NaN at W = 0, or if there is no target."""
    W = np.asarray(trace.W, dtype=np.float64)
    result = np.full(len(W), np.nan)
    moving = W.reshape(len(W), -1).any(axis=1)
    if moving.any() and np.isfinite(target).all() and target.any():
        result[moving] = correlation(W[moving], target)
    return result


def attention_of(trial: Trial, W: np.ndarray) -> np.ndarray:
    """Return the softmax probabilities of matrices (R, 2, dz), shape (R, n, T)."""
    logits = np.einsum("ntd,rde,ne->rnt", trial.tokens, W, trial.queries)
    weight = np.exp(logits - logits.max(axis=2, keepdims=True))
    return weight / weight.sum(axis=2, keepdims=True)
