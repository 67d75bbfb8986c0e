"""One-hot vectors, never made dense: words as tokens, contexts as queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

# Number of unit vectors up to which the identity matrix is stored in full: compiled methods expect contiguous arrays.
FEW_UNITS = 1000


@dataclass(frozen=True, eq=False)
class OneHot:
    """Axes and entries (k,) of k vectors in ``width`` dimensions, each with one entry that is not zero."""

    axes: np.ndarray
    entries: np.ndarray
    width: int

    @classmethod
    def of(cls, rows: np.ndarray) -> OneHot | None:
        """Read vectors (k, d); None if they are not one-hot."""
        if (rows[0] != 0).sum() != 1:
            return None
        entries = rows != 0
        if (np.count_nonzero(entries, axis=1) != 1).any():
            return None
        axes = entries.argmax(axis=1)
        return cls(axes, rows[np.arange(len(rows)), axes].astype(np.float64), rows.shape[1])

    @classmethod
    def of_sparse(cls, rows: Any) -> OneHot | None:
        """Read a sparse matrix (k, d); None if another type is given or the rows are not one-hot."""
        if not issparse(rows) or rows.ndim != 2:
            return None
        table = csr_array(rows, copy=True)
        table.sum_duplicates()
        table.eliminate_zeros()
        if (np.diff(table.indptr) != 1).any():
            return None
        return cls(table.indices.astype(np.intp), table.data.astype(np.float64), int(rows.shape[1]))

    @property
    def distinct(self) -> bool:
        """Whether no two vectors share an axis."""
        return len(self.axes) <= self.width and bool((np.bincount(self.axes) <= 1).all())

    @property
    def is_even(self) -> bool:
        """Whether all entries have one size."""
        return bool((np.abs(self.entries) == abs(self.entries[0])).all())

    def __len__(self) -> int:
        return len(self.axes)

    def __getitem__(self, rows: Any) -> OneHot:
        return OneHot(self.axes[rows], self.entries[rows], self.width)

    def dense(self) -> np.ndarray:
        """Write the vectors as an array (k, d)."""
        rows = np.zeros((len(self), self.width))
        rows[np.arange(len(self)), self.axes] = self.entries
        return rows

    def margins(self, u: np.ndarray, reference: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Margins (n, k) of these tokens for u = W z, one row (d,) per query; zero where the mask hides the token."""
        scores = u[:, self.axes] * self.entries
        return np.where(mask, np.take_along_axis(scores, reference[:, None], axis=1) - scores, 0.0)

    def adjoint(self, dual: np.ndarray, reference: np.ndarray) -> np.ndarray:
        """Sum multipliers (n, k) times differences of these tokens for each query, (n, d)."""
        sums = np.zeros((len(dual), self.width))
        sums[:, self.axes] = -dual * self.entries
        sums[np.arange(len(dual)), self.axes[reference]] += dual.sum(axis=1) * self.entries[reference]
        return sums

    def squares(self, reference: np.ndarray) -> np.ndarray:
        """Squared lengths (n, k) of the differences of two axes."""
        return self.entries[reference[:, None]] ** 2 + self.entries**2

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sum the outer products of values (k, m) and the vectors, (m, d)."""
        if not self.distinct:
            place = csr_array((self.entries, (self.axes, np.arange(len(self)))), shape=(self.width, len(self)))
            return (place @ values).T
        sums, scale = np.zeros((values.shape[1], self.width)), np.zeros(self.width)
        scale[self.axes] = self.entries
        sums[:, self.axes] = values.T
        sums *= scale
        return sums


def unit_vectors(count: int) -> np.ndarray:
    """Return the identity matrix, read-only; many unit vectors share the memory of one row and its mirror image."""
    if count <= FEW_UNITS:
        return np.eye(count)
    row = np.zeros(2 * count - 1)
    row[count - 1] = 1.0
    row.setflags(write=False)
    size = row.itemsize
    return np.ndarray((count, count), buffer=row, offset=(count - 1) * size, strides=(-size, size))
