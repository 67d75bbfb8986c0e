"""JSON as attsvm writes it: numbers that are not finite become null."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np


def json_values(value: Any) -> Any:
    """Replace arrays and numbers of NumPy by those of Python, and numbers that JSON does not have by None."""
    if isinstance(value, dict):
        return {name: json_values(one) for name, one in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [json_values(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(record: dict[str, Any]) -> str:
    """Write a record for people to read, indented."""
    return json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
