r"""The normal matrix A^T diag(theta) A of the linear map, in one matrix product.

Each query contributes :math:`(\Delta_i^\top\Theta_i\Delta_i) \otimes z_i z_i^\top`. Both factors are symmetric, so
their packed upper triangles suffice: stacking them over queries turns the sum of Kronecker products into one product
of an (n, p(p+1)/2) and an (n, r(r+1)/2) array. The n T constraints never meet the (p r)^2 matrix one by one.
"""

from __future__ import annotations

import numpy as np

from attsvm.reduction import Reduced


class NormalMatrix:
    """Forms ``A^T diag(theta) A`` for one reduced problem.

    Parameters
    ----------
    reduced : Reduced
    """

    def __init__(self, reduced: Reduced) -> None:
        p, r = reduced.shape
        self._delta = reduced.delta
        self._upper = np.triu_indices(p)
        rows, columns = np.triu_indices(r)
        self._outer = np.ascontiguousarray(reduced.queries[:, rows] * reduced.queries[:, columns])  # (n, r(r+1)/2)
        left, right = np.zeros((p, p), dtype=np.intp), np.zeros((r, r), dtype=np.intp)
        left[self._upper] = left.T[self._upper] = np.arange(len(self._upper[0]))
        right[rows, columns] = right[columns, rows] = np.arange(len(rows))
        self._left, self._right = left, right

    def form(self, theta: np.ndarray) -> np.ndarray:
        """Return the (p r, p r) matrix for weights ``theta`` (n, T); W is flattened row by row."""
        weighted = self._delta * theta[:, :, None]
        inner = np.matmul(weighted.transpose(0, 2, 1), self._delta)  # (n, p, p)
        packed = inner[:, self._upper[0], self._upper[1]]  # (n, p(p+1)/2)
        product = packed.T @ self._outer
        p, r = len(self._left), len(self._right)
        # element ((a, c), (b, e)) is product[(a, b), (c, e)]
        full = product[self._left[:, None, :, None], self._right[None, :, None, :]]
        return full.reshape(p * r, p * r)
