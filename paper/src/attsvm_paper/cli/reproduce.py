"""`attsvm reproduce`: run published and new experiments, with a verdict on every number."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from attsvm.cli.console import BadInput, Exit, Progress, check_writable, refuse, refusing, tell
from attsvm.platform.files import locked
from attsvm.platform.meter import duration
from attsvm.platform.summary import counted
from attsvm_paper import registry
from attsvm_paper.engine.cells import parse_settings
from attsvm_paper.engine.experiment import Effort
from attsvm_paper.engine.runner import Crew, Interruption, Preparation, finish, prepare

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
        Experiments, see `attsvm list`. Default: all.
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
        Root of all randomness.
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
    if explain:
        if set_ or full or fresh or workers is not None or scheduler is not None:
            raise BadInput("--explain runs cells of its own; names, --out and --seed alone were expected with it.")
        return _explain(names, out, seed)
    effort: Effort = "full" if full else "quick"
    with refusing():
        overrides = parse_settings(set_ or [])
        experiments = [registry.get(name) for name in dict.fromkeys(names or registry.names())]
        runs = [prepare(one, effort, out / one.name, seed, overrides, fresh) for one in experiments]
    check_writable(out, directory=True)
    command = shlex.join(["attsvm", *sys.argv[1:]])
    with Progress("trials that were stored are kept, and the same command continues there.") as progress:
        pending = _work(runs, workers, scheduler, progress)
        missing = [run.experiment.name for run in pending]
        page, complaints = _report(out, missing, command, progress)
    if page is not None:
        print(f"Report: {page}")
    if missing:
        print(f"Not finished: {', '.join(missing)}; the same command continues there.", file=sys.stderr)
        return Exit.INTERRUPTED
    return refuse(" ".join(complaints)) if complaints else Exit.DONE


def _explain(names: tuple[str, ...], out: Path, seed: int) -> int:
    """Search the readings of each protocol, print them, and write them next to the rows."""
    from attsvm_paper.engine.explain import explain as search
    from attsvm_paper.report.finished import read_explanation, write_explanation

    with refusing():
        experiments = [registry.get(name) for name in dict.fromkeys(names or registry.FIGURES)]
        fixed_protocols = [one.name for one in experiments if one.readings is None]
        if names and fixed_protocols:
            raise BadInput(
                f"{fixed_protocols[0]} has no readings to search; one of {_open()} was expected with --explain."
            )
    check_writable(out, directory=True)
    with Progress() as progress:
        for one in experiments:
            if one.readings is None:
                continue
            with refusing():
                path = write_explanation(search(one, seed, progress), out / one.name)
                tell("\n".join([*_lines(read_explanation(path.parent), path), f"Written: {path}"]))
        page, complaints = _report(out, [], shlex.join(["attsvm", *sys.argv[1:]]), progress)
    if page is not None:
        print(f"Report: {page}")
    return refuse(" ".join(complaints)) if complaints else Exit.DONE


def _open() -> str:
    return ", ".join(name for name in registry.FIGURES if registry.get(name).readings is not None)


def _lines(explanation: Sequence[Mapping[str, Any]], path: Path) -> list[str]:
    """List the readings that explain each figure: a conclusion, then the likeliest readings."""
    from attsvm_paper.report.tally import MOST_READINGS, by_figure, conclusion, likelihood, number

    lines = []
    for figure, readings in by_figure(explanation).items():
        lines += ["", f"{figure}, {len(readings)} readings of its protocol. {conclusion(readings)}"]
        rows = [["likelihood", "p", "numbers", "verdict", *readings[0]["factors"]]]
        for one in readings[:MOST_READINGS]:
            result = ["-", "no trials"] if one["p"] is None else [number(one["p"]), one["verdict"]]
            points = f"{one['points']} of {one['asked']}"
            rows.append(
                [
                    likelihood(one["weight"]),
                    result[0],
                    points,
                    result[1],
                    *(one["factors"].get(name, "") for name in rows[0][4:]),
                ]
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += [
            "  " + "  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        rest = len(readings) - MOST_READINGS
        if rest > 0:
            lines.append(f"  {rest} less likely ones are in {path}.")
    return lines[1:]


def _check_extras(distributed: bool) -> None:
    modules = ["pyarrow", "distributed"] if distributed else ["pyarrow"]
    missing = [package for package in modules if find_spec(package) is None]
    if missing:
        raise BadInput(f"reproduce needs {' and '.join(missing)}; {INSTALL}.")


def _work(runs: list[Preparation], workers: int | None, scheduler: str | None, progress: Progress) -> list[Preparation]:
    """Compute the runs one after the other; return those interrupted by Ctrl-C."""
    weights = [run.experiment.minutes[run.effort] for run in runs]
    total_rows = 0
    with _crew(workers, scheduler) as crew:
        for k, run in enumerate(runs):
            before, own, total = sum(weights[:k]), weights[k], sum(weights) or 1.0
            earlier = run.store.finished_at
            try:
                with refusing(values=False):
                    finish(run, crew, _part(progress, before / total, own / total), progress.interval)
            except Interruption:
                return runs[k:]
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                # Parameters chosen by the user may be wrong in ways that only the experiment detects.
                if not run.overrides:
                    raise
                raise BadInput(f"{run.experiment.name} cannot be run with these --set: {error}") from error
            did = f"{run.experiment.name}: {counted(run.trials, 'trial')}, {duration(run.store.seconds)}"
            tell(did if earlier is None else f"{did}; read from the run of {earlier:%Y-%m-%d %H:%M}")
            total_rows += earlier is not None
    if total_rows:
        tell("What was read was not computed again; --fresh discards it and runs anew.")
    return []


def _part(progress: Progress, begins: float, share: float) -> Callable[[str, float], bool]:
    return lambda sentence, part: progress(sentence, begins + part * share)


@contextmanager
def _crew(workers: int | None, scheduler: str | None) -> Iterator[Crew | None]:
    if workers is None and scheduler is None:
        yield None
        return
    from attsvm.platform.cluster import ClusterLost
    from attsvm_paper.engine.workers import cluster_crew, local_crew

    try:
        with ExitStack() as stack:
            with refusing():
                crew = stack.enter_context(local_crew(workers or 1) if scheduler is None else cluster_crew(scheduler))
            yield crew
    except ClusterLost as error:
        raise BadInput(str(error)) from error


def _report(out: Path, missing: list[str], command: str, progress: Progress) -> tuple[Path | None, list[str]]:
    """Write the report of every finished experiment in the directory; return the ones that cannot be shown."""
    from attsvm.platform.threads import one_thread
    from attsvm_paper.report.finished import finished_in
    from attsvm_paper.report.reproduction import write_reproduction

    with refusing(values=False), locked(out, wait=True), one_thread():
        pages, complaints = [], []
        for one in finished_in(out):
            progress("Drawing the report", 1.0)
            try:
                one.check()
            except ValueError as error:
                if not one.overrides:
                    raise
                complaints.append(str(error))
            else:
                pages.append(one)
        return write_reproduction(pages, out, command, missing) if pages else None, complaints
