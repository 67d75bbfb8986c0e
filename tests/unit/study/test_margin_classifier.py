"""MarginClassifier: weights of inputs and classes, sparse inputs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix, random_array
from sklearn.datasets import load_iris
from sklearn.utils.class_weight import compute_sample_weight

from attsvm import MarginClassifier, norms

LOSSES = ("hinge", "squared_hinge")
TOL = 1e-9


@pytest.fixture(name="flowers")
def _flowers() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_iris(return_X_y=True)
    return X[::3], y[::3]


def weights_of(model: MarginClassifier) -> np.ndarray:
    return np.column_stack([model.coef_, model.intercept_])


def nearness(model: MarginClassifier) -> float:
    """How far W may be from the solution: half its squared distance is at most the gap of the objectives."""
    return 2.0 * np.sqrt(2.0 * TOL * model.solution_.primal)


@pytest.mark.parametrize("loss", LOSSES)
def test_weighted_inputs_agree_with_a_reference_solver(flowers: tuple[np.ndarray, np.ndarray], loss: str) -> None:
    X, y = flowers
    weight = np.random.default_rng(0).uniform(0.1, 3.0, len(y))
    model = MarginClassifier(C=0.7, loss=loss, tol=TOL).fit(X, y, weight)
    W, Z = cp.Variable((3, 5)), np.column_stack([X, np.ones(len(X))])
    scores = Z @ W.T
    own = cp.sum(cp.multiply(np.eye(3)[y], scores), axis=1)
    short = [cp.pos(1 - own + scores[:, c]) for c in range(3)]
    parts = [(0.7 * weight * (y != c)) @ (u if loss == "hinge" else u**2) for c, u in enumerate(short)]
    least = cp.Problem(cp.Minimize(cp.sum_squares(W) / 2 + sum(parts))).solve(solver=cp.CLARABEL)
    # Clarabel stops at a relative gap of 1e-8.
    assert model.solution_.primal == pytest.approx(least, rel=1e-7)
    np.testing.assert_allclose(weights_of(model), W.value, atol=np.sqrt(2e-7 * least) + nearness(model))


@pytest.mark.parametrize("loss", LOSSES)
def test_whole_weights_are_repetitions_and_zeros_are_removal(flowers: tuple[np.ndarray, np.ndarray], loss: str) -> None:
    X, y = flowers
    count = np.random.default_rng(1).integers(0, 4, len(y))
    weighted = MarginClassifier(C=0.5, loss=loss, tol=TOL).fit(X, y, count)
    copies = MarginClassifier(C=0.5, loss=loss, tol=TOL).fit(np.repeat(X, count, axis=0), np.repeat(y, count))
    np.testing.assert_allclose(weights_of(weighted), weights_of(copies), atol=nearness(weighted))
    assert len(weighted.solution_.margins) == np.count_nonzero(count)
    hard = MarginClassifier(C=None, tol=TOL).fit(X[y != 2], y[y != 2], (count * 2.5)[y != 2])
    kept = (y != 2) & (count > 0)
    alone = MarginClassifier(C=None, tol=TOL).fit(X[kept], y[kept])
    np.testing.assert_array_equal(hard.coef_, alone.coef_)


@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_one_input_of_positive_weight_is_met_at_margin_one(form: Callable[[np.ndarray], Any]) -> None:
    """The least W with (w_0 - w_1)^T x = 1 is w_0 = -w_1 = x / (2 x^T x)."""
    X = np.array([[3.0, 4.0], [0.0, 1.0], [1.0, 0.0]])
    model = MarginClassifier(C=5.0, fit_intercept=False, tol=TOL).fit(form(X), [0, 1, 0], [1.0, 0.0, 0.0])
    np.testing.assert_allclose(model.coef_, [X[0] / 50, -X[0] / 50], atol=nearness(model))


@pytest.mark.parametrize("class_weight", ["balanced", {0: 2.0, 2: 0.25}])
def test_weights_of_classes_are_those_of_scikit_learn(
    flowers: tuple[np.ndarray, np.ndarray], class_weight: dict[int, float] | str
) -> None:
    X, y = flowers[0][:-11], flowers[1][:-11]
    sample = np.random.default_rng(2).uniform(0.5, 2.0, len(y))
    by_class = compute_sample_weight(class_weight, y)
    one = MarginClassifier(class_weight=class_weight, tol=TOL).fit(X, y)
    other = MarginClassifier(tol=TOL).fit(X, y, by_class)
    np.testing.assert_allclose(weights_of(one), weights_of(other), atol=nearness(one))
    assert not np.allclose(one.coef_, MarginClassifier(tol=TOL).fit(X, y).coef_, atol=nearness(one))
    if class_weight != "balanced":
        both = MarginClassifier(class_weight=class_weight, tol=TOL).fit(X, y, sample)
        product = MarginClassifier(tol=TOL).fit(X, y, by_class * sample)
        np.testing.assert_allclose(weights_of(both), weights_of(product), atol=nearness(both))


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("features", [6, 200])
@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "max"])
def test_sparse_inputs_are_dense_ones(norm: str, features: int, fit_intercept: bool) -> None:
    rng = np.random.default_rng(3)
    X = random_array((40, features), density=0.2, rng=rng, format="csr")
    y = rng.integers(0, 3, 40)
    options = {"C": 2.0, "tol": 1e-8, "fit_intercept": fit_intercept}
    sparse = MarginClassifier(norm, **options).fit(X, y)
    dense = MarginClassifier(norm, **options).fit(X.toarray(), y)
    # Each is within its gap of the least objective, and coordinates of the span within rounding of the inputs.
    assert sparse.solution_.primal == pytest.approx(dense.solution_.primal, rel=4e-8)
    if norm == "frobenius":
        atol = 2.0 * np.sqrt(2e-8 * dense.solution_.primal)
        np.testing.assert_allclose(weights_of(sparse), weights_of(dense), atol=atol)
    scores = sparse.decision_function(X)
    np.testing.assert_allclose(sparse.decision_function(X.toarray()), scores, rtol=1e-12, atol=1e-12)
    short = np.maximum(1.0 - scores[np.arange(40), y][:, None] + scores, 0.0)
    short[np.arange(40), y] = 0.0
    W = weights_of(sparse)
    size = {
        "frobenius": (W**2).sum() / 2,
        "nuclear": np.linalg.svd(W, compute_uv=False).sum(),
        "max": np.abs(W).max(),
    }[norm]
    # The objective at the coefficients themselves, not at those in coordinates of the span.
    assert size + 2.0 * short.sum() == pytest.approx(sparse.solution_.primal, rel=1e-9)


def test_wide_sparse_inputs_are_never_dense() -> None:
    rng = np.random.default_rng(4)
    shape = (60, 100_000)
    X = csr_matrix(random_array(shape, density=1e-4, rng=rng, format="csr"))
    y = rng.integers(0, 3, 60)
    MarginClassifier(C=1.0).fit(X[:, :1000], y)
    tracemalloc.start()
    model = MarginClassifier(C=1.0).fit(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Written out the inputs take 48 MB; coefficients take 2.4, and their copies.
    assert peak < 8 * np.prod(shape) / 3
    assert model.coef_.shape == (3, shape[1])


def test_weights_that_are_none_are_refused(flowers: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = flowers
    one_negative = np.where(np.arange(len(y)) == 3, -1.0, 1.0)
    for weight in (np.ones(3), -np.ones(len(y)), one_negative, np.full(len(y), np.nan), np.zeros(len(y))):
        with pytest.raises(ValueError, match=r"sample_weight has shape .*; 50 finite numbers"):
            MarginClassifier().fit(X, y, weight)


def test_a_class_is_predicted_by_its_score(flowers: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = flowers[0], np.array(["red", "blue"])[(flowers[1] == 0).astype(int)]
    model = MarginClassifier().fit(X, y)
    scores = X @ model.coef_.T + model.intercept_
    np.testing.assert_array_equal(model.predict(X), np.array(["blue", "red"])[scores.argmax(axis=1)])
    assert (model.predict(X) == y).all()


def test_inputs_of_another_dimension_are_refused(flowers: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = flowers
    model = MarginClassifier().fit(X, y)
    with pytest.raises(ValueError, match="X has 3 features, but MarginClassifier is expecting 4 features"):
        model.predict(X[:, :3])


def test_sparse_inputs_that_are_nearly_the_same_are_told_apart() -> None:
    """The least u = w_0 - w_1 with u^T (1, e, e) >= 1 and u^T (1, -e, -e) <= -1 is (0, 1, 1) / (2 e), and w_0 = -w_1.

    The Gram matrix has the eigenvalues 2 and 4 e^2.
    """
    e = 2.0**-12
    X = csr_array(np.array([[1.0, e, e], [1.0, -e, -e]]))
    model = MarginClassifier(C=None, fit_intercept=False, tol=TOL).fit(X, [0, 1])
    expected = np.array([[0.0, 1.0, 1.0], [0.0, -1.0, -1.0]]) / (4 * e)
    # Rounding of the Gram matrix is 2^-52 of an eigenvalue that is 2^-23 of the largest.
    np.testing.assert_allclose(model.coef_, expected, rtol=1e-6, atol=1e-6 * expected.max())


def test_empty_sparse_columns_have_no_weight() -> None:
    X = csr_array(np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.0, 1.0]]))
    model = MarginClassifier("max").fit(X, [0, 1, 2, 2])
    assert not model.coef_[:, 1].any()


def test_sparse_inputs_of_zeros_have_no_weight() -> None:
    model = MarginClassifier("max", fit_intercept=False).fit(csr_array((3, 4)), [0, 1, 0])
    np.testing.assert_array_equal(model.coef_, np.zeros((2, 4)))


@pytest.mark.parametrize(
    ("norm", "rows"),
    [(norms.Weighted(np.arange(1.0, 10.0).reshape(3, 3), 1), 4), (norms.Mahalanobis(B=np.diag([1.0, 2.0, 3.0])), 1)],
    ids=["Weighted", "Mahalanobis"],
)
def test_a_norm_with_weights_of_all_features_takes_sparse_inputs(norm: norms.Norm, rows: int) -> None:
    X, y = np.array([[1.0, 0.0, 0.5], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.0, 1.0]]), [0, 1, 2, 2]
    weight = (np.arange(4) < rows).astype(float)
    dense, sparse = (
        MarginClassifier(norm, C=None, fit_intercept=False, tol=TOL).fit(Z, y, weight).solution_.objective
        for Z in (X, csr_array(X))
    )
    # Each is within its gap of the least norm.
    assert sparse == pytest.approx(dense, rel=2 * TOL)
