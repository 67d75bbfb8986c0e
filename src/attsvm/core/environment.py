"""Variables of the environment, refused in a sentence where the libraries below would answer with a traceback."""

from __future__ import annotations

import os

# When kernels without machine code are compiled.
COMPILE = "ATTSVM_COMPILE"
MOMENTS = ("background", "later", "first")
THREADS = "NUMBA_NUM_THREADS"


def read_moment() -> str:
    """Read when kernels without machine code are compiled; in the background by default.

    Returns
    -------
    {"background", "later", "first"}
        In a process of their own; in this process once doing without has cost as much; at their first call.

    Raises
    ------
    ValueError
        If it is another word.
    """
    text = os.environ.get(COMPILE, MOMENTS[0])
    if text not in MOMENTS:
        raise ValueError(f"{COMPILE} is {text!r}; one of {', '.join(map(repr, MOMENTS))} was expected.")
    return text


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
