"""JSON for people and for programs: indented, and with nothing that JSON does not have."""

from __future__ import annotations

import json

import numpy as np
import pytest

from attsvm.platform.json_values import json_text, json_values


def test_numbers_that_json_lacks_are_null() -> None:
    values = {"a": np.array([1.0, np.nan]), "b": (np.int64(3), [np.inf]), "c": {"d": np.float32(0.5), "e": None}}
    assert json_values(values) == {"a": [1.0, None], "b": [3, [None]], "c": {"d": 0.5, "e": None}}


def test_a_record_is_indented_by_two_spaces_a_level() -> None:
    record = {"list": [1, {"sign": "‖W‖"}]}
    text = json_text(record)
    assert json.loads(text) == record
    depths = [len(line) - len(line.lstrip()) for line in text.splitlines()]
    assert depths == [0, 2, 4, 4, 6, 4, 2, 0]
    assert "‖W‖" in text
    assert text.endswith("}\n")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_lacks_is_refused_in_a_record(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"a": [value]})
