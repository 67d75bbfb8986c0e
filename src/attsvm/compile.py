"""Compile every kernel now: ``python -m attsvm.compile``, once after an installation.

Otherwise the first call that finds no machine code starts a process of low priority that does the same; see
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
    """Compile the kernels that numba's cache lacks; returns their number and the number of all kernels.

    Two processes share the work, because numba compiles in one thread. One compiles the nuclear norm, which takes half
    of the time, the other all other kernels.
    """
    modules = list(_modules())
    nuclear = [name for name in modules if ".nuclear" in name]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        counts = list(pool.map(_compile_modules, ([name for name in modules if name not in nuclear], nuclear)))
    return sum(missing for missing, _ in counts), sum(declared for _, declared in counts)


def _compile_modules(modules: Sequence[str]) -> tuple[int, int]:
    """Compile the kernels of some modules, in the given order."""
    for module in modules:
        with suppress(ImportError):  # an extra that is not installed
            resolve_name(module)
    entries = [one for one in _entries() if one.py_func.__module__ in modules]
    missing = [one for one in entries if not is_kept(one)]
    for one in missing:
        if not is_kept(one):  # a caller may have compiled it too
            for types in KERNELS[one].signatures:
                one.compile(types)
    return len(missing), len(entries)


def _entries() -> list[Any]:
    """Return the kernels of the package that are called from Python."""
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
        print("attsvm: numba's cache has no folder that can be written; set NUMBA_CACHE_DIR to one.", file=sys.stderr)
        return 2
    start = time.perf_counter()
    missing, declared = compile_kernels()
    seconds = time.perf_counter() - start
    print(f"{missing} of {declared} kernels were compiled in {seconds:.0f} s; the cache held the others.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
