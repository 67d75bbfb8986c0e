"""Values of --set: what each type of field accepts, and what is said of anything else."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Optional

import numpy as np
import pytest

from attsvm_paper.engine import cells as module
from attsvm_paper.engine.cells import MOST_TRIALS, cells, parameters_hash, parse_settings
from attsvm_paper.engine.experiment import Experiment
from tiny_experiment import EXPERIMENT, Config


@dataclass(frozen=True)
class Fields:
    """One field of every type; `depth` is zero in some cell."""

    count: int = 3
    scale: float = 0.5
    strict: bool = False
    word: str = "a"
    size: Literal[1, 2, "big"] = 1
    rank: int | None = 4
    rate: Optional[float] = 0.1  # noqa: UP045
    mixed: int | str = 1
    point: tuple[int, ...] = (1, 2)
    order: complex = 1j
    depth: int = 0
    trials: int = 2


SWEEP = [Fields(), Fields(count=5, depth=3)]
FIELDS = Experiment(
    "fields", "", "", "", Fields, lambda effort: SWEEP, lambda *_: [], None, None, (), {}  # type: ignore[arg-type]
)  # fmt: skip


def read(name: str, value: Any) -> Any:
    return getattr(cells(FIELDS, "quick", {name: value})[0], name)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("count", "7", 7),
        ("count", " 7 ", 7),
        ("count", 7.0, 7),
        ("count", np.int64(7), 7),
        ("scale", "7", 7.0),
        ("scale", "1e-3", 0.001),
        ("scale", 7, 7.0),
        ("scale", -2.5, -2.5),
        *[("strict", text, True) for text in ("true", "True", "YES", "1", " yes ", True)],
        *[("strict", text, False) for text in ("false", "No", "0", False)],
        ("word", "two words", "two words"),
        ("word", " b ", " b "),
        ("word", "3", "3"),
        ("size", "2", 2),
        ("size", 2, 2),
        ("size", "big", "big"),
        ("size", " big ", "big"),
        ("rank", "none", None),
        ("rank", "None", None),
        ("rank", None, None),
        ("rank", "5", 5),
        ("rate", "none", None),
        ("rate", "5", 5.0),
        ("mixed", "5", 5),
        ("mixed", "five", "five"),
        ("order", 2j, 2j),
        ("depth", "0", 0),
        ("depth", 5, 5),
    ],
)
def test_a_value_is_read_as_its_field(name: str, value: Any, expected: Any) -> None:
    assert read(name, value) == expected
    assert type(read(name, value)) is type(expected)


NUMBER, WORD = "a finite number", "a word"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *[("count", value, "an integer") for value in ("7.0", "", "x", 7.5, True, False, None, [1], math.nan)],
        *[("scale", value, NUMBER) for value in ("nan", "-inf", "x", math.inf, True, None, [1.0], "1,5")],
        *[("strict", value, "true or false") for value in ("2", "", 1, 0, None, "none")],
        *[("word", value, WORD) for value in (3, None, True)],
        *[("size", value, "one of 1, 2, big") for value in ("3", 3, "Big", None)],
        *[("rank", value, "an integer or none") for value in ("NONE", "x", "", 2.5, True)],
        *[("rate", value, "a finite number or none") for value in ("x", "inf", False)],
        ("mixed", None, "an integer or a word"),
        ("point", (3, 4), r"tuple\[int, \.\.\.\]"),
        ("order", 2.0, "<class 'complex'>"),
        ("order", "2j", "<class 'complex'>"),
    ],
)
def test_any_other_value_is_told_with_what_was_expected(name: str, value: Any, expected: str) -> None:
    shown = repr(value).replace("(", r"\(").replace(")", r"\)").replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(ValueError, match=rf"^{name} of fields is {shown}; {expected} was expected\.$"):
        cells(FIELDS, "quick", {name: value})


def test_a_count_is_positive_unless_some_cell_has_zero() -> None:
    for name, value, least in (("count", 0, 1), ("count", -4, 1), ("depth", -1, 0), ("rank", 0, 1), ("mixed", -2, 1)):
        with pytest.raises(ValueError, match=rf"^{name} is {value} for fields; at least {least} was expected\.$"):
            cells(FIELDS, "quick", {name: value})
    assert read("count", 1) == 1
    # Only integers are counts.
    assert (read("scale", 0), read("strict", "0"), read("rank", None)) == (0.0, False, None)


def test_every_cell_gets_every_value_and_keeps_the_others() -> None:
    assert cells(FIELDS, "quick", {"scale": 2, "trials": "9"}) == tuple(
        replace(one, scale=2.0, trials=9) for one in SWEEP
    )
    assert cells(FIELDS, "full") == cells(FIELDS, "full", {}) == tuple(SWEEP)
    assert cells(FIELDS, "quick", {"count": 4, "depth": 0}) == (Fields(count=4),)


@pytest.mark.parametrize("effort", ["fast", "", None])
def test_an_effort_is_quick_or_full(effort: Any) -> None:
    with pytest.raises(ValueError, match=rf"^effort is {effort!r}; 'quick' or 'full' was expected\.$"):
        cells(EXPERIMENT, effort)


def test_an_unknown_field_is_told_with_the_known_ones() -> None:
    known = "d, numerics, scale, pause, strict, log, trials"
    with pytest.raises(ValueError, match=rf"^'n' is no parameter of tiny; one of {known} was expected\.$"):
        cells(EXPERIMENT, "quick", {"n": 1})


def test_as_many_trials_as_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_TRIALS == 1_000_000
    assert sum(one.trials for one in cells(FIELDS, "quick", {"trials": 500_000})) == MOST_TRIALS
    words = r"^trials add up to 1,000,002 over the cells of fields; at most 1,000,000 were expected\.$"
    with pytest.raises(ValueError, match=words):
        cells(FIELDS, "quick", {"trials": 500_001})
    monkeypatch.setattr(module, "MOST_TRIALS", 41)
    with pytest.raises(ValueError, match="at most 41 were"):
        cells(EXPERIMENT, "quick")


def test_a_run_is_named_by_its_cells_its_batches_and_its_instances() -> None:
    configs = cells(EXPERIMENT, "quick", {"d": 3})
    text = json.dumps([3, ["d"], [asdict(config) for config in configs]], sort_keys=True)
    name = parameters_hash(EXPERIMENT, configs)
    assert name == hashlib.sha256(text.encode()).hexdigest()
    others = [
        parameters_hash(replace(EXPERIMENT, batch=4), configs),
        parameters_hash(replace(EXPERIMENT, instance=("d", "scale")), configs),
        parameters_hash(EXPERIMENT, configs[::-1]),
        parameters_hash(EXPERIMENT, configs[:1]),
        parameters_hash(EXPERIMENT, (replace(configs[0], trials=8), configs[1])),
    ]
    assert len({name, *others}) == 6


@pytest.mark.parametrize("text", ["d", "=3", "d=", " = 3", "d= ", ""])
def test_a_setting_without_field_or_value_is_shown(text: str) -> None:
    with pytest.raises(ValueError, match=rf"^--set {text!r} cannot be read; FIELD=VALUE was expected\.$"):
        parse_settings(["a=1", text])


def test_a_setting_given_twice_is_named() -> None:
    with pytest.raises(ValueError, match=r"^--set gives 'a_b' twice; once was expected\.$"):
        parse_settings(["a-b=1", "c=1", " a_b =2"])
    assert parse_settings([]) == {}


def test_an_experiment_is_independent_of_fields_that_it_has() -> None:
    assert replace(EXPERIMENT, instance=("d", "scale")).instance == ("d", "scale")
    assert replace(EXPERIMENT, instance=()).instance == ()
    with pytest.raises(ValueError, match=r"^instance names \['a', 'n'\] of tiny; fields of its config were expected: "):
        replace(EXPERIMENT, instance=("n", "d", "a"))
    assert (FIELDS.batch, FIELDS.joint, FIELDS.readings, FIELDS.file) == (20, None, None, "")
    assert Config().trials == 7
