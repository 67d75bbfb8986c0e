"""Declaration of compiled functions: every kernel of the package goes through :func:`kernel`.

Kernels are compiled by numba and kept in its cache. This module adds four things to numba. It works if no cache can be
written. It renews cached code when a called function has changed. It shows a line on a terminal while it compiles. It
excludes compilation from :class:`Stopwatch`.

Compiling takes seconds; a small problem takes hundredths of a second uncompiled. A low-priority process
(:mod:`attsvm.platform.background`) therefore compiles once per machine; the first call that finds no machine code
starts it. Until it is done, :func:`call` runs kernels in Python, and callers with an alternative method ask
:func:`spares`. No call waits for that process, which may be slow on a busy machine and cannot run on a read-only one. A
kernel is compiled in the calling process once running uncompiled has cost the time of compiling. A run thus takes at
most twice the best time.

The code that runs depends on the cache, and so do the last bits of a result. Work that needs reproducible results runs
inside :func:`compiled_first`.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.core import event
from numba.core.caching import FunctionCache, NullCache
from numba.core.dispatcher import Dispatcher

from attsvm.platform import background
from attsvm.platform.environment import read_moment
from attsvm.platform.files import locked

# Sums may be reordered to vectorise; nothing else is relaxed.
FAST: Any = {"reassoc", "contract"}
NOTICE = "attsvm: compiling {name} for its first use (kept for the next run) ..."
ERASE_LINE = "\r\x1b[2K"

# Errors when reading a cache file that is incomplete, or that names a class of another version.
READ_ERRORS = (OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError)
# Number of multiplications and additions per second in the interpreter.
RATE = 3e6
# Smallest number of operations counted for one call of a kernel in the interpreter.
LEAST = 600.0
# Seconds between two checks of the cache for a kernel that another process may have compiled.
CHECK_SECONDS = 0.5

_STAMPS: dict[str, str] = {}  # stamp of each kernel's module, by its file


class Declaration(NamedTuple):
    """The declared properties of a kernel.

    Attributes
    ----------
    signatures : tuple of tuple
        Types of the arguments in calls from Python.
    seconds : float
        Estimated compilation time.
    plain : callable or None
        Replacement in the interpreter.
    """

    signatures: tuple[tuple[Any, ...], ...]
    seconds: float
    plain: Callable[..., Any] | None


KERNELS: dict[Any, Declaration] = {}


def read_only(dtype: Any, dimensions: int) -> Any:
    """Type of an array that :func:`frozen` returns."""
    return types.Array(dtype, dimensions, "C", readonly=True)


def frozen(array: np.ndarray) -> np.ndarray:
    """Contiguous view of an array that cannot be written: numba would compile again for a writable one."""
    flags = array.flags
    if flags.c_contiguous and not flags.writeable:
        return array
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def kernel(
    *signatures: tuple[Any, ...],
    seconds: float = 2.0,
    inner: bool = False,
    plain: Callable[..., Any] | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """Declare a compiled function.

    Parameters
    ----------
    *signatures : tuple
        Types of the arguments in calls from Python, compiled before the first call.
    seconds : float
        Estimated compilation time on one idle core.
    inner : bool
        Whether only other kernels call it, so that no entry from Python is compiled.
    plain : callable, optional
        Replacement in the interpreter: the same computation in NumPy.
    **options
        Options of :func:`numba.njit`. By default the kernel releases Python's lock and divisions by zero give
        infinities. ``inline="always"`` is for inner kernels with one caller: machine code is generated once, not twice.

    Returns
    -------
    callable
        A decorator that turns a function into a numba dispatcher.
    """
    settings = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": inner, "no_cfunc_wrapper": True, **options}

    def declare(function: Callable[..., Any]) -> Any:
        dispatcher: Any = njit(**settings)(function)
        KERNELS[dispatcher] = Declaration(signatures, seconds, plain)
        try:
            dispatcher._cache = _Cache(function)
        except (RuntimeError, OSError):
            dispatcher._cache = _NoCache()  # no writable folder: each process compiles for itself
        return dispatcher

    return declare


def call(function: Any, operations: float, *arguments: Any) -> Any:
    """Call a kernel: as machine code if available or if the call is long, otherwise in the interpreter.

    Parameters
    ----------
    function : callable
        A function declared by :func:`kernel`.
    operations : float
        Estimated number of multiplications and additions of the call.
    *arguments
        Arguments of the kernel.
    """
    if compiles(function, operations):
        return function(*arguments)
    _WITHOUT[function] += _interpreter_seconds(operations)
    with np.errstate(all="ignore"):
        return interpreted(function)(*arguments)


def compiles(function: Any, operations: float) -> bool:
    """Tell whether a call uses machine code: it exists, or uncompiled calls would cost more time than compiling."""
    return at_hand(function) or _WITHOUT[function] + _interpreter_seconds(operations) > KERNELS[function].seconds


def spares(function: Any, operations: float, seconds: float) -> bool:
    """Tell whether a caller should use its alternative, which takes ``seconds``, instead of calling a kernel.

    True if there is no machine code, the interpreter is slower than the alternative, and the time lost without machine
    code, to which ``seconds`` is added, stays below the time of compiling.
    """
    if (
        at_hand(function)
        or seconds >= _interpreter_seconds(operations)
        or _WITHOUT[function] + seconds > KERNELS[function].seconds
    ):
        return False
    _WITHOUT[function] += seconds
    return True


def at_hand(function: Any) -> bool:
    """Tell whether a kernel's machine code is available; if not, start the compilation."""
    if getattr(function, "overloads", True) or function in _FOUND or _MOMENT.depth > 0:
        return True
    if (now := time.monotonic()) < _NEXT_LOOK[function]:
        return False
    _NEXT_LOOK[function] = now + CHECK_SECONDS
    if is_kept(function):
        _FOUND.add(function)
        return True
    if _MOMENT.background:
        _start_background()
    return False


def is_kept(function: Any) -> bool:
    """Tell whether the cache holds current machine code of a kernel for this processor."""
    return function._cache.holds(function)


@contextlib.contextmanager
def compiled_first() -> Iterator[None]:
    """Compile every kernel at its first call inside the block, so that results do not depend on the cache."""
    _MOMENT.depth += 1
    try:
        yield
    finally:
        _MOMENT.depth -= 1


def cache_folder() -> Path | None:
    """Find the folder of this module in numba's cache; None if none can be written."""
    try:
        return Path(FunctionCache(cache_folder).cache_path)
    except (RuntimeError, OSError):
        return None


@cache
def _start_background() -> None:
    """Start the compiling process, once; say so on a terminal."""
    folder = cache_folder()
    if folder is not None and background.start(folder) and _terminal():
        print(background.BACKGROUND_NOTICE, file=sys.stderr, flush=True)


class _Moment:
    """The moment at which kernels are compiled."""

    def __init__(self, word: str) -> None:
        self.background = word == "background"
        self.depth = int(word == "first")  # number of nested requests to compile at the first call


def _interpreter_seconds(operations: float) -> float:
    """Seconds that a call takes in the interpreter."""
    return max(operations, LEAST) / RATE


def interpreted(function: Any) -> Callable[..., Any]:
    """Plain Python function of a kernel, in which called kernels are plain functions too."""
    if (replacement := KERNELS[function].plain) is not None:
        return replacement
    plain = function.py_func
    names = _NAMES.get(plain.__module__)
    if names is None:
        names = _NAMES[plain.__module__] = dict(plain.__globals__)
        for name, value in plain.__globals__.items():
            if isinstance(value, Dispatcher) and value in KERNELS:
                names[name] = interpreted(value)
    return FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__)


class Stopwatch:
    """Seconds since creation, excluding time in which this thread compiled or loaded compiled code."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._compiled = _COMPILING.seconds

    @property
    def seconds(self) -> float:
        """Elapsed time."""
        return time.perf_counter() - self._start - (_COMPILING.seconds - self._compiled)


class _Compiling(event.Listener, threading.local):
    """Seconds that a thread has spent in the compiler or waiting for another thread to leave it."""

    def __init__(self) -> None:
        self._depth = 0
        self._start = 0.0
        self.seconds = 0.0

    def on_start(self, event: Any) -> None:
        if self._depth == 0:
            self._start = time.perf_counter()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._start


class _Notice(event.Listener):
    """A line on standard error, if that is a terminal, while a kernel of the package compiles."""

    def __init__(self) -> None:
        self._depth = 0  # compilations are serialised by numba's lock

    def on_start(self, event: Any) -> None:
        if event.data["dispatcher"] not in KERNELS:
            return
        if self._depth == 0 and _terminal():
            name = event.data["dispatcher"].py_func.__module__.removeprefix("attsvm.")
            print(NOTICE.format(name=name), end="", file=sys.stderr, flush=True)
        self._depth += 1

    def on_end(self, event: Any) -> None:
        if event.data["dispatcher"] not in KERNELS:
            return
        self._depth -= 1
        if self._depth == 0 and _terminal():
            print(ERASE_LINE, end="", file=sys.stderr, flush=True)


class _NoCache(NullCache):
    def holds(self, function: Any) -> bool:
        return False


class _Cache(FunctionCache):
    """Numba's cache, renewed when called code has changed; its failures never raise."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = _stamp(function, self._cache_file._source_stamp)

    def holds(self, function: Any) -> bool:
        """Whether it has current machine code of the kernel for all its signatures."""
        try:
            index = self._cache_file._load_index()
        except READ_ERRORS:
            return False
        signatures, codegen = KERNELS[function].signatures, function.targetctx.codegen()
        return bool(index) and all(self._index_key(types, codegen) in index for types in signatures)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except READ_ERRORS:
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        # The disk may be full or the folder gone. Numba reads the index, adds an entry and writes it: no other process
        # may do so meanwhile.
        with contextlib.suppress(OSError), locked(self.cache_path, wait=True):
            super().save_overload(sig, data)


def _stamp(function: Any, source: Any) -> str:
    """Digest of a kernel's file and of the kernels and numbers that its module imports.

    Numba checks only the kernel's file: after an upgrade it would go on using callees and constants of the earlier
    version.
    """
    digest = hashlib.sha256(repr(source).encode())
    for name, value in sorted(function.__globals__.items()):
        if isinstance(value, Dispatcher):
            code = value.py_func.__code__
            if code.co_filename != function.__code__.co_filename:
                digest.update(f"{name}:{_STAMPS.get(code.co_filename)}".encode())
        elif isinstance(value, (int, float)):
            digest.update(f"{name}={value!r}".encode())
    stamp = digest.hexdigest()
    _STAMPS[function.__code__.co_filename] = stamp
    return stamp


def _terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


_MOMENT = _Moment(read_moment())
_FOUND: set[Any] = set()  # kernels that the cache holds
_NEXT_LOOK: defaultdict[Any, float] = defaultdict(float)
_WITHOUT: defaultdict[Any, float] = defaultdict(float)  # estimated seconds lost by running uncompiled
_NAMES: dict[str, dict[str, Any]] = {}  # names that interpreted kernels of a module see
_COMPILING = _Compiling()
event.register("numba:compiler_lock", _COMPILING)
event.register("numba:compile", _Notice())
