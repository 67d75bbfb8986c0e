"""The MI-SVM of Andrews, Tsochantaridis and Hofmann (NeurIPS 2003): an SVM of one witness per positive bag."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.svm import SVC

# Price of a unit of loss, and largest number of rounds.
WITNESS_PRICE, MOST_ROUNDS = 10.0, 20


def witness_svm(bags: Sequence[np.ndarray], positive: np.ndarray) -> SVC:
    """Tell witnesses of positive bags from all instances of the others, with a Gaussian kernel.

    Witnesses are mean instances first, then the best instance of each bag, until they repeat. A bag scores as its best
    instance.

    Parameters
    ----------
    bags : sequence of ndarray, shapes (T_i, d)
    positive : ndarray of bool, shape (n,)
    """
    negative = np.concatenate([bag for bag, is_positive in zip(bags, positive, strict=True) if not is_positive])
    others = [bag for bag, is_positive in zip(bags, positive, strict=True) if is_positive]
    witnesses = np.array([bag.mean(axis=0) for bag in others])
    labels = np.arange(len(witnesses) + len(negative)) < len(witnesses)
    model, chosen = SVC(C=WITNESS_PRICE, class_weight="balanced"), []
    for _ in range(MOST_ROUNDS):
        model.fit(np.concatenate([witnesses, negative]), labels)
        best = [int(model.decision_function(bag).argmax()) for bag in others]
        if best == chosen:
            break
        chosen, witnesses = best, np.array([bag[t] for bag, t in zip(others, best, strict=True)])
    return model
