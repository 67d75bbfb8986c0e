"""Every number of a study by name, for verdict.json and the page's table."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np

from attsvm.data.dataset import Dataset
from attsvm.study.results import Run, Study
from attsvm.study.spectrum import certified_rank
from attsvm.study.words import share_text


def _number(value: Any) -> Any:
    """Convert a value for JSON; NaN and infinity become null."""
    if isinstance(value, (bool, np.bool_)) or value is None or isinstance(value, str):
        return bool(value) if isinstance(value, np.bool_) else value
    if isinstance(value, (int, np.integer)):
        return int(value)
    return float(value) if math.isfinite(value) else None


def quantities(study: Study) -> dict[str, dict[str, Any]]:
    """Name every number of the report: {name: {value, meaning}}."""
    out: dict[str, dict[str, Any]] = {}

    def put(name: str, value: Any, meaning: str) -> None:
        out[name] = {"value": _number(value), "meaning": meaning}

    setup = study.setup
    put("train_rows", setup.train.tokens.n, "rows trained on")
    put("test_rows", 0 if setup.test is None else setup.test.tokens.n, "rows held out")
    put(
        "smallest_score_gap",
        setup.trial.score_gap.min(),
        "smallest difference between the scores of the best and the second best token of a row",
    )
    if study.optimal is not None:
        put("optimal_status", study.optimal.status.name, "Frobenius SVM of the globally optimal tokens")
        put("optimal_norm", study.optimal.objective, "its norm")
        put("optimal_gap", study.optimal.gap, "its certified relative gap")
    for name, run in study.runs.items():
        _put_run(put, name, run, setup.optimal)
    for run in study.precision:
        put(f"correlation_{run.dtype}_{run.numerics}", run.curve[-1], f"W in {run.label}, with the same SVM")
    for name, control in study.shuffled_labels.items():
        put(f"accuracy_test_shuffled_labels_limit_{name}", control.limit, "prediction limit for a further shuffle")
    for row in study.accuracies:
        put(f"accuracy_train_{row.key}", row.train, f"{row.label}: share of training rows predicted right")
        put(f"accuracy_test_{row.key}", row.test, f"{row.label}: share of test rows predicted right")
    return out


def _put_run(put: Any, name: str, run: Run, optimal: np.ndarray) -> None:
    put(f"steps_{name}", int(run.trace.step[-1]), f"training steps of {name}")
    put(f"least_attention_{name}", run.concentration.min(), "smallest, over rows, of the largest attention probability")
    put(f"rows_on_optimal_{name}", int((run.selected == optimal).sum()), "rows whose realised token is the best one")
    for norm, solution in run.solutions.items():
        put(f"status_{name}_{norm}", solution.status.name, f"{norm} SVM of the tokens realised by {name}")
        put(f"norm_{name}_{norm}", solution.objective, "its norm")
        put(f"gap_{name}_{norm}", solution.gap, "its certified relative gap")
        if norm in run.curves:
            put(f"rank_{name}_{norm}", certified_rank(solution), "its rank at the certified accuracy")
            put(f"correlation_{name}_{norm}", run.curves[norm][-1], f"trained {name} with that SVM")
    if run.locality is not None:
        put(f"neighbours_{name}", int(run.locality.neighbours.sum()), f"SVM-neighbours under the {run.own} SVM")
        put(
            f"better_neighbours_{name}",
            int(run.locality.violations.sum()),
            "SVM-neighbours that score as high as the selected token or higher",
        )
    for control in run.controls:
        put(f"control_{control.key}_{name}", control.final, f"trained {name} with the {control.label}")
        if len(control.directions) > 2:
            put(f"control_{control.key}_limit_{name}", control.limit, "prediction limit for a further shuffle")


def series(study: Study) -> dict[str, Any]:
    """Collect data for a later comparison, in addition to numbers: curves, draws of controls, held-out rows."""
    test = study.setup.test
    held_out = None
    if test is not None:
        right = {
            row.key: "".join("01"[int(one)] for one in row.right) for row in study.accuracies if row.right is not None
        }
        held_out = {"digest": row_digest(test), "rows": test.tokens.n, "right": right}
    return {
        "curves": {
            name: {"step": run.trace.step.tolist()}
            | {norm: [_number(value) for value in curve] for norm, curve in run.curves.items()}
            for name, run in study.runs.items()
        },
        "shuffled_labels": {name: control.test.tolist() for name, control in study.shuffled_labels.items()},
        "held_out": held_out,
    }


def row_digest(data: Dataset) -> str:
    """Return a digest of the rows: of their texts or images if there are any, so that other vectors of them match."""
    digest = hashlib.sha256(np.ascontiguousarray(data.tokens.labels).tobytes())
    if data.passages is not None and data.passages.prose:
        digest.update("\0".join("".join(pieces) for pieces in data.passages.pieces).encode())
    elif data.patches is not None:
        digest.update(np.ascontiguousarray(data.patches.images).tobytes())
    else:
        for array in (data.tokens.tokens, data.tokens.queries, data.mask):
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def accuracy_lines(study: Study) -> list[tuple[str, str, str]]:
    """Return the rows of the accuracy table: label, training share, test share."""
    return [(row.label, share_text(row.train), share_text(row.test)) for row in study.accuracies]
