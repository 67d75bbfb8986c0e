"""The work of `attsvm reproduce` after its arguments are accepted: compute, search readings, write the report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from attsvm.cli.console import BadInput, Exit, Progress, check_writable, refuse, refusing, tell
from attsvm.platform.cluster import ClusterLost
from attsvm.platform.files import locked
from attsvm.platform.meter import duration
from attsvm.platform.summary import counted
from attsvm.platform.threads import one_thread
from attsvm_paper import registry
from attsvm_paper.engine.cells import parse_settings
from attsvm_paper.engine.experiment import Effort, Experiment
from attsvm_paper.engine.explain import explain as search
from attsvm_paper.engine.own_file import failure, line_of
from attsvm_paper.engine.runner import Crew, Interruption, Preparation, finish, prepare
from attsvm_paper.engine.workers import cluster_crew, local_crew
from attsvm_paper.report.finished import finished_in, read_explanation, write_explanation
from attsvm_paper.report.reproduction import write_reproduction
from attsvm_paper.report.tally import MOST_READINGS, by_figure, conclusion, likelihood, number


def reproduce(
    names: Sequence[str],
    effort: Effort,
    out: Path,
    seed: int,
    settings: list[str],
    fresh: bool,
    workers: int | None,
    scheduler: str | None,
) -> int:
    """Run experiments and write the report, with the parameters of the command."""
    with refusing():
        overrides = parse_settings(settings)
        experiments = _experiments(names or registry.names())
        runs = []
        for one in experiments:
            with _blaming_the_user(one, {}):
                runs.append(prepare(one, effort, out / one.name, seed, overrides, fresh))
    check_writable(out, directory=True)
    command = shlex.join(["attsvm", *sys.argv[1:]])
    with Progress("stored trials are kept, and the same command continues from there.") as progress:
        pending = _work(runs, workers, scheduler, progress)
        missing = [run.experiment.name for run in pending]
        page, complaints = _report(out, missing, command, progress, experiments)
    if page is not None:
        print(f"Report: {page}")
    if missing:
        print(f"Not finished: {', '.join(missing)}; the same command continues from there.", file=sys.stderr)
        return Exit.INTERRUPTED
    return refuse(" ".join(complaints)) if complaints else Exit.DONE


def explain(names: tuple[str, ...], out: Path, seed: int) -> int:
    """Search the readings of each protocol, print them, and write them next to the rows."""
    with refusing():
        experiments = _experiments(names or tuple(registry.FIGURES))
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
            with refusing(), _blaming_the_user(one, {}):
                path = write_explanation(search(one, seed, progress), out / one.name)
                tell("\n".join([*_lines(read_explanation(path.parent), path), f"Written: {path}"]))
        page, complaints = _report(out, [], shlex.join(["attsvm", *sys.argv[1:]]), progress, experiments)
    if page is not None:
        print(f"Report: {page}")
    return refuse(" ".join(complaints)) if complaints else Exit.DONE


def _experiments(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments of names and files, each once."""
    experiments: dict[str, Experiment] = {}
    for one in map(registry.get, dict.fromkeys(names)):
        if experiments.setdefault(one.name, one) is not one:
            raise ValueError(f"two files call their experiment {one.name!r}; different names were expected.")
    return list(experiments.values())


@contextmanager
def _blaming_the_user(experiment: Experiment, overrides: Mapping[str, Any]) -> Iterator[None]:
    """Turn an error in a user's file, or under chosen parameters, into BadInput; no check can foresee all of them."""
    try:
        yield
    except (BadInput, ClusterLost, Interruption, OSError):
        raise
    except Exception as error:
        is_known = isinstance(error, ArithmeticError | LookupError | TypeError | ValueError)
        if experiment.file and line_of(error, experiment.file):
            raise BadInput(f"{experiment.file} cannot be run: {failure(error, experiment.file)}.") from error
        if experiment.file and is_known:
            raise BadInput(str(error)) from error
        if not (overrides and is_known):
            raise
        raise BadInput(f"{experiment.name} cannot be run with these --set: {error}") from error


def _open() -> str:
    return ", ".join(name for name in registry.FIGURES if registry.get(name).readings is not None)


def _lines(explanation: Sequence[Mapping[str, Any]], path: Path) -> list[str]:
    """List the readings that explain each figure: a conclusion, then the likeliest readings."""
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


def _work(runs: list[Preparation], workers: int | None, scheduler: str | None, progress: Progress) -> list[Preparation]:
    """Compute the runs one after the other; return those interrupted by Ctrl-C."""
    weights = [run.experiment.minutes[run.effort] for run in runs]
    total_rows = 0
    with _crew(workers, scheduler) as crew:
        for k, run in enumerate(runs):
            before, own, total = sum(weights[:k]), weights[k], sum(weights) or 1.0
            earlier = run.store.finished_at
            try:
                with refusing(values=False), _blaming_the_user(run.experiment, run.overrides):
                    finish(run, crew, _part(progress, before / total, own / total), progress.interval)
            except Interruption:
                return runs[k:]
            did = f"{run.experiment.name}: {counted(run.trials, 'trial')}, {duration(run.store.seconds)}"
            tell(did if earlier is None else f"{did}; read from the run of {earlier:%Y-%m-%d %H:%M}")
            total_rows += earlier is not None
    if total_rows:
        tell("Rows that were read were not computed again; --fresh discards them.")
    return []


def _part(progress: Progress, begins: float, share: float) -> Callable[[str, float], bool]:
    return lambda sentence, part: progress(sentence, begins + part * share)


@contextmanager
def _crew(workers: int | None, scheduler: str | None) -> Iterator[Crew | None]:
    if workers is None and scheduler is None:
        yield None
        return
    try:
        with ExitStack() as stack:
            with refusing():
                crew = stack.enter_context(local_crew(workers or 1) if scheduler is None else cluster_crew(scheduler))
            yield crew
    except ClusterLost as error:
        raise BadInput(str(error)) from error


def _report(
    out: Path, missing: list[str], command: str, progress: Progress, experiments: Sequence[Experiment]
) -> tuple[Path | None, list[str]]:
    """Write the report of every finished experiment in the directory; return the ones that cannot be shown."""
    with refusing(values=False), locked(out, wait=True), one_thread():
        pages, complaints = [], []
        for one in finished_in(out, [one for one in experiments if one.file]):
            progress("Drawing the report", 1.0)
            try:
                one.check()
            except ValueError as error:
                if not (one.overrides or one.experiment.file):
                    raise
                complaints.append(str(error))
            else:
                pages.append(one)
        return write_reproduction(pages, out, command, missing) if pages else None, complaints
