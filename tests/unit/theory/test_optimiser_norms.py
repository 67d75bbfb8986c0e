"""The benchmark of verdicts for twelve optimisers, on one synthetic set; and what it counts as wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from attsvm import SelectionProblem, margin_path, solve

FOLDER = Path(__file__).parents[3] / "benchmarks"
RANDOM = SelectionProblem.from_classes(np.random.default_rng(3).standard_normal((10, 5)), np.arange(10) % 4)
STEPS = [100, 316, 1000, 3162]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield import_module("optimiser_norms")
    del sys.modules["optimiser_norms"]


def test_no_verdict_on_a_synthetic_set_is_wrong(script: ModuleType) -> None:
    chosen = {name: script.OPTIMISERS[name] for name in ("gradient", "momentum")}
    gradient, momentum = script.verdicts(1000, ["wide"], chosen)
    assert not gradient.wrong
    assert not momentum.wrong
    assert gradient.nearest in (None, "frobenius")
    # More dimensions than inputs: the norms have nearly the same solutions, and even a share near one names none.
    assert momentum.largest == "frobenius"
    assert momentum.nearest is None
    assert "their own solutions have 1.000 of each other's largest margins" in momentum.sentence


def test_a_path_to_another_norm_is_counted_as_wrong(script: ModuleType) -> None:
    path = margin_path([solve(RANDOM, "max").W] * 4, STEPS, RANDOM, ["frobenius", "max"])
    assert path.nearest == "max"
    assert script.judge(path, "frobenius") == ("frobenius", True)
    assert script.judge(path, "max") == ("max", False)
