"""What counts as the code of an experiment: all that its rows are computed by, and nothing else."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

import tiny_experiment
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


MANY = """
import os.path
import numpy as np
from json import loads
from . import near

A: int = 1
A += 1; B = 2
E = "é"; F = "f"
if A:
    G = 1
else:
    H = 2


@first
@second(B)
class Config:
    size = E


def inner(x):
    return np.abs(
        x + 1
    )


def trials(x): return inner(x) + os.path.getsize(loads(near)) + A + G
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("os.path", "os.abc"),
        ("import numpy as np", "import scipy as np"),
        ("from json", "from yaml"),
        ("from . import near", "from . import far as near"),
        ("A: int = 1", "A: int = 2"),
        ("A += 1", "A += 2"),
        ('E = "é"', 'E = "è"'),
        ("G = 1", "G = 3"),
        ("@first", "@third"),
        ("second(B)", "second(A)"),
        ("B = 2", "B = 3"),
        ("x + 1", "x + 2"),
        ("H = 2", "H = 5"),
        ("x): return", "x, y): return"),
    ],
)
def test_a_definition_counts_in_whichever_statement_it_is(old: str, new: str) -> None:
    assert MANY.count(old) == 1 or old == "os.path"
    assert digest(MANY.replace(old, new), "trials", "Config") != digest(MANY, "trials", "Config")


@pytest.mark.parametrize(
    ("old", "new"),
    [('F = "f"', 'F = "g"'), ("import numpy as np", "import numpy as np, scipy"), ("class Config:", "class  Config:")],
)
def test_what_stands_on_the_same_line_does_not_count(old: str, new: str) -> None:
    assert MANY.count(old) == 1
    assert digest(MANY.replace(old, new), "trials", "Config") == digest(MANY, "trials", "Config")


def test_a_digest_is_of_the_texts_by_name() -> None:
    source = "import a.b\nfrom c import d as e\nX = 1\n\n\ndef f(y):\n    return X + a + e(y)\n"
    text = "X\nX = 1\na\n:a.b\ne\nc:d\nf\ndef f(y):\n    return X + a + e(y)"
    assert digest(source, "f") == sha256(text.encode()).hexdigest()
    assert digest(source, "f", "g") == sha256(source.encode()).hexdigest()
    assert digest(source, "X") == sha256(b"X\nX = 1").hexdigest()
    assert digest("X = 1", "X") == digest(source, "X")


def test_code_without_a_file_has_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(str(tiny_experiment.__file__)).read_text(encoding="utf-8")
    assert code_hash(EXPERIMENT) == digest(source, "trials", "Config")
    monkeypatch.delattr(tiny_experiment, "__file__")
    assert code_hash(EXPERIMENT) == ""
