r"""The Gram matrix of constraints between one-hot tokens that all queries share, factored token by token.

Such tokens are classes, words of a vocabulary, or documents. Constraint (i, t) has the row :math:`(c_{\alpha_i}
e_{\alpha_i} - c_t e_t) z_i^\top`. Multipliers y with sums :math:`s_i = \sum_t y_{it}` therefore give token v the vector
:math:`g_v`, with entries :math:`-c_v y_{iv}`, and :math:`c_v s_i` for the queries that select v, and

.. math:: y^\top K y = \sum_v g_v^\top H g_v, \qquad H = ZZ^\top .

A system in K takes the sums as further unknowns, each with a multiplier :math:`\mu_i`. It then splits into one block of
H per token, and one matrix over the queries couples the blocks. The work is the sum of the cubed block sizes, far less
than the cubed number of constraints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import LinAlgError

from attsvm.core.cholesky import PROXIMAL, factor, refined

# Multiple to which block sizes are rounded up; blocks of one rounded size are inverted in one call.
ROUND = 8
# Ridge of a proximal step, relative to each diagonal entry and the number of constraints.
RELATIVE_RIDGE = 1e-13
# Residual, relative to the right-hand side, up to which a system counts as solved.
SOLUTION_ERROR = 1e-9
# Number of proximal steps, which remove the effect of the ridge from the solution.
STEPS = 3


@dataclass(frozen=True, eq=False)
class SharedTokens:
    """One-hot tokens that all queries share.

    Attributes
    ----------
    entries : ndarray, shape (T,)
        The entry of each token.
    reference : ndarray of int, shape (n,)
        The selected token of each query.
    """

    entries: np.ndarray
    reference: np.ndarray


class BlockGram:
    """K + diag(diagonal) for J constraints of a vocabulary.

    Parameters
    ----------
    queries : ndarray, shape (n, r)
    rows, tokens : ndarray of int, shape (J,)
        Query and token of each constraint.
    diagonal : ndarray, shape (J,)
    """

    def __init__(
        self, vocabulary: SharedTokens, queries: np.ndarray, rows: np.ndarray, tokens: np.ndarray, diagonal: np.ndarray
    ) -> None:
        self._whole = vocabulary, queries, rows, tokens
        self.diagonal = diagonal
        used, self._query = np.unique(rows, return_inverse=True)
        self._queries = queries[used]
        # Members of the blocks: the multipliers, then the sums.
        self._member_query = np.append(self._query, np.arange(len(used)))
        self._token = np.append(tokens, vocabulary.reference[used])
        self._weight = np.append(-vocabulary.entries[tokens], vocabulary.entries[vocabulary.reference[used]])

    def __len__(self) -> int:
        return len(self.diagonal)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Size of each token's block."""
        return np.bincount(self._token)

    @property
    def coupling(self) -> tuple[int, int]:
        """Shape (m, r) of the queries that couple the blocks."""
        return self._queries.shape

    def part(self, chosen: np.ndarray) -> BlockGram:
        """Return the matrix of some of the constraints, (J,) bool."""
        vocabulary, queries, rows, tokens = self._whole
        return BlockGram(vocabulary, queries, rows[chosen], tokens[chosen], self.diagonal[chosen])

    def __matmul__(self, x: np.ndarray) -> np.ndarray:
        return self._times(x, 0.0)

    @property
    def suits(self) -> bool:
        """Whether the average block is no larger than the rank of H; a few larger, singular blocks do no harm."""
        return int(self.sizes.sum()) <= np.count_nonzero(self.sizes) * self._queries.shape[1]

    def dense(self) -> np.ndarray:
        """Write out the matrix, (J, J)."""
        vocabulary, _, rows, tokens = self._whole
        each = np.arange(len(self))
        delta = np.zeros((len(self), len(vocabulary.entries)))
        delta[each, vocabulary.reference[rows]] = vocabulary.entries[vocabulary.reference[rows]]
        delta[each, tokens] = -vocabulary.entries[tokens]
        matrix = delta @ delta.T
        matrix *= (self._queries @ self._queries.T)[self._query[:, None], self._query]
        matrix[each, each] += self.diagonal
        return matrix

    def solve(self, rhs: np.ndarray, steps: int = STEPS) -> np.ndarray:
        """Solve for a right-hand side (J,) by proximal steps; one step is enough if the caller corrects the residual.

        Raises scipy.linalg.LinAlgError if the blocks are singular to rounding.
        """
        step = self._solver(rhs)
        for _ in range(steps - 1):
            step = step + self._solver(rhs - self @ step)
        return step

    @property
    def _ridge(self) -> float:
        """Ridge of a proximal step, relative to the diagonal of H."""
        return RELATIVE_RIDGE * len(self)

    def _times(self, x: np.ndarray, ridge: float) -> np.ndarray:
        """Multiply x (J,) by the matrix, with a ``ridge`` relative to the diagonal of H added to H."""
        values = self._weight * np.append(x, np.bincount(self._query, weights=x, minlength=len(self._queries)))
        image = ridge * self._squares[self._member_query] * values
        for members, present, matrices in self._blocks:
            image[members[present]] += np.matmul(matrices, (values[members] * present)[..., None])[..., 0][present]
        image *= self._weight
        return image[: len(x)] + image[len(x) :][self._query] + self.diagonal * x

    @cached_property
    def _squares(self) -> np.ndarray:
        return np.vecdot(self._queries, self._queries)

    @cached_property
    def _blocks(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each rounded size b: members (k, b) of k blocks, which of them are no padding, and their H (k, b, b)."""
        products = self._queries @ self._queries.T
        order = np.argsort(self._token, kind="stable")
        _, first, sizes = np.unique(self._token[order], return_index=True, return_counts=True)
        padded = -(-sizes // ROUND) * ROUND
        blocks = []
        for size in np.unique(padded):
            here = padded == size
            place = np.arange(size)
            present = place < sizes[here, None]
            members = order[np.where(present, first[here, None] + place, 0)]
            query = self._member_query[members]
            matrices = products[query[:, :, None], query[:, None, :]]
            matrices *= present[:, :, None] & present[:, None, :]
            blocks.append((members, present, matrices))
        return blocks

    @cached_property
    def _solver(self) -> Callable[[np.ndarray], np.ndarray]:
        """Function that solves with the matrix after the ridge has been added to H."""
        ridge = self._ridge
        extra = np.append(self.diagonal, np.zeros(len(self._queries))) / self._weight**2
        extra += ridge * self._squares[self._member_query]
        count = len(self._queries)
        coupling = np.zeros(count * count)
        inverses = []
        for members, present, matrices in self._blocks:
            matrices = matrices.copy()
            place = np.arange(members.shape[1])
            diagonal = matrices[:, place, place] + extra[members] * present
            matrices[:, place, place] = np.where(diagonal > 0.0, diagonal, 1.0)
            inverse = np.linalg.inv(matrices) / self._weight[members[:, :1], None] ** 2
            inverse *= present[:, :, None] & present[:, None, :]
            inverses.append(inverse)
            query = self._member_query[members]
            pairs = query[:, :, None] * count + query[:, None, :]
            coupling += np.bincount(pairs.ravel(), weights=inverse.ravel(), minlength=count * count)
        coupling = coupling.reshape(count, count)
        solve_coupling = factor(0.5 * (coupling + coupling.T), PROXIMAL)

        def blocks_of(values: np.ndarray) -> np.ndarray:
            image = np.empty(len(values))
            for (members, present, _), inverse in zip(self._blocks, inverses, strict=True):
                image[members[present]] = np.matmul(inverse, (values[members] * present)[..., None])[..., 0][present]
            return image

        def once(rhs: np.ndarray) -> tuple[np.ndarray]:
            values = np.append(rhs, np.zeros(count))
            sums = np.bincount(self._member_query, weights=blocks_of(values), minlength=count)
            return (blocks_of(values - solve_coupling(sums)[self._member_query])[: len(rhs)],)

        def solve(rhs: np.ndarray) -> np.ndarray:
            size = float(np.abs(rhs).max(initial=0.0))
            (step,) = refined(once, lambda x: (rhs - self._times(x, ridge),), (rhs,), SOLUTION_ERROR * 1e-3 * size)
            if not float(np.abs(rhs - self._times(step, ridge)).max(initial=0.0)) <= SOLUTION_ERROR * size:
                raise LinAlgError("the blocks are singular to rounding")
            return step

        return solve
