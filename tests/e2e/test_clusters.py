"""Clusters started by hand: a worker killed and one added in mid-run, none left, the scheduler lost, Ctrl-C."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest

from attsvm import ShardedProblem, solve
from attsvm.cli import main
from attsvm.platform import cluster as dask_cluster
from attsvm.platform.cluster import ClusterLost, quiet
from attsvm.solvers.working_sets import rounds
from attsvm_paper import registry
from attsvm_paper.engine.store import Store
from problems import FAMILIES
from tiny_experiment import EXPERIMENT

TESTS = Path(__file__).parents[1]


class ByHand:
    """`dask scheduler` and `dask worker` as somebody types them."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "scheduler.json"
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        self._environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.scheduler = self._run("scheduler", "--port", "0", "--host", "127.0.0.1")
        self.workers: list[subprocess.Popen[bytes]] = []
        end = time.monotonic() + 60
        while not self._file.exists():
            assert time.monotonic() < end
            time.sleep(0.1)
        self.address = json.loads(self._file.read_text(encoding="utf-8"))["address"]

    def _run(self, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", what, "--scheduler-file", str(self._file), "--no-dashboard"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([*command, *arguments], env=self._environment, **quiet)  # type: ignore[call-overload]

    def add(self) -> None:
        self.workers.append(self._run("worker", "--nthreads", "1", "--no-nanny"))

    def kill_one(self) -> None:
        worker = self.workers.pop(0)
        worker.kill()
        worker.wait()

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[ByHand]:
    cluster = ByHand(tmp_path)
    cluster.add()
    cluster.add()
    yield cluster
    cluster.close()


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> ShardedProblem:
    """A problem of several rounds."""
    monkeypatch.setattr(rounds, "SET_RATIO", 1)
    problem = FAMILIES["planted"].make(np.random.default_rng(5), 200, 8, 6)
    return ShardedProblem.from_arrays(problem.tokens, problem.queries, problem.reference, chunk=20)


@pytest.mark.slow
def test_workers_come_and_go_in_a_solve_and_a_run_of_an_experiment(
    by_hand: ByHand, pieces: ShardedProblem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = solve(pieces)
    assert len(answer.rounds) >= 3
    rounds: list[int] = []

    def replace_a_worker(state: Any) -> bool:
        rounds.append(state.iteration)
        if len(rounds) == 1:
            by_hand.add()
            by_hand.kill_one()
        return False

    solution = solve(pieces, scheduler=by_hand.address, callback=replace_a_worker)
    assert len(rounds) >= 3
    assert solution.objective == pytest.approx(answer.objective, rel=1e-9)
    assert solution.verify()

    monkeypatch.setitem(registry.FIGURES, "tiny", EXPERIMENT)
    settings = ["--set", "trials=20", "--set", "pause=0.01"]
    assert main(["reproduce", "tiny", "--out", str(tmp_path / "alone"), *settings]) == 0
    add, kills = Store.add, []

    def add_and_replace(*arguments: Any) -> None:
        add(*arguments)
        if not kills:
            kills.append(True)
            by_hand.add()
            by_hand.kill_one()

    monkeypatch.setattr(Store, "add", add_and_replace)
    there = ["--out", str(tmp_path / "there"), "--scheduler", by_hand.address]
    assert main(["reproduce", "tiny", *there, *settings]) == 0
    assert kills
    rows = [(tmp_path / name / "tiny" / "rows.parquet").read_bytes() for name in ("alone", "there")]
    assert rows[0] == rows[1]


@pytest.mark.slow
def test_what_a_lost_cluster_leaves_goes_on(
    by_hand: ByHand, pieces: ShardedProblem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cluster, "ALONE_SECONDS", 1.0)
    answer, file, rounds = solve(pieces), tmp_path / "run.npz", []

    def lose_the_workers(state: Any) -> bool:
        rounds.append(state.iteration)
        if len(rounds) == 2:
            by_hand.kill_one()
            by_hand.kill_one()
        return False

    with pytest.raises(ClusterLost, match=r"^no worker of the dask cluster has been there for"):
        solve(pieces, scheduler=by_hand.address, checkpoint=file, callback=lose_the_workers)
    assert file.exists()
    by_hand.add()
    with quiet(), distributed.Client(by_hand.address, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=60)
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 2.0)  # for as long a lost scheduler is looked for

    def lose_the_scheduler(state: Any) -> bool:
        by_hand.scheduler.kill()
        by_hand.scheduler.wait()
        return False

    with pytest.raises(ClusterLost, match=r"^the dask cluster is gone; finished work is kept"):
        solve(pieces, scheduler=by_hand.address, checkpoint=file, callback=lose_the_scheduler)
    solution = solve(pieces, checkpoint=file)
    assert len(solution.rounds) < len(answer.rounds)
    assert solution.objective == pytest.approx(answer.objective, rel=1e-9)
    assert not file.exists()


def test_ctrl_c_leaves_the_checkpoint(pieces: ShardedProblem, tmp_path: Path) -> None:
    answer, file, rounds = solve(pieces), tmp_path / "run.npz", []

    def interrupt(state: Any) -> bool:
        rounds.append(state.iteration)
        if len(rounds) == 2:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        solve(pieces, checkpoint=file, callback=interrupt)
    solution = solve(pieces, checkpoint=file)
    assert len(solution.rounds) < len(answer.rounds)
    assert solution.objective == pytest.approx(answer.objective, rel=1e-9)
