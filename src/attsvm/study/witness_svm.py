"""The MI-SVM of Andrews, Tsochantaridis and Hofmann (NeurIPS 2003): an SVM of one witness per positive bag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC

# Price of a unit of loss, largest number of rounds, and number of inner folds.
WITNESS_PRICE, MOST_ROUNDS, FOLDS = 10.0, 20, 2


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


def validated_witness_svm(bags: Sequence[np.ndarray], positive: np.ndarray, seed: int) -> Pipeline:
    """Fit :func:`witness_svm` to features as they are or standardised, whichever is right on more bags of inner folds.

    Parameters
    ----------
    bags : sequence of ndarray, shapes (T_i, d)
    positive : ndarray of bool, shape (n,)
    seed : int
        Of the inner folds.
    """

    def fitted(rows: np.ndarray, *, standardised: bool) -> Pipeline:
        scaler: Any = StandardScaler() if standardised else FunctionTransformer()
        scaler.fit(np.concatenate([bags[i] for i in rows]))
        return make_pipeline(scaler, witness_svm([scaler.transform(bags[i]) for i in rows], positive[rows]))

    def right(*, standardised: bool) -> int:
        count = 0
        for rows, held_out in splits:
            model = fitted(rows, standardised=standardised)
            count += sum((model.decision_function(bags[i]).max() > 0) == positive[i] for i in held_out)
        return count

    every = np.arange(len(bags))
    folds = min(FOLDS, int(np.bincount(positive, minlength=2).min()))
    if folds < 2:
        return fitted(every, standardised=False)
    splits = list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(every, positive))
    return fitted(every, standardised=right(standardised=True) > right(standardised=False))
