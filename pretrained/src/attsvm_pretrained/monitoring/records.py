"""Records of a monitored training run: as JSON lines in a file, and as flat numbers for a reporter."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from attsvm.platform.files import replacing_file
from attsvm.platform.json_values import json_values

# Entries of a head's row that identify the head.
IDENTITY = ("layer", "head", "name")


def line_of(record: dict[str, Any]) -> str:
    """Write a record as a line of JSON."""
    return json.dumps(json_values(record), allow_nan=False) + "\n"


class RecordFile:
    """A file with one record per line, to which a run appends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: int | None = None

    def append(self, record: dict[str, Any]) -> None:
        """Append a record; a resumed run first removes the steps that it repeats."""
        step = record["step"]
        if self.path.exists() and (self._written is None or self._written >= step):
            kept = [line for line in self.path.read_text(encoding="utf-8").splitlines() if _is_before(line, step)]
            with replacing_file(self.path) as temporary:
                temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line_of(record))
        self._written = step


def _is_before(line: str, step: int) -> bool:
    """Tell whether a line is the complete record of an earlier step."""
    try:
        return json.loads(line)["step"] < step
    except (ValueError, KeyError, TypeError):
        return False


def flat(record: dict[str, Any]) -> dict[str, float]:
    """Name every number of a record for a reporter, and add the largest (of logits, norms) or mean over heads."""
    result: dict[str, float] = {"attention/non_finite": float(record["non_finite"])}
    totals: dict[str, list[float]] = {}
    for row in record["heads"]:
        for name, value in row.items():
            if name not in IDENTITY and value is not None and math.isfinite(value):
                result[f"attention/L{row['layer']}H{row['head']}/{name}"] = value
                totals.setdefault(name, []).append(value)
    totals.pop("non_finite", None)
    for name, values in totals.items():
        total = max(values) if name in ("max_logit", "norm", "imbalance") else sum(values) / len(values)
        result[f"attention/{name}"] = total
    return result
