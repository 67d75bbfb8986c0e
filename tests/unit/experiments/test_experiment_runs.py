"""The engine in one process: the same rows whatever happens, and directories that hold another run are refused."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from attsvm.platform.meter import Meter, duration
from attsvm_paper import registry
from attsvm_paper.engine import runner
from attsvm_paper.engine.compute import compute, cut, task_of
from attsvm_paper.engine.runner import Interruption, prepare, run
from attsvm_paper.engine.seeds import trial_seeds
from tiny_experiment import EXPERIMENT, Config


def test_rows_carry_their_cell_and_come_in_order(tmp_path: Path) -> None:
    rows = run(EXPERIMENT, "quick", tmp_path / "tiny", seed=4)
    assert [(row["d"], row["numerics"], row["trial"]) for row in rows] == [
        (d, numerics, trial) for d in (2, 3, 5) for numerics in ("exact", "published") for trial in range(7)
    ]
    seeds = trial_seeds(4, "tiny", {"d": 3}, range(7))
    for numerics in ("exact", "published"):
        mine = [row for row in rows if (row["d"], row["numerics"]) == (3, numerics)]
        assert [row["seed"] for row in mine] == seeds.tolist()
    x = np.random.default_rng(rows[0]["seed"]).standard_normal(2)
    assert rows[0]["x"] == x.tolist()
    assert all(row["depth"] is None for row in rows if row["positive"])
    assert sorted(path.name for path in (tmp_path / "tiny").iterdir()) == ["manifest.json", "rows.parquet"]


def test_an_interrupted_run_continues_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    settings = {"log": str(log)}
    whole = run(EXPERIMENT, "quick", tmp_path / "whole", overrides=settings)
    count = len(log.read_text().splitlines())
    log.unlink()

    monkeypatch.setattr(runner, "SHARD_SECONDS", 0.0)  # a batch is a shard
    stops = 0
    for patience in (1, 4, 7, 100):
        messages: list[str] = []
        try:
            rows = run(
                EXPERIMENT, "quick", tmp_path / "parts", overrides=settings,
                progress=lambda text, share, log=messages, most=patience: log.append(text) or len(log) > most,
            )  # fmt: skip
        except Interruption:
            stops += 1
    assert stops == 3
    assert rows == whole
    assert len(log.read_text().splitlines()) == count  # nothing was computed twice
    files = [tmp_path / name / "rows.parquet" for name in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_finished_run_is_read_and_not_repeated(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = run(EXPERIMENT, "quick", tmp_path / "tiny", overrides={"log": str(log)})
    log.unlink()
    assert run(EXPERIMENT, "quick", tmp_path / "tiny", overrides={"log": str(log)}) == first
    assert not log.exists()


def test_a_hole_between_shards_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SHARD_SECONDS", 0.0)
    whole = run(EXPERIMENT, "quick")
    preparation = prepare(EXPERIMENT, "quick", tmp_path / "tiny")
    batches = cut(preparation.cells, EXPERIMENT.batch)
    with preparation.store.lock():
        for start in (0, 5, 6):
            result = compute(task_of(EXPERIMENT, 0, batches[start : start + 1]), 0.0)
            preparation.store.add(start, start + 1, result.rows, result.seconds)
        (tmp_path / "tiny" / "shards" / ".00000001-00000002.parquet.1.partial").write_bytes(b"half")
        assert preparation.store.missing(len(batches)) == [(1, 5), (7, len(batches))]
    assert run(EXPERIMENT, "quick", tmp_path / "tiny") == whole


def test_a_subset_of_the_cells_gives_a_subset_of_the_rows() -> None:
    whole = run(EXPERIMENT, "full")
    part = run(EXPERIMENT, "quick", overrides={"d": 3, "numerics": "exact", "trials": 5})
    same = [row for row in whole if row["d"] == 3 and row["numerics"] == "exact"][:5]
    assert part == [row | {"trials": 5} for row in same]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, "root seed differs"),
        ({"effort": "full"}, r"set of cells \(--quick, --full, --set\) differs"),
        ({"overrides": {"d": 2}}, r"set of cells \(.*\) differs"),
        ({"experiment": replace(EXPERIMENT, batch=4)}, r"set of cells \(.*\) differs"),
        ({"experiment": replace(EXPERIMENT, trials=lambda config, seeds: [])}, "code of the experiment differs"),
        ({"seed": 1, "effort": "full"}, r"root seed and its set of cells \(.*\) differ"),
    ],
)
def test_another_run_is_refused(tmp_path: Path, change: dict, words: str) -> None:
    run(EXPERIMENT, "quick", tmp_path)
    before = (tmp_path / "rows.parquet").read_bytes()
    inputs = {"experiment": EXPERIMENT, "effort": "quick", "out": tmp_path} | change
    with pytest.raises(ValueError, match=rf"holds another run: its {words}; .*--fresh\.$"):
        prepare(**inputs)
    assert (tmp_path / "rows.parquet").read_bytes() == before
    prepare(**inputs, fresh=True)
    assert (tmp_path / "rows.parquet").read_bytes() == before  # discarded only once the run begins


def test_what_is_no_run_is_refused_and_fresh_starts_over(tmp_path: Path) -> None:
    run(EXPERIMENT, "quick", tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read as JSON"):
        prepare(EXPERIMENT, "quick", tmp_path)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(ValueError, match="no manifest"):
        prepare(EXPERIMENT, "quick", tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ValueError, match="without a manifest"):
        prepare(EXPERIMENT, "quick", tmp_path)
    rows = runner.finish(prepare(EXPERIMENT, "quick", tmp_path, seed=5, fresh=True))
    assert rows == run(EXPERIMENT, "quick", seed=5)
    assert json.loads((tmp_path / "manifest.json").read_text())["seed"] == 5


def test_a_run_without_rows_keeps_no_other_out(tmp_path: Path) -> None:
    run(EXPERIMENT, "quick", tmp_path, seed=7)
    (tmp_path / "rows.parquet").unlink()
    assert run(EXPERIMENT, "quick", tmp_path) == run(EXPERIMENT, "quick")
    assert json.loads((tmp_path / "manifest.json").read_text())["seed"] == 0


def test_files_of_the_users_outlive_every_run(tmp_path: Path) -> None:
    own = [tmp_path / name for name in ("shards/mine.parquet", ".mine.1.partial", "shards/.mine.1.partial")]
    own += [tmp_path / "figure.png"]  # there is no manifest yet, so no run has drawn it
    (tmp_path / "shards").mkdir()
    for path in own:
        path.write_bytes(b"mine")
    for fresh in (True, False):
        runner.finish(prepare(EXPERIMENT, "quick", tmp_path, fresh=fresh))
    assert [path.read_bytes() for path in own] == [b"mine"] * 4
    (tmp_path / "manifest.json").unlink()
    runner.finish(prepare(EXPERIMENT, "quick", tmp_path, fresh=True))
    assert [path.read_bytes() for path in own] == [b"mine"] * 4
    assert not list((tmp_path / "shards").glob("0*"))


def test_sizes_below_one_are_refused_unless_some_cell_has_them() -> None:
    with pytest.raises(ValueError, match="trials is -1 for tiny; at least 1 was expected"):
        prepare(EXPERIMENT, "quick", "nowhere", overrides={"trials": "-1"})
    assert prepare(registry.get("phase-diagram"), "quick", "nowhere", overrides={"steps": "0"}).trials > 0
    with pytest.raises(ValueError, match="d is 0 for svm-rank; at least 1 was expected"):
        prepare(registry.get("svm-rank"), "quick", "nowhere", overrides={"d": "0"})


def test_two_runs_cannot_share_a_directory(tmp_path: Path) -> None:
    with prepare(EXPERIMENT, "quick", tmp_path).store.lock(), pytest.raises(OSError, match="in use by another run"):
        run(EXPERIMENT, "quick", tmp_path)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (lambda seeds: [{"x": 1.0}], "the seed None"),
        (lambda seeds: [{"seed": 3}], "the seed 3"),
        (lambda seeds: [{"seed": seeds[0]}], "no row for some"),
        (lambda seeds: [{"seed": seed, "d": 1} for seed in seeds], "the keys"),
    ],
)
def test_rows_that_break_the_contract_are_named(rows, words: str) -> None:
    experiment = replace(EXPERIMENT, trials=lambda config, seeds: rows(seeds))
    with pytest.raises(ValueError, match=words):
        run(experiment, "quick")


def test_batches_are_cut_at_the_same_places_and_may_come_in_any_order() -> None:
    batches = cut([Config(trials=7), Config(trials=2)], 3)
    assert [(batch.start, batch.stop) for batch in batches] == [(0, 3), (3, 6), (6, 7), (0, 2)]
    backwards = replace(EXPERIMENT, trials=lambda config, seeds: EXPERIMENT.trials(config, seeds)[::-1])
    assert run(backwards, "quick") == run(EXPERIMENT, "quick")


def test_a_shard_ends_with_its_budget_and_tells_its_processor_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(perf_counter=count(1000.0).__next__, process_time=count(50.0, 0.25).__next__)
    monkeypatch.setattr("attsvm_paper.engine.compute.time", clock)
    task = task_of(EXPERIMENT, 0, cut(EXPERIMENT.sweep("quick"), EXPERIMENT.batch))
    # The clock shows a second more after every batch.
    result = compute(task, 2.5)
    assert (result.batches, result.seconds) == (3, 0.25)
    assert len(result.rows) == sum(batch.stop - batch.start for batch in task.batches[:3])
    assert compute(task, 1e6).batches == len(task.batches)


def test_progress_tells_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(0, 100, 10.0))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    messages: deque[tuple[str, float]] = deque()
    meter = Meter("tiny", 1000, 200, lambda text, share: messages.append((text, share)), interval=10.0)
    for trials in (100, 0, 0, 200):
        meter.add(trials)
    assert messages.popleft() == ("tiny: 200 of 1,000 trials", 0.2)
    assert messages.popleft() == ("tiny: 300 of 1,000 trials, 10 a second, 70 s left", 0.3)
    # The rate is of the last 30 s: 200 trials since the 10th second, at the 40th.
    assert messages.pop() == ("tiny: 500 of 1,000 trials, 6.67 a second, 75 s left", 0.5)
    meter.show(under_way=100)
    assert messages.pop() == ("tiny: 600 of 1,000 trials, 10 a second, 40 s left", 0.6)
    assert [duration(seconds) for seconds in (3.4, 500, 7200, 7500)] == ["3 s", "8 min", "2 h 0 min", "2 h 5 min"]
