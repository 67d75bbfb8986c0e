r"""Examine the selections of an instance: which are realisable, and which are locally optimal.

Each of n sequences selects one of T tokens, so there are :math:`T^n` selections. Each has an SVM or none. Enumerating
them answers three questions: Is *every* selection realisable (separability in the sense of arXiv 2308.16898, Theorem
1)? Which are locally optimal, so that gradient descent can end there? Does condition D hold, so that the optimal tokens
block every other selection? If :math:`T^n` is large, a search replaces the enumeration. It examines the selections in
which training from many starts ends, selections one swap away from a locally optimal one (from the optimal tokens
first), and random selections. A violation that it finds is certain; finding none is only evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from math import prod
from typing import Any

import numpy as np

from attsvm.core.status import Status
from attsvm.data.token_data import TokenData
from attsvm.platform.extras import frame
from attsvm.platform.summary import MARKED, Summarised, Summary
from attsvm.theory.search import SEARCH_STEPS, STARTS, End, random_starts, swaps, train_starts
from attsvm.theory.tokens import LocalOptimality, Trial, local_optimality

# Number of selections up to which all are enumerated.
ENUMERATE = 4096
# Number of selections that a search examines.
SAMPLES = 512

# Largest number of ends of training shown in a summary.
_MOST_LINES = 5


@dataclass(frozen=True, eq=False, repr=False)
class Landscape(Summarised):
    """The enumerated or searched selections of a trial.

    Attributes
    ----------
    trial : Trial
    selections : ndarray of int, shape (m, n)
        The examined selections; the globally optimal one is the first.
    statuses : tuple of Status, length m
        Status of the SVM of each.
    blocked_somewhere, blocked_everywhere : ndarray of bool, shape (m,)
        Whether the optimal token is an SVM-neighbour of the selected one in some, or in every, sequence that does not
        select it. False for infeasible selections, and for the optimal one.
    directions : tuple of LocalOptimality
        The locally optimal selections among them, shortest W first.
    total : int
        Number of all selections.
    exhaustive : bool
        Whether all were examined.
    ends : tuple of End
        Ends of training from random starts, most frequent first; empty if no start was trained.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> landscape = theory.explore(trial)
    >>> landscape.selections.shape, len(landscape.statuses), landscape.directions[0].holds
    ((64, 3), 64, True)
    """

    trial: Trial
    selections: np.ndarray
    statuses: tuple[Status, ...]
    blocked_somewhere: np.ndarray
    blocked_everywhere: np.ndarray
    directions: tuple[LocalOptimality, ...]
    total: int
    exhaustive: bool
    ends: tuple[End, ...] = ()

    @cached_property
    def feasible(self) -> np.ndarray:
        """Selections that some matrix realises, bool (m,)."""
        return np.array([status is Status.OPTIMAL for status in self.statuses])

    @cached_property
    def infeasible(self) -> np.ndarray:
        """Selections that are proved impossible, bool (m,)."""
        return np.array([status is Status.INFEASIBLE for status in self.statuses])

    @property
    def undecided(self) -> int:
        """Number of selections that are neither realised nor proved impossible."""
        return int((~self.feasible & ~self.infeasible).sum())

    @property
    def how(self) -> str:
        """The examination of the selections, in words."""
        if self.exhaustive:
            return f"all {self.total} selections enumerated"
        count = sum(end.count for end in self.ends)
        trained = f", among them the ends of {count} trained starts" if count else ""
        return f"{len(self.selections)} of {self.total:.3g} selections searched{trained}"

    @property
    def counted(self) -> str:
        """The number of locally optimal directions that were found, in words."""
        number = len(self.directions)
        sentence = f"{number} locally optimal direction{'' if number == 1 else 's'}"
        return sentence if self.exhaustive else f"{sentence} of those searched ({self.how})"

    def table(self) -> str:
        """Write the ends of training as a table, one line each: share of the starts, selection, correlation.

        Examples
        --------
        >>> from attsvm import theory
        >>> from attsvm.data.synthetic import random_data
        >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
        >>> landscape = theory.explore(trial, starts=4)
        >>> print(landscape.table())
        100.0 %  the optimal tokens, correlation 0.9998
        """
        return "\n".join(str(end) for end in self.ends)

    @property
    def only_optimal(self) -> bool:
        """Whether the optimal selection is the only locally optimal one found."""
        return len(self.directions) == 1 and bool((self.directions[0].selected == self.trial.optimal).all())

    def index(self, selected: np.ndarray) -> int:
        """Return the index of a selection among the locally optimal directions; -1 if it is not locally optimal.

        Examples
        --------
        >>> from attsvm import theory
        >>> from attsvm.data.synthetic import random_data
        >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
        >>> landscape = theory.explore(trial)
        >>> landscape.index(landscape.directions[0].selected)
        0
        """
        for index, direction in enumerate(self.directions):
            if (direction.selected == selected).all():
                return index
        return -1

    def to_frame(self) -> Any:
        """List the examined selections.

        Returns
        -------
        pandas.DataFrame
            Columns selected (a tuple of tokens), status and local (locally optimal or not).

        Raises
        ------
        ImportError
            Without pandas.

        Examples
        --------
        >>> from attsvm import theory
        >>> from attsvm.data.synthetic import random_data
        >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
        >>> landscape = theory.explore(trial)
        >>> landscape.to_frame()["status"].unique().tolist()
        ['OPTIMAL']
        """
        columns = {
            "selected": [tuple(row) for row in self.selections.tolist()],
            "status": [status.name for status in self.statuses],
            "local": [self.index(row) >= 0 for row in self.selections],
        }
        return frame("Landscape.to_frame", columns)

    def _summary(self) -> Summary:
        facts = [
            ("directions", self.counted),
            ("selections", self.how),
            ("feasible", f"{int(self.feasible.sum()):,} of {len(self.selections):,}"),
        ]
        return Summary("Landscape", colour=MARKED, facts=facts, notes=[str(end) for end in self.ends[:_MOST_LINES]])


def explore(
    data: Trial | TokenData,
    head: Any = None,
    *,
    limit: int = ENUMERATE,
    samples: int = SAMPLES,
    seed: int = 0,
    realised: Any = None,
    starts: int | None = None,
    steps: int = SEARCH_STEPS,
) -> Landscape:
    """Examine the selections of one trial: all of them, or those that a search finds.

    Parameters
    ----------
    data : TokenData or Trial
        One trial: token data with the ``head``, or both as a Trial.
    head : array (dv,), module or callable, optional
        As for :meth:`Trial.of`; required with token data.
    limit : int
        Number of selections up to which all are enumerated.
    samples : int
        Number of different selections to examine otherwise, a quarter of them drawn at random.
    seed : int
    realised : array of int, shape (n,) or (m, n), optional
        Selections to examine in any case, such as selections of trained matrices.
    starts : int, optional
        Number of random starts to train from. Default: 30 if selections are searched, 0 if all are enumerated.
    steps : int
        Number of training steps per start.

    Returns
    -------
    Landscape

    Raises
    ------
    ValueError
        If a number is out of range, `realised` does not fit, or token data are given without a head.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> data, v = random_data(None, 3, 4, 8, seed=0)
    >>> landscape = theory.explore(data, v)
    >>> landscape.total, landscape.exhaustive, len(landscape.directions) >= 1
    (64, True, True)
    """
    if not isinstance(data, Trial) and head is None:
        raise ValueError("head is None; the head of the token data was expected.")
    trial = data if isinstance(data, Trial) else Trial.of(data, head)
    if any(isinstance(number, bool) or not isinstance(number, (int, np.integer)) for number in (limit, samples)) or (
        limit < 1 or samples < 1
    ):
        raise ValueError(f"limit is {limit!r} and samples {samples!r}; positive integers were expected.")
    choices = [np.flatnonzero(row) for row in trial.mask]
    total = prod(len(choice) for choice in choices)
    exhaustive = total <= limit
    count = (0 if exhaustive else STARTS) if starts is None else starts
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
        raise ValueError(f"starts is {starts!r}; a non-negative integer was expected.")
    trained = train_starts(trial, random_starts(trial, count, seed), steps) if count else None
    localities: dict[tuple[int, ...], LocalOptimality] = {}

    def examine(selected: Iterable[Any]) -> LocalOptimality:
        key = tuple(int(t) for t in selected)
        if key not in localities:
            localities[key] = local_optimality(trial, np.array(key))
        return localities[key]

    for selected in (
        trial.optimal,
        *_extra_selections(trial, realised),
        *(() if trained is None else trained.selected),
    ):
        examine(selected)
    if exhaustive:
        for selected in product(*choices):
            examine(map(int, selected))
    else:
        at_most = min(samples, total)
        _swap(localities, examine, max(len(localities), at_most - at_most // 4))
        for selected in _draw(choices, at_most, seed, localities):
            examine(selected)
    ends = () if trained is None else trained.ends(trial.optimal, localities)
    return _landscape(trial, localities, total, exhaustive or len(localities) == total, ends)


def _extra_selections(trial: Trial, realised: Any) -> np.ndarray:
    """Return the selections to examine in any case, (m, n)."""
    n, T = trial.mask.shape
    if realised is None:
        return np.empty((0, n), dtype=int)
    rows = np.atleast_2d(np.asarray(realised))
    if rows.ndim != 2 or rows.shape[1] != n or rows.dtype.kind not in "iu" or (rows < 0).any() or (rows >= T).any():
        raise ValueError(f"realised has shape {rows.shape}; token numbers 0 to {T - 1} of ({n},) were expected.")
    if not trial.mask[np.arange(n), rows].all():
        raise ValueError(f"realised of shape {rows.shape} selects a hidden token; visible ones were expected.")
    return rows


def _swap(
    localities: dict[tuple[int, ...], LocalOptimality], examine: Callable[[tuple[int, ...]], LocalOptimality], most: int
) -> None:
    """Examine swaps of each known locally optimal selection, one of each in turn, until `most` selections are known."""
    sources: list[LocalOptimality] = []
    queues: list[Iterator[tuple[int, ...]]] = []
    while len(localities) < most:
        for locality in list(localities.values())[len(sources) :]:
            sources.append(locality)
            queues.append(swaps(locality) if locality.holds else iter(()))
        before = len(localities)
        for queue in queues:
            if len(localities) >= most:
                return
            for swap in islice((s for s in queue if s not in localities), 1):
                examine(swap)
        if len(localities) == before:
            return


def _landscape(
    trial: Trial,
    localities: dict[tuple[int, ...], LocalOptimality],
    total: int,
    exhaustive: bool,
    ends: tuple[End, ...],
) -> Landscape:
    selections = np.array(list(localities))  # (m, n), the optimal one first
    somewhere, everywhere = np.zeros(len(selections), dtype=bool), np.zeros(len(selections), dtype=bool)
    rows = np.arange(len(trial.optimal))
    for index, locality in enumerate(localities.values()):
        misses = locality.selected != trial.optimal
        if locality.feasible and misses.any():
            near = locality.neighbours[rows, trial.optimal][misses]
            somewhere[index], everywhere[index] = near.any(), near.all()
    statuses = tuple(locality.solution.status for locality in localities.values())
    directions = sorted(
        (locality for locality in localities.values() if locality.holds),
        key=lambda locality: locality.solution.objective,
    )
    return Landscape(trial, selections, statuses, somewhere, everywhere, tuple(directions), total, exhaustive, ends)


def _draw(
    choices: list[np.ndarray], count: int, seed: int, directions: Mapping[tuple[int, ...], object]
) -> list[tuple[int, ...]]:
    """Draw new selections uniformly until `count` different selections are known."""
    rng = np.random.default_rng(seed)
    draws: dict[tuple[int, ...], None] = {}
    while len(directions) + len(draws) < count:
        selected = tuple(int(rng.choice(choice)) for choice in choices)
        if selected not in directions:
            draws[selected] = None
    return list(draws)
