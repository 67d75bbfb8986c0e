"""Overrides of parameters, names of experiments, and rows as tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from attsvm_paper import registry
from attsvm_paper.engine import tables
from attsvm_paper.engine.cells import cells, parse_settings
from attsvm_paper.engine.experiment import Experiment
from tiny_experiment import EXPERIMENT, Config


def test_cells_that_become_equal_count_once() -> None:
    assert len(cells(EXPERIMENT, "quick")) == 6
    cell_list = cells(EXPERIMENT, "quick", {"d": "4", "trials": "2"})
    assert cell_list == (Config(4, "exact", trials=2), Config(4, "published", trials=2))


def test_values_are_read_as_the_type_of_their_field() -> None:
    cell_list = cells(
        EXPERIMENT, "quick", {"scale": "2", "strict": "yes", "numerics": "published", "log": "x", "d": 4}
    )[0]
    assert (cell_list.scale, cell_list.strict, cell_list.numerics, cell_list.log, cell_list.d) == (
        2.0,
        True,
        "published",
        "x",
        4,
    )
    assert isinstance(cell_list.scale, float)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"dd": "3"}, "'dd' is no parameter of tiny; one of d, numerics"),
        ({"d": "3.5"}, "d of tiny is '3.5'; an integer was expected"),
        ({"d": 2.5}, "an integer was expected"),
        ({"d": True}, "an integer was expected"),
        ({"d": "0"}, "tiny: d is 0; at least 1"),
        ({"scale": "inf"}, "a finite number"),
        ({"numerics": "plain"}, "one of exact, published"),
        ({"strict": "maybe"}, "true or false"),
        ({"trials": "0"}, "trials is 0"),
        ({"trials": "10000000000000"}, "trials add up to [0-9,]*0,000,000,000,000 over"),
    ],
)
def test_bad_overrides_get_one_sentence(overrides: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        cells(EXPERIMENT, "quick", overrides)


def test_optional_fields_take_none() -> None:
    @dataclass(frozen=True)
    class Optional:
        rank: int | None = 3
        trials: int = 1

    one = Experiment(
        "o", "", "", "", Optional, lambda effort: [Optional()], lambda *_: [], None, None, (), {}  # type: ignore[arg-type]
    )  # fmt: skip
    assert cells(one, "quick", {"rank": "none"}) == (Optional(None),)
    assert cells(one, "quick", {"rank": None}) == (Optional(None),)
    assert cells(one, "full", {"rank": "5"}) == (Optional(5),)
    with pytest.raises(ValueError, match="rank of o is 'five'; an integer or none was expected"):
        cells(one, "quick", {"rank": "five"})


@pytest.mark.parametrize("texts", [["d"], ["=3"], ["d="], ["d=1", "d=2"]])
def test_settings_that_cannot_be_read(texts: list[str]) -> None:
    with pytest.raises(ValueError, match="--set"):
        parse_settings(texts)
    assert parse_settings(["a-b = 1", "c=x=y"]) == {"a_b": "1", "c": "x=y"}


def test_an_experiment_checks_its_instance_fields() -> None:
    with pytest.raises(ValueError, match="instance names"):
        Experiment("o", "", "", "", Config, cells, cells, cells, cells, ("depth",), {})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", registry.names())
def test_every_registered_experiment_keeps_the_contract(name: str) -> None:
    one = registry.get(name)
    assert one.name == name
    assert one.claim.endswith((".", "?"))
    for effort in ("quick", "full"):
        cell_list = cells(one, effort)
        assert cell_list
        assert all(isinstance(config, one.config) and isinstance(hash(config), int) for config in cell_list)
        assert one.minutes[effort] > 0


def test_a_bad_name_gets_the_closest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.FIGURES, "zebra-stripes", EXPERIMENT)
    with pytest.raises(ValueError, match=r"^'zebra-strips' is no experiment; zebra-stripes\b.* was expected\.$"):
        registry.get("zebra-strips")
    with pytest.raises(ValueError, match="a name of `attsvm list`"):
        registry.get("qqqq")
    assert registry.get("zebra-stripes") is EXPERIMENT


ROWS = [
    {"a": 1, "b": None, "v": [1, 2]},
    {"a": 2, "b": 0.5, "v": np.array([0.5]), "c": True},
    {"a": 3.5, "v": [], "d": "x"},
    {"a": np.float64(np.nan), "b": 1, "c": np.bool_(False), "v": None},
]


@pytest.mark.parametrize("cuts", [[4], [1, 4], [2, 3, 4], [1, 2, 3, 4]])
def test_the_table_does_not_depend_on_the_cuts(cuts: list[int]) -> None:
    whole = tables.table_of(ROWS)
    union = tables.merge([tables.table_of(ROWS[a:b]) for a, b in zip([0, *cuts], cuts, strict=False)])
    assert union.schema == whole.schema
    assert union.schema.types == [pa.float64(), pa.float64(), pa.list_(pa.float64()), pa.bool_(), pa.string()]
    assert repr(union.to_pylist()) == repr(whole.to_pylist())


@pytest.mark.parametrize("values", [[1, "x"], [True, 1], [[[1]], None], [{"a": 1}], [[1], 2]])
def test_columns_without_a_type_are_named(values: list) -> None:
    with pytest.raises(TypeError, match="column"):
        tables.table_of([{"column": value} for value in values])
