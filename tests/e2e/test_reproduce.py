"""`attsvm reproduce` and `attsvm list`: workers, kills, Ctrl-C, what is written, and what is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from distributed import LocalCluster

import attsvm
import tiny_experiment
from attsvm.cli import main
from attsvm.platform import cluster as dask_cluster
from attsvm.platform.cluster import quiet
from attsvm.platform.summary import counted
from attsvm_paper import registry
from attsvm_paper.engine import workers
from attsvm_paper.engine.runner import prepare, run
from attsvm_paper.engine.store import Store
from attsvm_paper.judging.joint import JointTest, joint_test
from attsvm_paper.judging.verdict import Row
from tiny_experiment import EXPERIMENT
from tiny_experiment import readings as tiny_readings

LAUNCH = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from attsvm_paper import registry
from attsvm_paper.engine import runner
from tiny_experiment import EXPERIMENT
registry.FIGURES["tiny"] = EXPERIMENT
runner.SHARD_SECONDS = 0.15
from attsvm.cli import main
sys.exit(main())
"""
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.FIGURES, "tiny", EXPERIMENT)


@pytest.mark.slow
def test_a_reader_that_leaves_and_a_full_disk_cost_no_report(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", LAUNCH, "reproduce", "tiny", "--out", str(tmp_path)]
    process = subprocess.run(command, stdout=writing, stderr=writing, env=ENVIRONMENT, check=False)
    os.close(writing)
    assert process.returncode == 0
    assert (tmp_path / "index.html").exists()
    if Path("/dev/full").exists():
        with Path("/dev/full").open("w") as full:
            run_result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False)
        assert run_result.stderr.count(b"attsvm: the output cannot be written: No space left on device.\n") == 1
        assert b"Traceback" not in run_result.stderr


def launch(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LAUNCH, "reproduce", "tiny", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True
    )


def shards(out: Path) -> list[Path]:
    return list((out / "tiny" / "shards").glob("*.parquet"))


def wait_for(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def computations(log: Path) -> Counter[str]:
    """How often each batch, known by its seeds, was computed."""
    return Counter(line.split(" ", 1)[1] for line in log.read_text(encoding="utf-8").splitlines())


@pytest.fixture
def unpaused(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after which trials of this process no longer pause, though the pause stays in their rows."""
    return lambda: monkeypatch.setattr(tiny_experiment, "time", SimpleNamespace(sleep=lambda seconds: None))


def one_sentence(streams: pytest.CaptureResult[str]) -> str:
    assert streams.out == ""
    assert streams.err.startswith("attsvm: ")
    assert streams.err.count("\n") == 1
    return streams.err


@pytest.mark.slow
def test_after_kill_9_only_what_is_missing_is_computed_and_the_bytes_are_the_same(
    tmp_path: Path, unpaused: Callable[[], None]
) -> None:
    log = tmp_path / "log"
    settings = {"pause": 0.02, "log": str(log), "numerics": "exact"}
    out = tmp_path / "killed"
    with launch("--full", "--out", out, *(f"--set={name}={value}" for name, value in settings.items())) as running:
        wait_for(lambda: len(shards(out)) >= 2)
        os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == -signal.SIGKILL
    assert not (out / "tiny" / "rows.parquet").exists()
    kept_trials = sum(int(path.stem[9:]) - int(path.stem[:8]) for path in shards(out))
    log.unlink()
    unpaused()
    run(EXPERIMENT, "full", out / "tiny", overrides=settings)
    second = computations(log)
    run(EXPERIMENT, "full", tmp_path / "whole", overrides=settings)
    total = (computations(log) - second).total()
    assert second.total() == total - kept_trials < total
    assert (out / "tiny" / "rows.parquet").read_bytes() == (tmp_path / "whole" / "rows.parquet").read_bytes()


@pytest.mark.slow
def test_two_workers_one_of_them_killed_give_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unpaused: Callable[[], None]
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(workers, "SHARD_SECONDS", 0.3)
    settings = {"pause": 0.04, "log": str(log)}  # long enough for a successor to start on a busy machine
    victims: list[int] = []

    def kill_one(text: str, share: float) -> None:
        if share > 0.3 and not victims:
            victims.append(int(log.read_text().splitlines()[-1].split()[0]))
            os.kill(victims[0], signal.SIGKILL)

    with workers.local_crew(2) as crew:
        run(EXPERIMENT, "full", tmp_path / "two", overrides=settings, crew=crew, progress=kill_one)
    processes = {int(line.split()[0]) for line in log.read_text().splitlines()}
    assert len(processes) >= 3  # two, and the successor of the one killed
    assert os.getpid() not in processes
    assert len(victims) == 1
    with_a_kill = computations(log).total()
    unpaused()
    run(EXPERIMENT, "full", tmp_path / "one", overrides=settings)
    rest = computations(log).total() - with_a_kill
    # Lost are the range under way and one that was done but not yet fetched. Each lasts at most twice the seconds of a
    # shard, and a batch of three trials takes 0.06 s.
    assert with_a_kill - rest <= 2 * (2 * 0.3 / 0.06 + 1) < rest
    assert (tmp_path / "two" / "rows.parquet").read_bytes() == (tmp_path / "one" / "rows.parquet").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_ctrl_c_keeps_what_is_done(tmp_path: Path, options: tuple[str, ...]) -> None:
    with launch("--out", tmp_path, "--set", "pause=0.05", "--set", "trials=100", *options) as running:
        wait_for(lambda: len(shards(tmp_path)) >= 2)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to every process of the command
        out, text = running.communicate(timeout=60)
    assert running.returncode == 130, text
    assert out == ""
    lines = text.splitlines()
    assert lines[-2].startswith("Stopping")
    assert lines[-1] == "Not finished: tiny; the same command continues from there."
    assert all(line.startswith("[") for line in lines[:-2]), text
    preparation = prepare(EXPERIMENT, "quick", tmp_path / "tiny", overrides={"pause": 0.05, "trials": 100})
    assert 0 < sum(b - a for a, b in preparation.store.missing(6 * 34)) < 6 * 34


@pytest.mark.slow
def test_a_running_cluster_gives_the_same_rows_and_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "trials=5", "--full"]
    with quiet(), LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        assert main(["reproduce", "tiny", "--out", str(tmp_path / "a"), "--scheduler", address, *settings]) == 0
        assert len(cluster.scheduler_info["workers"]) == 1
    assert main(["reproduce", "tiny", "--out", str(tmp_path / "b"), *settings]) == 0
    assert "tiny: 30 trials" in capsys.readouterr().out
    files = [tmp_path / name / "tiny" / "rows.parquet" for name in "ab"]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
def test_a_cluster_that_goes_away_or_is_of_another_version_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with quiet(), LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        arguments = ["reproduce", "tiny", "--out", str(tmp_path), "--scheduler", cluster.scheduler_address]
        monkeypatch.setattr(attsvm, "__version__", "9.9")
        assert main(arguments) == 2
        assert "9.9 was expected" in one_sentence(capsys.readouterr())
        monkeypatch.undo()
        monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 2.0)
        monkeypatch.setitem(registry.FIGURES, "tiny", EXPERIMENT)
        add = Store.add

        def add_and_close(*arguments) -> None:
            add(*arguments)
            cluster.close()

        monkeypatch.setattr(Store, "add", add_and_close)
        assert main([*arguments, "--set", "pause=0.05"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("attsvm: the dask cluster is gone")
    assert all(line.startswith("[") for line in lines[:-1])
    assert shards(tmp_path)


def test_a_cluster_that_loses_its_workers_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(registry.FIGURES, "tiny", EXPERIMENT)
    monkeypatch.setattr(dask_cluster, "ALONE_SECONDS", 1.0)
    with quiet(), LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        arguments = ["reproduce", "tiny", "--out", str(tmp_path), "--scheduler", cluster.scheduler_address]
        add = Store.add

        def add_and_lose(*arguments) -> None:
            add(*arguments)
            cluster.scale(0)

        monkeypatch.setattr(Store, "add", add_and_lose)
        assert main([*arguments, "--set", "pause=0.02", "--set", "trials=20"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("attsvm: no worker of the dask cluster has been")
    assert shards(tmp_path)


def test_an_empty_cluster_and_a_missing_one_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 1.0)
    out = ["--out", str(tmp_path / "a")]
    for address, text in (
        ("tcp://127.0.0.1:1", "no dask scheduler answers"),
        ("carrier-pigeon://x:1", "no dask scheduler answers"),
        ("nowhere", "scheduler is 'nowhere'; an address such as tcp://"),
    ):
        assert main(["reproduce", "tiny", "--scheduler", address, *out]) == 2
        assert text in one_sentence(capsys.readouterr())
    with quiet(), LocalCluster(n_workers=0, dashboard_address=None) as cluster:
        assert main(["reproduce", "tiny", "--scheduler", cluster.scheduler_address, *out]) == 2
    assert "has no workers" in one_sentence(capsys.readouterr())


def test_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "out"
    assert main(["reproduce", "tiny", "--out", str(out), "--seed", "3", "--set", "numerics=exact"]) == 0
    output = capsys.readouterr()
    assert f"Report: {out / 'index.html'}" in output.out
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()) == [
        "index.html", "tiny/figure.pdf", "tiny/figure.png", "tiny/index.html", "tiny/manifest.json",
        "tiny/rows.parquet", "verdicts.json",
    ]  # fmt: skip
    content = json.loads((out / "verdicts.json").read_text(encoding="utf-8"))
    assert (content["attsvm"], content["complete"], content["unfinished"]) == (attsvm.__version__, True, [])
    (one,) = content["experiments"]
    assert (one["name"], one["seed"], one["effort"], one["trials"]) == ("tiny", 3, "quick", 21)
    assert one["command"] == "attsvm reproduce tiny --quick --seed 3 --set numerics=exact"
    fields = {
        "experiment": str, "quantity": str, "published": (float, int, type(None)), "measured": float, "low": float,
        "high": float, "trials": int, "discarded": int, "infeasible": int, "tolerance": (float, type(None)),
        "verdict": str, "note": str, "key": str, "margin": (float, type(None)), "power": (float, type(None)),
    }  # fmt: skip
    assert len(content["verdicts"]) == 12
    for verdict in content["verdicts"]:
        assert set(verdict) == set(fields)
        for name, kind in fields.items():
            assert isinstance(verdict[name], kind), name
        assert verdict["low"] <= verdict["measured"] <= verdict["high"]
    counts = Counter(verdict["verdict"] for verdict in content["verdicts"])
    assert counts == {"agrees": 3, "corrected": 3, "differs": 3, "measured": 3}
    assert content["counts"] == {**counts, "too weak to tell": 0}
    assert content["joint"] == []


def test_a_finished_directory_is_read_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "tiny", "--out", str(tmp_path)]
    assert main(command) == 0
    assert "read from the run of" not in capsys.readouterr().out
    rows = tmp_path / "tiny" / "rows.parquet"
    before = rows.read_bytes()
    day = time.mktime(time.strptime("2024-02-29 12:30", "%Y-%m-%d %H:%M"))
    os.utime(rows, (day, day))
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "read from the run of 2024-02-29 12:30" in text
    assert "--fresh" in text
    assert rows.stat().st_mtime == day
    assert main([*command, "--fresh"]) == 0
    assert "read from the run of" not in capsys.readouterr().out
    assert rows.stat().st_mtime > day
    assert rows.read_bytes() == before


@pytest.mark.slow
def test_readings_are_searched_printed_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def joint(rows: Sequence[Row]) -> list[JointTest]:
        test = joint_test("tiny", "Fig. 0", tiny_readings()[1].points(rows))
        assert test is not None
        return [test]

    experiment = replace(EXPERIMENT, readings=tiny_readings, joint=joint)
    monkeypatch.setattr(registry, "get", lambda name: experiment)
    assert main(["reproduce", "tiny", "--out", str(tmp_path)]) == 0
    (test,) = json.loads((tmp_path / "verdicts.json").read_text(encoding="utf-8"))["joint"]
    assert (test["searched"], test["agreeing"]) == (3, None)
    capsys.readouterr()
    assert main(["reproduce", "tiny", "--explain", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    # Sixty trials of each.
    assert lines[0].startswith("Fig. 0, 3 readings of its protocol. Too few trials to tell: the likeliest of 3")
    assert lines[0].endswith("): scale 1.")
    assert lines[1].split() == ["likelihood", "p", "numbers", "verdict", "scale"]
    assert [line.split()[-1] for line in lines[2:5]] == ["1", "2", "4"]
    explanation = json.loads((tmp_path / "tiny" / "explanation.json").read_text(encoding="utf-8"))
    weights = [one["weight"] for one in explanation]
    assert weights == sorted(weights, reverse=True)
    assert sum(weights) == pytest.approx(1.0)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "Fig. 0: 3 readings of the protocol" in page
    (test,) = json.loads((tmp_path / "verdicts.json").read_text(encoding="utf-8"))["joint"]
    agreeing = sum(one["verdict"] == "agrees" for one in explanation)
    assert (test["searched"], test["agreeing"]) == (3, agreeing)
    assert f">3, {counted(agreeing, 'agrees', 'agree')}</td>" in page


@pytest.mark.slow
def test_another_experiment_joins_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.FIGURES, "again", replace(EXPERIMENT, name="again"))
    for name in ("again", "tiny"):
        assert main(["reproduce", name, "--out", str(tmp_path)]) == 0
    content = json.loads((tmp_path / "verdicts.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in content["experiments"]] == ["tiny", "again"]
    # One whose rows are of other code is left out, not shown as if it were of this.
    manifest = json.loads((tmp_path / "again" / "manifest.json").read_text())
    (tmp_path / "again" / "manifest.json").write_text(json.dumps(manifest | {"code": "old"}))
    assert main(["reproduce", "tiny", "--out", str(tmp_path)]) == 0
    content = json.loads((tmp_path / "verdicts.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in content["experiments"]] == ["tiny"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["tinny"], "tiny was expected"),
        (["tiny", "--set", "dd=3"], "'dd' is no parameter of tiny"),
        (["tiny", "--set", "d=three"], "an integer was expected"),
        (["tiny", "--set", "d=0"], "d is 0"),
        (["tiny", "--set", "d"], "FIELD=VALUE"),
        (["tiny", "--seed", "-1"], "seed is -1"),
        (["tiny", "--quick", "--full"], "exclude each other"),
        (["tiny", "--workers", "0"], "--workers is 0"),
        (["tiny", "--explain"], "tiny has no readings to search"),
        (["tiny", "--explain", "--full"], "--explain runs cells of its own"),
        (["tiny", "--workers", "2", "--scheduler", "tcp://x:1"], "exclude each other"),
        (["tiny", "--out", "{file}"], "--out"),
        (["tiny", "--out", "{other}"], "holds another run: its root seed differs"),
    ],
)
def test_bad_arguments_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    word: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    run(EXPERIMENT, "quick", tmp_path / "other" / "tiny", seed=7)
    before = sorted(tmp_path.rglob("*"))
    places = {"file": tmp_path / "file", "other": tmp_path / "other"}
    assert main(["reproduce", *(argument.format(**places) for argument in arguments)]) == 2
    assert word in one_sentence(capsys.readouterr())
    assert sorted(tmp_path.rglob("*")) == before


def test_parameters_that_only_the_experiment_can_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> list:
        raise IndexError("no such cell")

    # Rows that cannot be made, and rows that cannot be compared: one line, the second after the report of the others.
    for part, word in (("trials", "cannot be run with these --set"), ("verdicts", "its rows are complete")):
        experiment = replace(EXPERIMENT, **{part: fail})
        monkeypatch.setattr(registry, "get", lambda name, experiment=experiment: experiment)
        arguments = ["reproduce", "tiny", "--out", str(tmp_path / part)]
        assert main([*arguments, "--set", "d=4"]) == 2
        text = capsys.readouterr().err.splitlines()[-1]
        assert text.startswith("attsvm: tiny ")
        assert word in text
        assert "no such cell" in text
        assert not (tmp_path / part / "index.html").exists()
        if part == "trials":  # no rows, so nothing that would keep another run out
            assert not list((tmp_path / part).rglob("*.*"))
            run(EXPERIMENT, "quick", tmp_path / part / "tiny")
        with pytest.raises(IndexError):  # on its own cells that is a bug
            main([*arguments, "--fresh"])


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("attsvm_paper.cli.reproduce.find_spec", lambda name: None)
    assert main(["reproduce", "tiny", "--workers", "1"]) == 2
    text = one_sentence(capsys.readouterr())
    assert "needs pyarrow and distributed" in text
    assert "pip install 'attsvm[experiments]'" in text


def test_the_list_names_figure_minutes_and_claim(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in registry.names())
    assert re.search(r"Fig\. 0 +0\.1 / 0\.2 min\n    Coordinates of a Gaussian vector are positive", output)
    minutes = [line.rindex(" / ") for line in output.splitlines() if re.fullmatch(r"  \S.* min", line)]
    assert len(minutes) == len(registry.names())


def test_the_list_is_quick_and_loads_nothing_heavy() -> None:
    code = "import sys; from attsvm.cli import main; main(['list']); print(*sorted(sys.modules), file=sys.stderr)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert {"torch", "numba", "sklearn", "matplotlib", "pyarrow", "distributed"}.isdisjoint(process.stderr.split())
