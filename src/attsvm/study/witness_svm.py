"""The MI-SVM of Andrews, Tsochantaridis and Hofmann (NeurIPS 2003): an SVM of one witness per positive bag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC

# C of the SVM, largest number of rounds, and number of inner folds.
WITNESS_C, MOST_ROUNDS, FOLDS = 10.0, 20, 2


def witness_svm(bags: Sequence[np.ndarray], positive: np.ndarray) -> SVC:
    """Separate the witnesses of positive bags from all instances of negative bags, with a Gaussian kernel.

    The witness of a positive bag is its mean instance in the first round, then its instance with the largest score,
    until the witnesses repeat. The score of a bag is the largest score of its instances.

    Parameters
    ----------
    bags : sequence of ndarray, shapes (T_i, d)
    positive : ndarray of bool, shape (n,)
    """
    negative = np.concatenate([bag for bag, is_positive in zip(bags, positive, strict=True) if not is_positive])
    positive_bags = [bag for bag, is_positive in zip(bags, positive, strict=True) if is_positive]
    witnesses = np.array([bag.mean(axis=0) for bag in positive_bags])
    labels = np.arange(len(witnesses) + len(negative)) < len(witnesses)
    model, chosen = SVC(C=WITNESS_C, class_weight="balanced"), []
    for _ in range(MOST_ROUNDS):
        model.fit(np.concatenate([witnesses, negative]), labels)
        best = [int(model.decision_function(bag).argmax()) for bag in positive_bags]
        if best == chosen:
            break
        chosen, witnesses = best, np.array([bag[t] for bag, t in zip(positive_bags, best, strict=True)])
    return model


def validated_witness_svm(bags: Sequence[np.ndarray], positive: np.ndarray, seed: int) -> Pipeline:
    """Fit :func:`witness_svm` to features as they are or standardised, whichever is right on more bags of inner folds.

    Parameters
    ----------
    bags : sequence of ndarray, shapes (T_i, d)
    positive : ndarray of bool, shape (n,)
    seed : int
        Seed of the inner folds.
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

    all_rows = np.arange(len(bags))
    folds = min(FOLDS, int(np.bincount(positive, minlength=2).min()))
    if folds < 2:
        return fitted(all_rows, standardised=False)
    splits = list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(all_rows, positive))
    return fitted(all_rows, standardised=right(standardised=True) > right(standardised=False))
