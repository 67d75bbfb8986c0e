"""Where a run is, and what its rounds took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.solvers.working_sets.constraints import Anchor, Constraints, Settled


@dataclass(frozen=True)
class Round:
    """A round in numbers.

    Attributes
    ----------
    working, new : int
        Constraints that were solved here, and those that came back.
    smallest : float
        Smallest margin of all constraints.
    objective, lower_bound : float
        The best so far.
    sent, received : int
        Bytes out and back.
    inner_seconds, pass_seconds : float
        What the working set and the pass took.
    """

    working: int
    new: int
    smallest: float
    objective: float
    lower_bound: float
    sent: int
    received: int
    inner_seconds: float
    pass_seconds: float


@dataclass(eq=False)
class State:
    """Where a run is: all that a checkpoint holds.

    Attributes
    ----------
    table : Constraints
    dual : ndarray, shape (J,)
    W : ndarray, shape (d, dz)
        Of the last round.
    target : float
        Gap that the next restriction is solved to.
    rounds : int
    anchor : Anchor or None
    reach : float
    room : int
    settled : Settled or None
    band : int
        Constraints that those of the table stand for, or are the first of.
    weight : float
        How many each stands for.
    distances : ndarray or None
        How many margins of the best W are how far from one.
    penalty : float
        Weight of the next step of the method of multipliers; zero once the norm's own method solves restrictions.
    """

    table: Constraints
    dual: np.ndarray
    W: np.ndarray
    target: float
    rounds: int
    room: int
    anchor: Anchor | None = None
    reach: float = 0.0
    settled: Settled | None = None
    band: int = 0
    weight: float = 1.0
    distances: np.ndarray | None = None
    penalty: float = 0.0
