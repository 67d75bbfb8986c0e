"""A low-priority process that compiles every kernel once per machine and outlives the script that starts it.

One file in numba's cache is its lock and records the time of its last start. A shell starts the process and exits at
once, so the process is no child of the script, and the script need not wait for it. Windows has no such shell, so each
script compiles for itself there.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

from numba.core import config

from attsvm.platform.environment import COMPILE

MARK = "attsvm-compiling"
BACKGROUND_NOTICE = (
    "attsvm: machine code is made in the background, once on this machine; until then calls are slower "
    f"({COMPILE}=later leaves it to each script)."
)
# Seconds before another start, in which the last process still runs, or has failed and would fail again.
PAUSE = 300.0
SHELL = ["/bin/sh", "-c", '"$@" </dev/null >/dev/null 2>&1 &', "sh"]
COMPILE_SCRIPT = (
    "import sys; sys.path[:] = sys.argv[1:]; from attsvm.compile import run_in_background; run_in_background()"
)


def start(folder: Path) -> bool:
    """Start the process unless that is impossible or one started less than PAUSE ago; return whether it was started."""
    if not _is_possible():
        return False
    chosen = getattr(config, "CACHE_DIR", "")  # a program may have set it without the environment
    environment = os.environ | {COMPILE: "later"} | ({"NUMBA_CACHE_DIR": chosen} if chosen else {})
    # The process must import the same modules as this one.
    command = [*SHELL, sys.executable, "-c", COMPILE_SCRIPT, *map(os.path.abspath, sys.path)]
    mark = folder / MARK
    try:
        if mark.exists() and abs(time.time() - mark.stat().st_mtime) < PAUSE:
            return False
        mark.touch()
        subprocess.run(command, cwd="/", env=environment, start_new_session=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _is_possible() -> bool:
    """Whether this process may start another: it runs Python itself and is no worker process."""
    is_python = Path(sys.executable or "").name.startswith("python") and not getattr(sys, "frozen", False)
    return os.name == "posix" and is_python and multiprocessing.parent_process() is None
