"""Comparison of two finished studies, from their files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.platform.summary import counted
from attsvm.study.files import NUMBERS
from attsvm.study.intervals import difference_interval, mean_difference_interval, paired_interval, share_interval
from attsvm.study.words import correlation_text, share_text

# Labels of held-out accuracies, keyed by their attention.
ATTENTION = {
    "uniform": "uniform attention",
    "W": "trained W",
    "W_svm": "the Frobenius SVM of W",
    "KQ": "trained K, Q",
    "KQ_svm": "the nuclear SVM of K, Q",
}
CORRELATIONS = {
    "correlation_W_frobenius": "W with its Frobenius SVM",
    "correlation_KQ_nuclear": "K, Q with their nuclear SVM",
    "correlation_float32_autograd": "W by plain float32 autograd, with the same SVM",
}
CONTROLS = {"shuffled": "shuffled selections", "hebbian": "Hebbian direction", "optimal": "SVM of the optimal tokens"}
# Parameters that follow from the data, not from the settings.
CONSEQUENCES = {"train", "token_scale", "query_scale", "ridge_penalty", "centred"}


@dataclass(frozen=True, eq=False)
class Record:
    """A study as stored in its verdict.json.

    Attributes
    ----------
    name : str
        Name of the directory.
    """

    name: str
    content: dict[str, Any]

    def value(self, key: str) -> Any:
        """Return the value of a quantity; None if the study lacks it."""
        return self.content["quantities"].get(key, {}).get("value")


@dataclass(frozen=True)
class Row:
    """A number in both studies.

    Attributes
    ----------
    label, first, second : str
        First and second with their intervals, if they have any.
    difference : str
        Second minus first, with its interval.
    differs : bool or None
        Whether the interval excludes zero; None if there is no interval.
    """

    label: str
    first: str
    second: str
    difference: str
    differs: bool | None = None


@dataclass(frozen=True)
class ComparedClaim:
    """A claim in both studies; `holds` and `sentence` are None if a study does not make it."""

    key: str
    question: str
    holds: tuple[bool | None, bool | None]
    sentences: tuple[str | None, str | None]

    @property
    def changed(self) -> bool:
        """Whether the two studies answer differently."""
        return self.holds[0] is not self.holds[1] or (self.sentences[0] is None) != (self.sentences[1] is None)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The differences between two studies.

    Attributes
    ----------
    settings : list of (str, object, object)
        Settings that differ.
    cautions : list of str
        Limits of the comparison.
    tables : dict of str to list of Row
        Keyed by title.
    """

    first: Record
    second: Record
    settings: list[tuple[str, Any, Any]]
    cautions: list[str]
    claims: list[ComparedClaim]
    tables: dict[str, list[Row]]


def read_record(directory: str | os.PathLike[str]) -> Record:
    """Read a finished study.

    Parameters
    ----------
    directory : path
        A directory written by `attsvm study`.

    Raises
    ------
    ValueError
        If it holds no study, or a study that is damaged, interrupted, or of a version that wrote no curves.
    """
    folder = Path(directory)
    path = folder / NUMBERS
    if not path.is_file():
        kinds = {"verdicts.json": "a reproduction", "inspect.json": "an inspection", "compare.json": "a comparison"}
        content_kind = next((kind for name, kind in kinds.items() if (folder / name).is_file()), None)
        what = (
            f"holds {content_kind}" if content_kind else f"holds no {NUMBERS}" if folder.is_dir() else "is no directory"
        )
        raise ValueError(f"{folder} {what}; a directory that attsvm study has written was expected.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        complete, last_stage = content["complete"], content.get("stopped_in")
        has_record = all(
            key in content for key in ("quantities", "claims", "parameters", "headline", "command", "data")
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged or holds no study; the numbers of a study were expected.") from error
    if not complete:
        stage = f", in the stage “{last_stage}”" if last_stage else ""
        raise ValueError(f"{folder} holds a study that was interrupted{stage}; a finished one was expected.")
    if not has_record or "series" not in content:
        version = content.get("attsvm", "of another version")
        raise ValueError(
            f"{folder} was written by attsvm {version}, which wrote no curves; a study of this version was expected."
        )
    name = folder.name or folder.resolve().name
    return Record(name, content)


def compare(first: Record, second: Record) -> Comparison:
    """Compare two studies.

    Differences are second minus first.
    """
    tables = {
        "Right on rows held out": _accuracies(first, second),
        "Correlation, as an angle": _correlations(first, second),
        "The SVMs and the training": _counts(first, second),
    }
    return Comparison(
        first,
        second,
        _settings(first, second),
        _cautions(first, second),
        _claims(first, second),
        {title: rows for title, rows in tables.items() if rows},
    )


def _settings(first: Record, second: Record) -> list[tuple[str, Any, Any]]:
    one, two = ({"data": record.content["data"]} | record.content["parameters"] for record in (first, second))
    versions = [record.content["versions"] for record in (first, second)]
    settings = [(key, one.get(key), two.get(key)) for key in dict.fromkeys([*one, *two]) if key not in CONSEQUENCES]
    settings.insert(1, ("training rows", one["train"], two["train"]))
    settings += [(f"version of {key}", versions[0].get(key), versions[1].get(key)) for key in versions[0] | versions[1]]
    return [setting for setting in settings if setting[1] != setting[2]]


def _same_rows(first: Record, second: Record) -> bool:
    splits = [record.content["series"]["held_out"] for record in (first, second)]
    return None not in splits and splits[0]["digest"] == splits[1]["digest"]


def _cautions(first: Record, second: Record) -> list[str]:
    sentences = []
    data = first.content["data"], second.content["data"]
    if data[0] != data[1]:
        sentences.append(f"The data differ, {data[0]} and {data[1]}: they may cause differences, as may the settings.")
    splits = [record.content["series"]["held_out"] for record in (first, second)]
    if None in splits:
        sentences.append("At least one study holds out no rows, so accuracy is not compared.")
    elif not _same_rows(first, second):
        sentences.append("The rows held out differ: intervals of differences include the chance in both draws of rows.")
    else:
        sentences.append(
            "The rows held out are the same: intervals of differences count rows that only one study predicts right."
        )
    sentences.append("Correlations, norms and ranks come from one training per study and have no interval.")
    return sentences


def _claims(first: Record, second: Record) -> list[ComparedClaim]:
    one, two = ({claim["key"]: claim for claim in record.content["claims"]} for record in (first, second))
    rows = []
    for key in dict.fromkeys([*one, *two]):
        pair = one.get(key), two.get(key)
        holds = tuple(None if claim is None else claim["holds"] for claim in pair)
        sentences = tuple(None if claim is None else claim["sentence"] for claim in pair)
        question = next(claim["question"] for claim in pair if claim is not None)
        rows.append(ComparedClaim(key, question, (holds[0], holds[1]), (sentences[0], sentences[1])))
    return rows


def _points(low: float, high: float) -> str:
    return f"{100 * low:+.1f} to {100 * high:+.1f}".replace("-", "−")


def _signed(value: float, unit: str) -> str:
    text = f"{value:+.1f}"
    return f"{text[1:] if float(text) == 0 else text}{unit}".replace("-", "−")


def _accuracies(first: Record, second: Record) -> list[Row]:
    splits = [record.content["series"]["held_out"] for record in (first, second)]
    if None in splits:
        return []
    paired, rows = _same_rows(first, second), []
    for key, label in ATTENTION.items():
        texts = [one["right"].get(key) for one in splits]
        if None in texts:
            continue
        hits = [np.frombuffer(text.encode(), np.uint8) == ord("1") for text in texts]
        right, total = [int(one.sum()) for one in hits], [len(one) for one in hits]
        if paired:
            gains, losses = int((hits[1] & ~hits[0]).sum()), int((hits[0] & ~hits[1]).sum())
            low, high = paired_interval(gains, losses, total[0])
        else:
            low, high = difference_interval((right[0], right[1]), (total[0], total[1]))
        cells = []
        for k, n in zip(right, total, strict=True):
            ends = share_interval(k, n)
            cells.append(f"{share_text(k / n)} ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})")
        difference = 100 * (right[1] / total[1] - right[0] / total[0])
        text = f"{_signed(difference, ' points')} ({_points(low, high)})"
        rows.append(Row(label, cells[0], cells[1], text, not low <= 0 <= high))
    return rows + _shuffles(first, second)


def _shuffles(first: Record, second: Record) -> list[Row]:
    rows = []
    for name, label in (("W", "W on shuffled labels, mean"), ("KQ", "K, Q on shuffled labels, mean")):
        draws = [np.array(record.content["series"]["shuffled_labels"].get(name, ())) for record in (first, second)]
        if not min(map(len, draws)):
            continue
        rows_held_out = [record.content["series"]["held_out"]["rows"] for record in (first, second)]
        interval = mean_difference_interval(draws[0], draws[1], (rows_held_out[0], rows_held_out[1]))
        text = _signed(100 * float(draws[1].mean() - draws[0].mean()), " points")
        if interval is not None:
            text += f" ({_points(*interval)})"
        texts = [f"{share_text(float(one.mean()))} ({counted(len(one), 'draw')})" for one in draws]
        differs = None if interval is None else not interval[0] <= 0 <= interval[1]
        rows.append(Row(label, texts[0], texts[1], text, differs))
    return rows


def _angle(correlation: float) -> float:
    return math.degrees(math.acos(min(1.0, max(-1.0, correlation))))


def _correlations(first: Record, second: Record) -> list[Row]:
    labels = dict(CORRELATIONS)
    for run, trained in (("W", "W"), ("KQ", "K, Q")):
        labels |= {f"control_{key}_{run}": f"control: {trained} with {label}" for key, label in CONTROLS.items()}
    rows = []
    for key, label in labels.items():
        pair = first.value(key), second.value(key)
        if None in pair:
            continue
        angles = [_angle(value) for value in pair]
        texts = [f"{correlation_text(value)} ({angle:.1f}°)" for value, angle in zip(pair, angles, strict=True)]
        rows.append(Row(label, texts[0], texts[1], _signed(angles[1] - angles[0], "°")))
    return rows


def _counts(first: Record, second: Record) -> list[Row]:
    labels: dict[str, tuple[str, Callable[[Any], str]]] = {
        "train_rows": ("training rows", "{:,}".format),
        "test_rows": ("rows held out", "{:,}".format),
    }
    for run, trained, norm in (("W", "W", "frobenius"), ("KQ", "K, Q", "nuclear")):
        labels |= {
            f"steps_{run}": (f"steps of {trained}", "{:,}".format),
            f"rows_on_optimal_{run}": (f"rows where {trained} selects the best token", "{:,}".format),
            f"norm_{run}_{norm}": (f"norm of the SVM of {trained}", "{:.4g}".format),
            f"rank_{run}_{norm}": (f"rank of the SVM of {trained}", "{:,}".format),
            f"neighbours_{run}": (f"support tokens of {trained}", "{:,}".format),
        }
    rows = []
    for key, (label, text) in labels.items():
        pair = first.value(key), second.value(key)
        if None in pair:
            continue
        difference = text(abs(pair[1] - pair[0]))
        sign = "" if pair[0] == pair[1] else "+" if pair[1] > pair[0] else "−"
        rows.append(Row(label, text(pair[0]), text(pair[1]), sign + difference))
    return rows
