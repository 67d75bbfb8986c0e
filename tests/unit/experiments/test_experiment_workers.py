"""Many processes without any: ranges of batches, their sizes, and what is submitted, kept and cancelled."""

from __future__ import annotations

import math
import queue
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from attsvm.platform.cluster import POLL_SECONDS
from attsvm.platform.meter import Meter
from attsvm_paper.engine import workers
from attsvm_paper.engine.compute import Result, compute, cut, task_of
from attsvm_paper.engine.experiment import Experiment
from attsvm_paper.engine.runner import SHARD_SECONDS, run
from attsvm_paper.engine.workers import LEAST_SECONDS, DaskCrew, _Share, _take
from tiny_experiment import EXPERIMENT, Config

BATCHES = cut([Config(trials=60)], EXPERIMENT.batch)  # twenty batches of three trials


class Future:
    """A task that is computed as soon as its caller wants to know."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self.work, self.callbacks = work, []

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self.callbacks.append(callback)

    def result(self, timeout: float) -> Result:
        return self.work()


class Client:
    """Workers of some threads that finish the tasks in their order, each after a given number of batches."""

    def __init__(self, *threads: int, most: int = 1000, seconds: float = 1e-9) -> None:
        self.workers = {name: {"nthreads": count} for name, count in enumerate(threads)}
        self.most, self.seconds = most, seconds
        self.submitted: list[tuple[Any, ...]] = []
        self.waiting: deque[Future] = deque()
        self.longest = 0
        self.status = "running"
        self.looks = 0

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        assert n_workers == -1
        return {"workers": self.workers}

    def submit(self, function: Any, task: Any, budget: float, *, pure: bool) -> Future:
        self.submitted.append((function, task, budget, pure))

        def work() -> Result:
            first = replace(task, batches=task.batches[: self.most]) if function is compute else None
            result = function(task, math.inf) if first is None else compute(first, math.inf)
            return replace(result, seconds=self.seconds * result.batches)

        future = Future(work)
        self.waiting.append(future)
        self.longest = max(self.longest, len(self.waiting))
        return future

    def sizes(self) -> list[int]:
        return [len(task.batches) for _, task, *_ in self.submitted]


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is cancelled at the end; tasks are done one by one, when the caller waits for one."""
    futures: list[Any] = []
    monkeypatch.setattr(workers, "losses_told", nullcontext)
    monkeypatch.setattr(workers, "cancel", lambda client, under_way: futures.append(list(under_way)))
    return futures


class Results:
    """The queue of finished tasks: the first task is finished when the queue is asked, every other time."""

    def __init__(self, client: Client, empty: int = 0) -> None:
        self.client, self.empty = client, empty

    def put(self, future: Future) -> None:
        raise AssertionError("no task is finished by itself")

    def get(self, timeout: float) -> Future:
        assert timeout == POLL_SECONDS
        if self.empty:
            self.empty -= 1
            raise queue.Empty
        return self.client.waiting.popleft()


def work(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    experiment: Experiment = EXPERIMENT,
    ranges: Any = ((0, 20),),
    empty: int = 0,
    stop_after: int = 1000,
) -> list[tuple[int, int]]:
    """Let a crew work; return the ranges that are kept, whose rows are checked."""
    results = Results(client, empty)
    monkeypatch.setattr(workers, "queue", SimpleNamespace(SimpleQueue=lambda: results, Empty=queue.Empty))
    kept: list[tuple[int, int]] = []

    def keep(start: int, stop: int, result: Result) -> None:
        whole = compute(task_of(EXPERIMENT, 5, BATCHES[start:stop]), math.inf)
        assert repr(result.rows) == repr(whole.rows)
        kept.append((start, stop))

    meter = Meter("tiny", 60, 0, lambda *_: len(kept) >= stop_after, 1.0)
    left = deque(ranges)
    DaskCrew(client).work(experiment, 5, BATCHES, left, keep, meter)  # type: ignore[arg-type]
    assert bool(left) == (stop_after < 1000)
    return kept


def test_every_range_is_computed_once_and_two_tasks_wait_per_thread(
    monkeypatch: pytest.MonkeyPatch, cancelled: list[Any]
) -> None:
    client = Client(1, 2)
    monkeypatch.setattr(workers, "SHARD_SECONDS", 0.75)
    kept = work(client, monkeypatch, ranges=((0, 4), (6, 20)))
    assert sorted(at for start, stop in kept for at in range(start, stop)) == [*range(4), *range(6, 20)]
    assert client.longest == 6
    assert {(function, *rest) for function, _, *rest in client.submitted} == {(compute, 1.5, False)}
    assert {task.seed for _, task, *_ in client.submitted} == {5}
    assert cancelled == [[]]


def test_a_cluster_without_workers_is_given_two_tasks(monkeypatch: pytest.MonkeyPatch, cancelled: list[Any]) -> None:
    client = Client()
    work(client, monkeypatch)
    assert client.longest == 2
    monkeypatch.setattr(client, "scheduler_info", lambda n_workers: {})
    assert DaskCrew(client)._threads() == 0  # type: ignore[arg-type]


def test_ranges_begin_with_one_batch_and_double(monkeypatch: pytest.MonkeyPatch, cancelled: list[Any]) -> None:
    """Both tasks of one thread are submitted before anything is known."""
    client = Client(1)
    kept = work(client, monkeypatch)
    # Batches of no measurable time are as many as doubling gives, up to the end.
    assert client.sizes() == [1, 1, 2, 4, 8, 4]
    assert [start for start, _ in kept] == [0, 1, 2, 4, 8, 16]
    slow = Client(1, seconds=0.05)
    work(slow, monkeypatch)
    # Of 12, 6 and 3 that are left half is taken, but no less than 0.1 s.
    assert slow.sizes() == [1, 1, 2, 4, 6, 3, 2, 1]


def test_what_a_task_had_no_time_for_is_submitted_next(monkeypatch: pytest.MonkeyPatch, cancelled: list[Any]) -> None:
    client = Client(1, most=2)
    kept = work(client, monkeypatch)
    assert sorted(kept) == [(0, 1), (1, 2), *((start, start + 2) for start in range(2, 20, 2))]
    # Of batches 4 to 7 two are left, while the other task has 8 and more.
    assert [task.batches[0].start // 3 for _, task, *_ in client.submitted][:6] == [0, 1, 2, 4, 8, 6]


def test_an_experiment_of_a_file_is_sent_with_its_code(monkeypatch: pytest.MonkeyPatch, cancelled: list[Any]) -> None:
    client = Client(1)

    def unpacked(task: Any, budget: float) -> Result:
        return compute(task, budget)

    monkeypatch.setattr(workers, "pack", lambda task: task)
    monkeypatch.setattr(workers, "compute_packed", unpacked)
    work(client, monkeypatch, replace(EXPERIMENT, file="own.py"))
    assert {function for function, *_ in client.submitted} == {unpacked}


def test_a_cluster_is_watched_while_nothing_is_finished(monkeypatch: pytest.MonkeyPatch, cancelled: list[Any]) -> None:
    looks: list[Client] = []
    monkeypatch.setattr(workers, "ClusterWatch", lambda of: SimpleNamespace(look=lambda: looks.append(of)))
    client = Client(1)
    assert len(work(client, monkeypatch, empty=3)) == 6
    assert looks == [client] * 3


def test_a_stopped_run_keeps_its_ranges_and_cancels_its_tasks(
    monkeypatch: pytest.MonkeyPatch, cancelled: list[Any]
) -> None:
    client = Client(1)
    assert work(client, monkeypatch, stop_after=2) == [(0, 1), (1, 2)]
    assert [list(map(id, futures)) for futures in cancelled] == [[id(client.waiting[0])]]


def test_a_lost_cluster_cancels_its_tasks(monkeypatch: pytest.MonkeyPatch, cancelled: list[Any]) -> None:
    client = Client(1)

    def lose(future: Any, watch: Any) -> Result:
        raise ConnectionError

    monkeypatch.setattr(workers, "wait_for_result", lose)
    with pytest.raises(ConnectionError):
        work(client, monkeypatch)
    assert [len(futures) for futures in cancelled] == [1]


def result(batches: int, seconds: float) -> Result:
    return Result([], batches, seconds)


def test_a_share_doubles_until_it_takes_a_second() -> None:
    share = _Share()
    assert share.size(1000, 2) == 1
    sizes = []
    for _ in range(6):
        share.learn(result(4, 0.4))
        sizes.append(share.size(1000, 2))
    assert sizes == [2, 4, 8, 10, 10, 10]
    share.learn(result(2, 3.0))
    assert share.size(1000, 2) == 1
    share.learn(result(1, 0.3))
    share.learn(result(1, 0.3))
    assert share.size(1000, 2) == math.ceil(SHARD_SECONDS / 0.3) == 4


def test_the_last_shares_shrink_to_a_tenth_of_a_second() -> None:
    share = _Share()
    for _ in range(9):
        share.learn(result(10, 0.4))
    assert LEAST_SECONDS == 0.1
    assert [share.size(batches, 4) for batches in (1000, 100, 60, 17, 16, 12, 1)] == [25, 25, 15, 5, 4, 3, 3]
    for _ in range(3):
        share.learn(result(1, 0.09))
    assert [share.size(batches, 4) for batches in (1000, 40, 3)] == [12, 10, 2]


def test_batches_without_measurable_time_do_not_divide_by_zero() -> None:
    share = _Share()
    share.learn(result(5, 0.0))
    assert share.size(1000, 4) == 2
    for _ in range(30):
        share.learn(result(5, 0.0))
    # A batch counts as a microsecond.
    assert share.size(10**9, 4) == 10**6
    assert share.size(1, 4) == pytest.approx(10**5, abs=1)


@pytest.mark.parametrize(
    ("size", "taken", "left"),
    [(1, (3, 4), [(4, 7), (9, 12)]), (3, (3, 6), [(6, 7), (9, 12)]), (4, (3, 7), [(9, 12)]), (8, (3, 7), [(9, 12)])],
)
def test_a_range_is_taken_from_the_first_that_is_left(
    size: int, taken: tuple[int, int], left: list[tuple[int, int]]
) -> None:
    ranges = deque([(3, 7), (9, 12)])
    assert _take(ranges, size) == taken
    assert list(ranges) == left


def test_a_crew_works_with_the_client_that_is_started_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    @contextmanager
    def client(of: Any) -> Iterator[Any]:
        opened.append(of)
        yield f"client of {of}"
        opened.append("closed")

    monkeypatch.setattr(workers, "local_client", client)
    monkeypatch.setattr(workers, "remote_client", client)
    with workers.local_crew(3) as local:
        assert local._client == "client of 3"
    with workers.cluster_crew("tcp://a:1") as remote:
        assert remote._client == "client of tcp://a:1"
    assert opened == [3, "closed", "tcp://a:1", "closed"]


def test_a_crew_gives_the_rows_of_this_process(monkeypatch: pytest.MonkeyPatch, cancelled: list[Any]) -> None:
    client = Client(2)
    monkeypatch.setattr(workers, "queue", SimpleNamespace(SimpleQueue=lambda: Results(client), Empty=queue.Empty))
    crew = DaskCrew(client)  # type: ignore[arg-type]
    assert run(EXPERIMENT, "quick", crew=crew) == run(EXPERIMENT, "quick")
