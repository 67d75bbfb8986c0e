"""How often attention with a given W, under the fixed head, predicts the label."""

from __future__ import annotations

import numpy as np

from attsvm.data.dataset import Dataset
from attsvm.study.results import Accuracy, Study


def logits(data: Dataset, W: np.ndarray) -> np.ndarray:
    """Return x_it^T W z_i, (n, T); -inf where masked."""
    u = data.tokens.queries @ W.T  # (n, d)
    return np.where(data.mask, np.einsum("ntd,nd->nt", data.tokens.tokens, u), -np.inf)


def soft_attention(data: Dataset, W: np.ndarray) -> np.ndarray:
    """Return the attention probabilities, (n, T)."""
    a = logits(data, W)
    weights = np.exp(a - a.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def hard_attention(data: Dataset, W: np.ndarray) -> np.ndarray:
    """Put all attention on the largest logit, (n, T)."""
    return np.eye(data.tokens.T)[logits(data, W).argmax(axis=1)]


def share_right(data: Dataset | None, v: np.ndarray, attention: np.ndarray | None) -> float | None:
    """Share of rows with Y v^T sum_t s_t x_t > 0; None without data."""
    if data is None or attention is None:
        return None
    outputs = np.einsum("nt,ntd->nd", attention, data.tokens.tokens) @ v
    return float(np.mean(data.tokens.labels * outputs > 0))


def accuracies(found: Study) -> tuple[Accuracy, ...]:
    """Compare uniform attention, trained attention and the SVM's hard selection, on training and test rows."""
    setup = found.setup
    train, test, v = setup.train, setup.test, setup.head.v
    rows = []

    def add(key: str, label: str, attend, W: np.ndarray) -> None:
        held_out = None if test is None else attend(test, W)
        right = share_right(train, v, attend(train, W))
        assert right is not None
        rows.append(Accuracy(key, label, right, share_right(test, v, held_out)))

    uniform = np.zeros((train.tokens.d, train.tokens.dz))
    add("uniform", "uniform attention: the head alone", soft_attention, uniform)
    names = {"W": ("trained W", "its Frobenius SVM"), "KQ": ("trained K, Q", "its nuclear SVM")}
    for parameterization, run in found.runs.items():
        trained, svm = names[parameterization]
        add(parameterization, trained, soft_attention, np.asarray(run.trace.W[-1]))
        if run.own in run.curves:
            add(f"{parameterization}_svm", f"{svm}, hard selection", hard_attention, run.solutions[run.own].W)
    return tuple(rows)
