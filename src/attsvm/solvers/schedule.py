r"""Which methods run, in which order and for how long: every constant of choice, with the measurement behind it.

No method is the fastest everywhere, and each of them fails somewhere. So methods are generators that yield the work of
each of their steps, and take turns: each runs for its budget, is put aside as it stands, and goes on in the next round
with a larger one. An instance that one of them solves is thus solved within a small multiple of that method's own work,
whatever the others do. Work is estimated from sizes, in seconds of one core at the rates below, and never from a clock,
so that runs repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from attsvm.solvers.common.control import Control

# What a method yields is work; what it returns is a certificate's multipliers (n, T), or None.
Steps = Generator[float, None, np.ndarray | None]

# Floating-point operations a second of one core (a Xeon of 2.6 GHz): Cholesky factors and matrix products of a few
# hundred rows and more; compiled passes over the tokens; products with a vector. Only their ratios matter.
BLOCKED, COMPILED, STREAMED = 2e10, 1.5e9, 2e9
# What a step costs beside its operations: the interpreter's share of an interior-point or a Newton step.
OVERHEAD = 1e-3
# Each round's budget over that of the round before. Twice bounds what the last method in turn waits for; smaller
# factors lower the worst case little and make every method stop and go on more often.
GROWTH = 2.0
# Shares of the interior point's whole expected work that a method gets in the first round. The interior point's work is
# known beforehand, since its steps hardly vary (11 to 20 at (100, 32, 24), all families), so the others may try for
# half of that each, and the answer comes within twice its time where they fail.
FIRST_SHARE = {"active set": 0.5, "coordinate descent + Newton": 0.5, "interior point": 1.0}
INTERIOR_STEPS = 24


@dataclass
class Turn:
    """A method under way: its name in reports, its steps, and its budget in the first round."""

    name: str
    steps: Steps
    budget: float


def take_turns(turns: list[Turn], control: Control) -> np.ndarray | None:
    """Run methods in rounds of growing budgets, until the control is satisfied or none can go on.

    Parameters
    ----------
    turns : list of Turn
        In order of preference.
    control : Control

    Returns
    -------
    ndarray or None
        Multipliers that prove infeasibility, when they do.
    """
    factor = 1.0
    while turns:
        unfinished = []
        for turn in turns:
            control.enter(turn.name)
            done, certificate = _advance(turn.steps, turn.budget * factor, control)
            if certificate is not None or control.solved or control.stopped:
                return certificate
            if not done:
                unfinished.append(turn)
        turns = unfinished
        factor *= GROWTH
    return None


def _advance(steps: Steps, budget: float, control: Control) -> tuple[bool, np.ndarray | None]:
    """Let a method work until its budget is spent; returns (whether it has ended, its certificate)."""
    spent = 0.0
    while spent < budget:
        try:
            spent += next(steps)
        except StopIteration as end:
            return True, end.value
        if control.expired():
            return False, None
    return False, None


def forced(method: Callable[[], Steps], name: str, control: Control) -> np.ndarray | None:
    """Run one method to its end."""
    return take_turns([Turn(name, method(), np.inf)], control)
