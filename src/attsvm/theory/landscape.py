r"""Every selection of a small instance: which are realisable, and which are locally optimal.

A sequence of T tokens can settle on any of them, so n sequences have :math:`T^n` selections. Each has an SVM of its own
or none. Enumerating them answers three questions at once: whether *every* selection is realisable (separability in the
sense of arXiv 2308.16898, Theorem 1), which are locally optimal (where gradient descent can end), and whether condition
D holds (whether the optimal tokens block every other selection). Where :math:`T^n` is large the selections are sampled:
a violation found that way is a violation, the absence of one is evidence only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from attsvm.core.status import Status
from attsvm.theory.tokens import LocalOptimality, Trial, local_optimality

# Half a millisecond a selection: about two seconds.
ENUMERATE = 4096
SAMPLES = 512


@dataclass(frozen=True, eq=False)
class Landscape:
    """What is known of the selections of a trial.

    Attributes
    ----------
    trial : Trial
    selections : ndarray of int, shape (m, n)
        The selections looked at; the globally optimal one is the first.
    statuses : tuple of Status, length m
        How the SVM of each ended.
    blocked_somewhere, blocked_everywhere : ndarray of bool, shape (m,)
        Whether the optimal token is an SVM-neighbour of the selected one in some, or in every, sequence that does not
        select it. False for infeasible selections, and for the optimal one.
    directions : tuple of LocalOptimality
        The locally optimal ones among them, shortest W first.
    total : int
        Number of selections there are.
    exhaustive : bool
        Whether all were looked at.
    """

    trial: Trial
    selections: np.ndarray
    statuses: tuple[Status, ...]
    blocked_somewhere: np.ndarray
    blocked_everywhere: np.ndarray
    directions: tuple[LocalOptimality, ...]
    total: int
    exhaustive: bool

    @cached_property
    def feasible(self) -> np.ndarray:
        """Selections some matrix realises, bool (m,)."""
        return np.array([status is Status.OPTIMAL for status in self.statuses])

    @cached_property
    def infeasible(self) -> np.ndarray:
        """Selections proved impossible, bool (m,)."""
        return np.array([status is Status.INFEASIBLE for status in self.statuses])

    @property
    def undecided(self) -> int:
        """Number of selections neither realised nor proved impossible."""
        return int((~self.feasible & ~self.infeasible).sum())

    @property
    def how(self) -> str:
        """How the selections were gone through, in words."""
        if self.exhaustive:
            return f"all {self.total} selections enumerated"
        return f"{len(self.selections)} of {self.total:.3g} selections sampled"

    @property
    def only_optimal(self) -> bool:
        """Whether the optimal selection is the only locally optimal one found."""
        return len(self.directions) == 1 and bool((self.directions[0].selected == self.trial.optimal).all())

    def index(self, selected: np.ndarray) -> int:
        """Position of a selection among the local directions; -1 when it is none of them."""
        for position, direction in enumerate(self.directions):
            if (direction.selected == selected).all():
                return position
        return -1


def explore(trial: Trial, *, limit: int = ENUMERATE, samples: int = SAMPLES, seed: int = 0) -> Landscape:
    """Go through the selections of a trial, all of them or a sample.

    Parameters
    ----------
    trial : Trial
    limit : int
        Enumerate when there are at most this many selections.
    samples : int
        Number of different selections to draw otherwise.
    seed : int

    Returns
    -------
    Landscape

    Raises
    ------
    ValueError
        If a number is not positive.
    """
    if any(isinstance(number, bool) or not isinstance(number, (int, np.integer)) for number in (limit, samples)) or (
        limit < 1 or samples < 1
    ):
        raise ValueError(f"limit and samples must be positive integers; got {limit!r} and {samples!r}.")
    choices = [np.flatnonzero(row) for row in trial.mask]
    total = prod(len(choice) for choice in choices)
    exhaustive = total <= limit
    drawn = product(*choices) if exhaustive else _draw(choices, min(samples, total), seed)
    optimal = tuple(int(t) for t in trial.optimal)
    rest = [chosen for chosen in (tuple(int(t) for t in s) for s in drawn) if chosen != optimal]
    selections = np.array([optimal, *rest])  # (m, n)
    somewhere, everywhere = np.zeros(len(selections), dtype=bool), np.zeros(len(selections), dtype=bool)
    statuses, directions = [], []
    rows = np.arange(len(trial.optimal))
    for index, selected in enumerate(selections):
        found = local_optimality(trial, selected)
        statuses.append(found.solution.status)
        astray = selected != trial.optimal
        if found.feasible and astray.any():
            near = found.neighbours[rows, trial.optimal][astray]
            somewhere[index], everywhere[index] = near.any(), near.all()
        if found.holds:
            directions.append(found)
    directions.sort(key=lambda direction: direction.solution.objective)
    return Landscape(trial, selections, tuple(statuses), somewhere, everywhere, tuple(directions), total, exhaustive)


def _draw(choices: list[np.ndarray], count: int, seed: int) -> list[tuple[int, ...]]:
    """Draw different selections uniformly; repeats are dropped and drawn again."""
    rng = np.random.default_rng(seed)
    seen: dict[tuple[int, ...], None] = {}
    while len(seen) < count:
        seen[tuple(int(rng.choice(choice)) for choice in choices)] = None
    return list(seen)
