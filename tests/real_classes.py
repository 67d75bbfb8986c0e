"""scikit-learn's small data sets with standardised features, and plain full-batch gradient descent on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn import datasets


def classes(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Standardised inputs (n, d) and labels (n,) of "iris" or "wine"."""
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return (X - X.mean(axis=0)) / X.std(axis=0), y


def descent(X: np.ndarray, y: np.ndarray, marks: Sequence[int], lr: float = 0.5) -> list[np.ndarray]:
    """Weights (k, d) of softmax regression, from zero, after each number of steps."""
    one_hot = np.eye(int(y.max()) + 1)[y]
    W, records = np.zeros((one_hot.shape[1], X.shape[1])), []
    for step in range(1, max(marks) + 1):
        scores = X @ W.T
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        W = W - lr * (odds / odds.sum(axis=1, keepdims=True) - one_hot).T @ X / len(X)
        if step in marks:
            records.append(W)
    return records
