"""Clusters without one: addresses, numbers of workers, how soon a loss is told, and when it is one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from attsvm.platform import cluster
from attsvm.platform.cluster import ALONE_SECONDS, ClusterLost, ClusterWatch, local_client, remote_client

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
    client = SimpleNamespace(status="running", scheduler_info=lambda n_workers: information)
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
