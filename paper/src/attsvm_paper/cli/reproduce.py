"""`attsvm reproduce`: run published and new experiments, with a verdict on every number."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from attsvm.cli.console import BadInput

INSTALL = "install them with `pip install 'attsvm[experiments]'`"


def reproduce(
    *names: str,
    quick: bool = False,
    full: bool = False,
    out: Path = Path("attsvm-reproduction"),
    workers: int | None = None,
    scheduler: str | None = None,
    seed: int = 0,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    fresh: bool = False,
    explain: bool = False,
) -> int:
    """Run the published experiments and new ones, and compare every number with the published one.

    Writes index.html, verdicts.json and a folder per experiment. Finished work survives Ctrl-C and crashes: the same
    command continues from there. The report shows every finished experiment in the directory.

    Parameters
    ----------
    names
        Names from `attsvm list`, or files that define an experiment, such as ./own.py. Default: all experiments.
    quick
        Fewer trials, wider intervals; about ten minutes for all on two cores. The default.
    full
        The published number of trials.
    out
        The directory to write, or to continue in.
    workers
        Number of local worker processes, one thread each. Default: none; this process does the work.
    scheduler
        Address of a running dask scheduler to use, such as tcp://10.0.0.5:8786.
    seed
        Seed of all random numbers.
    set_
        FIELD=VALUE sets a parameter in all cells, such as trials=20 or numerics=published.
    fresh
        Discard the directory's rows of these experiments instead of continuing from them.
    explain
        Search the choices that a paper leaves open in its protocol, and report which reading explains its figure.
    """
    if quick and full:
        raise BadInput("--quick and --full exclude each other; one of them was expected.")
    if workers is not None and scheduler is not None:
        raise BadInput("--workers and --scheduler exclude each other; one of them was expected.")
    if workers is not None and workers < 1:
        raise BadInput(f"--workers is {workers}; an integer of at least 1 was expected.")
    _check_extras(workers is not None or scheduler is not None)
    if explain and (set_ or full or fresh or workers is not None or scheduler is not None):
        raise BadInput("--explain runs cells of its own; names, --out and --seed alone were expected with it.")
    # Imported late, so that --help and refused arguments do not wait for matplotlib.
    from attsvm_paper.cli import work

    if explain:
        return work.explain(names, out, seed)
    return work.reproduce(names, "full" if full else "quick", out, seed, set_ or [], fresh, workers, scheduler)


def _check_extras(distributed: bool) -> None:
    modules = ["pyarrow", "distributed"] if distributed else ["pyarrow"]
    missing = [package for package in modules if find_spec(package) is None]
    if missing:
        raise BadInput(f"reproduce needs {' and '.join(missing)}; {INSTALL}.")
