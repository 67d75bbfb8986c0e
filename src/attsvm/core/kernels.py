"""The one door to compiled code: every kernel of the package is declared through :func:`kernel`.

Kernels are compiled by numba and kept in its cache. The door sees to what numba leaves to its caller: it works where no
cache can be written, it renews what is cached when code that a kernel calls has changed, it says on a terminal that it
compiles while that lasts, and it keeps that time out of :class:`Stopwatch`.

Compiling takes seconds where one small problem takes a few hundredths without. Machine code is therefore made once a
machine, by a process of low priority (:mod:`attsvm.core.background`) that the first call without it starts. Until then
:func:`call` lets Python itself run a kernel, and a caller with another way to its answer asks :func:`spares`. Nobody
waits for that process, which a busy machine may hold up and a read-only one cannot have: a kernel is compiled here once
doing without it has cost as much as compiling does, so that a run takes twice the best at most.

Which code runs then depends on what is in the cache, and so do the last bits of an answer. Work whose answers must not
runs inside :func:`compiled_first`.
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

from attsvm.core import background
from attsvm.core.environment import read_moment
from attsvm.core.files import locked

# Sums may be reordered so that they vectorise; nothing else is relaxed.
FAST: Any = {"reassoc", "contract"}
NOTICE = "attsvm: compiling {name} for its first use (kept for the next run) ..."
ERASE_LINE = "\r\x1b[2K"

# What reading a cache file that is not whole raises.
READ_ERRORS = (OSError, EOFError, pickle.UnpicklingError)
# Multiplications and additions that the interpreter does in a second (2 to 5 million on the kernels of this package).
RATE = 3e6
# Entering a kernel of a few NumPy calls costs the interpreter about .2 ms, however small the arrays.
LEAST = 600.0
# Seconds between two looks into the cache for a kernel that another process may have compiled.
LOOK = 0.5

_STAMPS: dict[str, str] = {}  # of each kernel's module, by its file


class Declaration(NamedTuple):
    """What is known of a kernel.

    Attributes
    ----------
    signatures : tuple of tuple
        Types of the arguments it is called with from Python.
    seconds : float
        Estimate of what compiling it takes.
    plain : callable or None
        What takes its place in the interpreter.
    """

    signatures: tuple[tuple[Any, ...], ...]
    seconds: float
    plain: Callable[..., Any] | None


KERNELS: dict[Any, Declaration] = {}


def read_only(dtype: Any, dimensions: int) -> Any:
    """Type of an array that :func:`frozen` returns."""
    return types.Array(dtype, dimensions, "C", readonly=True)


def frozen(array: np.ndarray) -> np.ndarray:
    """View of an array, contiguous, that cannot be written: numba compiles once more for one that can."""
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
        Types of the arguments that callers from Python give: what is compiled before anybody calls.
    seconds : float
        Estimate of what compiling it takes, on one idle core.
    inner : bool
        Only other kernels call it: no entry from Python is compiled.
    plain : callable, optional
        What takes its place in the interpreter: the same in NumPy.
    **options
        Of :func:`numba.njit`. Python's lock is released and divisions by zero give infinities unless they say
        otherwise. ``inline="always"`` is for inner kernels that are called in one place: machine code is made and
        optimised once then, not once for itself and once for its caller.

    Returns
    -------
    callable
        A decorator that makes a function a numba dispatcher.
    """
    settings = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": inner, "no_cfunc_wrapper": True, **options}

    def declare(function: Callable[..., Any]) -> Any:
        dispatcher: Any = njit(**settings)(function)
        KERNELS[dispatcher] = Declaration(signatures, seconds, plain)
        try:
            dispatcher._cache = _Cache(function)
        except (RuntimeError, OSError):
            dispatcher._cache = _NoCache()  # no folder can be written: each process compiles for itself
        return dispatcher

    return declare


def call(function: Any, operations: float, *arguments: Any) -> Any:
    """Call a kernel: its machine code if that is at hand or the call is long, else the same code in the interpreter.

    Parameters
    ----------
    function : callable
        What :func:`kernel` made.
    operations : float
        Estimate of the multiplications and additions the call takes.
    *arguments
        For the kernel.
    """
    if compiles(function, operations):
        return function(*arguments)
    _WITHOUT[function] += _interpreter_seconds(operations)
    with np.errstate(all="ignore"):
        return interpreted(function)(*arguments)


def compiles(function: Any, operations: float) -> bool:
    """Tell whether a call is to use machine code, compiled now if need be: it exists, or time is used up."""
    return at_hand(function) or _WITHOUT[function] + _interpreter_seconds(operations) > KERNELS[function].seconds


def spares(function: Any, operations: float, seconds: float) -> bool:
    """Tell whether a caller is to go its other way, which takes so many seconds, instead of calling a kernel.

    It is while there is no machine code, the interpreter would be slower, and time is left; the seconds are counted.
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
    """Tell whether a kernel is to be called as machine code; where there is none, its compilation is started."""
    if getattr(function, "overloads", True) or function in _FOUND or _MOMENT.depth > 0:
        return True
    if (now := time.monotonic()) < _NEXT_LOOK[function]:
        return False
    _NEXT_LOOK[function] = now + LOOK
    if is_kept(function):
        _FOUND.add(function)
        return True
    if _MOMENT.background:
        _start_background()
    return False


def is_kept(function: Any) -> bool:
    """Tell whether the cache holds machine code of a kernel, as it is now, for this processor."""
    return function._cache.holds(function)


@contextlib.contextmanager
def compiled_first() -> Iterator[None]:
    """Compile every kernel at its first call meanwhile, so that which code runs does not depend on the cache."""
    _MOMENT.depth += 1
    try:
        yield
    finally:
        _MOMENT.depth -= 1


def cache_folder() -> Path | None:
    """Find the folder of this module in numba's cache; None where none can be written."""
    try:
        return Path(FunctionCache(cache_folder).cache_path)
    except (RuntimeError, OSError):
        return None


@cache
def _start_background() -> None:
    """Start the process that compiles, once; say so on a terminal."""
    folder = cache_folder()
    if folder is not None and background.start(folder) and _terminal():
        print(background.NOTICE, file=sys.stderr, flush=True)


class _Moment:
    """When kernels are compiled."""

    def __init__(self, word: str) -> None:
        self.background = word == "background"
        self.depth = int(word == "first")  # how many times over at their first call


def _interpreter_seconds(operations: float) -> float:
    """Seconds that a call takes the interpreter."""
    return max(operations, LEAST) / RATE


def interpreted(function: Any) -> Callable[..., Any]:
    """Plain Python function of a kernel, in which the kernels it calls are plain functions too."""
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
    """Seconds since it was made, less those in which this thread compiled or read compiled code."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._compiled = _COMPILING.seconds

    @property
    def seconds(self) -> float:
        """Time that has passed so far."""
        return time.perf_counter() - self._start - (_COMPILING.seconds - self._compiled)


class _Compiling(event.Listener, threading.local):
    """Seconds a thread has spent in the compiler or waiting for another thread to leave it."""

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
    """A line on standard error, if that is a terminal, while one of our kernels compiles."""

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
    """Numba's cache, renewed when any code a kernel may call has changed, and never the cause of an error."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = _stamp(function, self._cache_file._source_stamp)

    def holds(self, function: Any) -> bool:
        """Whether it has machine code of the kernel as it is now, for all of its signatures."""
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
        # A disk may be full, and a folder gone. Numba reads the list of what there is, adds a line and writes it; no
        # other process may do so meanwhile.
        with contextlib.suppress(OSError), locked(self.cache_path, wait=True):
            super().save_overload(sig, data)


def _stamp(function: Any, source: Any) -> str:
    """Digest of a kernel's file and of what its module has imported from others: kernels and numbers.

    Numba looks at the kernel's own file only, so that an installation brought up to date would go on running callees
    and constants of the version before.
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
_WITHOUT: defaultdict[Any, float] = defaultdict(float)  # estimated seconds that doing without a kernel has taken
_NAMES: dict[str, dict[str, Any]] = {}  # that interpreted kernels of a module see
_COMPILING = _Compiling()
event.register("numba:compiler_lock", _COMPILING)
event.register("numba:compile", _Notice())
