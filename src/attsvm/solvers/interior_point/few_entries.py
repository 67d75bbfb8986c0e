r"""Linear programs with far fewer constraints than entries of W: column generation on few entries.

A vertex of the sum of absolute entries has no more nonzero entries than constraints; one of the largest entry has no
more entries below the bound. Where these are known the Newton systems are small and keep the digits that a system over
the constraints loses near the end. All other entries are zero, or at a common bound with the signs of
:math:`A^\top\lambda`, which makes them one more unknown: the problem on few entries is one in the same norm. Its
multipliers solve the whole problem unless some other entry of :math:`A^\top\lambda` exceeds one, or has the wrong sign;
those entries join (sifting: Bixby, Gregory, Lustig, Marsten and Shanno, Operations Research 40, 1992).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting


@dataclass(frozen=True, eq=False)
class FewEntries(Setting):
    """A linear program on few entries of V, which reports to the whole problem.

    Its V is a column, (J, 1), or (J + 1, 1) with the common bound below the entries.

    Attributes
    ----------
    whole : Setting
    entries : ndarray of int, shape (J,)
        Positions in V of the whole problem, flattened row by row.
    sides : ndarray, shape (p, r), or None
        Signs of the other entries, zero on these: each of them is at its bound. None where the others are zero.
    """

    whole: Setting
    entries: np.ndarray
    sides: np.ndarray | None

    @classmethod
    def of(cls, whole: Setting, entries: np.ndarray, adjoint: np.ndarray, shared: bool) -> FewEntries:
        """Restrict a problem to ``entries``, the signs of the others being those of A^T lam, ``adjoint`` (p, r)."""
        reduced = whole.reduced
        token, query = np.divmod(entries, reduced.shape[1])
        columns = reduced.delta[:, :, token] * reduced.queries[:, None, query]
        sides = None
        if shared:
            sides = np.where(adjoint < 0, -1.0, 1.0)
            sides.ravel()[entries] = 0.0
            columns = np.concatenate([columns, reduced.apply(sides)[:, :, None]], axis=2)
        few = replace(reduced, delta=columns, queries=np.ones((len(columns), 1)), left=None, right=None)
        # Ties require that W has equal scores: any prior with the same scores there serves.
        rows, places = np.nonzero(reduced.tied)
        scores = reduced.apply(whole.prior)[rows, places]
        prior = (
            np.linalg.lstsq(columns[rows, places], scores, rcond=None)[0] if scores.any() else np.zeros(few.shape[0])
        )
        return cls(few, whole.terms, prior[:, None], whole.loose, whole.weights, whole, entries, sides)

    def gather(self, V: np.ndarray) -> np.ndarray:
        """Pick these entries of V (p, r), and its largest."""
        few = V.ravel()[self.entries]
        return (few if self.sides is None else np.append(few, np.abs(V).max()))[:, None]

    def scatter(self, V: np.ndarray) -> np.ndarray:
        """Write V of these entries as one of the whole problem, (p, r)."""
        out = np.zeros(self.whole.reduced.shape) if self.sides is None else self.sides * V[-1, 0]
        out.ravel()[self.entries] = V[: len(self.entries), 0]
        return out

    def lacking(self, adjoint: np.ndarray) -> np.ndarray:
        """How far each other entry of A^T lam, (p, r), is from what the whole problem requires, flattened."""
        if self.sides is not None:
            return np.maximum(-adjoint * self.sides, 0.0).ravel()
        lack = np.maximum(np.abs(adjoint) - 1.0, 0.0).ravel()
        lack[self.entries] = 0.0
        return lack

    def report(self, V: np.ndarray, dual: np.ndarray, control: Control, *, steps: int = 1, **values: Any) -> bool:
        """Evaluate V and multipliers (n, T) in the whole problem; see :meth:`Setting.report`."""
        return self.whole.report(self.scatter(V), dual, control, steps=steps)


def likely_entries(V: np.ndarray, adjoint: np.ndarray, count: int, shared: bool) -> np.ndarray:
    """Choose the entries most likely to be those of a vertex, from a pair near the optimum.

    Parameters
    ----------
    V, adjoint : ndarray, shape (p, r)
        An iterate and its A^T lam.
    count : int
        How many entries of A^T lam are taken, those nearest to one, or to zero where the norm is the largest entry;
        a quarter as many entries of V join.
    """
    sign = 1.0 if shared else -1.0
    by_price = np.argpartition(sign * np.abs(adjoint).ravel(), count - 1)[:count]
    by_size = np.argpartition(sign * np.abs(V).ravel(), count // 4)[: count // 4]
    return np.union1d(by_price, by_size)
