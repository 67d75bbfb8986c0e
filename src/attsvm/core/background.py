"""A process of low priority that compiles every kernel, once a machine, and outlives the script that starts it.

Its lock and the time of its last start are one file in numba's cache. A shell starts it and ends at once, so that it is
no child of the script: nobody has to wait for it. On Windows, which has no such shell, scripts compile for themselves.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

from numba.core import config

from attsvm.core.environment import COMPILE

MARK = "attsvm-compiling"
NOTICE = (
    "attsvm: machine code is made in the background, once on this machine; until then calls are slower "
    f"({COMPILE}=later leaves it to each script)."
)
# Seconds before another start: the process of the last one runs, or has failed and would again.
PAUSE = 300.0
SHELL = ["/bin/sh", "-c", '"$@" </dev/null >/dev/null 2>&1 &', "sh"]
SCRIPT = "import sys; sys.path[:] = sys.argv[1:]; from attsvm.compile import run_in_background; run_in_background()"


def start(folder: Path) -> bool:
    """Start the process, unless that is not possible here or has been done a moment ago; whether it was."""
    if not _is_possible():
        return False
    chosen = getattr(config, "CACHE_DIR", "")  # by a program perhaps, not by the environment
    environment = os.environ | {COMPILE: "later"} | ({"NUMBA_CACHE_DIR": chosen} if chosen else {})
    # The modules that this process would import, wherever it has them from.
    command = [*SHELL, sys.executable, "-c", SCRIPT, *map(os.path.abspath, sys.path)]
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
    """Whether this process may start another: it is Python's own program, and nobody's worker."""
    is_python = Path(sys.executable or "").name.startswith("python") and not getattr(sys, "frozen", False)
    return os.name == "posix" and is_python and multiprocessing.parent_process() is None
