"""Options of :func:`attsvm.solve` for problems in memory and in pieces: limits, and the method of a norm."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import numpy as np

from attsvm.core.norms import FROBENIUS, NUCLEAR, Norm
from attsvm.platform.threads import blas_on_one_thread
from attsvm.solvers.common.control import Callback, Control
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.frobenius.portfolio import FROBENIUS_METHODS, solve_setting
from attsvm.solvers.interior_point.general import solve_general
from attsvm.solvers.nuclear.portfolio import NUCLEAR_METHODS
from attsvm.solvers.schedule import ONE_THREAD, Method, Steps

METHODS: dict[Norm, dict[str, Method]] = {
    FROBENIUS: {"auto": solve_setting, **{key: partial(solve_setting, method=key) for key in FROBENIUS_METHODS}},
    NUCLEAR: NUCLEAR_METHODS,
}

# Gap that methods aim at, over tol: lifting an answer to the original coordinates costs a few roundings.
AIMED_GAP = 0.5


def read_limits(
    shape: tuple[int, int, int, int],
    norm: Norm,
    tol: float,
    max_iter: int | None,
    time_limit: float | None,
    callback: Callback | None,
    *,
    verbose: bool,
) -> Control:
    """Check tol and the limits of a run, and that the norm fits W; return the control of the run.

    Raises ValueError if an argument does not fit; one sentence names it and what was expected.
    """
    mismatch = norm.mismatch(shape[2:])
    if mismatch is not None:
        raise ValueError(mismatch)
    if not 0 < tol < 1:
        raise ValueError(f"tol is {tol!r}; a number between 0 and 1 was expected.")
    if max_iter is not None and max_iter < 1:
        raise ValueError(f"max_iter is {max_iter!r}; at least 1 was expected.")
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"time_limit is {time_limit!r}; a positive number was expected.")
    return Control(AIMED_GAP * tol, max_iter=max_iter, time_limit=time_limit, callback=callback, verbose=verbose)


def method_of(norm: Norm, name: str | None = None) -> Method:
    """Look up the method for a problem in memory, or for a working set of a larger one."""
    methods = METHODS.get(norm.base, {"auto": solve_general})
    if name is not None and name not in methods:
        names = ", ".join(repr(known) for known in (*methods, "streamed"))
        raise ValueError(f"method is {name!r}; one of {names} was expected for the {norm.name} norm.")
    run = methods[name or "auto"]

    def run_on_few_threads(setting: Setting, control: Control, start: np.ndarray | None) -> Steps:
        small = min(int(np.prod(setting.reduced.shape)), int(setting.terms.rejected.sum())) <= ONE_THREAD
        with blas_on_one_thread() if small else nullcontext():
            return (yield from run(setting, control, start))

    return run_on_few_threads
