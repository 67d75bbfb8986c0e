"""Write the heads of a model over its checkpoints: index.html with curves and tables, and checkpoints.json."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from attsvm.platform.files import replacing_files_in
from attsvm.platform.json_values import json_text, json_values
from attsvm.report.page import Picture, environment, versions
from attsvm_pretrained.inspection.checkpoints import Checkpoints, HeadSeries
from attsvm_pretrained.plots.series import checkpoints_figure
from attsvm_pretrained.report.inspection import percent, type_looks

TERMS = ("Attention SVM", "Selection", "Margin", "Query")


def picture(series: Checkpoints) -> Picture:
    """Draw the curves of all heads."""
    return Picture(
        "curves",
        lambda width: checkpoints_figure(series, width),
        "Attention on the type, hardness and margin of every head over training steps.",
        "One curve per head. Left: share of attention on the tokens of the type that names the head at the last "
        "checkpoint; a dot marks the step from which it bears the name. Middle: median over queries of the largest "
        "attention probability. Right: median over queries of the selected token's logit minus the runner-up's.",
    )


def numbers(series: Checkpoints, name: str, command: str) -> dict[str, Any]:
    """Collect the content of checkpoints.json."""
    return {
        "attsvm": versions()["attsvm"],
        "command": command,
        "model": name,
        "headline": series.sentence,
        "complete": series.complete,
        "seconds": round(series.seconds, 1),
        "versions": versions(),
        "steps": series.steps.tolist(),
        "heads": [_numbers(one) for one in series.heads],
        "refused": {
            str(step): [{"layer": one.layer, "head": one.head, "reason": one.reason} for one in heads]
            for step, heads in series.refused.items()
        },
    }


def _numbers(one: HeadSeries) -> dict[str, Any]:
    numbers_of = {
        "layer": one.layer,
        "head": one.head,
        "since": one.since,
        "types": list(one.names),
        "scores": one.scores,
        "null_highest": one.null,
        "top1": one.top1,
        "margin": one.margin,
        "efficiency": one.efficiency,
    }
    return json_values(numbers_of)


def write_checkpoints(series: Checkpoints, directory: str | os.PathLike[str], name: str, command: str) -> Path:
    """Write the page to a temporary folder, then move it into the directory.

    Parameters
    ----------
    directory : path
        Created if it does not exist.
    name : str
        Name of the model.
    command : str
        The command that was given.

    Returns
    -------
    Path
        index.html; the same folder gets checkpoints.json.

    Raises
    ------
    OSError
        If the directory cannot be created or written.
    """
    record = numbers(series, name, command)
    short, hues = type_looks(type_name for one in series.heads for type_name in one.scores)
    ordered = [one for heads in series.appearances.values() for one in heads]
    ordered += [one for one in series.heads if one.since is None]
    with replacing_files_in(directory) as temporary:
        page = environment("attsvm_pretrained.report").get_template("checkpoints.html.j2").render(
            found=series, record=record, picture=picture(series) if series.heads else None, ordered=ordered,
            percent=percent, short=short, hues=hues, terms=TERMS, version=record["attsvm"], finite=math.isfinite,
        )  # fmt: skip
        (temporary / "index.html").write_text(page, encoding="utf-8")
        (temporary / "checkpoints.json").write_text(json_text(record), encoding="utf-8")
    return Path(directory) / "index.html"
