"""Max-margin multiclass classification in any norm, behind scikit-learn's interface."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from attsvm.core.problem import SelectionProblem
from attsvm.core.types import AnyNorm, Shortfall
from attsvm.solvers.solving import solve


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
    loss : {"hinge", "squared_hinge"}
        With ``C``.
    fit_intercept : bool
        Append a feature that is one; its weights count in the norm like the others.
    tol : float
        Certified relative gap.
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
        fit_intercept: bool = True,
        tol: float = 1e-6,
        time_limit: float | None = None,
    ) -> None:
        self.norm: AnyNorm = norm
        self.C = C
        self.loss: Shortfall = loss
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.time_limit = time_limit

    def fit(self, X: Any, y: Any) -> MarginClassifier:
        """Find the weights.

        Parameters
        ----------
        X : array_like, shape (n, d)
        y : array_like, shape (n,)
            Two classes or more.

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
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has {len(self.classes_)} class; two classes or more were expected.")
        problem = SelectionProblem.from_classes(self._with_bias(X), labels)
        self.solution_ = solve(
            problem, self.norm, tol=self.tol, C=self.C, loss=self.loss, time_limit=self.time_limit
        ).raise_for_status()
        W = self.solution_.W
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
        X = validate_data(self, X, reset=False, dtype=np.float64)
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

    def _with_bias(self, X: np.ndarray) -> np.ndarray:
        return np.hstack([X, np.ones((len(X), 1))]) if self.fit_intercept else X
