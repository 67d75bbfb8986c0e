"""Write a reproduction: index.html, verdicts.json, and per experiment its figure."""

from __future__ import annotations

import inspect
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from attsvm.experiments import registry
from attsvm.experiments.experiment import Effort, Experiment, Row, Verdict
from attsvm.experiments.meter import duration
from attsvm.experiments.statistics import COMPARISONS
from attsvm.files import replacing_files_in
from attsvm.plots.style import house_style
from attsvm.report.errata import ERRATA
from attsvm.report.page import Picture, environment, versions
from attsvm.report.prose import Tile
from attsvm.report.tally import KINDS, as_json, count, deviation, headline, number

LISTED_VALUES = 12


@dataclass(frozen=True, eq=False)
class Finished:
    """An experiment whose rows are complete.

    Attributes
    ----------
    experiment : Experiment
    rows : sequence of dict
    effort : {"quick", "full"}
    seed : int
    overrides : mapping of str to str
    seconds : float
        Computation, summed over workers.
    """

    experiment: Experiment
    rows: Sequence[Row]
    effort: Effort
    seed: int
    overrides: Mapping[str, Any]
    seconds: float

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """Its numbers beside the published ones."""
        return self.experiment.verdicts(self.rows)

    @cached_property
    def picture(self) -> Picture:
        """Its figure, described by its claim."""
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

    @property
    def published(self) -> bool:
        """Whether it reproduces a published figure."""
        return self.experiment.name not in registry.BEYOND

    @property
    def command(self) -> str:
        """The command that computes the same rows."""
        words = ["attsvm", "reproduce", self.experiment.name, f"--{self.effort}"]
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
        """The time it took, in words."""
        return duration(self.seconds)

    @property
    def setting(self) -> list[tuple[str, str]]:
        """The values of every parameter that the cells take."""
        found = []
        for field in fields(self.experiment.config):
            values = list(dict.fromkeys(row[field.name] for row in self.rows))
            texts = [number(value) if isinstance(value, float) else str(value) for value in values]
            if len(texts) > LISTED_VALUES:
                texts = [*texts[:3], "…", texts[-1], f"({len(values)} values)"]
            found.append((field.name, ", ".join(texts)))
        return found


def as_document(finished: Sequence[Finished], command: str, unfinished: Sequence[str]) -> dict[str, Any]:
    """Collect what verdicts.json holds."""
    return {
        "attsvm": versions()["attsvm"],
        "command": command,
        "complete": not unfinished,
        "unfinished": list(unfinished),
        "counts": count(verdict for one in finished for verdict in one.verdicts),
        "experiments": [
            {
                "name": one.experiment.name,
                "title": one.experiment.title,
                "source": one.experiment.source,
                "claim": one.experiment.claim,
                "command": one.command,
                "effort": one.effort,
                "seed": one.seed,
                "parameters": dict(one.setting),
                "trials": one.trials,
                "seconds": one.seconds,
                "counts": count(one.verdicts),
            }
            for one in finished
        ],
        "verdicts": [as_json(verdict) for one in finished for verdict in one.verdicts],
        "versions": versions(),
    }


def render(finished: Sequence[Finished], command: str, unfinished: Sequence[str]) -> str:
    """Return the report as one HTML document that needs no other file."""
    verdicts = [verdict for one in finished for verdict in one.verdicts]
    return (
        environment()
        .get_template("reproduction.html.j2")
        .render(
            version=versions()["attsvm"],
            versions=versions(),
            headline=headline(verdicts),
            lede=_lede(finished, unfinished),
            tiles=_tiles(verdicts),
            command=command,
            published=[one for one in finished if one.published],
            beyond=[one for one in finished if not one.published],
            errata=ERRATA,
            kinds=KINDS,
            comparisons=COMPARISONS,
            count=count,
            number=number,
            deviation=deviation,
        )
    )


def write_reproduction(
    finished: Sequence[Finished],
    directory: str | os.PathLike[str],
    command: str,
    unfinished: Sequence[str] = (),
) -> Path:
    """Write the report beside the directory's old content, then move it into place.

    Parameters
    ----------
    finished : sequence of Finished
        In the order of the report.
    directory : path
    command : str
        The command that made the report, for the record.
    unfinished : sequence of str
        Names of experiments that were begun but interrupted.

    Returns
    -------
    Path
        index.html; beside it lie verdicts.json and NAME/figure.png and .pdf.

    Raises
    ------
    OSError
        If the directory cannot be made or written.
    """
    with replacing_files_in(directory) as beside:
        for one in finished:
            place = beside / one.experiment.name
            place.mkdir()
            one.picture.save(place, "figure")
        (beside / "verdicts.json").write_text(
            json.dumps(as_document(finished, command, unfinished), indent=1, ensure_ascii=False, allow_nan=False)
            + "\n",
            encoding="utf-8",
        )
        (beside / "index.html").write_text(render(finished, command, unfinished), encoding="utf-8")
    return Path(directory) / "index.html"


def _lede(finished: Sequence[Finished], unfinished: Sequence[str]) -> str:
    told = (
        "The published experiments of attention as a support vector machine, run again from certified solutions and "
        "exact gradients. A number agrees when it differs from the published one by no more than sampling error, ours "
        "and theirs, explains."
    )
    if unfinished:
        told += f" Interrupted before their end, and not shown: {', '.join(unfinished)}."
    return told


def _tiles(verdicts: Sequence[Verdict]) -> list[Tile]:
    counts = count(verdicts)
    return [
        Tile(f"{counts['agrees']:,}", "agree", "within sampling error, at 5 % for the whole report", match=True),
        Tile(f"{counts['corrected']:,}", "corrected", "the published number is an artefact, its cause is shown"),
        Tile(f"{counts['differs']:,}", "differ", "by more than sampling error explains"),
        Tile(f"{counts['measured']:,}", "measured", "published by nobody, or without trials that count"),
    ]
