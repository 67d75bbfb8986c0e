r"""The normal matrix A^T diag(theta) A of the linear map, in one matrix product.

If all queries are multiples of one vector, it is the product of the weighted differences with themselves. Otherwise
each query contributes :math:`(\Delta_i^\top\Theta_i\Delta_i) \otimes z_i z_i^\top`. Both factors are symmetric, so
their packed upper triangles suffice. Stacked over queries, the sum of Kronecker products is one product of an (n,
p(p+1)/2) and an (n, r(r+1)/2) array. This avoids one update of the (p r)^2 matrix per constraint.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.reduction import Reduced

# Number of entries of the products of one chunk of queries, and smallest number of queries per chunk.
PRODUCT_ENTRIES, LEAST_PRODUCT_ROWS = 1 << 18, 128


class NormalMatrix:
    """Forms ``A^T diag(theta) A`` for one reduced problem."""

    def __init__(self, reduced: Reduced) -> None:
        p, r = reduced.shape
        self._delta, self._queries = reduced.delta, reduced.queries
        self._token_pairs, self._left = _packing(p)
        self._query_pairs, self._right = _packing(r)
        self._step = max(LEAST_PRODUCT_ROWS, PRODUCT_ENTRIES // (p * p + r * r))

    def form(self, theta: np.ndarray) -> np.ndarray:
        """Return the (p r, p r) matrix for weights ``theta`` (n, T) >= 0; W is flattened row by row."""
        if self._queries.shape[1] == 1:
            rows = (np.sqrt(theta)[:, :, None] * self._queries[:, :, None] * self._delta).reshape(-1, len(self._left))
            return rows.T @ rows
        product = np.zeros((len(self._token_pairs[0]), len(self._query_pairs[0])))
        for start in range(0, len(theta), self._step):
            rows = slice(start, start + self._step)
            delta, queries = self._delta[rows], self._queries[rows]
            inner = np.matmul((delta * theta[rows, :, None]).transpose(0, 2, 1), delta)  # (rows, p, p)
            outer = queries[:, self._query_pairs[0]] * queries[:, self._query_pairs[1]]  # (rows, r(r+1)/2)
            product += inner[:, self._token_pairs[0], self._token_pairs[1]].T @ outer
        p, r = len(self._left), len(self._right)
        # element ((a, c), (b, e)) is product[(a, b), (c, e)]
        full = product[self._left[:, None, :, None], self._right[None, :, None, :]]
        return full.reshape(p * r, p * r)


def _packing(size: int) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Index pairs of a packed upper triangle, and the packed index of each entry of the full matrix."""
    rows, columns = np.triu_indices(size)
    place = np.zeros((size, size), dtype=np.intp)
    place[rows, columns] = place[columns, rows] = np.arange(len(rows))
    return (rows, columns), place
