"""Accuracy of attention with a given W under the fixed head."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attsvm.study.results import Accuracy, Study
from attsvm.theory.tokens import Trial

Attend = Callable[[Trial, np.ndarray], np.ndarray]


def soft_attention(trial: Trial, W: np.ndarray) -> np.ndarray:
    """Return the attention probabilities, (n, T)."""
    logits = trial.logits(W)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def hard_attention(trial: Trial, W: np.ndarray) -> np.ndarray:
    """Put all attention on the largest logit, (n, T)."""
    logits = trial.logits(W)
    return np.eye(logits.shape[1])[logits.argmax(axis=1)]


def rows_right(trial: Trial, attention: np.ndarray) -> np.ndarray:
    """Return whether each row has Y v^T sum_t s_t x_t > 0, bool (n,)."""
    outputs = np.einsum("nt,ntd->nd", attention, trial.values) @ trial.v
    return trial.labels * outputs > 0


def share_right(trial: Trial, attention: np.ndarray) -> float:
    """Share of rows with Y v^T sum_t s_t x_t > 0."""
    return float(np.mean(rows_right(trial, attention)))


def accuracies(study: Study) -> tuple[Accuracy, ...]:
    """Compare uniform attention, trained attention and the SVM's hard selection, on training and test rows."""
    setup = study.setup
    train = setup.trial
    test = None if setup.test is None else Trial.of(setup.test.tokens, setup.head.v)

    def row(key: str, label: str, attend: Attend, W: np.ndarray) -> Accuracy:
        right = None if test is None else rows_right(test, attend(test, W))
        share = None if right is None else float(right.mean())
        return Accuracy(key, label, share_right(train, attend(train, W)), share, right)

    uniform = np.zeros((setup.train.tokens.d, setup.train.tokens.dz))
    rows = [row("uniform", "uniform attention: the head alone", soft_attention, uniform)]
    names = {"W": ("trained W", "its Frobenius SVM"), "KQ": ("trained K, Q", "its nuclear SVM")}
    for parameterization, run in study.runs.items():
        trained, svm = names[parameterization]
        rows.append(row(parameterization, trained, soft_attention, np.asarray(run.trace.W[-1])))
        if run.own in run.curves:
            direction = run.solutions[run.own].W
            rows.append(row(f"{parameterization}_svm", f"{svm}, hard selection", hard_attention, direction))
    for parameterization, control in study.shuffled_labels.items():
        label = f"{names[parameterization][0]} on shuffled labels, mean of {len(control.test)}"
        means = float(control.train.mean()), float(control.test.mean())
        rows.append(Accuracy(f"{parameterization}_shuffled_labels", label, *means))
    return tuple(rows) if study.bags is None else (*rows, *study.bags.accuracies)
