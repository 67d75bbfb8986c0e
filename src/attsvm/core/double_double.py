"""The linear map in twice the working precision, for the decisive constraints."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attsvm.core.error_free import Pair, error_of, multiply, sum_pairs, two_sum
from attsvm.core.problem import SelectionProblem
from attsvm.core.rounding import row_lengths

BLOCK_ENTRIES = 1 << 19


@dataclass(frozen=True, eq=False)
class Rows:
    """Constraints with exact token differences, scaled by powers of two to entries of at most one.

    Attributes
    ----------
    delta : Pair, shape (k, d)
    queries : ndarray, shape (k, dz)
    group : ndarray of int, shape (k,)
        Index of each constraint's query among the distinct queries, from 0.
    scale : tuple of float
        Divisors of differences and queries.
    """

    delta: Pair
    queries: np.ndarray
    group: np.ndarray
    scale: tuple[float, float]

    @classmethod
    def of(cls, problem: SelectionProblem, rows: np.ndarray, columns: np.ndarray) -> Rows:
        """Collect the constraints (rows[k], columns[k])."""
        sequence = problem.sequence[rows]
        selection = problem.tokens[sequence, problem.reference[rows]].astype(np.float64, copy=False)
        other = problem.tokens[sequence, columns].astype(np.float64, copy=False)
        return cls.between(selection, other, problem.queries[rows], rows)

    @classmethod
    def between(cls, selected: np.ndarray, other: np.ndarray, queries: np.ndarray, number: np.ndarray) -> Rows:
        """Constraints between tokens (k, d), float64, for queries (k, dz); equal queries share a ``number``."""
        delta = Pair(*two_sum(selected, -other))
        scale = _power_of_two(delta.high), _power_of_two(queries)
        _, group = np.unique(number, return_inverse=True)
        return cls(Pair(delta.high / scale[0], delta.low / scale[0]), queries / scale[1], group, scale)

    def _unique_queries(self) -> np.ndarray:
        """Distinct queries (g, dz)."""
        directions = np.empty((int(self.group.max(initial=-1)) + 1, self.queries.shape[1]))
        directions[self.group] = self.queries
        return directions

    @property
    def lengths(self) -> np.ndarray:
        """Lengths (k,) of the scaled rows, accurate to d + dz roundings."""
        return row_lengths(self.delta.high) * row_lengths(self.queries)

    def margins(self, W: Pair, *, scaled: bool = False) -> tuple[Pair, float]:
        """Margins (k,) of W (d, dz), and their error relative to |delta| |W|_F |z|.

        Parameters
        ----------
        W : Pair, shape (d, dz)
        scaled : bool
            Use the scaled rows.
        """
        d, dz = W.high.shape
        unit = _power_of_two(W.high)
        W = Pair(W.high[None] / unit, W.low[None] / unit)
        directions = self._unique_queries()
        delta, images = self.delta, _images(W, directions)
        axes = _axes(delta.high)
        if axes is None:
            images = images[self.group]
        else:
            delta, images = delta[np.arange(len(axes))[:, None], axes], images[self.group[:, None], axes]
        total = sum_pairs(multiply(delta, images), 1)
        high, low = total.high, total.low
        value = Pair(high * unit, low * unit) if scaled else self._unscaled(Pair(high, low), unit)
        return value, error_of(d, dz)

    def adjoint(self, weights: Pair, *, scaled: bool = False) -> tuple[Pair, float]:
        """Sum of weights_k delta_k z_k^T (d, dz), and its error relative to the sum of |weights_k| |delta_k| |z_k|.

        Parameters
        ----------
        weights : Pair, shape (k,)
        scaled : bool
            Use the scaled rows.
        """
        k, d = self.delta.high.shape
        dz = self.queries.shape[1]
        directions = self._unique_queries()
        heavy = multiply(self.delta, weights[:, None])
        # Sum per query, (g, d). Each pass adds the next constraint of every query.
        share = Pair(np.zeros((len(directions), d)), np.zeros((len(directions), d)))
        order = np.argsort(self.group, kind="stable")
        place = np.arange(k) - np.searchsorted(self.group[order], self.group[order])
        for turn in range(int(place.max(initial=-1)) + 1):
            now = order[place == turn]
            block = share[self.group[now]] + heavy[now]
            share.high[self.group[now]], share.low[self.group[now]] = block.high, block.low
        total = Pair(np.zeros((d, dz)), np.zeros((d, dz)))
        step = max(1, BLOCK_ENTRIES // (d * dz))
        for start in range(0, len(directions), step):
            part = slice(start, start + step)
            product = multiply(share[part][:, :, None], Pair(directions[part, None, :], np.zeros(1)))
            total = total + sum_pairs(product, 0)
        return (total if scaled else self._unscaled(total, 1.0)), error_of(k, 4)

    def _unscaled(self, value: Pair, unit: float) -> Pair:
        left, right = self.scale
        return Pair(value.high * left * right * unit, value.low * left * right * unit)


def _axes(rows: np.ndarray) -> np.ndarray | None:
    """Axes (k, w) of the non-zero entries of rows (k, d), such as differences of one-hot tokens; None for dense rows.

    The bound on the error counts d terms, so it still holds for a sum without the zeros.
    """
    k, d = rows.shape
    entries = rows != 0
    counts = np.count_nonzero(entries, axis=1)
    width = int(counts.max(initial=1))
    if 2 * width > d:
        return None
    row, axis = np.nonzero(entries)
    axes = np.zeros((k, width), dtype=np.int64)
    # A row with fewer entries than w is filled up with an axis on which it is zero.
    axes[:] = (~entries).argmax(axis=1)[:, None]
    axes[row, np.arange(len(row)) - (np.cumsum(counts) - counts)[row]] = axis
    return axes


def _images(W: Pair, directions: np.ndarray) -> Pair:
    """Products (g, d) of W (1, d, dz) with directions (g, dz)."""
    _, d, dz = W.high.shape
    if (np.count_nonzero(directions, axis=1) == 1).all():
        # Zeros of one-hot directions contribute nothing.
        axes = (directions != 0).argmax(axis=1)
        entries = np.take_along_axis(directions, axes[:, None], axis=1)
        return multiply(Pair(W.high[0].T[axes], W.low[0].T[axes]), Pair(entries, np.zeros(1)))
    image = Pair(np.empty((len(directions), d)), np.empty((len(directions), d)))
    step = max(1, BLOCK_ENTRIES // (d * dz))
    for start in range(0, len(directions), step):
        part = slice(start, start + step)
        block = sum_pairs(multiply(W, Pair(directions[part, None, :], np.zeros(1))), 2)  # (step, d)
        image.high[part], image.low[part] = block.high, block.low
    return image


def sharp_adjoint(problem: SelectionProblem, dual: np.ndarray) -> tuple[Pair, float] | None:
    """Sum dual_it delta_it z_i^T (d, dz), with error relative to sum |dual_it| |delta_it| |z_i|; None on overflow."""
    rows, columns = np.nonzero(dual)
    weights = dual[rows, columns]
    top = _power_of_two(weights)
    adjoint, error = Rows.of(problem, rows, columns).adjoint(Pair(weights / top, np.zeros(len(weights))))
    adjoint = Pair(adjoint.high * top, adjoint.low * top)
    finite = np.isfinite(adjoint.high).all() and np.isfinite(adjoint.low).all()
    return (adjoint, error) if finite else None


def _power_of_two(array: np.ndarray) -> float:
    top = float(np.abs(array).max(initial=0.0))
    return math.ldexp(1.0, math.frexp(top)[1]) if 0.0 < top < 2.0**1023 else 1.0
