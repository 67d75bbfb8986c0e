"""The parts of `attsvm reproduce`: order, progress, whose fault an error is, the crew, and what a report shows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attsvm.cli.console import BadInput
from attsvm.platform.cluster import ClusterLost
from attsvm.platform.files import locked
from attsvm_paper import registry
from attsvm_paper.cli import work
from attsvm_paper.engine.experiment import Experiment
from attsvm_paper.engine.runner import Interruption
from tiny_experiment import EXPERIMENT


class Told:
    """A progress that notes its sentences and shares."""

    interval = 0.25

    def __init__(self) -> None:
        self.calls: list[tuple[str, float]] = []

    def __call__(self, sentence: str, share: float) -> bool:
        self.calls.append((sentence, share))
        return False


def preparation(name: str, minutes: float, earlier: datetime | None = None, trials: int = 2, **fields: Any) -> Any:
    experiment = replace(EXPERIMENT, name=name, minutes={"quick": minutes, "full": 100.0}, **fields)
    store = SimpleNamespace(finished_at=earlier, seconds=3.0)
    return SimpleNamespace(experiment=experiment, effort="quick", overrides={}, trials=trials, store=store)


def compute(monkeypatch: pytest.MonkeyPatch, runs: list[Any], failing: str = "", error: Any = None) -> tuple[Any, Told]:
    """Work on runs whose computation tells that it is half done."""

    def finish(run: Any, crew: Any, progress: Callable[[str, float], bool], interval: float) -> None:
        assert crew is None
        assert interval == Told.interval
        progress(run.experiment.name, 0.5)
        if run.experiment.name == failing:
            raise error

    monkeypatch.setattr(work, "finish", finish)
    for crew in ("local_crew", "cluster_crew"):
        monkeypatch.setattr(work, crew, lambda _: pytest.fail("workers were not asked for"))
    progress = Told()
    return work._work(runs, None, None, progress), progress  # type: ignore[arg-type]


def test_the_share_of_an_experiment_is_its_share_of_the_minutes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [preparation("first", 1.0, trials=1), preparation("second", 3.0), preparation("third", 4.0)]
    left, progress = compute(monkeypatch, runs)
    assert left == []
    assert progress.calls == [("first", 0.0625), ("second", 0.3125), ("third", 0.75)]
    assert capsys.readouterr().out.splitlines() == [
        "first: 1 trial, 3 s", "second: 2 trials, 3 s", "third: 2 trials, 3 s",
    ]  # fmt: skip


def test_experiments_without_minutes_have_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    _, progress = compute(monkeypatch, [preparation("first", 0.0), preparation("second", 0.0)])
    assert progress.calls == [("first", 0.0), ("second", 0.0)]


@pytest.mark.parametrize("reads", [1, 2])
def test_rows_that_were_read_are_told_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reads: int
) -> None:
    day = datetime(2024, 2, 29, 12, 30)
    compute(monkeypatch, [preparation("old", 1.0, day), preparation("new", 1.0, day if reads == 2 else None)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "old: 2 trials, 3 s; read from the run of 2024-02-29 12:30"
    assert ("read from" in lines[1]) == (reads == 2)
    assert lines[2:] == ["Rows that were read were not computed again; --fresh discards them."]


def test_an_interrupted_run_and_those_after_it_are_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [preparation(name, 1.0) for name in ("first", "second", "third")]
    left, progress = compute(monkeypatch, runs, "second", Interruption("second"))
    assert left == runs[1:]
    assert [name for name, _ in progress.calls] == ["first", "second"]
    assert capsys.readouterr().out == "first: 2 trials, 3 s\n"


def test_an_error_of_values_on_own_cells_is_a_bug_and_one_of_the_system_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="deep"):
        compute(monkeypatch, [preparation("a", 1.0)], "a", ValueError("deep"))
    with pytest.raises(BadInput, match=r"^rows: no space left\.$"):
        compute(monkeypatch, [preparation("a", 1.0)], "a", OSError(28, "No space left", "rows"))


def blamed(error: Exception, file: str = "", overrides: dict[str, Any] | None = None) -> BaseException:
    """Return what becomes of an error."""
    with pytest.raises(Exception) as raised, work._blaming_the_user(replace(EXPERIMENT, file=file), overrides or {}):  # noqa: PT011
        raise error
    return raised.value


@pytest.mark.parametrize(
    "error", [BadInput("a"), ClusterLost("b"), Interruption("c"), OSError("d")], ids=lambda error: type(error).__name__
)
def test_errors_with_a_sentence_of_their_own_keep_it(error: Exception) -> None:
    for file in ("", __file__):
        assert blamed(error, file, {"d": "2"}) is error


KNOWN = [ArithmeticError("no"), KeyError("no"), TypeError("no"), ValueError("no")]


@pytest.mark.parametrize("error", KNOWN, ids=lambda error: type(error).__name__)
def test_known_errors_are_blamed_on_what_the_user_chose(error: Exception) -> None:
    assert blamed(error) is error
    text = str(error)
    changed = blamed(error, overrides={"d": "2"})
    assert isinstance(changed, BadInput)
    assert str(changed) == f"tiny cannot be run with these --set: {text}"
    assert changed.__cause__ is error
    # No line of this file raised it.
    in_file = blamed(error, file="own.py")
    assert isinstance(in_file, BadInput)
    assert str(in_file) == text


def test_unknown_errors_are_bugs_unless_a_line_of_the_users_file_raised_them() -> None:
    error = RuntimeError("no")
    assert blamed(error) is error
    assert blamed(error, overrides={"d": "2"}) is error
    assert blamed(error, file="own.py") is error
    line = blamed.__code__.co_firstlineno + 3
    here = blamed(error, file=__file__)
    assert isinstance(here, BadInput)
    assert str(here) == f"{__file__} cannot be run: line {line}: RuntimeError: no."


def test_an_experiment_named_twice_runs_once_and_two_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(EXPERIMENT, name="other")
    known = {"tiny": EXPERIMENT, "./a.py": other, "./b.py": replace(other)}
    monkeypatch.setattr(registry, "get", known.__getitem__)
    assert work._experiments(["tiny", "./a.py", "tiny"]) == [EXPERIMENT, other]
    with pytest.raises(ValueError, match="two files call their experiment 'other'; different names were expected"):
        work._experiments(["./a.py", "./b.py"])


@pytest.mark.parametrize(
    ("workers", "scheduler", "crew"),
    [(None, None, None), (3, None, ("local", 3)), (None, "tcp://x:1", ("cluster", "tcp://x:1"))],
)
def test_the_crew_is_this_process_local_workers_or_a_cluster(
    monkeypatch: pytest.MonkeyPatch, workers: int | None, scheduler: str | None, crew: Any
) -> None:
    events: list[str] = []

    def opening(kind: str) -> Any:
        @contextmanager
        def of(argument: Any) -> Iterator[Any]:
            yield kind, argument
            events.append("closed")

        return of

    monkeypatch.setattr(work, "local_crew", opening("local"))
    monkeypatch.setattr(work, "cluster_crew", opening("cluster"))
    with work._crew(workers, scheduler) as found:
        assert found == crew
        assert events == []
    assert events == ([] if crew is None else ["closed"])


def test_a_cluster_that_is_lost_or_cannot_be_reached_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str) -> Any:
        raise ValueError(f"scheduler is {address!r}; an address was expected.")

    monkeypatch.setattr(work, "cluster_crew", refuse)
    with pytest.raises(BadInput, match="scheduler is 'x'"), work._crew(None, "x"):
        pass

    @contextmanager
    def lost(address: str) -> Iterator[str]:
        yield address

    monkeypatch.setattr(work, "cluster_crew", lost)
    with pytest.raises(BadInput, match="all gone"), work._crew(None, "x"):
        raise ClusterLost("all gone")


class Finished:
    """A finished run that can or cannot be shown."""

    def __init__(self, error: str = "", overrides: dict[str, str] | None = None, file: str = "") -> None:
        self.error, self.overrides = error, overrides or {}
        self.experiment = SimpleNamespace(file=file)

    def check(self) -> None:
        if self.error:
            raise ValueError(self.error)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Arguments of the reports that would be written."""
    noted: list[tuple[Any, ...]] = []

    def write(pages: Sequence[Any], out: Path, command: str, missing: Sequence[str]) -> Path:
        noted.append((list(pages), out, command, missing))
        return out / "index.html"

    monkeypatch.setattr(work, "write_reproduction", write)
    return noted


def report(monkeypatch: pytest.MonkeyPatch, out: Path, runs: list[Finished]) -> tuple[Any, Told, list[Any]]:
    given: list[Any] = []

    def finished_in(directory: Path, own: list[Experiment]) -> list[Finished]:
        assert directory == out
        given.extend(own)
        return runs

    monkeypatch.setattr(work, "finished_in", finished_in)
    progress, experiments = Told(), [EXPERIMENT, replace(EXPERIMENT, name="own", file="own.py")]
    return work._report(out, ["late"], "attsvm x", progress, experiments), progress, given  # type: ignore[arg-type]


def test_the_report_has_the_pages_that_can_be_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: list[tuple[Any, ...]]
) -> None:
    good = [Finished(), Finished()]
    bad = [Finished("one bad", overrides={"d": "2"}), Finished("two bad", file="own.py")]
    result, progress, own = report(monkeypatch, tmp_path, [good[0], *bad, good[1]])
    assert result == (tmp_path / "index.html", ["one bad", "two bad"])
    assert written == [(good, tmp_path, "attsvm x", ["late"])]
    assert progress.calls == [("Drawing the report", 1.0)] * 4
    assert [one.name for one in own] == ["own"]


def test_without_pages_there_is_no_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: list[tuple[Any, ...]]
) -> None:
    result, *_ = report(monkeypatch, tmp_path, [Finished("bad", overrides={"d": "2"})])
    assert result == (None, ["bad"])
    assert report(monkeypatch, tmp_path, [])[0] == (None, [])
    assert written == []


def test_an_experiment_of_attsvm_that_cannot_be_shown_is_a_bug(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bug"):
        report(monkeypatch, tmp_path, [Finished("a bug")])


def test_the_report_waits_for_another_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: list[tuple[Any, ...]]
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path):
            begun.set()
            time.sleep(0.1)
            ended.set()

    other = threading.Thread(target=hold)
    other.start()
    begun.wait()
    try:
        report(monkeypatch, tmp_path, [Finished()])
        assert ended.is_set()
        assert len(written) == 1
    finally:
        other.join()
