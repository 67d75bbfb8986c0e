"""Many processes, on this machine or on a dask cluster, that compute the same rows.

Workers get ranges of batches and send rows back; only the calling process writes. Ranges start at one batch and grow
until they take about :data:`~attsvm_paper.engine.runner.SHARD_SECONDS`. Towards the end they shrink, to at least 0.1 s,
so that all workers finish together. If a worker ends, dask gives its ranges to another and starts a new one. Only dask
(``distributed``) does this: joblib loses the whole call with one worker.
"""

from __future__ import annotations

import math
import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attsvm.platform.cluster import (
    POLL_SECONDS,
    ClusterWatch,
    cancel,
    local_client,
    losses_told,
    remote_client,
    wait_for_result,
)
from attsvm.platform.meter import Meter
from attsvm_paper.engine.compute import Batch, Result, compute, compute_packed, pack, task_of
from attsvm_paper.engine.experiment import Experiment
from attsvm_paper.engine.runner import SHARD_SECONDS, Keep, Ranges

if TYPE_CHECKING:
    from distributed import Client, Future

LEAST_SECONDS = 0.1


class DaskCrew:
    """The workers of a dask client.

    Parameters
    ----------
    client : distributed.Client
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def work(
        self, experiment: Experiment, seed: int, batches: Sequence[Batch], ranges: Ranges, keep: Keep, meter: Meter
    ) -> None:
        """Compute the batches of all `ranges`, passing results to ``keep(start, stop, result)``, until stopped.

        Raises
        ------
        ClusterLost
            If the cluster or its last worker is gone, or one range killed several workers.
        """
        results: queue.SimpleQueue[Future] = queue.SimpleQueue()
        under_way: dict[Future, tuple[int, int]] = {}
        share, watch = _Share(), ClusterWatch(self._client)
        try:
            while (ranges or under_way) and not meter.show():
                slots = 2 * max(self._threads(), 1)  # one running and one waiting per thread
                while ranges and len(under_way) < slots:
                    start, stop = _take(ranges, share.size(sum(b - a for a, b in ranges), slots))
                    task = task_of(experiment, seed, batches[start:stop])
                    work = (compute_packed, pack(task)) if experiment.file else (compute, task)
                    future = self._client.submit(*work, 2 * SHARD_SECONDS, pure=False)
                    under_way[future] = start, stop
                    future.add_done_callback(results.put)
                try:
                    future = results.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    watch.look()
                    continue
                start, stop = under_way.pop(future)
                with losses_told():
                    result: Result = wait_for_result(future, watch)
                share.learn(result)
                end = start + result.batches
                if end < stop:
                    ranges.appendleft((end, stop))
                keep(start, end, result)
        finally:
            cancel(self._client, under_way)

    def _threads(self) -> int:
        info: dict[str, Any] = self._client.scheduler_info(n_workers=-1)
        return sum(worker["nthreads"] for worker in info.get("workers", {}).values())


class _Share:
    """Number of batches per range, adapted to the time of the last ones."""

    def __init__(self) -> None:
        self._size = 1
        self._seconds = math.inf  # per batch

    def learn(self, result: Result) -> None:
        self._seconds = max(result.seconds / result.batches, 1e-6)
        self._size = max(1, min(2 * self._size, math.ceil(SHARD_SECONDS / self._seconds)))

    def size(self, batches: int, slots: int) -> int:
        least = math.ceil(LEAST_SECONDS / self._seconds)
        return max(min(self._size, math.ceil(batches / slots)), min(least, self._size))


def _take(ranges: Ranges, size: int) -> tuple[int, int]:
    start, stop = ranges.popleft()
    if start + size < stop:
        ranges.appendleft((start + size, stop))
    return start, min(start + size, stop)


@contextmanager
def local_crew(workers: int) -> Iterator[DaskCrew]:
    """Start single-threaded worker processes and end them; see :func:`attsvm.platform.cluster.local_client`."""
    with local_client(workers) as client:
        yield DaskCrew(client)


@contextmanager
def cluster_crew(address: str) -> Iterator[DaskCrew]:
    """Use the workers of a running scheduler and leave them running.

    See :func:`attsvm.platform.cluster.remote_client`.
    """
    with remote_client(address) as client:
        yield DaskCrew(client)
