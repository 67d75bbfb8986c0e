"""Environment variables, checked with a one-sentence error before the libraries that read them fail."""

from __future__ import annotations

import os

# Variable that sets when kernels are compiled.
COMPILE = "ATTSVM_COMPILE"
MOMENTS = ("background", "later", "first")
THREADS = "NUMBA_NUM_THREADS"


def read_moment() -> str:
    """Read when kernels are compiled; "background" by default.

    Returns
    -------
    {"background", "later", "first"}
        "background": in a separate process. "later": in this process, once uncompiled calls have lost the time of
        compiling. "first": at the first call.

    Raises
    ------
    ValueError
        If the variable has another value.
    """
    text = os.environ.get(COMPILE, MOMENTS[0])
    if text not in MOMENTS:
        raise ValueError(f"{COMPILE} is {text!r}; one of {', '.join(map(repr, MOMENTS))} was expected.")
    return text


def check_threads() -> None:
    """Check the number of threads that numba reads; raise ValueError if it is not a positive integer."""
    text = os.environ.get(THREADS)
    if text is not None and not (text.isdecimal() and int(text) > 0):
        raise ValueError(f"{THREADS} is {text!r}; a positive integer was expected.")
