"""Random problems before three judges: the first draws of benchmarks/fuzz.py, and those whose proof once failed."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
fuzz: Any = import_module("fuzz")

# W = 0 in other coordinates; margins that round, with losses and next to a prior; two splits of a composed norm.
ONCE_REFUSED = [(1, 367), (1, 784), (1, 2749), (7, 361)]


@pytest.mark.parametrize(("seed", "index"), [(0, index) for index in range(40)] + ONCE_REFUSED)
def test_no_judge_refutes_an_answer(seed: int, index: int) -> None:
    row = fuzz.examine(fuzz.draw(np.random.default_rng([seed, index])), limit=20.0)
    assert not row["faults"], row["label"]
