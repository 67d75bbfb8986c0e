"""The attention SVM as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from attsvm.core.problem import SelectionProblem
from attsvm.core.types import AnyNorm, Shortfall
from attsvm.platform.interop import to_numpy
from attsvm.solvers.solving import solve


class AttentionSVM(BaseEstimator):
    """Learn which token each query selects, with the largest margin.

    scikit-learn's tools split and pass on one array; :meth:`pack` puts tokens, queries and mask into it. Queries and
    mask may also be keywords, which scikit-learn's tools route to the estimator by default after
    ``sklearn.set_config(enable_metadata_routing=True)``. A model that was fitted with queries needs queries to predict.

    Parameters
    ----------
    norm : str or float
        As for :func:`attsvm.solve`.
    C : float or None
        Weight of the losses (soft margin). None: every margin must be at least one (hard margin).
    loss : {"hinge", "squared_hinge"}
        Loss of a margin below one, if ``C`` is not None.
    fit_intercept : bool
        Whether to score tokens with W z + w. The vector w is a further column of W, for a query coordinate of 1, and
        counts in the norm like the others. The attention layer of arXiv 2308.16898 has no w.
    tol : float
        Certified relative gap.
    time_limit : float, optional
        In seconds.

    Attributes
    ----------
    W_ : array, shape (d, dz)
    intercept_ : array, shape (d,)
        The vector w, zero without an intercept.
    solution_ : Solution
        The solution with its certificate, support tokens and status.
    n_features_in_ : int
        The tokens' dimension d.
    queries_given_ : bool
        Whether queries were given to :meth:`fit`; otherwise the first token of a sequence is its query.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import GridSearchCV
    >>> from attsvm import AttentionSVM
    >>> random = np.random.default_rng(0)
    >>> tokens, queries, W = random.normal(size=(60, 5, 3)), random.normal(size=(60, 2)), random.normal(size=(3, 2))
    >>> X, y = AttentionSVM.pack(tokens, queries), np.einsum("ntd,de,ne->nt", tokens, W, queries).argmax(1)
    >>> model = AttentionSVM(C=None).fit(X, y)
    >>> model.score(X, y)
    1.0
    >>> search = GridSearchCV(AttentionSVM(), {"C": [0.1, 10.0]}, cv=3).fit(X, y)
    >>> bool(search.best_score_ > 0.7)
    True
    """

    # scikit-learn reads these names, although they are mangled: it then routes queries and mask here by default.
    __metadata_request__fit: ClassVar = {"queries": True, "mask": True}
    __metadata_request__predict: ClassVar = {"queries": True, "mask": True}
    __metadata_request__decision_function: ClassVar = {"queries": True, "mask": True}
    __metadata_request__score: ClassVar = {"queries": True, "mask": True}

    def __init__(
        self,
        norm: AnyNorm = "frobenius",
        *,
        C: float | None = 1.0,
        loss: Shortfall = "hinge",
        fit_intercept: bool = False,
        tol: float = 1e-6,
        time_limit: float | None = None,
    ) -> None:
        self.norm: AnyNorm = norm
        self.C = C
        self.loss: Shortfall = loss
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.time_limit = time_limit

    def __sklearn_tags__(self) -> Tags:
        """Say that X has three dimensions (n, T, d)."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        tags.target_tags.required = True
        return tags

    @staticmethod
    def pack(tokens: Any, queries: Any, mask: Any = None) -> np.ndarray:
        """Put tokens, queries and mask into one array, one row per query, that scikit-learn's tools can split.

        Parameters
        ----------
        tokens : array_like, shape (n, T, d)
        queries : array_like, shape (n, dz)
        mask : array_like of bool, shape (n, T), optional
            True = visible. By default all tokens are visible.

        Returns
        -------
        ndarray, shape (n,)
            A structured array with fields "tokens" (T, d) and "queries" (dz,) of float64, and "mask" (T,) of bool.

        Raises
        ------
        ValueError
            If the shapes do not fit.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import AttentionSVM
        >>> X = AttentionSVM.pack(np.ones((5, 3, 2)), np.ones((5, 4)))
        >>> X.shape, X.dtype.names
        ((5,), ('tokens', 'queries', 'mask'))
        """
        token_array, query_array = to_numpy("tokens", tokens), to_numpy("queries", queries)
        if token_array.ndim != 3 or query_array.ndim != 2 or len(token_array) != len(query_array):
            raise ValueError(
                f"tokens has shape {token_array.shape} and queries has shape {query_array.shape}; "
                "(n, T, d) and (n, dz) were expected."
            )
        visible = np.ones(token_array.shape[:2], dtype=bool) if mask is None else to_numpy("mask", mask)
        if visible.shape != token_array.shape[:2] or visible.dtype != bool:
            raise ValueError(
                f"mask has shape {visible.shape} and dtype {visible.dtype}; "
                f"booleans of shape {token_array.shape[:2]} were expected."
            )
        fields = [
            ("tokens", np.float64, token_array.shape[1:]),
            ("queries", np.float64, query_array.shape[1:]),
            ("mask", np.bool_, visible.shape[1:]),
        ]
        records = np.empty(len(token_array), dtype=fields)
        records["tokens"], records["queries"], records["mask"] = token_array, query_array, visible
        return records

    def fit(self, X: Any, y: Any, queries: Any = None, *, mask: Any = None) -> AttentionSVM:
        """Find W.

        Parameters
        ----------
        X : array_like, shape (n, T, d), or structured array (n,) of :meth:`pack`
            The tokens.
        y : array_like, shape (n,) int or (n, T) bool
            The selected tokens.
        queries : array_like, shape (n, dz), optional
            Queries, if X is not packed. Default: the first token of each sequence (self-attention).
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
            If no W satisfies the selections and ``C`` is None, or none was found in time.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import AttentionSVM
        >>> X, y = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [1.0, 0.0]]]), [0, 1]
        >>> AttentionSVM(C=None).fit(X, y).W_.round(3)
        array([[ 0.5,  0.1],
               [-0.5, -0.2]])
        """
        tokens, query_array, visible = _unpack(X, queries, mask)
        self.queries_given_ = query_array is not None
        query_array = _first(tokens) if query_array is None else query_array
        problem = SelectionProblem(tokens, self._with_one(query_array), y, mask=visible)
        self.solution_ = solve(
            problem, self.norm, tol=self.tol, C=self.C, loss=self.loss, time_limit=self.time_limit
        ).raise_for_status()
        W, self.n_features_in_ = self.solution_.W, problem.shape[2]
        self.W_ = W[:, :-1] if self.fit_intercept else W
        self.intercept_ = W[:, -1] if self.fit_intercept else np.zeros(len(W))
        return self

    def decision_function(self, X: Any, queries: Any = None, *, mask: Any = None) -> Any:
        """Score every token, (n, T); -inf where the mask hides it.

        Parameters
        ----------
        X, queries, mask
            As for :meth:`fit`.

        Raises
        ------
        ValueError
            If :meth:`fit` had queries and they are missing, or if a dimension differs from :meth:`fit`.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import AttentionSVM
        >>> X, y = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [1.0, 0.0]]]), [0, 1]
        >>> AttentionSVM().fit(X, y).decision_function(X).shape
        (2, 2)
        """
        tokens, query_array, visible = self._inputs(X, queries, mask)
        # Scores do not depend on the selection; any visible token will do.
        first = np.zeros(len(query_array), dtype=np.int64) if visible is None else np.asarray(visible).argmax(axis=1)
        return SelectionProblem(tokens, query_array, first, mask=visible).scores(self.solution_.W)

    def predict(self, X: Any, queries: Any = None, *, mask: Any = None) -> Any:
        """Return the token with the largest score for each query, (n,); arguments as for :meth:`decision_function`.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import AttentionSVM
        >>> X, y = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [1.0, 0.0]]]), [0, 1]
        >>> AttentionSVM().fit(X, y).predict(X)
        array([0, 1])
        """
        return self.decision_function(X, queries, mask=mask).argmax(-1)

    def score(self, X: Any, y: Any, queries: Any = None, *, mask: Any = None, sample_weight: Any = None) -> float:
        """Compute the share of queries whose predicted token is a selected token.

        Parameters
        ----------
        X, y, queries, mask
            As for :meth:`fit`.
        sample_weight : array_like, shape (n,), optional
            Weight of each query; equal by default.

        Raises
        ------
        ValueError
            As for :meth:`decision_function`, or if the number of weights is not n.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import AttentionSVM
        >>> X, y = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [1.0, 0.0]]]), [0, 1]
        >>> AttentionSVM().fit(X, y).score(X, y)
        1.0
        """
        tokens, query_array, visible = self._inputs(X, queries, mask)
        problem = SelectionProblem(tokens, query_array, y, mask=visible)
        choices = np.asarray(problem.scores(self.solution_.W)).argmax(-1)
        right = np.asarray(problem.selected)[np.arange(len(choices)), choices]
        if sample_weight is not None and np.shape(sample_weight) != right.shape:
            raise ValueError(f"sample_weight has shape {np.shape(sample_weight)}; {right.shape} was expected.")
        return float(np.average(right, weights=sample_weight))

    def _inputs(self, X: Any, queries: Any, mask: Any) -> tuple[Any, Any, Any]:
        """Return tokens, queries and mask; raises ValueError if the fitted W does not fit them."""
        check_is_fitted(self)
        tokens, query_array, visible = _unpack(X, queries, mask)
        if query_array is None:
            if self.queries_given_:
                raise ValueError(
                    f"queries is missing; fit had queries of dimension {self.W_.shape[1]}, and such queries were "
                    "expected: as queries=..., or in X by AttentionSVM.pack(tokens, queries)."
                )
            query_array = _first(tokens)
        shapes = tuple(np.shape(tokens)), tuple(np.shape(query_array))
        if (shapes[0][-1:], shapes[1][-1:]) != ((self.W_.shape[0],), (self.W_.shape[1],)):
            raise ValueError(
                f"tokens has shape {shapes[0]} and queries has shape {shapes[1]}; dimensions {self.W_.shape[0]} and "
                f"{self.W_.shape[1]}, as in fit, were expected."
            )
        return tokens, self._with_one(query_array), visible

    def _with_one(self, queries: Any) -> Any:
        """Append a coordinate of 1 to the queries for the intercept."""
        if not self.fit_intercept:
            return queries
        plain = to_numpy("queries", queries)
        return np.concatenate([plain, np.ones((len(plain), 1))], axis=1)


def _unpack(X: Any, queries: Any, mask: Any) -> tuple[Any, Any, Any]:
    """Return tokens, queries (None if X has none) and mask."""
    names = getattr(getattr(X, "dtype", None), "names", None)
    if not names:
        return X, queries, mask
    if queries is not None or mask is not None:
        raise ValueError(f"X carries {', '.join(names)}; queries and mask were expected in X or as keywords, not both.")
    missing = [name for name in ("tokens", "queries", "mask") if name not in names]
    if missing:
        raise ValueError(f"X has the fields {', '.join(names)}; tokens, queries and mask, by pack, were expected.")
    return X["tokens"], X["queries"], X["mask"]


def _first(tokens: Any) -> Any:
    """Return the first token of each sequence, its query in self-attention."""
    if np.ndim(tokens) != 3:
        raise ValueError(f"X has shape {np.shape(tokens)}; (n, T, d) was expected when queries are left out.")
    return tokens[:, 0] if hasattr(tokens, "shape") else np.asarray(tokens)[:, 0]
