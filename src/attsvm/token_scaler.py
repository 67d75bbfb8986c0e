"""Standardisation of tokens in a scikit-learn pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from attsvm.platform.interop import to_numpy


class TokenScaler(TransformerMixin, BaseEstimator):
    """Standardise tokens over all visible tokens, and queries, if X holds any, over all rows.

    scikit-learn's transformers expect a matrix; this one takes the inputs of :class:`attsvm.AttentionSVM`. That
    estimator should have ``fit_intercept=True`` if queries are centred.

    Parameters
    ----------
    with_mean, with_std : bool
        Whether to subtract means and to divide by standard deviations, as in
        :class:`sklearn.preprocessing.StandardScaler`.

    Attributes
    ----------
    tokens_ : StandardScaler
    queries_ : StandardScaler or None
        None if X has no queries.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.pipeline import make_pipeline
    >>> from attsvm import AttentionSVM, TokenScaler
    >>> random = np.random.default_rng(0)
    >>> tokens, queries = 5.0 + 3.0 * random.normal(size=(60, 4, 3)), random.normal(size=(60, 2))
    >>> X, y = AttentionSVM.pack(tokens, queries), (tokens[:, :, 0] * queries[:, :1]).argmax(1)
    >>> make_pipeline(TokenScaler(), AttentionSVM(fit_intercept=True)).fit(X, y).score(X, y) > 0.9
    True
    """

    def __init__(self, *, with_mean: bool = True, with_std: bool = True) -> None:
        self.with_mean = with_mean
        self.with_std = with_std

    def __sklearn_tags__(self) -> Tags:
        """Say that X has three dimensions (n, T, d)."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags

    def fit(self, X: Any, y: Any = None) -> TokenScaler:
        """Compute means and standard deviations.

        Parameters
        ----------
        X : array_like, shape (n, T, d), or structured array (n,) of :meth:`attsvm.AttentionSVM.pack`
        y : object
            Ignored.

        Returns
        -------
        TokenScaler
            Itself.

        Raises
        ------
        ValueError
            If X has another form.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenScaler
        >>> TokenScaler().fit(np.array([[[1.0], [3.0]]])).tokens_.mean_
        array([2.])
        """
        tokens, queries, mask = _parts(X)
        options = {"with_mean": self.with_mean, "with_std": self.with_std}
        self.tokens_ = StandardScaler(**options).fit(tokens[mask])
        self.queries_ = None if queries is None else StandardScaler(**options).fit(queries)
        self.n_features_in_ = tokens.shape[2]
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Standardise X and return it in the same form; hidden tokens are transformed like visible ones.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenScaler
        >>> TokenScaler().fit_transform(np.array([[[1.0], [3.0]]])).ravel()
        array([-1.,  1.])
        """
        check_is_fitted(self)
        tokens, queries, _ = _parts(X)
        if (queries is None) != (self.queries_ is None):
            raise ValueError("X has queries in only one of fit and transform; the same form was expected.")
        scaled: Any = self.tokens_.transform(tokens.reshape(-1, tokens.shape[2]))
        scaled = scaled.reshape(tokens.shape)
        if queries is None or self.queries_ is None:
            return scaled
        packed = X.copy()
        packed["tokens"], packed["queries"] = scaled, self.queries_.transform(queries)
        return packed


def _parts(X: Any) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Return tokens (n, T, d), queries (n, dz) or None, and which tokens are visible (n, T)."""
    if getattr(getattr(X, "dtype", None), "names", None) == ("tokens", "queries", "mask"):
        return X["tokens"], X["queries"], X["mask"]
    tokens = to_numpy("X", X)
    if tokens.ndim != 3:
        raise ValueError(f"X has shape {tokens.shape}; (n, T, d), or the rows of AttentionSVM.pack, were expected.")
    return tokens, None, np.ones(tokens.shape[:2], dtype=bool)
