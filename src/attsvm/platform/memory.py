"""Memory that is still available to a process."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None

_STATUS = Path("/proc/self/statm")
_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def available_bytes() -> float:
    """Return the memory available to this process: limits of the system, of its group and of the process.

    Infinite if the system does not report it.
    """
    return max(0.0, min(_of_system(), _of_group(), _of_process()))


def _of_system() -> float:
    with suppress(OSError, ValueError, IndexError):
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    return math.inf


def _of_group() -> float:
    with suppress(OSError, ValueError):  # "max" is no number and means no limit
        limit = int((_GROUP / "memory.max").read_text(encoding="ascii"))
        return float(limit - int((_GROUP / "memory.current").read_text(encoding="ascii")))
    return math.inf


def _of_process() -> float:
    if resource is None:
        return math.inf
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return math.inf
    with suppress(OSError, ValueError, IndexError):
        return float(limit - resource.getpagesize() * int(_STATUS.read_text(encoding="ascii").split()[0]))
    return float(limit)
