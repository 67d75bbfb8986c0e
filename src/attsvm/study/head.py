r"""The fixed linear head that a study trains attention under.

The theory fixes a head h(x) = v^T x before attention is trained. At W = 0 attention is uniform and the model predicts
:math:`v^\top \bar x_i` from the mean token, so the natural v is the best linear classifier of mean tokens: ridge
regression of the labels, with the penalty that leaves the smallest leave-one-out error. It uses the training rows only,
does not depend on attention, and gives every token a score :math:`\gamma_{it} = Y_i v^\top x_{it}`: what the token
contributes to the right decision when all are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.data.dataset import Dataset

# Relative to the mean squared length of a mean token; leave-one-out error is flat at both ends.
PENALTIES = np.logspace(-6, 2, 33)


@dataclass(frozen=True, eq=False)
class Head:
    """A linear head of length one.

    Attributes
    ----------
    v : ndarray, shape (d,)
    penalty : float or None
        The chosen ridge penalty relative to the mean squared length of a mean token; None for a head given with data.
    """

    v: np.ndarray
    penalty: float | None


def mean_tokens(data: Dataset) -> np.ndarray:
    """Average the visible tokens of each sequence, (n, d)."""
    weights = data.mask / data.mask.sum(axis=1, keepdims=True)
    return np.einsum("nt,ntd->nd", weights, data.tokens.tokens)


def fit_head(data: Dataset) -> Head:
    """Use the data's own head, or fit one by ridge regression on mean tokens.

    Raises
    ------
    ValueError
        If the labels cannot be predicted at all, so that the head would be zero.
    """
    if data.head is not None:
        return Head(data.head / np.linalg.norm(data.head), None)
    means = mean_tokens(data)
    power = float(np.mean(np.sum(means**2, axis=1)))
    if len(means) == 1 or power == 0:
        v, penalty = means.T @ data.tokens.labels, PENALTIES[-1]
    else:
        from sklearn.linear_model import RidgeCV

        fit: Any = RidgeCV(PENALTIES * power, fit_intercept=False).fit(means, data.tokens.labels)
        v, penalty = fit.coef_, fit.alpha_ / power
    length = float(np.linalg.norm(v))
    if not length > 0:
        raise ValueError(
            "the mean tokens are zero; others, or an array head (d,) in the file, were expected to fit a head."
        )
    return Head(v / length, float(penalty))
