"""The MI-SVM that stands next to attention in a study: its scaling is chosen on training bags."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from attsvm.study.witness_svm import validated_witness_svm, witness_svm


def _bags(seed: int, loud: float, quiet: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Bags of three with one instance that decides by its first feature; `quiet` features of scale .1 are noise."""
    random = np.random.default_rng(seed)
    positive = np.arange(80) % 2 == 0
    bags = []
    for decides in positive:
        bag = random.normal(size=(3, 2 + quiet)) * np.array([1.0, loud, *[0.1] * quiet])
        bag[0, 0] += 5.0 * decides
        bags.append(bag)
    return bags, positive


@pytest.mark.parametrize(("loud", "quiet", "standardised"), [(1000.0, 0, True), (0.1, 40, False)])
def test_features_are_standardised_where_that_is_right_on_inner_folds(
    loud: float, quiet: int, standardised: bool
) -> None:
    bags, positive = _bags(0, loud, quiet)
    model = validated_witness_svm(bags, positive, seed=0)
    assert isinstance(model[0], StandardScaler) is standardised
    strangers, labels = _bags(1, loud, quiet)
    right = [(model.decision_function(bag).max() > 0) == label for bag, label in zip(strangers, labels, strict=True)]
    assert np.mean(right) > 0.85


def test_a_bag_of_an_inner_fold_is_right_by_the_sign_of_its_score() -> None:
    """Scores of four bags to learn from are far below one; standardised they have the right signs."""
    bags, positive = _bags(2, 100.0, 0)
    assert isinstance(validated_witness_svm(bags[:8], positive[:8], seed=0)[0], StandardScaler)


def test_features_stay_as_they_are_where_both_ways_are_equally_right() -> None:
    """The Gaussian kernel's width follows the spread, so that one feature has the same scores in every unit."""
    positive = np.arange(8) % 2 == 0
    bags = [np.array([[0.0], [5.0 * decides], [0.1]]) for decides in positive]
    assert not isinstance(validated_witness_svm(bags, positive, seed=0)[0], StandardScaler)


def test_every_instance_of_a_negative_bag_counts_as_negative() -> None:
    """Each stands alone, so that a wrong label would decide its score."""
    bags = [np.array([[0.0], [1.0]]), np.array([[-8.0], [8.0]])]
    scores = witness_svm(bags, np.array([True, False])).decision_function(bags[1])
    assert (scores < 0).all()


def test_a_single_positive_bag_leaves_features_as_they_are() -> None:
    bags, _ = _bags(0, 1000.0, 0)
    assert not isinstance(validated_witness_svm(bags, np.arange(80) == 0, seed=0)[0], StandardScaler)
