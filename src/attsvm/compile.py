"""Compile every kernel now: ``python -m attsvm.compile``, once after an installation.

Without it the first call that lacks machine code starts a process of low priority that does the same, see
:mod:`attsvm.platform.background`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from attsvm.platform.background import MARK
from attsvm.platform.files import locked
from attsvm.platform.kernels import KERNELS, cache_folder, is_kept

PACKAGE = Path(__file__).parent


def compile_kernels() -> tuple[int, int]:
    """Compile what numba's cache does not hold yet; returns how many kernels these are, and of how many.

    Two processes share the work, as numba compiles in one thread: one takes the nuclear norm, half of it, the other
    the kernels that solve small problems in one call and then the rest.
    """
    modules = list(_modules())
    nuclear = [name for name in modules if ".nuclear" in name]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        counts = list(pool.map(_compile_modules, ([name for name in modules if name not in nuclear], nuclear)))
    return sum(missing for missing, _ in counts), sum(declared for _, declared in counts)


def _compile_modules(modules: Sequence[str]) -> tuple[int, int]:
    """Compile the kernels of some modules, in their order: training comes last, since torch takes its time to load."""
    for module in modules:
        with suppress(ImportError):  # an extra that is not installed
            resolve_name(module)
    entries = [one for one in _entries() if one.py_func.__module__ in modules]
    missing = [one for one in entries if not is_kept(one)]
    for one in missing:
        if not is_kept(one):  # others that call it bring it along
            for types in KERNELS[one].signatures:
                one.compile(types)
    return len(missing), len(entries)


def _entries() -> list[Any]:
    """Kernels of the package that are called from Python."""
    return [one for one, declaration in KERNELS.items() if declaration.signatures]


def _modules() -> Iterator[str]:
    """Name the modules that declare kernels, in the order of their paths."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "\n@kernel(" in path.read_text(encoding="utf-8"):
            yield ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts))


def run_in_background() -> None:
    """Compile at the lowest priority, unless another process does."""
    os.nice(19)
    folder = cache_folder()
    if folder is not None:
        with suppress(BlockingIOError), locked(folder / MARK):
            compile_kernels()


def main() -> int:
    """Compile, and say what was done."""
    folder = cache_folder()
    if folder is None:
        print("attsvm: no folder of numba's cache can be written; NUMBA_CACHE_DIR can name one.", file=sys.stderr)
        return 2
    start = time.perf_counter()
    missing, declared = compile_kernels()
    seconds = time.perf_counter() - start
    print(f"{missing} of {declared} kernels were compiled in {seconds:.0f} s; the others had been.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
