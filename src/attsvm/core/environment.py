"""Variables of the environment, refused in a sentence where the libraries below would answer with a traceback."""

from __future__ import annotations

import os

# Seconds that the interpreter may run before kernels are compiled.
PATIENCE = "ATTSVM_PATIENCE"
THREADS = "NUMBA_NUM_THREADS"


def read_patience() -> float:
    """Read how many seconds the interpreter may run before kernels are compiled; two by default.

    Raises
    ------
    ValueError
        If it is no number, or negative.
    """
    text = os.environ.get(PATIENCE, "2")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise ValueError(f"{PATIENCE} is {text!r}; a number of seconds, 0 or more, was expected.")
    return seconds


def check_threads() -> None:
    """Check the number of threads that numba reads.

    Raises
    ------
    ValueError
        If it is no positive integer.
    """
    text = os.environ.get(THREADS)
    if text is not None and not (text.isdecimal() and int(text) > 0):
        raise ValueError(f"{THREADS} is {text!r}; a positive integer was expected.")
