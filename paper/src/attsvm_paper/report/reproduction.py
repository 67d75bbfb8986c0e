"""Write a reproduction: index.html, verdicts.json, and per experiment its page and figure."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attsvm.platform.files import replacing_files_in
from attsvm.report.page import environment, versions
from attsvm.report.prose import Tile
from attsvm_paper.judging.comparison import COMPARISONS
from attsvm_paper.judging.joint import AGREEMENT, TESTS
from attsvm_paper.judging.points import FEWEST
from attsvm_paper.judging.verdict import Verdict
from attsvm_paper.published.ledger import PrintedCurve, ledger
from attsvm_paper.report.errata import ERRATA, HEAD
from attsvm_paper.report.finished import FinishedRun
from attsvm_paper.report.tally import (
    CLASSES,
    KINDS,
    MOST_READINGS,
    as_json,
    by_figure,
    conclusion,
    count,
    deviation,
    headline,
    likelihood,
    number,
    percent,
    power_text,
)


def as_document(runs: Sequence[FinishedRun], command: str, missing: Sequence[str]) -> dict[str, Any]:
    """Collect the content of verdicts.json."""
    return {
        "attsvm": versions()["attsvm"],
        "command": command,
        "complete": not missing,
        "unfinished": list(missing),
        "counts": count(verdict for one in runs for verdict in one.verdicts),
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
            for one in runs
        ],
        "verdicts": [as_json(verdict) for one in runs for verdict in one.verdicts],
        "joint": [as_json(test) for one in runs for test in one.joint],
        "versions": versions(),
    }


def render(runs: Sequence[FinishedRun], command: str, missing: Sequence[str]) -> str:
    """Return the report as one HTML document; only its links to the experiments' pages need other files."""
    verdicts = [verdict for one in runs for verdict in one.verdicts]
    return (
        environment("attsvm_paper.report")
        .get_template("reproduction.html.j2")
        .render(
            _shared(),
            versions=versions(),
            headline=headline(verdicts),
            lede=_lede(runs, missing),
            tiles=_tiles(verdicts),
            command=command,
            published=[one for one in runs if one.published],
            beyond=[one for one in runs if not one.published],
            errata=ERRATA,
            errata_head=HEAD.replace("*", ""),
            kinds=KINDS,
            comparisons=COMPARISONS,
            family=TESTS,
            agreement=percent(AGREEMENT),
            fewest=FEWEST,
            ledger=ledger(),
            provenance=provenance(runs),
            count=count,
        )
    )


def render_experiment(one: FinishedRun) -> str:
    """Return the page of one experiment: its figure, every number with its verdict, and the setting."""
    return environment("attsvm_paper.report").get_template("experiment.html.j2").render(_shared(), one=one)


def _shared() -> dict[str, Any]:
    """Collect what the tables of experiments need."""
    return {
        "version": versions()["attsvm"],
        "classes": CLASSES,
        "noticed": power_text,
        "percent": percent,
        "number": number,
        "deviation": deviation,
        "by_figure": by_figure,
        "conclusion": conclusion,
        "likelihood": likelihood,
        "readings_shown": MOST_READINGS,
    }


def write_reproduction(
    runs: Sequence[FinishedRun], directory: str | os.PathLike[str], command: str, missing: Sequence[str] = ()
) -> Path:
    """Write the report to a temporary folder, then move it into the directory.

    Parameters
    ----------
    runs : sequence of FinishedRun
        In the order of the report.
    directory : path
    command : str
        The command that made the report, for the record.
    missing : sequence of str
        Names of experiments that were interrupted.

    Returns
    -------
    Path
        index.html; the same folder gets verdicts.json and, per experiment, NAME/index.html, figure.png and figure.pdf.

    Raises
    ------
    OSError
        If the directory cannot be created or written.
    """
    with replacing_files_in(directory) as temporary:
        for one in runs:
            place = temporary / one.experiment.name
            place.mkdir()
            one.picture.save(place, "figure")
            (place / "index.html").write_text(render_experiment(one), encoding="utf-8")
        (temporary / "verdicts.json").write_text(
            json.dumps(as_document(runs, command, missing), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
            encoding="utf-8",
        )
        (temporary / "index.html").write_text(render(runs, command, missing), encoding="utf-8")
    return Path(directory) / "index.html"


def _lede(runs: Sequence[FinishedRun], missing: Sequence[str]) -> str:
    text = (
        "The published experiments of attention as a support vector machine, run again from certified solutions and "
        "exact gradients. A number agrees when it is shown to lie within a stated margin of the printed one, and "
        "differs when sampling and reading errors, ours and theirs, do not explain the difference."
    )
    if missing:
        text += f" Interrupted before their end, and not shown: {', '.join(missing)}."
    return text


def _tiles(verdicts: Sequence[Verdict]) -> list[Tile]:
    counts = count(verdicts)
    return [
        Tile(f"{counts['agrees']:,}", "agree", "shown to lie within a stated margin", match=True),
        Tile(f"{counts['corrected']:,}", "corrected", "differs, but agrees with the artefact restored"),
        Tile(f"{counts['differs']:,}", "differ", "by more than sampling error explains"),
        Tile(f"{counts['too weak to tell']:,}", "too weak to tell", "neither is shown with these trials"),
        Tile(f"{counts['measured']:,}", "measured", "not published, or with no counted trials"),
    ]


def provenance(runs: Sequence[FinishedRun]) -> list[tuple[PrintedCurve, int]]:
    """List the printed curves that the page compares something with, each with the number of compared values."""
    keys = {verdict.key for one in runs for verdict in one.verdicts if verdict.key}
    curves = [(curve, sum(point.key in keys for point in curve.points.values())) for curve in ledger()]
    return [(curve, numbers) for curve, numbers in curves if numbers]
