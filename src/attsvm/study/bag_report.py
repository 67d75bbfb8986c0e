"""Report on bags in a study: which instance decides each bag, by what margin, and how well that predicts."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from attsvm.data.dataset import Dataset
from attsvm.study.results import Accuracy, BagReport, DecidingInstance, Settings, Setup
from attsvm.study.witness_svm import validated_witness_svm

# How a classifier predicts.
Final: TypeAlias = Literal["attention", "svm"]
FINALS: dict[Final, str] = {
    "attention": "attention and head trained together",
    "svm": "its certified SVM, hard selection",
}


def report_bags(setup: Setup, settings: Settings) -> BagReport:
    """Fit the classifier of bags, with both ways to predict, on the training bags.

    Parameters
    ----------
    setup : Setup
        Its rows are bags.
    """
    # The classifier imports attsvm.study, which imports this module.
    from attsvm.attention_classifier import AttentionClassifier

    train, test = setup.train, setup.test
    models: dict[Final, Any] = {
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
    accuracies.append(_witnesses(train, test, settings.seed))
    model = models["attention"]
    held_out = {} if test is None else {"X": test.tokens.tokens, "mask": test.mask}
    return BagReport(model.guarantee(**held_out, names=train.bags), _instances(model, train), tuple(accuracies))


def _witnesses(train: Dataset, test: Dataset | None, seed: int) -> Accuracy:
    """Return the accuracy of the MI-SVM; bags of class +1 are those with a positive instance."""

    def bags_of(data: Dataset) -> list[np.ndarray]:
        return [bag[shown] for bag, shown in zip(data.tokens.tokens, data.mask, strict=True)]

    model = validated_witness_svm(bags_of(train), train.tokens.labels > 0, seed)

    def right(data: Dataset) -> np.ndarray:
        scores = np.array([model.decision_function(bag).max() for bag in bags_of(data)])
        return (scores > 0) == (data.tokens.labels > 0)

    held_out = None if test is None else right(test)
    share = None if held_out is None else float(held_out.mean())
    label = "MI-SVM, without attention: one witness per bag"
    return Accuracy("bags_witness_svm", label, float(right(train).mean()), share, held_out)


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
