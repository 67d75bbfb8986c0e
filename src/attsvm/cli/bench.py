"""`attsvm bench`: the benchmarks of a checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from attsvm.cli.console import BadInput, Exit, check_writable

SCRIPT, REAL_SCRIPT = Path("benchmarks", "solvers.py"), Path("benchmarks", "real.py")


def find_script(script: Path = SCRIPT) -> Path:
    """Look for a script of the benchmarks next to the package, then in the current directory.

    Raises BadInput if neither is a checkout.
    """
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / script).is_file() and (root / "src" / "attsvm").is_dir():
            return root / script
    raise BadInput(
        "the benchmarks are not part of the installed package; run `attsvm bench` in a checkout of its repository."
    )


def bench(
    *,
    quick: bool = False,
    large: Annotated[bool, Parameter(help="Add a million constraints from a memory map, and other long runs.")] = False,
    real: Annotated[bool, Parameter(help="Real data in place of random tokens, in processor seconds.")] = False,
    out: Path | None = None,
) -> int:
    """Time attsvm and other solvers: seconds, memory and certified accuracy on the same instances.

    About half an hour on two idle cores; a solver that is not installed is listed as missing.

    Parameters
    ----------
    quick
        Small instances only, in under a minute; writes no file unless --out names one.
    large
        Add the long runs.
    real
        Classification, next words, relevance labels, hidden states and digits, a third of them held out from tuning.
        About twenty minutes of processor time.
    out
        The Markdown file to write. Default: benchmarks/RESULTS.md of the checkout, with --real benchmarks/REAL.md.
    """
    script = find_script(REAL_SCRIPT if real else SCRIPT)
    if large and (quick or real):
        raise BadInput(f"--{'quick' if quick else 'real'} and --large exclude each other; one of them was expected.")
    command = [sys.executable, str(script)]
    command += ["--quick"] if quick else ["--large"] if large else []
    if out is not None:
        check_writable(out, directory=False)
        command += ["--out", str(out)]
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The benchmarks receive the same Ctrl-C, keep their results and say so.
            process.wait()
            return Exit.INTERRUPTED
