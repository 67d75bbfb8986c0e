"""The part of a study that is about bags: which instance decides each, by what margin, and how well that predicts."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.data.dataset import Dataset
from attsvm.study.results import Accuracy, BagReport, DecidingInstance, Settings, Setup

FINALS = {
    "attention": "attention and head trained together",
    "svm": "its certified SVM, hard selection",
}


def report_bags(setup: Setup, settings: Settings) -> BagReport:
    """Fit the classifier of bags, with both ways to predict, on the training bags.

    Parameters
    ----------
    setup : Setup
        Of data with names of bags.
    settings : Settings
    """
    # The classifier is built on this package, which imports this module.
    from attsvm.attention_classifier import AttentionClassifier

    train, test = setup.train, setup.test
    models: dict[str, Any] = {
        final: AttentionClassifier(final=final, time_limit=settings.time_limit, random_state=settings.seed)
        for final in FINALS
    }
    accuracies = []
    for final, model in models.items():
        model.fit(train.tokens.tokens, train.tokens.labels, mask=train.mask)
        shares = [_right(model, data) for data in (train, test) if data is not None]
        right = shares[1] if len(shares) > 1 else None
        share = None if right is None else float(right.mean())
        accuracies.append(Accuracy(f"bags_{final}", FINALS[final], float(shares[0].mean()), share, right))
    model = models["attention"]
    held_out = {} if test is None else {"X": test.tokens.tokens, "mask": test.mask}
    return BagReport(model.guarantee(**held_out, names=train.bags), _instances(model, train), tuple(accuracies))


def _right(model: Any, data: Dataset) -> np.ndarray:
    return model.predict(data.tokens.tokens, mask=data.mask) == data.tokens.labels


def _instances(model: Any, data: Dataset) -> tuple[DecidingInstance, ...]:
    attention = model.transform(data.tokens.tokens, mask=data.mask)
    assert data.bags is not None
    rows = []
    for i in np.argsort(model.margins_, kind="stable").tolist():
        place = int(model.selected_[i])
        name = f"number {place + 1}" if data.passages is None else data.passages.name(i, place)
        label = data.classes[0 if data.tokens.labels[i] > 0 else 1]
        margin = float(model.margins_[i])
        rows.append(DecidingInstance(i, data.bags[i], label, name, place, float(attention[i, place]), margin))
    return tuple(rows)
