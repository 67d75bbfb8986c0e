"""Time limits that a busy machine does not break: what others do adds to a time and never takes from it."""

import time
from collections.abc import Callable
from typing import Any

# Calls that may try. A cause in the solver is there each time, a neighbour on the machine is not.
CALLS = 3


def least_seconds(solve: Callable[[], Any], allowed: float) -> tuple[float, Any]:
    """Call ``solve`` until it takes at most ``allowed`` seconds, three times at most.

    Returns
    -------
    seconds : float
        The least time of the calls. A call's time is the smaller of the solution's own, which leaves out compiling,
        and the processor's, which leaves out waiting for other processes.
    solution
        What the last call returned.
    """
    least = float("inf")
    for _ in range(CALLS):
        began = time.process_time()
        solution = solve()
        least = min(least, solution.seconds, time.process_time() - began)
        if least <= allowed:
            break
    return least, solution
