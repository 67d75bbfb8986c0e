"""Max-margin multiclass classification in any norm, as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array, eye_array, hstack, issparse
from scipy.sparse.linalg import aslinearoperator
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from attsvm.core.norms import Norm, get_norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.types import AnyNorm, Shortfall
from attsvm.solvers.solving import solve

# Ratio to the largest singular value below which singular values of sparse inputs are lost in their Gram matrix.
GRAM_RESOLUTION = 1e-7


class MarginClassifier(ClassifierMixin, BaseEstimator):
    r"""Multiclass linear classifier with the largest margin, in any norm of its weight matrix.

    Minimises the norm of W (k classes, d features) subject to :math:`(w_{y_i} - w_c)^\top x_i \ge 1` for every input
    and every other class, the hard-margin multiclass SVM of Crammer and Singer (JMLR 2, 2001) in the chosen norm. The
    soft margin minimises half the squared Frobenius norm, or any other norm itself, plus ``C`` times the losses, summed
    over inputs and classes (Weston and Watkins, ESANN 1999).

    Parameters
    ----------
    norm : str, float or Norm
        As for :func:`attsvm.solve`.
    C : float or None
        Weight of the losses (soft margin). None: every margin must be at least one (hard margin).
    class_weight : dict, "balanced" or None
        Factors of C by class, as in scikit-learn; "balanced" is n / (k times the number of inputs of the class).
    loss : {"hinge", "squared_hinge"}
        Loss of a margin below one, if ``C`` is not None.
    fit_intercept : bool
        Whether to append a feature of ones; its weights count in the norm like the others.
    tol : float
        Certified relative gap. For sparse inputs that are fewer than their features, it is the gap of the problem in
        coordinates of their span.
    time_limit : float, optional
        In seconds.

    Attributes
    ----------
    classes_ : ndarray, shape (k,)
    coef_ : ndarray, shape (k, d)
    intercept_ : ndarray, shape (k,)
    solution_ : Solution
        The solution with its certificate, support tokens (inputs and classes at margin one) and status.
    n_features_in_ : int

    Examples
    --------
    >>> from attsvm import MarginClassifier
    >>> model = MarginClassifier("nuclear", C=None).fit([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], ["a", "b", "c"])
    >>> model.predict([[2.0, 0.5]]).tolist()
    ['a']
    """

    def __init__(
        self,
        norm: AnyNorm = "frobenius",
        *,
        C: float | None = 1.0,
        loss: Shortfall = "hinge",
        class_weight: dict[Any, float] | str | None = None,
        fit_intercept: bool = True,
        tol: float = 1e-6,
        time_limit: float | None = None,
    ) -> None:
        self.norm: AnyNorm = norm
        self.C = C
        self.loss: Shortfall = loss
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.time_limit = time_limit

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> MarginClassifier:
        """Find the weights.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (n, d)
            Sparse inputs become dense only in part: n min(n, d) numbers if the norm is one of singular values, the
            features that occur otherwise.
        y : array_like, shape (n,)
            Two classes or more.
        sample_weight : array_like, shape (n,), optional
            Factors of C by input. Inputs of weight zero are left out.

        Returns
        -------
        MarginClassifier
            Itself.

        Raises
        ------
        ValueError
            For bad input.
        UnsolvedError
            If no weights reach every margin and ``C`` is None, or none were found in time.

        Examples
        --------
        >>> from attsvm import MarginClassifier
        >>> X, y = [[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], ["a", "b", "c"]
        >>> MarginClassifier(norm="spectral").fit(X, y).coef_.shape
        (3, 2)
        """
        X, y = validate_data(self, X, y, dtype=np.float64, accept_sparse="csr")
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has {len(self.classes_)} class; two classes or more were expected.")
        weights = self._weights(y, labels, sample_weight)
        rows, count = np.flatnonzero(weights), len(self.classes_)
        inputs, lift = _dense_inputs(self._with_bias(X)[rows], get_norm(self.norm), count)
        problem = SelectionProblem.from_classes(inputs, labels[rows], classes=count)
        C = None if self.C is None else self.C * weights[rows]
        C = float(C[0]) if C is not None and (C[0] == C).all() else C
        self.solution_ = solve(
            problem, self.norm, tol=self.tol, C=C, loss=self.loss, time_limit=self.time_limit
        ).raise_for_status()
        W = self.solution_.W if lift is None else self.solution_.W @ lift
        self.coef_ = W[:, : X.shape[1]]
        self.intercept_ = W[:, -1] if self.fit_intercept else np.zeros(len(W))
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Score every class, (n, k); for two classes, the second score minus the first, (n,).

        Examples
        --------
        >>> from attsvm import MarginClassifier
        >>> X, y = [[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], ["a", "b", "c"]
        >>> MarginClassifier().fit(X, y).decision_function([[2.0, 0.0]]).shape
        (1, 3)
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64, accept_sparse="csr")
        scores = X @ self.coef_.T + self.intercept_
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Return the class with the largest score for each input, (n,).

        Examples
        --------
        >>> from attsvm import MarginClassifier
        >>> X, y = [[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], ["a", "b", "c"]
        >>> MarginClassifier().fit(X, y).predict([[2.0, 0.0]])
        array(['a'], dtype='<U1')
        """
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]

    def __sklearn_tags__(self) -> Tags:
        """Tell scikit-learn that inputs may be sparse."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _with_bias(self, X: Any) -> Any:
        if not self.fit_intercept:
            return csr_array(X) if issparse(X) else X
        ones = np.ones((X.shape[0], 1))
        return csr_array(hstack([X, ones])) if issparse(X) else np.hstack([X, ones])

    def _weights(self, y: np.ndarray, labels: np.ndarray, sample_weight: Any) -> np.ndarray:
        """Multiply the weights of inputs and of their classes, (n,)."""
        weights = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        weights = np.full(len(y), weights) if weights.ndim == 0 else weights
        if weights.shape != (len(y),) or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
            raise ValueError(
                f"sample_weight has shape {weights.shape}; {len(y)} finite numbers, none negative and not all zero, "
                "were expected."
            )
        if self.class_weight is None:
            return weights
        by_class = compute_class_weight(self.class_weight, classes=self.classes_, y=y, sample_weight=sample_weight)
        return weights * by_class[labels]


def _dense_inputs(X: Any, norm: Norm, count: int) -> tuple[np.ndarray, Any]:
    """Write sparse inputs (n, d) in fewer coordinates (n, m); returns them and the map of W (k, m) to (k, d), or None.

    A norm of singular values is the same in orthonormal coordinates of the inputs' span, which follow from the
    eigenvectors of their Gram matrix (n, n). In other norms, features that no input has get weight zero.
    """
    if not issparse(X):
        return X, None
    used = np.unique(X.indices)
    if norm.invariant and len(used) > X.shape[0]:
        squares, vectors = np.linalg.eigh((X @ X.T).toarray())
        keep = squares > GRAM_RESOLUTION**2 * max(float(squares[-1]), 0.0)
        sigma, vectors = np.sqrt(squares[keep]), vectors[:, keep]
        return vectors * sigma, aslinearoperator((vectors / sigma).T) @ aslinearoperator(X)
    if not len(used) or norm.mismatch((count, len(used))) is not None:
        return X.toarray(), None
    return X[:, used].toarray(), csr_array(eye_array(X.shape[1]))[used]
