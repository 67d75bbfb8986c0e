"""One-hot tokens shared by all queries: margins, adjoint and lengths computed from their non-zero entries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class OneHot:
    """Axes and entries (T,) of tokens; no two tokens share an axis."""

    axes: np.ndarray
    entries: np.ndarray

    @classmethod
    def of(cls, tokens: np.ndarray) -> OneHot | None:
        """Read tokens (T, d); None if they are not one-hot."""
        if (tokens[0] != 0).sum() != 1 or len(tokens) > tokens.shape[1]:
            return None
        entries = tokens != 0
        axes = entries.argmax(axis=1)
        if (entries.sum(axis=1) != 1).any() or (entries.sum(axis=0) > 1).any():
            return None
        return cls(axes, tokens[np.arange(len(tokens)), axes].astype(np.float64))

    def margins(self, u: np.ndarray, reference: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Margins (n, T) for u = W z, one row (d,) per query; zero where the mask hides the token."""
        scores = u[:, self.axes] * self.entries
        return np.where(mask, np.take_along_axis(scores, reference[:, None], axis=1) - scores, 0.0)

    def adjoint(self, dual: np.ndarray, reference: np.ndarray, d: int) -> np.ndarray:
        """Sum multipliers (n, T) times token differences for each query, (n, d)."""
        sums = np.zeros((len(dual), d))
        sums[:, self.axes] = -dual * self.entries
        sums[np.arange(len(dual)), self.axes[reference]] += dual.sum(axis=1) * self.entries[reference]
        return sums

    def squares(self, reference: np.ndarray) -> np.ndarray:
        """Squared lengths (n, T) of the differences of two axes."""
        return self.entries[reference[:, None]] ** 2 + self.entries**2
