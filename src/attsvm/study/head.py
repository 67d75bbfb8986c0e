r"""The fixed linear head under which a study trains attention.

The theory fixes a head h(x) = v^T x before attention is trained. At W = 0 attention is uniform and the model predicts
:math:`v^\top \bar x_i` from the mean token. The natural v is therefore the best linear classifier of mean tokens: ridge
regression of the labels, with the penalty of smallest leave-one-out error. It uses only the training rows and does not
depend on attention. It gives every token a score :math:`\gamma_{it} = Y_i v^\top x_{it}`: its contribution to the right
decision under uniform attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.data.dataset import Dataset

# Ridge penalties, relative to the mean squared length of a mean token; leave-one-out error is flat at both ends.
PENALTIES = np.logspace(-6, 2, 33)


@dataclass(frozen=True, eq=False)
class Head:
    """A linear head of length one.

    Attributes
    ----------
    v : ndarray, shape (d,)
    penalty : float or None
        The chosen ridge penalty relative to the mean squared length of a mean token; None for a head given with the
        data.
    """

    v: np.ndarray
    penalty: float | None


def mean_tokens(data: Dataset) -> np.ndarray:
    """Average the visible tokens of each sequence, (n, d)."""
    weights = data.mask / data.mask.sum(axis=1, keepdims=True)
    return np.einsum("nt,ntd->nd", weights, data.tokens.tokens)


def fit_head(data: Dataset) -> Head:
    """Return the data's head, or fit one by ridge regression on mean tokens.

    Raises ValueError if the labels cannot be predicted, so that the head would be zero.
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
