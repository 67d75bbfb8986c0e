"""Experiments with complete rows, as shown in a report."""

from __future__ import annotations

import inspect
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from attsvm.platform.files import replacing_file
from attsvm.platform.meter import duration
from attsvm.plots.style import house_style
from attsvm.report.page import Picture
from attsvm_paper import registry
from attsvm_paper.engine import tables
from attsvm_paper.engine.experiment import Effort, Experiment
from attsvm_paper.engine.own_file import failure
from attsvm_paper.engine.runner import prepare
from attsvm_paper.engine.store import read_manifest
from attsvm_paper.judging.joint import JointTest
from attsvm_paper.judging.readings import Explanation
from attsvm_paper.judging.verdict import Row, Verdict
from attsvm_paper.report.tally import by_figure, count, number

LISTED_VALUES = 12
EXPLANATION = "explanation.json"


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """An experiment with complete rows.

    Attributes
    ----------
    experiment : Experiment
    rows : sequence of dict
    effort : {"quick", "full"}
    seed : int
    overrides : mapping of str to str
    seconds : float
        Computation time, summed over workers.
    explained : sequence of mapping
        Readings of its protocol, the likeliest first; empty without ``--explain``.
    """

    experiment: Experiment
    rows: Sequence[Row]
    effort: Effort
    seed: int
    overrides: Mapping[str, Any]
    seconds: float
    explained: Sequence[Mapping[str, Any]] = ()

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Its numbers compared with the published ones."""
        return self.experiment.verdicts(self.rows)

    @cached_property
    def joint(self) -> list[JointTest]:
        """Joint tests of its figures."""
        tests = [] if self.experiment.joint is None else self.experiment.joint(self.rows)
        searched = Counter(one.figure for one in (self.experiment.readings or list)())
        agreeing = {
            figure: sum(one["verdict"] == "agrees" for one in readings)
            for figure, readings in by_figure(self.explained).items()
        }
        return [test.after_search(max(searched[test.figure], 1), agreeing.get(test.figure)) for test in tests]

    @cached_property
    def picture(self) -> Picture:
        """Its figure, with its claim as description."""
        experiment = self.experiment
        parameters = [p for p in inspect.signature(experiment.figure).parameters.values() if p.kind != p.KEYWORD_ONLY]
        responsive = len(parameters) > 1

        def draw(width: float) -> Figure:
            with house_style():
                return experiment.figure(self.rows, width) if responsive else experiment.figure(self.rows)

        caption = f"{experiment.source}: {experiment.title}." if self.published else f"{experiment.title}."
        return Picture(
            f"{experiment.name}-figure", draw, f"{experiment.title}. {experiment.claim}", caption, responsive
        )

    def check(self) -> None:
        """Make verdicts and figure, so that failures occur here.

        Raises
        ------
        ValueError
            If this fails because of parameters that the caller chose, or in a file of the caller.
        """
        try:
            count(self.verdicts)
            len(self.joint)
            self.picture.wide  # noqa: B018
        except Exception as error:
            # An experiment of attsvm that fails on its own cells has a bug; on changed cells it may fail in any way.
            file = self.experiment.file
            if not (self.overrides or file):
                raise
            settings = "".join(f" {name}={value}" for name, value in self.overrides.items())
            cause = f"{settings and f' for{settings}'} ({failure(error, file) if file else error})"
            raise ValueError(
                f"{file or self.experiment.name} has no verdicts or figure{cause}; its rows are complete."
            ) from error

    @property
    def published(self) -> bool:
        """Whether it reproduces a published figure."""
        return not self.experiment.file and self.experiment.name not in registry.BEYOND

    @property
    def command(self) -> str:
        """The command that computes the same rows."""
        words = ["attsvm", "reproduce", self.experiment.file or self.experiment.name, f"--{self.effort}"]
        words += ["--seed", str(self.seed)] if self.seed else []
        for name, value in self.overrides.items():
            words += ["--set", f"{name}={value}"]
        return shlex.join(words)

    @property
    def trials(self) -> int:
        """Trials of all cells."""
        names = [field.name for field in fields(self.experiment.config)]
        return len({(row["trial"], *(row[name] for name in names)) for row in self.rows})

    @property
    def time(self) -> str:
        """Its running time, in words."""
        return duration(self.seconds)

    @property
    def setting(self) -> list[tuple[str, str]]:
        """The values of every parameter in the cells."""
        parts = []
        for field in fields(self.experiment.config):
            values = list(dict.fromkeys(row[field.name] for row in self.rows))
            texts = [number(value) if isinstance(value, float) else str(value) for value in values]
            if len(texts) > LISTED_VALUES:
                texts = [*texts[:3], "…", texts[-1], f"({len(values)} values)"]
            parts.append((field.name, ", ".join(texts)))
        return parts


def finished_in(directory: Path, own: Sequence[Experiment] = ()) -> list[FinishedRun]:
    """Collect the finished experiments in a directory; rows of another version or code are omitted.

    Parameters
    ----------
    directory : Path
    own : sequence of Experiment
        Experiments in users' files, which the registry does not have.
    """
    results = []
    files = {one.name: one for one in own}
    for name in (*registry.names(), *files):
        try:
            manifest = read_manifest(directory / name)
            if manifest is None or not (directory / name / "rows.parquet").is_file():
                continue
            effort, seed, overrides = (manifest[key] for key in ("effort", "seed", "overrides"))
            run = prepare(files.get(name) or registry.get(name), effort, directory / name, seed, overrides)
        except (ValueError, KeyError):
            continue
        rows = tables.read_table(run.store.rows_file).to_pylist()
        explanation = read_explanation(directory / name)
        results.append(
            FinishedRun(run.experiment, rows, run.effort, run.seed, run.overrides, run.store.seconds, explanation)
        )
    return results


def write_explanation(explanations: Sequence[Explanation], directory: Path) -> Path:
    """Write the readings of an experiment's protocol next to its rows, as explanation.json.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lines = [
        {
            "figure": one.figure,
            "factors": dict(one.factors),
            "points": one.points,
            "asked": one.total,
            "weight": one.weight,
            "p": None if one.test is None else one.test.p,
            "chance": None if one.test is None else one.test.chance,
            "log_likelihood": None if one.test is None else one.test.log_likelihood,
            "verdict": None if one.test is None else one.test.verdict,
        }
        for one in explanations
    ]
    with replacing_file(directory / EXPLANATION) as temporary:
        temporary.write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return directory / EXPLANATION


def read_explanation(directory: Path) -> list[dict[str, Any]]:
    """Read the output of :func:`write_explanation`; an empty list if there is none."""
    path = directory / EXPLANATION
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
