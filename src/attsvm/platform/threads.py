"""Limits to one thread for small computations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController, threadpool_limits


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep BLAS, OpenMP and torch to one thread.

    Matrices of a hundred rows gain nothing from threads. On a busy machine threads wait for each other, and a run of
    seconds takes minutes.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def blas_on_one_thread() -> AbstractContextManager[object]:
    """Keep the BLAS of NumPy and SciPy to one thread; among Python's threads the first caller decides."""
    return _libraries().limit(limits=1)


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")
