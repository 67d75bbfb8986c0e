"""Write a study: report.html, verdict.json and the figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attsvm.platform.files import replacing_files_in
from attsvm.platform.json_values import json_text, json_values
from attsvm.report.page import Picture, environment, versions
from attsvm.report.pictures import pictures
from attsvm.report.prose import accuracy_sentence, lede, method, tiles
from attsvm.study.excerpts import excerpts, frequent
from attsvm.study.files import FIGURE_SUFFIXES, FIGURES, NUMBERS, PAGE, listed_files
from attsvm.study.headline import cautions, deciding_keys, headline, headline_parts, outcomes
from attsvm.study.numbers import accuracy_lines, quantities, series
from attsvm.study.results import BagReport, Study
from attsvm.study.verdict import TRAINED, TheoryClaim
from attsvm.study.words import nouns


def verdict(study: Study, assertions: Sequence[TheoryClaim], command: str, files: Sequence[str] = ()) -> dict[str, Any]:
    """Collect the content of verdict.json: version, seed, parameters, claims, every number, names of other files."""
    data = study.setup
    parameters = asdict(study.settings) | {
        "train": data.train.tokens.n,
        "token_scale": data.token_scale,
        "query_scale": data.query_scale,
        "centred": data.centred,
        "ridge_penalty": data.head.penalty,
    }
    return {
        "attsvm": versions()["attsvm"],
        "command": command,
        "data": data.train.name,
        "seed": study.settings.seed,
        "parameters": parameters,
        "complete": study.complete,
        "stopped_in": study.stopped_in or None,
        "headline": headline(study, assertions),
        "outcome": outcomes(study, assertions),
        "cautions": cautions(study),
        "claims": [asdict(claim) for claim in assertions],
        "quantities": quantities(study),
        "series": series(study),
        "bags": None if study.bags is None else _bags(study.bags),
        "seconds": round(study.seconds, 2),
        "versions": versions(),
        "files": list(files),
    }


def _bags(bags: BagReport) -> dict[str, Any]:
    return {"guarantee": bags.guarantee, "instances": [json_values(asdict(one)) for one in bags.instances]}


# Number of bags in the table of deciding instances; the others are folded.
NEAREST_BAGS = 15
# Terms that the page explains, from the documentation's glossary.
TERMS = (
    "Attention SVM", "Selection", "Margin", "Neighbour, support token", "Score", "Head", "Correlation",
    "Globally optimal direction", "Locally optimal direction", "Certificate", "Gap", "Query",
)  # fmt: skip


def render(study: Study, assertions: Sequence[TheoryClaim], command: str, charts: dict[str, Picture]) -> str:
    """Return the report as one HTML document that needs no other file."""
    passages, train = study.setup.train.passages, study.setup.train
    run = next(iter(study.runs.values()), None) if passages is not None else None
    return (
        environment()
        .get_template("study.html.j2")
        .render(
            found=study,
            name=study.setup.train.name,
            words=nouns(study.setup.train),
            headline=headline_parts(study, assertions),
            lede=lede(study),
            cautions=cautions(study),
            tiles=tiles(study),
            claims=assertions,
            deciding_keys=deciding_keys(study),
            pictures=charts,
            bags=study.bags,
            nearest=NEAREST_BAGS,
            excerpts=[] if run is None else excerpts(study, run),
            frequent={} if run is None else frequent(train, run.selected),
            trained="" if run is None else TRAINED[run.parameterization][0],
            prose=passages is not None and passages.prose,
            terms=TERMS,
            accuracy=accuracy_lines(study),
            accuracy_sentence=accuracy_sentence(study),
            method=method(study),
            controls={name: run.controls for name, run in study.runs.items()},
            verdict=verdict(study, assertions, command),
        )
    )


def write_study(
    study: Study, assertions: Sequence[TheoryClaim], directory: str | os.PathLike[str], command: str
) -> Path:
    """Write the report to a temporary folder, then move it into the directory, replacing an earlier study.

    Parameters
    ----------
    assertions : sequence of TheoryClaim
        Its claims, from :func:`attsvm.study.verdict.claims`.
    directory : path
        Created if it does not exist.
    command : str
        The command that made the study, for the record.

    Returns
    -------
    Path
        report.html; the same folder gets verdict.json and figures/NAME.png and .pdf.

    Raises
    ------
    OSError
        If the directory cannot be created or written.
    """
    with replacing_files_in(directory, listed_files(Path(directory))) as temporary:
        (temporary / FIGURES).mkdir()
        charts = pictures(study)
        for picture in charts.values():
            picture.save(temporary / FIGURES)
        names = [PAGE, NUMBERS, *(f"{FIGURES}/{name}{suffix}" for name in charts for suffix in FIGURE_SUFFIXES)]
        (temporary / NUMBERS).write_text(_numbers(study, assertions, command, names), encoding="utf-8")
        (temporary / PAGE).write_text(render(study, assertions, command, charts), encoding="utf-8")
    return Path(directory) / PAGE


def write_numbers(
    study: Study, assertions: Sequence[TheoryClaim], directory: str | os.PathLike[str], command: str
) -> Path:
    """Write only verdict.json; parameters and errors as in :func:`write_study`."""
    with replacing_files_in(directory, listed_files(Path(directory))) as temporary:
        (temporary / NUMBERS).write_text(_numbers(study, assertions, command, [NUMBERS]), encoding="utf-8")
    return Path(directory) / NUMBERS


def _numbers(study: Study, assertions: Sequence[TheoryClaim], command: str, files: Sequence[str]) -> str:
    return json_text(verdict(study, assertions, command, files))
