"""Write a comparison of two studies: compare.html and compare.json."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attsvm.platform.files import replacing_files_in
from attsvm.platform.json_values import json_text
from attsvm.plots.curves import compared_figure
from attsvm.report.page import Picture, environment, versions
from attsvm.study.comparison import Comparison, Record

PAGE, NUMBERS = "compare.html", "compare.json"
TERMS = ("Attention SVM", "Selection", "Correlation", "Neighbour, support token", "Numerics")


def letters(comparison: Comparison) -> tuple[str, str]:
    """Name the two studies in a figure: by their directories, or A and B if these names are long or equal."""
    names = comparison.first.name, comparison.second.name
    return ("A", "B") if names[0] == names[1] or max(map(len, names)) > 24 else names


def picture(comparison: Comparison) -> Picture | None:
    """Overlay the curves of the two studies; None if neither has any."""
    curves = comparison.first.content["series"]["curves"], comparison.second.content["series"]["curves"]
    if not any(len(run) > 1 for one in curves for run in one.values()):
        return None
    return Picture(
        "curves",
        lambda width: compared_figure(letters(comparison), curves, width),
        "Correlation of the trained matrices of both studies with their SVMs, over training steps.",
        "Solid blue is the first study, dashed orange the second; heavy lines are the correlation with the SVM that "
        "the theory pairs with the training, thin ones with the other. Vertical axis: -log10(1 - correlation).",
    )


def numbers(comparison: Comparison, command: str) -> dict[str, Any]:
    """Collect the content of compare.json."""

    def study(record: Record) -> dict[str, Any]:
        keys = ("command", "data", "seed", "headline", "attsvm")
        return {"name": record.name} | {key: record.content.get(key) for key in keys}

    return {
        "attsvm": versions()["attsvm"],
        "command": command,
        "first": study(comparison.first),
        "second": study(comparison.second),
        "settings": [{"name": name, "first": one, "second": two} for name, one, two in comparison.settings],
        "cautions": comparison.cautions,
        "claims": [asdict(claim) | {"changed": claim.changed} for claim in comparison.claims],
        "tables": {title: [asdict(row) for row in rows] for title, rows in comparison.tables.items()},
    }


def write_comparison(comparison: Comparison, directory: str | os.PathLike[str], command: str) -> Path:
    """Write compare.html and compare.json, replacing an earlier comparison there.

    Parameters
    ----------
    directory : path
        Created if it does not exist; other files in it stay.
    command : str
        The command that made the comparison, for the record.

    Returns
    -------
    Path
        compare.html.

    Raises
    ------
    OSError
        If the directory cannot be created or written.
    """
    record = numbers(comparison, command)
    with replacing_files_in(directory) as temporary:
        page = (
            environment()
            .get_template("comparison.html.j2")
            .render(
                found=comparison,
                picture=picture(comparison),
                names=letters(comparison),
                record=record,
                version=record["attsvm"],
                changed=[claim for claim in comparison.claims if claim.changed],
                terms=TERMS,
            )
        )  # fmt: skip
        (temporary / PAGE).write_text(page, encoding="utf-8")
        (temporary / NUMBERS).write_text(json_text(record), encoding="utf-8")
    return Path(directory) / PAGE
