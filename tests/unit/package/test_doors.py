"""Classification and next-token prediction as selection problems; shares of the largest margin."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator

from attsvm import MarginClassifier, SelectionProblem, UnsolvedError, margin_report, solve


def _classes(seed: int, n: int = 24, d: int = 5, k: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, (X @ rng.standard_normal((d, k))).argmax(axis=1)


def test_classes_are_unit_tokens_shared_by_all_inputs() -> None:
    X, y = _classes(0)
    problem = SelectionProblem.from_classes(X, y, classes=6)
    assert problem.tokens.shape == (1, 6, 6)
    W = np.random.default_rng(1).standard_normal((6, 5))
    scores = X @ W.T
    np.testing.assert_allclose(problem.margins(W), scores[np.arange(len(X)), y][:, None] - scores, atol=1e-13)


def test_contexts_ask_equal_scores_of_the_words_that_follow() -> None:
    supports = np.array([[True, True, False, False], [False, True, True, True]])
    solution = solve(SelectionProblem.from_contexts(np.eye(2), supports))
    column = np.array([0.5, 0.5, -0.5, -0.5])
    other = np.array([-0.75, 0.25, 0.25, 0.25])
    # Unit contexts ask one column of W each: the shortest that is equal within both groups of words and differs by one
    # between them has mean zero, the centred support matrix of arXiv 2408.15417.
    np.testing.assert_allclose(solution.W, np.stack([column, other], axis=1), atol=1e-9)


def test_words_may_have_vectors_of_their_own() -> None:
    rng = np.random.default_rng(3)
    words, contexts = rng.standard_normal((5, 3)), rng.standard_normal((4, 2))
    supports = np.eye(5, dtype=bool)[:4]
    problem = SelectionProblem.from_contexts(contexts, supports, embeddings=words)
    W = rng.standard_normal((3, 2))
    np.testing.assert_allclose(problem.scores(W), contexts @ W.T @ words.T, atol=1e-13)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SelectionProblem.from_classes(np.eye(2), [0.0, 1.0]), "^y has float64"),
        (lambda: SelectionProblem.from_classes(np.eye(2), [0, 2], classes=2), "^classes is 2"),
        (lambda: SelectionProblem.from_classes(np.eye(3), [0, 1]), "^y or supports has 2 rows"),
        (lambda: SelectionProblem.from_contexts(np.eye(2), np.eye(2)), "^supports has float64"),
        (
            lambda: SelectionProblem.from_contexts(np.eye(2), np.eye(2, dtype=bool), embeddings=np.eye(3)),
            "^embeddings has 3 rows",
        ),
    ],
)
def test_bad_input_is_named(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "spectral", "max"])
def test_a_solution_has_the_whole_margin_of_its_own_norm_and_no_other(norm: str) -> None:
    problem = SelectionProblem.from_classes(*_classes(4))
    names = ("frobenius", "nuclear", "spectral", "max")
    report = margin_report(3.0 * solve(problem, norm).W, problem, names, tol=1e-8)
    assert report.nearest == norm
    # solve's gap is 1e-9 and the report's 1e-8: both move the share by no more than their sum.
    assert report[norm].low <= 1.0 + 1.1e-8
    assert report[norm].high >= 1.0 - 1.1e-8
    assert all(report[name].high < 0.999 for name in names if name != norm)


def test_a_report_says_when_there_is_no_margin() -> None:
    problem = SelectionProblem.from_classes(np.array([[1.0], [-2.0]]), [0, 1])
    wrong = margin_report(np.array([[0.0], [1.0]]), problem, ["frobenius"])
    assert wrong["frobenius"].high < 0
    assert wrong.sentence.startswith("W breaks a constraint")
    contradiction = SelectionProblem.from_classes(np.array([[1.0], [1.0]]), [0, 1])
    report = margin_report(np.eye(2)[:, :1], contradiction, ["frobenius"])
    assert np.isnan(report["frobenius"].share)
    assert report.sentence.startswith("No W satisfies")


def test_classifier_without_C_is_the_certified_margin() -> None:
    X, y = _classes(5)
    model = MarginClassifier("nuclear", C=None, fit_intercept=False).fit(X, np.array(list("abcd"))[y])
    assert model.score(X, np.array(list("abcd"))[y]) == 1.0
    expected = solve(SelectionProblem.from_classes(X, y), "nuclear", tol=1e-6)
    assert model.solution_.objective == pytest.approx(expected.objective, rel=2e-6)  # two gaps of 1e-6
    with pytest.raises(UnsolvedError):
        MarginClassifier(C=None).fit([[1.0], [1.0]], [0, 1])


def test_classifier_is_one_of_scikit_learn() -> None:
    # A check is skipped where the environment does not enable the array API; none may fail.
    outcomes = check_estimator(MarginClassifier(), on_skip=None)
    assert len(outcomes) > 40
    assert {outcome["status"] for outcome in outcomes} <= {"passed", "skipped"}
    passed = {outcome["check_name"] for outcome in outcomes if outcome["status"] == "passed"}
    assert passed >= {"check_estimator_sparse_matrix", "check_sample_weight_equivalence_on_sparse_data"}
