r"""Find the locally optimal direction in which each start ends, by training.

The theory lists the directions in which gradient descent can end (:mod:`attsvm.theory.landscape`), but rarely predicts
which one. On small instances training shows it. All starts are trained together, as trials of one batch. Each start is
assigned to the locally optimal direction whose tokens it selects at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.core.correlation import correlation
from attsvm.platform.extras import frame
from attsvm.platform.interop import to_numpy
from attsvm.platform.summary import MARKED, Summarised, Summary, bars
from attsvm.theory.landscape import Landscape, explore
from attsvm.theory.search import train_starts
from attsvm.theory.tokens import SELECTED, Trial

# Largest number of directions shown in a summary.
_MOST_LINES = 6


@dataclass(frozen=True, eq=False, repr=False)
class Basins(Summarised):
    """The locally optimal direction that each start ended in.

    Attributes
    ----------
    landscape : Landscape
        A destination is an index into its `directions`.
    starts, ends : ndarray, shape (B, d, dz)
    selected : ndarray of int, shape (B, n)
        The token each query attends to most at the end.
    destination : ndarray of int, shape (B,)
        Index into `landscape.directions`; -1 if attention is not yet concentrated, or the selection has no such
        direction.
    correlation : ndarray, shape (B,)
        Correlation of the end with its direction; NaN if it has none.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> import numpy as np
    >>> basins = theory.map_basins(trial, np.random.default_rng(0).normal(size=(5, 8, 8)), steps=200)
    >>> basins.selected.shape, basins.correlation.shape
    ((5, 3), (5,))
    """

    landscape: Landscape
    starts: np.ndarray
    ends: np.ndarray
    selected: np.ndarray
    destination: np.ndarray
    correlation: np.ndarray

    @property
    def share(self) -> np.ndarray:
        """Share of the starts that ended in each direction; the last entry is the share that ended in none."""
        count = len(self.landscape.directions)
        return np.bincount(self.destination % (count + 1), minlength=count + 1) / len(self.destination)

    def to_frame(self) -> Any:
        """List the starts.

        Returns
        -------
        pandas.DataFrame
            Columns start, destination (-1 for none) and correlation.

        Raises
        ------
        ImportError
            Without pandas.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import theory
        >>> from attsvm.data.synthetic import random_data
        >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
        >>> starts = np.random.default_rng(0).normal(size=(5, 8, 8))
        >>> basins = theory.map_basins(trial, starts, steps=200)
        >>> list(basins.to_frame().columns)
        ['start', 'destination', 'correlation']
        """
        columns = {
            "start": np.arange(len(self.starts)),
            "destination": self.destination,
            "correlation": self.correlation,
        }
        return frame("Basins.to_frame", columns)

    def _summary(self) -> Summary:
        shares = self.share
        names = [*(f"direction {k}" for k in range(len(shares) - 1)), "none"]
        order = [k for k in np.argsort(-shares) if shares[k] > 0][:_MOST_LINES]
        picture = bars([names[k] for k in order], [float(shares[k]) for k in order], 0)
        facts = [("starts", f"{len(self.starts):,}"), ("most went to", f"{names[order[0]]}, {shares[order[0]]:.1%}")]
        return Summary("Basins", "", MARKED, facts, picture, "share of the starts, by locally optimal direction")


def map_basins(
    trial: Trial,
    starts: Any,
    *,
    landscape: Landscape | None = None,
    steps: int = 2000,
    selected_above: float = SELECTED,
    **options: Any,
) -> Basins:
    """Train from every start, and find the locally optimal direction in which each ends.

    Parameters
    ----------
    trial : Trial
    starts : array, shape (B, d, dz)
    landscape : Landscape, optional
        Default: the result of :func:`explore`.
    steps : int
    selected_above : float
        Attention a token must have to count as selected.
    **options
        Passed to :func:`attsvm.train` (optimizer, lr, loss, ...).

    Raises
    ------
    ValueError
        If `starts` has another shape.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> import numpy as np
    >>> starts = np.random.default_rng(0).normal(size=(5, 8, 8))
    >>> basins = theory.map_basins(trial, starts, steps=200)
    >>> basins.destination.shape, basins.ends.shape
    ((5,), (5, 8, 8))
    """
    shape = (trial.tokens.shape[2], trial.queries.shape[1])
    points = to_numpy("starts", starts).astype(np.float64)
    if points.ndim != 3 or points.shape[1:] != shape or len(points) == 0:
        raise ValueError(f"starts has shape {points.shape}; (B, d, dz) = (B, {shape[0]}, {shape[1]}) was expected.")
    terrain = explore(trial) if landscape is None else landscape
    trained = train_starts(trial, points, steps, **options)
    ends, selected = trained.W, trained.selected
    has_converged = trained.least_attention >= selected_above
    destination = np.array([terrain.index(s) if ok else -1 for s, ok in zip(selected, has_converged, strict=True)])
    near = np.full(len(points), np.nan)
    for index, direction in enumerate(terrain.directions):
        here = destination == index
        if here.any():
            near[here] = correlation(ends[here], direction.W)
    return Basins(terrain, points, ends, selected, destination, near)
