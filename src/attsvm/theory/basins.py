r"""Which start goes where, by training from each of them.

The theory names the directions gradient descent can end in (:mod:`attsvm.theory.landscape`) but hardly ever the one it
does end in. On small instances that can be seen: all starts are trained together, as trials of one batch, and each is
assigned to the locally optimal direction whose tokens it ends on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.core.correlation import correlation
from attsvm.core.interop import to_numpy
from attsvm.data.token_data import TokenData
from attsvm.theory.landscape import Landscape, explore
from attsvm.theory.tokens import Trial
from attsvm.theory.verdict import SELECTED


@dataclass(frozen=True, eq=False)
class Basins:
    """Where each start went.

    Attributes
    ----------
    landscape : Landscape
        Its `directions` are what destinations count.
    starts, ends : ndarray, shape (B, d, dz)
    selected : ndarray of int, shape (B, n)
        The token each query attends to most at the end.
    destination : ndarray of int, shape (B,)
        Position among `landscape.directions`; -1 where attention is still shared or the tokens are none of them.
    correlation : ndarray, shape (B,)
        Of the end with that direction; NaN where there is none.
    """

    landscape: Landscape
    starts: np.ndarray
    ends: np.ndarray
    selected: np.ndarray
    destination: np.ndarray
    correlation: np.ndarray

    @property
    def share(self) -> np.ndarray:
        """Share of the starts that went to each direction; the last entry is that of none."""
        count = len(self.landscape.directions)
        return np.bincount(self.destination % (count + 1), minlength=count + 1) / len(self.destination)


def map_basins(
    trial: Trial,
    starts: Any,
    *,
    found: Landscape | None = None,
    steps: int = 2000,
    selected_above: float = SELECTED,
    **options: Any,
) -> Basins:
    """Train from every start and say in which locally optimal direction each ended.

    Parameters
    ----------
    trial : Trial
    starts : array, shape (B, d, dz)
    found : Landscape, optional
        Computed when not given.
    steps : int
    selected_above : float
        Attention a token must have to count as selected.
    **options
        Passed to :func:`attsvm.train` (optimizer, lr, loss, ...).

    Raises
    ------
    ValueError
        If `starts` has another shape.
    """
    from attsvm.training import train

    shape = (trial.tokens.shape[2], trial.queries.shape[1])
    given = to_numpy("starts", starts).astype(np.float64)
    if given.ndim != 3 or given.shape[1:] != shape or len(given) == 0:
        raise ValueError(f"starts has shape {given.shape}; (B, d, dz) = (B, {shape[0]}, {shape[1]}) was expected.")
    known = explore(trial) if found is None else found
    trace = train(_repeat(trial, len(given)), _head(trial), init=given, steps=steps, **options)
    ends, attention = np.asarray(trace.W)[:, -1], np.asarray(trace.attention)[:, -1]
    selected = np.asarray(trace.selected)
    settled = attention.max(axis=-1).min(axis=-1) >= selected_above
    destination = np.array([known.index(s) if ok else -1 for s, ok in zip(selected, settled, strict=True)])
    near = np.full(len(given), np.nan)
    for index, direction in enumerate(known.directions):
        here = destination == index
        if here.any():
            near[here] = correlation(ends[here], direction.W)
    return Basins(known, given, ends, selected, destination, near)


def _head(trial: Trial) -> Any:
    return trial.head if trial.v is None else trial.v


def _repeat(trial: Trial, count: int) -> TokenData:
    """Copy the trial, once for each start."""

    def copies(array: np.ndarray) -> np.ndarray:
        return np.broadcast_to(array, (count, *array.shape)).copy()

    same = trial.data.values is trial.data.tokens
    values = None if same else copies(trial.values)
    return TokenData(copies(trial.tokens), copies(trial.queries), copies(trial.labels), copies(trial.mask), values)
