"""What computes and keeps rows: batches, seeds, tables, the directory of a run, and its manifest."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attsvm import __version__
from attsvm.platform.meter import Meter
from attsvm_paper.engine import runner, tables
from attsvm_paper.engine.cells import parameters_hash
from attsvm_paper.engine.compute import Batch, Result, Task, compute, compute_packed, cut, pack, task_of
from attsvm_paper.engine.fingerprint import code_hash
from attsvm_paper.engine.runner import SHARD_SECONDS, Interruption, SerialCrew, finish, prepare, run
from attsvm_paper.engine.seeds import trial_seeds
from attsvm_paper.engine.store import IDENTITY, Store, discard, read_manifest
from attsvm_paper.judging.verdict import Row
from tiny_experiment import EXPERIMENT, Config

TEN = Config(trials=10)


def test_a_task_has_all_that_a_worker_needs() -> None:
    batches = cut([TEN], 4)
    assert batches == [Batch(TEN, 0, 4), Batch(TEN, 4, 8), Batch(TEN, 8, 10)]
    assert cut([Config(trials=8)], 4) == [Batch(Config(trials=8), 0, 4), Batch(Config(trials=8), 4, 8)]
    assert task_of(EXPERIMENT, 3, batches) == Task("tiny", EXPERIMENT.trials, ("d",), 3, tuple(batches))


def test_a_row_has_the_number_of_its_trial_and_its_config() -> None:
    (batch,) = cut([TEN], 4)[1:2]
    rows = compute(task_of(EXPERIMENT, 3, [batch]), math.inf).rows
    seeds = trial_seeds(3, "tiny", {"d": 2}, range(4, 8)).tolist()
    assert [(row["trial"], row["seed"]) for row in rows] == list(zip(range(4, 8), seeds, strict=True))
    for row in rows:
        x = np.random.default_rng(row["seed"]).standard_normal(2)
        assert row["mean"] == x.mean()
        assert [row[name] for name in ("d", "numerics", "scale", "strict", "trials")] == [2, "exact", 1.0, False, 10]
        assert type(row["seed"]) is int


def told(rows: Sequence[Row]) -> Any:
    """A task whose trials give these rows for one seed."""
    experiment = replace(EXPERIMENT, trials=lambda config, seeds: [{**row} for row in rows])
    return task_of(experiment, 0, cut([Config(trials=1)], 3))


SEED = int(trial_seeds(0, "tiny", {"d": 2}, [0])[0])


def test_a_trial_may_give_several_rows() -> None:
    rows = compute(told([{"seed": np.int64(SEED), "k": 1}, {"seed": SEED, "k": 2}]), 1.0).rows
    assert [(row["trial"], row["k"]) for row in rows] == [(0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{"k": 1}], "a row of tiny has the seed None; one of those given was expected."),
        ([{"seed": 5}], "a row of tiny has the seed 5; one of those given was expected."),
        (
            [{"seed": SEED, "trial": 0, "d": 2}],
            "a row of tiny has the keys ['d', 'trial'] of its config; others were expected.",
        ),
        ([], "tiny gave no row for some of its seeds; at least one per seed was expected."),
    ],
)
def test_malformed_rows_are_told(rows: list[Row], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        compute(told(rows), 1.0)


def test_a_task_ends_when_it_is_told_or_has_used_its_budget() -> None:
    task = task_of(EXPERIMENT, 0, cut([TEN], 4))
    trials: list[int] = []
    assert compute(task, math.inf, trials.append).batches == 3
    assert trials == [4, 8, 10]
    stopped = compute(task, math.inf, lambda done: done >= 8)
    assert (stopped.batches, len(stopped.rows)) == (2, 8)
    # No time at all is enough for one batch.
    assert (compute(task, 0.0).batches, compute(task, math.inf).batches) == (1, 3)


def test_a_budget_is_used_when_the_clock_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(np.arange(7.0, 99.0, 0.5).tolist())
    monkeypatch.setattr("attsvm_paper.engine.compute.time.perf_counter", lambda: next(times))
    task = task_of(EXPERIMENT, 0, cut([TEN], 2))
    assert compute(task, 1.5).batches == 3


def test_a_packed_task_carries_its_code() -> None:
    task = task_of(EXPERIMENT, 3, cut([TEN], 4))
    packed = pack(task)
    assert b"standard_normal" in packed
    assert repr(compute_packed(packed, math.inf).rows) == repr(compute(task, math.inf).rows)
    assert b"standard_normal" not in __import__("cloudpickle").dumps(task)  # registered for one task only


def test_the_digest_and_the_index_of_a_trial_give_its_seed() -> None:
    digest = hashlib.sha256(b'[4, "tiny", {"d": 10, "text": "1.0", "x": 0.5}]').digest()
    words = [int.from_bytes(digest[at : at + 4], "little") for at in range(0, 32, 4)]
    seeds = trial_seeds(4, "tiny", {"x": 0.5, "text": "1.0", "d": 10.0}, [0, 3])
    streams = [np.random.SeedSequence(words, spawn_key=(index,)) for index in (0, 3)]
    assert seeds.tolist() == [int(one.generate_state(1, np.uint64)[0]) // 2 for one in streams]


@pytest.mark.parametrize("seed", [-1, True, 1.0, "0", None])
def test_a_run_has_a_root_seed(seed: Any, tmp_path: Path) -> None:
    words = rf"^seed is {seed!r}; an integer of at least 0 was expected\.$"
    with pytest.raises(ValueError, match=words):
        prepare(EXPERIMENT, "quick", tmp_path, seed=seed)
    with pytest.raises(ValueError, match=words):
        trial_seeds(seed, "tiny", {}, [0])
    assert prepare(EXPERIMENT, "quick", tmp_path, seed=0).seed == 0
    assert len(trial_seeds(0, "tiny", {}, range(3))) == 3


def test_a_manifest_says_which_run_it_is(tmp_path: Path) -> None:
    preparation = prepare(EXPERIMENT, "quick", tmp_path, 4, {"scale": "2", "d": 3})
    finish(preparation)
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    assert manifest == {
        "experiment": "tiny",
        "attsvm": __version__,
        "code": code_hash(EXPERIMENT),
        "seed": 4,
        "parameters": parameters_hash(EXPERIMENT, preparation.cells),
        "effort": "quick",
        "overrides": {"scale": "2", "d": "3"},
        "trials": 14,
        "seconds": preparation.store.seconds,
    }
    assert IDENTITY.keys() == {"experiment", "attsvm", "code", "seed", "parameters"}
    assert read_manifest(tmp_path) == manifest
    assert read_manifest(tmp_path / "none") is None


def test_a_manifest_is_read_by_people_too(tmp_path: Path) -> None:
    finish(prepare(EXPERIMENT, "quick", tmp_path, 0, {"trials": 1, "log": str(tmp_path / "café")}))
    lines = (tmp_path / "manifest.json").read_text(encoding="utf-8").splitlines()
    assert lines[:2] == ["{", '  "experiment": "tiny",']
    assert any(line.endswith('café"') for line in lines)


def test_the_seconds_of_a_run_are_those_of_its_shards(tmp_path: Path) -> None:
    store = Store(tmp_path, dict.fromkeys(IDENTITY, "x"))
    assert store.finished_at is None
    with store.lock():
        store.add(1, 3, [{"seed": 1, "x": 1}], 0.25)
        store.add(0, 1, [{"seed": 0, "x": 0.5}], 1.00049)
        assert [path.name for path in sorted((tmp_path / "shards").iterdir())] == [
            "00000000-00000001.parquet",
            "00000001-00000003.parquet",
        ]
        assert store.missing(3) == []
        assert store.missing(5) == [(3, 5)]
        # The table keeps the order of the batches, and one type for a column.
        assert repr(store.finish()) == repr([{"seed": 0, "x": 0.5}, {"seed": 1, "x": 1.0}])
    assert store.seconds == 1.25
    finished = store.finished_at
    assert finished is not None
    assert abs((datetime.now() - finished).total_seconds()) < 60
    assert pq.read_schema(tmp_path / "rows.parquet").metadata is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "rows.parquet"]
    again = Store(tmp_path, dict.fromkeys(IDENTITY, "x"))
    assert (again.seconds, again.finished_at) == (1.25, finished)
    assert Store(tmp_path, dict.fromkeys(IDENTITY, "y"), fresh=True).finished_at is None


def test_the_time_a_run_was_finished_is_that_of_its_file(tmp_path: Path) -> None:
    run(EXPERIMENT, out=tmp_path, overrides={"trials": 1})
    moment = datetime(2024, 5, 6, 7, 8, 9)
    os.utime(tmp_path / "rows.parquet", (moment.timestamp(), moment.timestamp()))
    assert prepare(EXPERIMENT, "quick", tmp_path, overrides={"trials": 1}).store.finished_at == moment


@pytest.mark.parametrize(
    ("shards", "batches", "gaps"),
    [
        ([], 3, [(0, 3)]),
        ([], 0, []),
        ([(0, 3)], 3, []),
        ([(1, 2)], 3, [(0, 1), (2, 3)]),
        ([(0, 1), (1, 2), (4, 12)], 13, [(2, 4), (12, 13)]),
        ([(12_345_678, 23_456_789)], 23_456_789, [(0, 12_345_678)]),
    ],
)
def test_gaps_are_the_batches_of_no_shard(
    tmp_path: Path, shards: list[tuple[int, int]], batches: int, gaps: list[tuple[int, int]]
) -> None:
    store = Store(tmp_path, {})
    with store.lock():
        for start, stop in shards:
            store.add(start, stop, [{"seed": start}], 0.0)
        assert store.missing(batches) == gaps


@pytest.mark.parametrize("drawn", [True, False])
def test_only_files_of_a_run_are_discarded(tmp_path: Path, drawn: bool) -> None:
    names = ["figure.png", "figure.pdf", "explanation.json", "mine.txt", "rows.parquet"]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    if drawn:
        (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "00000000-00000001.parquet").write_bytes(b"x")
    discard(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == (["mine.txt"] if drawn else sorted(names[:4]))
    discard(tmp_path)


def test_a_manifest_that_cannot_be_read_is_discarded_without_figures(tmp_path: Path) -> None:
    (tmp_path / "figure.png").write_bytes(b"x")
    for text in ("{", "[]"):
        (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
        discard(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]


def test_a_fresh_run_removes_its_predecessor_when_it_begins(tmp_path: Path) -> None:
    run(EXPERIMENT, out=tmp_path, seed=1)
    (tmp_path / "figure.png").write_bytes(b"x")
    fresh = prepare(EXPERIMENT, "quick", tmp_path, fresh=True)
    assert (tmp_path / "figure.png").exists()
    with fresh.store.lock():
        assert list(tmp_path.iterdir()) == []


def test_shards_alone_are_a_run_and_a_manifest_alone_is_none(tmp_path: Path) -> None:
    """A finished run that is opened again has the seconds of its manifest."""
    store = Store(tmp_path, dict.fromkeys(IDENTITY, "x"))
    with store.lock():
        store.add(0, 1, [{"seed": 0}], 0.5)
    with pytest.raises(ValueError, match=r"holds another run: its experiment and its version of attsvm and its code"):
        Store(tmp_path, dict.fromkeys(IDENTITY, "y"))
    with pytest.raises(ValueError, match=r"another run: its root seed differs; choose another --out, or start over"):
        Store(tmp_path, dict.fromkeys(IDENTITY, "x") | {"seed": "y"})
    assert Store(tmp_path, dict.fromkeys(IDENTITY, "x") | {"effort": "y"}).missing(2) == [(1, 2)]
    (tmp_path / "shards" / "00000000-00000001.parquet").unlink()
    assert Store(tmp_path, dict.fromkeys(IDENTITY, "y")).missing(2) == [(0, 2)]


def test_progress_begins_with_what_an_earlier_run_has_done(tmp_path: Path) -> None:
    texts: list[tuple[str, float]] = []
    preparation = prepare(EXPERIMENT, "quick", tmp_path)
    batches = cut(preparation.cells, EXPERIMENT.batch)
    with preparation.store.lock():
        result = compute(task_of(EXPERIMENT, 0, batches[1:4]), math.inf)
        preparation.store.add(1, 4, result.rows, result.seconds)
    rows = run(EXPERIMENT, out=tmp_path, progress=lambda *told: texts.append(told), interval=0.0)
    # Batches 1 to 3: three trials, one, and three of the next cell.
    assert texts[0] == ("tiny: 7 of 42 trials", 7 / 42)
    assert texts[-1][0].startswith("tiny: 42 of 42 trials, ")
    shares = [share for _, share in texts]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(rows) == 42
    assert preparation.trials == 42


def test_sentences_come_at_most_once_in_an_interval(tmp_path: Path) -> None:
    texts: list[str] = []
    run(EXPERIMENT, progress=lambda text, share: texts.append(text), interval=1e9)
    assert set(texts) == {"tiny: 0 of 42 trials"}


class Recorder:
    """A crew that computes some of the ranges, and records what it is given."""

    def __init__(self, most: int) -> None:
        self.most, self.ranges = most, []

    def work(self, experiment: Any, seed: int, batches: Any, ranges: Any, keep: Any, meter: Meter) -> None:
        self.given = (experiment, seed, len(batches))
        self.ranges = list(ranges)
        keep(0, self.most, compute(task_of(experiment, seed, batches[: self.most]), math.inf))


def test_a_crew_gets_what_is_missing_and_a_run_without_all_rows_is_interrupted(tmp_path: Path) -> None:
    short = Recorder(5)
    with pytest.raises(Interruption, match=r"^tiny$"):
        run(EXPERIMENT, out=tmp_path, seed=2, crew=short)
    assert short.given == (EXPERIMENT, 2, 18)
    assert short.ranges == [(0, 18)]
    rest = Recorder(0)
    with pytest.raises(Interruption):
        run(EXPERIMENT, out=tmp_path, seed=2, crew=rest)
    assert rest.ranges == [(5, 18)]
    whole = Recorder(18)
    assert run(EXPERIMENT, seed=2, crew=whole) == run(EXPERIMENT, out=tmp_path, seed=2)


def test_one_process_computes_shards_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a range comes before the next range, and nothing is computed after a stop."""
    budgets: list[Any] = []
    sizes = iter([1, 2, 1, 4])

    def some(task: Task, budget: float, stop: Any) -> Result:
        budgets.append((budget, stop))
        size = next(sizes)
        return Result([{"seed": 0}] * size, min(size, len(task.batches)), 0.0)

    monkeypatch.setattr(runner, "compute", some)
    kept: list[tuple[int, int]] = []
    meter = Meter("tiny", 10, 0, None, 1.0)
    ranges = deque([(3, 6), (8, 9), (9, 20)])
    batches = cut([Config(trials=60)], 3)

    def keep(start: int, stop: int, result: Result) -> None:
        kept.append((start, stop))
        meter.stopped = len(kept) == 4

    SerialCrew().work(EXPERIMENT, 0, batches, ranges, keep, meter)
    assert kept == [(3, 4), (4, 6), (8, 9), (9, 13)]
    assert list(ranges) == [(13, 20)]
    assert budgets == [(SHARD_SECONDS, meter.show)] * 4


def test_nothing_is_kept_without_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rows = run(EXPERIMENT, overrides={"trials": 2})
    assert len(rows) == 12
    assert list(tmp_path.iterdir()) == []


def test_a_column_is_as_wide_as_its_widest_value() -> None:
    rows: list[Row] = [
        {"a": 1, "b": (1, 2.5), "c": None, "d": np.array([1, 2]), "e": "x"},
        {"a": np.float32(0.5), "b": [], "c": None, "d": [None, 3], "f": np.bool_(True)},
        {"b": None, "a": None},
    ]
    table = tables.table_of(rows)
    assert table.schema.names == list("abcdef")
    assert table.schema.types == [
        pa.float64(), pa.list_(pa.float64()), pa.null(), pa.list_(pa.int64()), pa.string(), pa.bool_()
    ]  # fmt: skip
    assert table.to_pylist()[1:] == [
        {"a": 0.5, "b": [], "c": None, "d": [None, 3], "e": None, "f": True},
        dict.fromkeys("abcdef"),
    ]


def test_columns_of_one_table_are_null_in_another() -> None:
    parts = [tables.table_of(rows) for rows in ([{"a": 1}], [{"b": [1]}, {"b": [0.5]}], [{"a": 0.5}])]
    merged = tables.merge(parts)
    assert merged.to_pylist() == [
        {"a": 1.0, "b": None},
        {"a": None, "b": [1.0]},
        {"a": None, "b": [0.5]},
        {"a": 0.5, "b": None},
    ]
    assert merged["a"].num_chunks == 1
    assert tables.merge([]).num_rows == tables.merge([]).num_columns == 0


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([1, "x"], "x is of type int64 in one row and string in another; one type was expected."),
        ([True, 0.5], "x is of type bool in one row and double in another; one type was expected."),
        ([[1], [True]], "x is of type int64 in one row and bool in another; one type was expected."),
        ([[1], 1], "x is of type list<item: int64> in one row and int64 in another; one type was expected."),
        ([{"k": 1}], "x of a row is {'k': 1}; a number, string, boolean, None or flat list was expected."),
        ([[[1]]], "x of a row is [[1]]; a number, string, boolean, None or flat list was expected."),
    ],
)
def test_values_without_a_common_type_are_told(values: list[Any], sentence: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(sentence)}$"):
        tables.table_of([{"x": value} for value in values])


def test_a_damaged_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    tables.write(tables.table_of([{"a": 1}]), path)
    assert tables.read_table(path).to_pylist() == [{"a": 1}]
    path.write_bytes(b"half")
    with pytest.raises(OSError, match=rf"^{re.escape(str(path))} is damaged: "):
        tables.read_table(path)
