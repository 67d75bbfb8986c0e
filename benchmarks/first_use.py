"""Processor seconds of the first call in a process while nothing is compiled, without imports.

    OMP_NUM_THREADS=1 python first_use.py

Every call runs in a separate process with an empty cache. The second column has the same call in a process that finds
the cache of the first. The third column is the number of kernels that the first process compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

CALLS = {
    "solve": "solve(problem, norm)",
    "solve, C = 1": "solve(problem, norm, C=1.0)",
    "batch of 10": "solve_batch([problem] * 10, norm)",
}
SIZES = ((4, 5, 6), (60, 10, 8), (100, 32, 24), (400, 10, 10))
NORMS = ("frobenius", "nuclear", 1.0)
SCRIPT = """
import sys, time
import numpy as np
from instances import planted
from attsvm import SelectionProblem, solve, solve_batch
from attsvm.platform import kernels
problem, norm = SelectionProblem(**planted(*{sizes})), {norm!r}
start = time.process_time()
{call}
print(time.process_time() - start, sum(bool(one.overloads) for one in kernels.KERNELS))
"""


def measured(sizes: tuple[int, int, int], norm: str | float, call: str, cache: str) -> tuple[float, int]:
    """Return processor seconds of a call in a separate process, and the number of its compiled kernels."""
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(sizes=sizes, norm=norm, call=call)],
        env=os.environ | {"NUMBA_CACHE_DIR": cache, "ATTSVM_COMPILE": "later"}, cwd=Path(__file__).parent,
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    seconds, compiled = process.stdout.split()
    return float(seconds), int(compiled)


def main() -> None:
    """Print the table."""
    print("| (n, T, d) | norm | call | first, s | next process, s | compiled |\n|---|---|---|---:|---:|---:|")
    for sizes in SIZES:
        for norm in NORMS:
            for name, call in CALLS.items():
                with tempfile.TemporaryDirectory() as cache:
                    first, compiled = measured(sizes, norm, call, cache)
                    later, _ = measured(sizes, norm, call, cache)
                print(f"| {sizes} | {norm} | {name} | {first:.2f} | {later:.2f} | {compiled} |", flush=True)


if __name__ == "__main__":
    main()
