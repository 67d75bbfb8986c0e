"""AttentionClassifier: selections, certificates and forms of bags."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from attsvm import AttentionClassifier, SelectionProblem, Status, solve
from attsvm.data.bags import is_bags, read_bags, table_bags
from attsvm.data.digits import bags_of_digits
from attsvm.study.bag_training import BagSelection, attention, averages, fit_head, train_bags
from attsvm.study.bag_words import guarantee


def planted(count: int, seed: int = 0, classes: int = 2) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Bags of 2 to 6 instances in six dimensions of which one decides; returns them, the labels and the deciding one.

    The deciding instance stands out by its first coordinate, and coordinates 2, 3, ... tell the class.
    """
    random = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    bags, deciding = [], []
    for label in labels:
        bag = random.normal(size=(random.integers(2, 7), 6))
        place = int(random.integers(len(bag)))
        bag[place, 0] += 5.0
        bag[place, 1 : 1 + classes] = 3.0 * np.eye(classes)[label] + 0.3 * random.normal(size=classes)
        bags.append(bag)
        deciding.append(place)
    return bags, labels, np.array(deciding)


@pytest.fixture(scope="module", name="model")
def _model() -> AttentionClassifier:
    bags, y, _ = planted(120)
    return AttentionClassifier(cv=3).fit(bags, y)


@pytest.mark.slow
def test_the_deciding_instance_is_selected_and_predicts(model: AttentionClassifier) -> None:
    bags, y, deciding = planted(120)
    assert np.mean(model.selected_ == deciding) > 0.9
    strangers, labels, places = planted(200, seed=1)
    assert model.score(strangers, labels) > 0.9
    assert np.mean(model.transform(strangers).argmax(axis=1) == places) > 0.9
    # Chance: half of the labels.
    shuffled = np.random.default_rng(2).permutation(y)
    fresh: Any = clone(model)
    assert fresh.fit(bags, shuffled).score(strangers, labels) < 0.7


def test_the_solution_is_the_certified_svm_of_the_selection(model: AttentionClassifier) -> None:
    bags, _, _ = planted(120)
    instances = np.concatenate(bags)
    scaled = [(bag - instances.mean(axis=0)) / instances.std(axis=0) / np.sqrt(6) for bag in bags]
    width = max(map(len, bags))
    tokens = np.stack([np.pad(bag, ((0, width - len(bag)), (0, 0))) for bag in scaled])
    mask = np.arange(width) < np.array([[len(bag)] for bag in bags])
    expected = solve(SelectionProblem(tokens, np.ones((120, 1)), model.selected_, mask=mask))
    assert model.solution_.status is Status.OPTIMAL
    assert model.solution_.objective == pytest.approx(expected.objective, rel=2e-9)
    assert model.solution_.verify()
    # At norm one the smallest margin is the inverse of the smallest norm at margin one.
    assert model.margins_.min() * expected.objective == pytest.approx(1.0, abs=1e-6)


def test_every_round_is_adam_on_the_loss_under_the_head_before_it() -> None:
    """Adam's means of gradients start anew in each round; 25 steps are rounds of 10, 10 and 5."""
    given, y, _ = planted(8)
    bags, weights, decay = replace(read_bags(given, None, None), labels=np.where(y == 1, 1.0, -1.0)), y + 0.5, 0.05
    models = train_bags(bags, weights, decay, 25)
    assert len(models) == 3
    assert bags.labels is not None
    X, labels, loss_weights = [torch.tensor(bag) for bag in given], torch.tensor(bags.labels), torch.tensor(weights)
    W, step = np.zeros((6, 1)), 0
    for model, count in zip(models, (10, 10, 5), strict=True):
        head, intercept = fit_head(averages(bags, attention(bags, W)), bags.labels, weights, decay)
        v, gradients = torch.tensor(head), []
        for k in range(1, count + 1):
            w = torch.tensor(W[:, 0], requires_grad=True)
            outputs = torch.stack([torch.softmax(bag @ w, 0) @ bag @ v + intercept for bag in X])
            losses = loss_weights * torch.nn.functional.softplus(-labels * outputs)
            gradients.append(torch.autograd.grad(losses.mean() + decay / 2 * w @ w, w)[0].numpy())
            ages = np.arange(k)[::-1]
            mean = np.average(gradients, axis=0, weights=0.9**ages)
            root = np.sqrt(np.average(np.square(gradients), axis=0, weights=0.999**ages))
            step += 1
            W = W - (0.4 / np.sqrt(6 * (1 + step / 40)) * mean / (root + 1e-8))[:, None]
        np.testing.assert_allclose(model.W, W, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("final", ["attention", "svm"])
def test_a_shuffled_selection_predicts_no_longer(final: str) -> None:
    """With final="svm" the W of another selection takes the place of the certified one."""
    bags, y, _ = planted(120)
    strangers, labels, places = planted(200, seed=1)
    model = AttentionClassifier(cv=None, decay=1e-3, final=final).fit(bags, y)
    assert model.score(strangers, labels) > 0.9
    assert np.mean(model.transform(strangers).argmax(axis=1) == places) > 0.9
    problem = model.problem_
    random = np.random.default_rng(3)
    others = np.array([random.choice(np.flatnonzero(row)) for row in problem.mask])
    shuffled = solve(SelectionProblem(problem.tokens, problem.queries, others, mask=problem.mask), C=1.0)
    (fitted,) = model.models_
    model.models_ = (type(fitted)(np.asarray(shuffled.W), fitted.v, fitted.intercept, hard=True),)
    assert model.score(strangers, labels) < 0.75


def test_copies_of_features_change_nothing() -> None:
    """Scores of instances are the same, and the steps of W have the same length."""
    bags, y, _ = planted(60)
    copied = [np.tile(bag, 25) for bag in bags]
    model, other = (AttentionClassifier(cv=None, decay=0.1, steps=40).fit(X, y) for X in (bags, copied))
    # The head is solved to gradients of 1e-4; steps five times as long change log-odds by 0.1.
    np.testing.assert_allclose(other.decision_function(copied), model.decision_function(bags), atol=1e-3)


def test_lists_padded_arrays_and_tables_agree() -> None:
    bags, y, _ = planted(120)
    model = AttentionClassifier(cv=None, steps=20).fit(bags, y)
    width = max(map(len, bags))
    padded = np.stack([np.pad(bag, ((0, width - len(bag)), (0, 0)), constant_values=9.0) for bag in bags])
    mask = np.arange(width) < np.array([[len(bag)] for bag in bags])
    expected = model.decision_function(bags)
    np.testing.assert_array_equal(model.decision_function(padded, mask=mask), expected)
    objects = np.empty(120, dtype=object)
    objects[:] = bags
    np.testing.assert_array_equal(model.decision_function(objects), expected)
    # Rows of the table are mixed; bags come in the order of their first rows.
    names = np.repeat(np.arange(120), [len(bag) for bag in bags])
    table = pd.DataFrame(np.concatenate(bags), columns=list("abcdef")).assign(molecule=names)
    table = table.sample(frac=1.0, random_state=0)
    order = table["molecule"].drop_duplicates().to_numpy()
    other = AttentionClassifier(cv=None, steps=20, bag="molecule").fit(table, y[table["molecule"]])
    # The order of sums differs, and 20 steps multiply its rounding.
    np.testing.assert_allclose(other.decision_function(table), expected[order], rtol=1e-6, atol=1e-6)
    again: Any = clone(other)
    again.fit(table, y[order])
    np.testing.assert_array_equal(again.decision_function(table), other.decision_function(table))


@pytest.mark.parametrize(
    ("X", "several"),
    [
        ([np.ones((2, 3))], True),
        ([[1.0, 2.0]], False),
        ([], False),
        (np.ones((1, 2, 3)), True),
        (np.ones((2, 3)), False),
    ],
)
def test_a_bag_alone_is_told_from_a_row_of_a_matrix(X: Any, several: bool) -> None:
    assert is_bags(X, None, None) is several


@pytest.mark.parametrize(
    ("X", "sentence"),
    [
        (
            [np.ones(3), np.ones((2, 3))],
            "bags[0] has shape (3,); (instances, 3) with one instance or more was expected.",
        ),
        (
            [np.ones((1, 2)), np.ones((1, 3))],
            "bags[1] has shape (1, 3); (instances, 2) with one instance or more was expected.",
        ),
        (np.ones((2, 3)), "bags has shape (2, 3); (bags, instances, features) was expected."),
        (np.ones((2, 0, 3)), "bags has shape (2, 0, 3); (bags, instances, features) was expected."),
    ],
)
def test_bags_of_another_shape_are_one_sentence(X: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        read_bags(X, None, None)


def test_bags_of_a_table_may_have_names_without_an_order() -> None:
    table = pd.DataFrame({"bag": ["b", (1, 2), 3, "b", (1, 2)], "x": np.arange(5.0)}, index=[7, 7, 1, 0, 2])
    rows, names = table_bags(table, "bag")
    assert [part.tolist() for part in rows] == [[0, 3], [1, 4], [2]]
    assert names == ["b", (1, 2), 3]


def test_grid_search_and_pipeline_split_bags() -> None:
    bags, y, _ = planted(60)
    scaler = FunctionTransformer(lambda bags: [2.0 * np.asarray(bag) for bag in bags])
    pipeline = make_pipeline(scaler, AttentionClassifier(cv=None, steps=20))
    search = GridSearchCV(pipeline, {"attentionclassifier__decay": [1e-3, 10.0]}, cv=3).fit(bags, y)
    assert search.best_params_ == {"attentionclassifier__decay": 1e-3}
    assert search.best_score_ > 0.8
    assert cross_val_score(AttentionClassifier(cv=None), bags, y, cv=3).shape == (3,)


def test_more_classes_are_told_apart_one_against_the_rest() -> None:
    bags, y, _ = planted(90, classes=3)
    names = np.array(["ant", "bee", "cat"])
    model = AttentionClassifier(cv=None, decay=1e-3).fit(bags, names[y])
    strangers, labels, _ = planted(90, seed=1, classes=3)
    assert model.score(strangers, names[labels]) > 0.85
    chances = model.predict_proba(strangers)
    assert chances.shape == (90, 3)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    assert model.selected_.shape == model.margins_.shape == (3, 90)
    assert model.transform(strangers).shape[:2] == (90, 3)
    assert model.guarantee().startswith("ant, against the rest. ")


def test_probabilities_are_calibrated_on_held_out_folds() -> None:
    """Labels of which a third are random: probabilities of a model that trusts its training bags are too extreme."""
    bags, y, _ = planted(200)
    random = np.random.default_rng(4)
    flipped = np.where(random.random(200) < 1 / 3, random.integers(0, 2, 200), y)
    strangers, labels, _ = planted(300, seed=1)
    noisy = np.where(random.random(300) < 1 / 3, random.integers(0, 2, 300), labels)
    losses = []
    for cv in (3, None):
        chances = AttentionClassifier(cv=cv, decay=1e-4).fit(bags, flipped).predict_proba(strangers)
        losses.append(-np.log(np.maximum(chances[np.arange(300), noisy], 1e-300)).mean())
    assert losses[0] < losses[1]
    assert losses[0] < np.log(2)


def test_two_probabilities_are_those_of_the_log_odds(model: AttentionClassifier) -> None:
    strangers, _, _ = planted(50, seed=1)
    chances, odds = model.predict_proba(strangers), model.decision_function(strangers)
    np.testing.assert_allclose(chances, np.column_stack([expit(-odds), expit(odds)]), rtol=1e-12, atol=1e-12)


def test_even_odds_are_the_first_class() -> None:
    bags, y, _ = planted(4)
    model: Any = AttentionClassifier(cv=None, steps=1).fit(bags, y)
    model.models_ = (replace(model.models_[0], v=np.zeros(6), intercept=0.0),)
    np.testing.assert_array_equal(model.predict_proba(bags), np.full((4, 2), 0.5))
    assert not model.predict(bags).any()


def test_two_inner_folds_choose_a_decay() -> None:
    """With a decay of a thousand the head is nearly zero, and its loss nearly that of even odds."""
    bags, y, _ = planted(40)
    model = AttentionClassifier(cv=2, decay=(1e3, 1e-2), steps=10).fit(bags, y)
    assert model.decay_ == (1e-2,)


def test_class_weights_move_decisions() -> None:
    bags, y, _ = planted(100)
    few = np.flatnonzero((y == 0) | (np.arange(100) < 20))
    rare = np.random.default_rng(5).normal(size=(100, 6)) * 1.5
    noisy = [bags[i] + rare[i] for i in few]
    plain, balanced = (
        AttentionClassifier(cv=None, decay=1e-2, class_weight=weight).fit(noisy, y[few]).predict(noisy).mean()
        for weight in (None, "balanced")
    )
    assert balanced > plain


def test_contradictory_bags_are_named() -> None:
    """The first two bags hold the same instances and select different ones; the third agrees with the first."""
    tokens, selected = np.array([[[0.0], [1.0]], [[0.0], [1.0]], [[0.0], [2.0]]]), np.array([0, 1, 0])
    problem = SelectionProblem(tokens, np.ones((3, 1)), selected)
    selection = BagSelection(selected, problem, solve(problem, C=1.0), solve(problem))
    assert 1 in selection.contradiction
    assert len(selection.contradiction) == 2
    sentence = guarantee(selection, names=["first", "second", "third"])
    assert re.search(r"from the demands of 2 bags \((first, second|second, third)\), which contradict", sentence)
    assert "The certified soft margin selects it in 2," in sentence


def test_a_margin_of_zero_selects_nothing() -> None:
    """No W tells the equal instances of the first bag apart."""
    tokens, selected = np.array([[[1.0], [1.0]], [[0.0], [1.0]]]), np.array([0, 1])
    problem = SelectionProblem(tokens, np.ones((2, 1)), selected)
    selection = BagSelection(selected, problem, solve(problem, C=1.0), solve(problem))
    sentence = guarantee(selection)
    assert "The certified soft margin selects it in 1," in sentence
    assert "from the demands of 1 bag (0), which contradict each other." in sentence


@pytest.mark.parametrize(("count", "named"), [(5, "0, 1, 2, 3, 4"), (7, "0, 1, 2, 3, 4 and 2 more")])
def test_more_than_five_contradictory_bags_are_counted(count: int, named: str) -> None:
    """Directions that sum to zero contradict each other, and all but one of them do not."""
    d = count - 1
    tokens = np.stack([np.vstack([np.eye(d), -np.ones(d)]), np.zeros((count, d))], axis=1)
    selected = np.zeros(count, dtype=int)
    problem = SelectionProblem(tokens, np.ones((count, 1)), selected)
    selection = BagSelection(selected, problem, solve(problem, C=1.0), solve(problem))
    assert f"from the demands of {count} bags ({named}), which contradict each other." in guarantee(selection)


@pytest.mark.parametrize(("gap", "text"), [(3e-7, "3×10⁻⁷"), (-1e-17, "rounding level")])
@pytest.mark.parametrize(("objective", "answer"), [(1.0, "has a larger one"), (np.inf, "selects it in 1")])
def test_the_guarantee_tells_the_gap_of_its_svm(gap: float, text: str, objective: float, answer: str) -> None:
    """Without a hard margin it is the gap of the soft margin."""
    problem = SelectionProblem(np.array([[[0.0], [1.0]]]), np.ones((1, 1)), np.array([1]))
    margins = np.array([[1.0, 0.0]])
    hard: Any = SimpleNamespace(objective=objective, status=Status.OPTIMAL, gap=gap, certificate=None)
    answered: Any = SimpleNamespace(objective=1.0, margins=margins, gap=gap)
    selection = BagSelection(np.array([1]), problem, answered, hard)
    assert f"{answer}, to a relative gap of {text}." in guarantee(selection)


def test_bags_of_one_instance_have_nothing_to_reject() -> None:
    problem = SelectionProblem(np.ones((2, 1, 1)), np.ones((2, 1)), np.zeros(2, dtype=int))
    solution = solve(problem)
    text = guarantee(BagSelection(np.zeros(2, dtype=int), problem, solution, solution))
    assert text.startswith("One W selects the deciding instance of all 2 bags: at norm one its smallest margin is inf,")
    assert "nearest to a change" not in text


def test_the_nearest_selections_are_those_of_the_smallest_margins() -> None:
    """Under the W of norm one the margins of instances on a line are their distances."""
    tokens, selected = np.array([[[0.0], [3e-4]], [[0.0], [2e-4]], [[0.0], [4e-4]]]), np.ones(3, dtype=int)
    problem = SelectionProblem(tokens, np.ones((3, 1)), selected)
    solution = solve(problem)
    text = guarantee(BagSelection(selected, problem, solution, solution), names=["far", "near", "farthest"])
    assert "its smallest margin is 0.0002, and" in text
    assert text.endswith("are those of bags near, far, farthest, the first at margin 0.0002; the median is 0.0003.")


def test_the_last_head_is_fitted_to_the_instances_of_the_certified_selection() -> None:
    """At the smallest regularised logistic loss of the selected instances its gradient is zero."""
    bags, y, _ = planted(120)
    model: Any = AttentionClassifier(cv=None, decay=1e-2, final="svm").fit(bags, y)
    (fitted,) = model.models_
    outputs, labels = np.asarray(model.problem_.tokens)[np.arange(120), model.selected_], np.where(y == 1, 1.0, -1.0)
    slopes = -labels / (1 + np.exp(labels * (outputs @ fitted.v + fitted.intercept))) / 120
    np.testing.assert_allclose(outputs.T @ slopes + 1e-2 * fitted.v, 0.0, atol=1e-4)
    assert slopes.sum() == pytest.approx(0.0, abs=1e-4)


def test_a_soft_margin_that_is_late_is_still_an_answer() -> None:
    """Random bags in two dimensions contradict each other; nothing is solved within a microsecond."""
    random = np.random.default_rng(7)
    bags, y = list(random.normal(size=(80, 8, 2)) + 0.1 * random.normal(size=(80, 8, 2)) ** 3), np.arange(80) % 2
    model = AttentionClassifier(cv=None, steps=10, time_limit=1e-6).fit(bags, y)
    assert np.isfinite(model.solution_.objective)
    assert len(model.predict(bags)) == 80
    assert model.guarantee()


@pytest.mark.parametrize(("C", "primal"), [(None, 1.0), (3.0, 12.0)])
def test_without_c_the_soft_margin_has_the_weight_of_the_decay(C: float | None, primal: float) -> None:
    """Every bag has both labels, so W stays zero and all bags select their first instance.

    Two bags contradict the other two. The best W of their soft margin is zero too, and each bag falls short by one.
    """
    bags = [[[0.0, 0.0], [1.0, 2.0]], [[1.0, 2.0], [0.0, 0.0]]] * 2
    model: Any = AttentionClassifier(cv=None, decay=1.0, steps=10, C=C).fit(bags, [0, 0, 1, 1])
    assert not model.models_[0].W.any()
    assert solve(model.problem_).status is Status.INFEASIBLE
    # Four losses of one, and C is 1 / (4 decay) if none is given.
    assert model.solution_.primal == pytest.approx(primal, rel=2e-9)


def test_covered_bags_lead_by_the_margin_of_the_training_bags(model: AttentionClassifier) -> None:
    bags, _, _ = planted(120)
    assert model.covered(bags).all()
    tight = [np.vstack([bag[0], bag[0] + 1e-9]) for bag in bags]
    assert not model.covered(tight).any()
    assert "0 of 120 bags held out are covered" in model.guarantee(tight)


def test_attention_on_digits_beats_the_mean() -> None:
    data = bags_of_digits(count=300).tokens
    y, bags = np.asarray(data.labels), np.asarray(data.tokens)
    model = AttentionClassifier(cv=None, decay=1e-3).fit(bags[:200], y[:200])
    uniform = AttentionClassifier(cv=None, decay=1e-3).fit(bags[:200].mean(axis=1), y[:200])
    # Standard errors of both are below .05.
    assert model.score(bags[200:], y[200:]) > uniform.score(bags[200:].mean(axis=1), y[200:]) + 0.1


@pytest.mark.slow
def test_it_may_be_the_first_import_and_needs_no_torch() -> None:
    """Studies of bags use the classifier, which is built on parts of a study."""
    code = """
import sys
from attsvm import AttentionClassifier
AttentionClassifier(cv=None).fit([[[0.0, 1.0], [1.0, 1.0]], [[0.0, -1.0]]], [1, 0])
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"decay": 0.0}, "decay is 0.0; a positive number or several were expected."),
        ({"decay": (0.1, 0.0)}, "decay is (0.1, 0.0); a positive number or several were expected."),
        ({"steps": 0}, "steps is 0; a positive integer was expected."),
        ({"final": "last"}, "final is 'last'; 'attention' or 'svm' was expected."),
        ({"cv": 1}, "cv is 1; an integer from 2, or None, was expected."),
    ],
)
def test_bad_parameters_are_one_sentence(arguments: dict, sentence: str) -> None:
    bags, y, _ = planted(4)
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        AttentionClassifier(**arguments).fit(bags, y)


def test_bad_bags_are_one_sentence(model: AttentionClassifier) -> None:
    bags, y, _ = planted(6)
    with pytest.raises(ValueError, match=r"^bags\[5\] has shape \(0, 6\); \(instances, 6\) with one instance or more"):
        AttentionClassifier().fit([*bags[:5], bags[5][:0]], y)
    with pytest.raises(ValueError, match=r"^bags\[0\] of shape .* has NaN or infinity"):
        AttentionClassifier().fit([bags[0] * np.nan, *bags[1:]], y)
    with pytest.raises(ValueError, match=r"^bags have 2 features; 6, as in fit, were expected\.$"):
        model.predict([bag[:, :2] for bag in bags])
    with pytest.raises(ValueError, match=r"^y has 5 labels; one for each of 6 bags was expected\.$"):
        AttentionClassifier().fit(bags, y[:5])
    with pytest.raises(ValueError, match=r"^mask has shape \(6, 2\) and dtype int64; booleans of shape \(6, 3\)"):
        AttentionClassifier().fit(np.ones((6, 3, 2)), y, mask=np.ones((6, 2), dtype=int))
    table = pd.DataFrame({"bag": [0, 0, 1], "x": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match=r"^bag is 'sack'; one of the columns 'bag', 'x' was expected\.$"):
        AttentionClassifier(bag="sack").fit(table, [0, 1])
    gap = table.assign(bag=["a", None, "b"])
    with pytest.raises(
        ValueError, match=r"^the column 'bag' has no value in row 1; the name of a bag in every row was"
    ):
        AttentionClassifier(bag="bag").fit(gap, [0, 1])
    with pytest.raises(ValueError, match=r"^y has 3 labels, more than one in bag 0; one label per bag was expected\.$"):
        AttentionClassifier(bag="bag").fit(table, [0, 1, 1])


@pytest.mark.slow
def test_a_matrix_of_bags_of_one_passes_the_checks_of_scikit_learn() -> None:
    outcomes = check_estimator(AttentionClassifier(cv=2, decay=(1e-3, 1e-2)), on_skip=None)
    assert len(outcomes) > 50
    assert {outcome["status"] for outcome in outcomes} <= {"passed", "skipped"}
