"""What counts as the code of an experiment: all that its rows are computed by, and nothing else."""

from __future__ import annotations

import pytest

from attsvm_paper import registry
from attsvm_paper.engine.fingerprint import code_hash, digest
from tiny_experiment import EXPERIMENT

SOURCE = """
from dataclasses import dataclass
from numpy import mean, median

STEPS = 3
TITLE = "old"
LOW, HIGH = 1, 2


@dataclass(frozen=True)
class Config:
    steps: int = STEPS

    def __post_init__(self):
        raise ValueError("old")


def step(x):
    return mean(x) * LOW


def trials(config, seeds):
    return [step(seed) for seed in seeds]


def figure(rows):
    return TITLE, median(rows)
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('TITLE = "old"', 'TITLE = "new"'),
        ("return TITLE, median(rows)", "return median(rows)"),
        ("import mean, median", "import mean, quantile, median"),
        ('ValueError("old")', 'ValueError("new")'),
        ("\n\nSTEPS", "\n\n# A comment.\nSTEPS"),
    ],
)
def test_rows_outlive_what_only_shows_them(old: str, new: str) -> None:
    assert old in SOURCE
    assert digest(SOURCE.replace(old, new), "trials", "Config") == digest(SOURCE, "trials", "Config")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("STEPS = 3", "STEPS = 4"),
        ("frozen=True", "frozen=True, order=True"),
        ("steps: int", "steps: float"),
        ("mean(x) * LOW", "mean(x)"),
        ("LOW, HIGH = 1, 2", "LOW, HIGH = 2, 2"),
        ("import mean, median", "import nanmean as mean, median"),
        ("for seed in seeds", "for seed in seeds[::-1]"),
    ],
)
def test_rows_of_other_code_are_other_rows(old: str, new: str) -> None:
    assert old in SOURCE
    assert digest(SOURCE.replace(old, new), "trials", "Config") != digest(SOURCE, "trials", "Config")


def test_what_is_defined_elsewhere_counts_as_a_whole() -> None:
    assert digest(SOURCE, "trials") != digest(SOURCE, "<lambda>")
    assert digest(SOURCE, "<lambda>") != digest(SOURCE + "\n", "<lambda>")


@pytest.mark.slow
def test_every_experiment_has_a_digest_of_its_own() -> None:
    experiments = [EXPERIMENT, *map(registry.get, registry.names())]
    assert len({code_hash(experiment) for experiment in experiments}) == len(experiments)
