"""A labelled data set of token sequences, with the information to draw and split it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attsvm.data.images import Patches
from attsvm.data.passages import Passages
from attsvm.data.token_data import TokenData


@dataclass(frozen=True, eq=False)
class Dataset:
    """Tokens, queries and labels, with a name and a description in plain sentences.

    Parameters
    ----------
    tokens : TokenData
        One trial of NumPy arrays: tokens (n, T, d), queries (n, dz), labels (n,), mask (n, T) or None.
    classes : tuple of str
        The meaning of label +1 and of label -1.
    notes : tuple of str
        Sentences about how tokens and queries were made.
    patches : Patches, optional
        The images of the tokens.
    passages : Passages, optional
        The texts of the tokens, or their names.
    head : ndarray, shape (d,), optional
        A head given with the data; otherwise one is fitted.
    centre : bool
        Whether queries must be centred before use, as by :meth:`centred`.
    standardise : bool
        Whether tokens must be standardised before use, as by :meth:`standardised`.
    bags : tuple of str, optional
        Names of the rows, if each row is a bag of instances and one instance may decide its label.
    default_train : int, optional
        Default number of training rows in a study. None: the number for which the time of a study suffices.
    """

    name: str
    tokens: TokenData
    classes: tuple[str, str] = ("+1", "-1")
    notes: tuple[str, ...] = ()
    patches: Patches | None = None
    passages: Passages | None = None
    head: np.ndarray | None = None
    centre: bool = False
    standardise: bool = False
    bags: tuple[str, ...] | None = None
    default_train: int | None = None

    @property
    def mask(self) -> np.ndarray:
        """Visible tokens, (n, T) bool, all True when the data has no mask."""
        mask = self.tokens.mask
        return np.ones(self.tokens.tokens.shape[:2], bool) if mask is None else mask

    def take(self, rows: np.ndarray) -> Dataset:
        """Return the given rows, in that order."""
        data = self.tokens
        mask = None if data.mask is None else data.mask[rows]
        subset = TokenData(data.tokens[rows], data.queries[rows], data.labels[rows], mask)
        patches = None if self.patches is None else self.patches.take(rows)
        passages = None if self.passages is None else self.passages.take(rows)
        bags = None if self.bags is None else tuple(self.bags[int(i)] for i in rows)
        return replace(self, tokens=subset, patches=patches, passages=passages, bags=bags)

    def split(self, train: int, rng: np.random.Generator) -> tuple[Dataset, Dataset | None]:
        """Draw `train` rows at random for training; the others are the test set (None if there are none).

        Raises ValueError if `train` is not between 1 and the number of rows.
        """
        n = self.tokens.n
        if not 1 <= train <= n:
            raise ValueError(f"train is {train}; a number from 1 to {n}, the size of {self.name}, was expected.")
        order = rng.permutation(n)
        return self.take(order[:train]), self.take(order[train:]) if train < n else None

    def scaled(self, token_scale: float, query_scale: float) -> Dataset:
        """Divide tokens and queries by one number each."""
        data = self.tokens
        scaled_data = TokenData(data.tokens / token_scale, data.queries / query_scale, data.labels, data.mask)
        return replace(self, tokens=scaled_data)

    def standardised(self, mean: np.ndarray, spread: np.ndarray) -> Dataset:
        """Subtract the mean (d,) of each feature of the visible tokens and divide by its spread (d,)."""
        data = self.tokens
        tokens = np.where(self.mask[:, :, None], (data.tokens - mean) / spread, 0.0)
        return replace(self, tokens=TokenData(tokens, data.queries, data.labels, data.mask), standardise=False)

    def centred(self, mean: np.ndarray, spread: float) -> Dataset:
        """Replace each query z by [(z - mean) / spread, 1].

        The constant coordinate gives W a column that acts on all queries equally. W can therefore express the same
        scores as without centring.
        """
        data = self.tokens
        standardised = (data.queries - mean) / spread
        queries = np.concatenate([standardised, np.ones((len(standardised), 1))], axis=1)  # (n, dz + 1)
        return replace(self, tokens=TokenData(data.tokens, queries, data.labels, data.mask), centre=False)
