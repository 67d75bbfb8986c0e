"""Clusters without one: addresses, numbers of workers, how soon a loss is told, and when it is one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from attsvm import __version__
from attsvm.platform import cluster
from attsvm.platform.cluster import ALONE_SECONDS, ClusterLost, ClusterWatch, local_client, quiet, remote_client

Client = Callable[[], AbstractContextManager[Any]]


class Started(Exception):
    """The arguments are accepted, and dask would be imported."""


@pytest.fixture
def no_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    def start() -> None:
        raise Started

    monkeypatch.setattr(cluster, "_distributed", start)


@pytest.mark.parametrize(
    "client",
    [
        lambda: local_client(1),
        lambda: remote_client("tcp://10.0.0.5:8786"),
        lambda: remote_client("inproc://a"),
        lambda: remote_client("a:1"),
    ],
)
def test_one_worker_and_any_address_are_enough(no_dask: None, client: Client) -> None:
    with pytest.raises(Started), client():
        pass


@pytest.mark.parametrize(
    ("client", "sentence"),
    [
        (lambda: local_client(0), r"^workers is 0; an integer of at least 1 was expected\.$"),
        (lambda: remote_client("nowhere"), r"^scheduler is 'nowhere'; an address such as tcp://10.0.0.5:8786 was exp"),
        (lambda: remote_client("a:b"), r"^scheduler is 'a:b'; an address such as tcp://10.0.0.5:8786 was expected\.$"),
    ],
)
def test_no_worker_and_no_address_are_refused(no_dask: None, client: Client, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence), client():
        pass


def test_a_loss_is_looked_for_soon_and_then_less_often() -> None:
    waits: list[float] = []

    def result(timeout: float) -> str:
        waits.append(timeout)
        if len(waits) < 8:
            raise TimeoutError
        return "done"

    watch: Any = SimpleNamespace(look=lambda: None)
    assert cluster.wait_for_result(SimpleNamespace(result=result), watch) == "done"
    assert waits[0] <= 1.0
    assert all(later in (earlier, 2 * earlier) for earlier, later in pairwise(waits))
    assert waits[-1] == waits[-2] > waits[0]
    assert max(waits) < ALONE_SECONDS


def test_a_cluster_is_lost_without_its_scheduler_or_long_without_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, information = [0.0], {"workers": {}}
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def scheduler_info(n_workers: int) -> dict[str, Any]:
        assert n_workers == -1  # all; dask refuses other numbers below zero
        return information

    client = SimpleNamespace(status="running", scheduler_info=scheduler_info)
    watch = ClusterWatch(client)
    watch.look()
    clock[0] += 0.9 * ALONE_SECONDS
    watch.look()
    information["workers"] = {"a": {}}  # one comes, and is lost again
    watch.look()
    information["workers"] = {}
    clock[0] += 0.9 * ALONE_SECONDS
    watch.look()
    clock[0] += 0.9 * ALONE_SECONDS
    watch.look()
    clock[0] += 0.2 * ALONE_SECONDS
    with pytest.raises(ClusterLost, match=r"^no worker of the dask cluster has been there for"):
        watch.look()
    client.status = "closed"
    with pytest.raises(ClusterLost, match=r"^the dask cluster is gone"):
        watch.look()


class OneWorker:
    """A client of a cluster of one worker."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    def __enter__(self) -> OneWorker:
        return self

    def __exit__(self, *error: object) -> None: ...

    def register_plugin(self, plugin: object) -> None: ...

    def wait_for_workers(self, n_workers: int, timeout: float) -> None:
        if n_workers > 1:
            raise TimeoutError

    def run(self, function: Callable[[], str]) -> dict[str, str]:
        return {"tcp://10.0.0.6:1": function()}

    def run_on_scheduler(self, function: Callable[[], str]) -> str:
        return function()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of the local clusters that would have been started."""
    options: list[dict[str, Any]] = []

    def start(**chosen: Any) -> AbstractContextManager[None]:
        options.append(chosen)
        return nullcontext()

    dask = SimpleNamespace(LocalCluster=start, Client=lambda place, **chosen: OneWorker(chosen), WorkerPlugin=object)
    monkeypatch.setattr(cluster, "_distributed", lambda: dask)
    return options


def test_workers_of_this_machine_have_one_thread_and_no_limit_of_memory(started: list[dict[str, Any]]) -> None:
    """Dask kills a worker that exceeds its share of the memory; zero is no limit."""
    with local_client(3):
        pass
    (options,) = started
    assert (options["n_workers"], options["threads_per_worker"], options["memory_limit"]) == (3, 1, 0)
    assert set(options["env"].values()) == {"1"}


@pytest.mark.parametrize("client", [lambda: local_client(1), lambda: remote_client("tcp://10.0.0.5:8786")])
def test_a_client_takes_one_worker_and_is_not_the_default_of_the_users_own_tasks(
    started: list[dict[str, Any]], client: Client
) -> None:
    with client() as one:
        assert one.options["set_as_default"] is False
        assert one.run_on_scheduler(cluster._version) == __version__


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("distributed.worker", logging.CRITICAL + 1),
        ("tornado.application", logging.CRITICAL + 1),
        ("asyncio", logging.CRITICAL + 1),
        ("distributed_by_users", logging.INFO),
        ("users.distributed", logging.INFO),
    ],
)
def test_the_loggers_of_dask_alone_are_quiet_and_only_meanwhile(name: str, level: int) -> None:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        with quiet():
            assert logger.level == level
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)
