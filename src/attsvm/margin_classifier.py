"""Max-margin multiclass classification in any norm, behind scikit-learn's interface."""

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

# Singular values of sparse inputs below this part of the largest are lost in their Gram matrix.
GRAM_RESOLUTION = 1e-7


class MarginClassifier(ClassifierMixin, BaseEstimator):
    r"""Multiclass linear classifier of the largest margin, in any norm of its weight matrix.

    Minimises the norm of W (k classes, d features) subject to :math:`(w_{y_i} - w_c)^\top x_i \ge 1` for every input
    and every other class, the hard-margin multiclass SVM of Crammer and Singer (JMLR 2, 2001) in the chosen norm. With
    ``C`` every shortfall is charged ``C`` times itself, summed over inputs and classes (Weston and Watkins, ESANN
    1999), and added to half the squared Frobenius norm or to any other norm itself.

    Parameters
    ----------
    norm : str, float or Norm
        As for :func:`attsvm.solve`.
    C : float or None
        Price of a unit of shortfall; None asks that every input be classified with margin one.
    class_weight : dict, "balanced" or None
        Factors of C by class, as in scikit-learn: "balanced" is n / (k times the inputs of the class).
    loss : {"hinge", "squared_hinge"}
        With ``C``.
    fit_intercept : bool
        Append a feature that is one; its weights count in the norm like the others.
    tol : float
        Certified relative gap, of the inputs in the coordinates of their span where those are sparse and fewer than
        their features.
    time_limit : float, optional
        In seconds.

    Attributes
    ----------
    classes_ : ndarray, shape (k,)
    coef_ : ndarray, shape (k, d)
    intercept_ : ndarray, shape (k,)
    solution_ : Solution
        With the certificate, the support tokens (inputs and classes at margin one) and the status.
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
            Of sparse inputs only n times the smaller of n and d numbers are written out, if the norm is one of singular
            values, and otherwise those of the features that are used.
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
        inputs, lift = _written_out(self._with_bias(X)[rows], get_norm(self.norm), count)
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
        """Score every class, (n, k); for two classes the second less the first, (n,).

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
        """Name the class of the largest score for each input, (n,).

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


def _written_out(X: Any, norm: Norm, count: int) -> tuple[np.ndarray, Any]:
    """Write inputs (n, d) in few coordinates (n, m) if they are sparse; returns what turns W (k, m) to (k, d), or None.

    A norm of singular values does not change with coordinates of the inputs' span, which the eigenvectors of their Gram
    matrix (n, n) give; in other norms the weights of features that no input has are zero.
    """
    if not issparse(X):
        return X, None
    used = np.unique(X.indices)
    if norm.invariant and norm.transform == (None, None) and len(used) > X.shape[0]:
        squares, vectors = np.linalg.eigh((X @ X.T).toarray())
        keep = squares > GRAM_RESOLUTION**2 * max(float(squares[-1]), 0.0)
        sigma, vectors = np.sqrt(squares[keep]), vectors[:, keep]
        return vectors * sigma, aslinearoperator((vectors / sigma).T) @ aslinearoperator(X)
    if not len(used) or norm.mismatch((count, len(used))) is not None:
        return X.toarray(), None
    return X[:, used].toarray(), csr_array(eye_array(X.shape[1]))[used]
