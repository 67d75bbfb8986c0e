"""Arrays come back in the kind of the caller's, unless numbers would become infinite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attsvm.platform.interop import Kind

ARRAYS: list[Any] = [np.zeros(1, np.float32), np.zeros(1, np.float16), torch.zeros(1), torch.zeros(1).half()]


@pytest.mark.parametrize("given", ARRAYS, ids=["numpy single", "numpy half", "torch single", "torch half"])
def test_a_result_is_single_unless_it_overflows(given: Any) -> None:
    kind = Kind.of(given)
    largest = float(np.finfo(np.float32).max)
    for values in ([largest, 1.0], [np.inf, 1.0], [np.nan, -1.0], []):
        assert kind.restore(np.array(values)).dtype in (np.float32, torch.float32)
    for values in ([2 * largest, 1.0], [np.inf, -2 * largest]):
        result = kind.restore(np.array(values))
        assert result.dtype in (np.float64, torch.float64)
        assert result.tolist() == values


@pytest.mark.parametrize("given", [np.zeros(1), torch.zeros(1).double()], ids=["numpy", "torch"])
def test_a_double_result_stays_double(given: Any) -> None:
    result = Kind.of(given).restore(np.array([1e200, 0.1]))
    assert type(result) is type(given)
    assert result.tolist() == [1e200, 0.1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.zeros(1).double(), torch.float64),
        (torch.zeros(1), torch.float32),
        (torch.zeros(1).bfloat16(), torch.float32),
        (torch.zeros(1, dtype=torch.int64), torch.get_default_dtype()),
        (np.zeros(1), np.float64),
        (np.zeros(1, np.float32), np.float32),
        (np.zeros(1, int), np.float64),
    ],
)
def test_results_have_the_floats_of_the_input_even_where_narrower_ones_were_computed(given: Any, expected: Any) -> None:
    for computed in (np.float16, np.float32, np.float64):
        assert Kind.of(given).restore(np.array([0.5, np.inf], computed)).dtype == expected
