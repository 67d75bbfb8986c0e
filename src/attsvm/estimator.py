"""The attention SVM behind scikit-learn's interface."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from attsvm.core.norms import Norm
from attsvm.core.problem import SelectionProblem
from attsvm.solvers.solving import solve


class AttentionSVM(BaseEstimator):
    """Learn which token each query selects, with the largest margin.

    Parameters
    ----------
    norm : str or float
        As for :func:`attsvm.solve`.
    tol : float
        Certified relative gap.
    C : float, optional
        Soft margin; None asks that every selection be met.
    loss : {"hinge", "squared_hinge"}
        With ``C``.

    Attributes
    ----------
    W_ : array, shape (d, dz)
    solution_ : Solution
        With the certificate, the support tokens and the status.
    n_features_in_ : int
        The tokens' dimension d.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import AttentionSVM
    >>> tokens = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    >>> model = AttentionSVM().fit(tokens, [0, 1], queries=np.ones((2, 1)))
    >>> model.predict(tokens, np.ones((2, 1)))
    array([0, 1])
    """

    def __init__(
        self, norm: Norm | str | float = "frobenius", *, tol: float = 1e-9, C: float | None = None, loss: str = "hinge"
    ) -> None:
        self.norm = norm
        self.tol = tol
        self.C = C
        self.loss = loss

    def fit(self, tokens: Any, selected: Any, queries: Any = None, *, mask: Any = None) -> AttentionSVM:
        """Find W.

        Parameters
        ----------
        tokens : array_like, shape (n, T, d)
        selected : array_like, shape (n,) int or (n, T) bool
        queries : array_like, shape (n, dz), optional
            Default: the first token of each sequence (self-attention).
        mask : array_like of bool, shape (n, T), optional

        Returns
        -------
        AttentionSVM
            Itself.

        Raises
        ------
        ValueError
            For bad input.
        UnsolvedError
            If no W satisfies the selections (give ``C``), or none was found.
        """
        problem = SelectionProblem(tokens, self._queries(tokens, queries), selected, mask=mask)
        self.solution_ = solve(problem, self.norm, tol=self.tol, C=self.C, loss=self.loss).raise_for_status()
        self.W_ = self.solution_.W
        self.n_features_in_ = problem.shape[2]
        return self

    def decision_function(self, tokens: Any, queries: Any = None, *, mask: Any = None) -> Any:
        """Score every token, (n, T); -inf where the mask hides it."""
        check_is_fitted(self)
        asked = self._queries(tokens, queries)
        # Scores do not depend on the selection; any visible token will do.
        first = np.zeros(len(asked), dtype=np.int64) if mask is None else np.asarray(mask).argmax(axis=1)
        return SelectionProblem(tokens, asked, first, mask=mask).scores(self.W_)

    def predict(self, tokens: Any, queries: Any = None, *, mask: Any = None) -> Any:
        """Pick the token of the largest score for each query, (n,)."""
        return self.decision_function(tokens, queries, mask=mask).argmax(-1)

    def score(self, tokens: Any, selected: Any, queries: Any = None, *, mask: Any = None) -> float:
        """Compute the share of queries whose predicted token is (one of) the selected."""
        problem = SelectionProblem(tokens, self._queries(tokens, queries), selected, mask=mask)
        picked = np.asarray(self.predict(tokens, queries, mask=mask))
        return float(problem.selected[np.arange(len(picked)), picked].mean())

    @staticmethod
    def _queries(tokens: Any, queries: Any) -> Any:
        if queries is not None:
            return queries
        if np.ndim(tokens) != 3:
            raise ValueError(f"tokens must have shape (n, T, d) when queries are left out; got {np.shape(tokens)}.")
        return tokens[:, 0] if hasattr(tokens, "shape") else np.asarray(tokens)[:, 0]
