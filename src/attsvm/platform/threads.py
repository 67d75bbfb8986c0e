"""Limits to one thread for small computations."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType

from threadpoolctl import ThreadpoolController, threadpool_limits


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep BLAS, OpenMP and torch to one thread.

    Matrices of a hundred rows gain nothing from threads. On a busy machine threads wait for each other, and a run of
    seconds takes minutes.
    """
    torch = _Torch()
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.restore()


class _Torch:
    """Keep torch to one thread from now on, or from its import on: much work needs none, and importing takes seconds.

    Until torch is imported, an instance is a finder of modules.
    """

    def __init__(self) -> None:
        self._torch: ModuleType | None = None
        if "torch" in sys.modules:
            import torch  # waits for another thread's import

            self._limit(torch)
        else:
            sys.meta_path.insert(0, self)

    def restore(self) -> None:
        """Give torch its earlier number of threads."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self._torch is not None:
            self._torch.set_num_threads(self._threads)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find torch as the other finders do, and limit its threads once it is loaded."""
        if name != "torch":
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(name, path, target) for finder in others)  # type: ignore[arg-type]
        spec = next((one for one in specs if one is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_limit(module: ModuleType) -> None:
            execute(module)
            self._limit(module)

        spec.loader.exec_module = execute_and_limit
        return spec

    def _limit(self, torch: ModuleType) -> None:
        self._torch, self._threads = torch, torch.get_num_threads()
        torch.set_num_threads(1)


def blas_on_one_thread() -> AbstractContextManager[object]:
    """Keep the BLAS of NumPy and SciPy to one thread; among Python's threads the first caller decides."""
    return _libraries().limit(limits=1)


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")
