"""Many processes, here or on a dask cluster, for the same rows.

Workers get ranges of batches and send rows back; only the asking process writes. Ranges start at one batch and grow
until they take about :data:`~attsvm.experiments.runner.SHARD_SECONDS`; towards the end they shrink, so that all workers
finish together, but not below 0.1 s. A worker that dies costs the ranges it held: dask hands them to another and starts
a new one. dask alone is used (``distributed``): joblib loses the whole call with one worker.
"""

from __future__ import annotations

import logging
import math
import queue
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from distributed import Client, Future, LocalCluster, Worker, WorkerPlugin
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

from attsvm.experiments.compute import Batch, Result, compute, task_of
from attsvm.experiments.experiment import Experiment
from attsvm.experiments.meter import Meter
from attsvm.experiments.runner import SHARD_SECONDS, Keep, Ranges

LEAST_SECONDS = 0.1
CONNECT_SECONDS = 10.0
POLL_SECONDS = 0.2

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")

_CHATTY = ("distributed", "tornado", "asyncio")


class CrewLost(Exception):
    """The workers are gone; what is done is kept, and the same run continues there."""


class _DeafToCtrlC(WorkerPlugin):
    """Ctrl-C in a terminal reaches all processes; only the asking one should answer."""

    def setup(self, worker: Worker) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class DaskCrew:
    """The workers of a dask client.

    Parameters
    ----------
    client : distributed.Client
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def work(
        self, experiment: Experiment, seed: int, batches: Sequence[Batch], left: Ranges, keep: Keep, meter: Meter
    ) -> None:
        """Compute all ranges of batches in `left`, handing results to ``keep(start, stop, result)``, until stopped.

        Raises
        ------
        CrewLost
            If the cluster is gone, or one range killed several workers.
        """
        done: queue.SimpleQueue[Future] = queue.SimpleQueue()
        under_way: dict[Future, tuple[int, int]] = {}
        share = _Share()
        try:
            while (left or under_way) and not meter.show():
                slots = 2 * max(self._threads(), 1)  # one under way and one waiting for each
                while left and len(under_way) < slots:
                    start, stop = _take(left, share.size(sum(b - a for a, b in left), slots))
                    task = task_of(experiment, seed, batches[start:stop])
                    future = self._client.submit(compute, task, 2 * SHARD_SECONDS, pure=False)
                    under_way[future] = start, stop
                    future.add_done_callback(done.put)
                try:
                    future = done.get(timeout=POLL_SECONDS)
                except queue.Empty:
                    continue
                start, stop = under_way.pop(future)
                result = _result(future)
                share.learn(result)
                reached = start + result.batches
                if reached < stop:
                    left.appendleft((reached, stop))
                keep(start, reached, result)
        finally:
            with _quiet():
                self._client.cancel(list(under_way))

    def _threads(self) -> int:
        info: dict[str, Any] = self._client.scheduler_info(n_workers=-1)
        return sum(worker["nthreads"] for worker in info["workers"].values())


class _Share:
    """How many batches to hand out at once, learnt from what the last ones took."""

    def __init__(self) -> None:
        self._size = 1
        self._seconds = math.inf  # a batch

    def learn(self, result: Result) -> None:
        self._seconds = max(result.seconds / result.batches, 1e-6)
        self._size = max(1, min(2 * self._size, math.ceil(SHARD_SECONDS / self._seconds)))

    def size(self, left: int, slots: int) -> int:
        least = math.ceil(LEAST_SECONDS / self._seconds) if self._seconds < math.inf else 1
        return max(min(self._size, math.ceil(left / slots)), min(least, self._size))


def _take(left: Ranges, size: int) -> tuple[int, int]:
    start, stop = left.popleft()
    if start + size < stop:
        left.appendleft((start + size, stop))
    return start, min(start + size, stop)


def _result(future: Future) -> Result:
    try:
        return future.result()
    except KilledWorker as error:
        raise CrewLost(
            "the same trials killed several workers, perhaps for want of memory; what is done is kept."
        ) from error
    except FutureCancelledError as error:
        raise CrewLost(
            "the dask cluster is gone; what is done is kept, and the same command continues there."
        ) from error


@contextmanager
def local_crew(workers: int) -> Iterator[DaskCrew]:
    """Start worker processes of one thread each, and end them.

    Parameters
    ----------
    workers : int
        At least 1.
    """
    if workers < 1:
        raise ValueError(f"workers is {workers}; an integer of at least 1 was expected.")
    no_dashboard: Any = None
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        cluster = stack.enter_context(
            LocalCluster(
                n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=no_dashboard,
                host="127.0.0.1", memory_limit=0, env=_ONE_THREAD, silence_logs=logging.CRITICAL + 1,
            )
        )  # fmt: skip
        client = stack.enter_context(Client(cluster, set_as_default=False))
        client.register_plugin(_DeafToCtrlC())
        yield DaskCrew(client)


@contextmanager
def cluster_crew(address: str) -> Iterator[DaskCrew]:
    """Use the workers of a running dask scheduler, and leave them running.

    Parameters
    ----------
    address : str
        Such as ``tcp://10.0.0.5:8786``.

    Raises
    ------
    ValueError
        If nothing answers there, there are no workers, or the cluster does not have this version of attsvm; a sentence.
        The scheduler has to have it as well: it reads the tasks that it hands on.
    """
    from attsvm import __version__

    with ExitStack() as stack:
        stack.enter_context(_quiet())
        try:
            client = stack.enter_context(Client(address, timeout=CONNECT_SECONDS, set_as_default=False))
        except (OSError, ValueError) as error:
            raise ValueError(f"no dask scheduler answers at {address!r} within {CONNECT_SECONDS:.0f} s.") from error
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError as error:
            raise ValueError(
                f"the dask scheduler at {address!r} has no workers; start some with `dask worker`."
            ) from error
        try:
            workers: Any = client.run(_version)
            scheduler: Any = client.run_on_scheduler(_version)
        except Exception as error:
            raise ValueError(
                f"the dask cluster at {address!r} cannot import attsvm; install attsvm {__version__} there."
            ) from error
        versions = sorted({*workers.values(), scheduler})
        if versions != [__version__]:
            raise ValueError(
                f"the dask cluster at {address!r} has attsvm {' and '.join(versions)}; {__version__} was expected."
            )
        yield DaskCrew(client)


def _version() -> str:
    from attsvm import __version__

    return __version__


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep dask's chatter about workers that come and go off the terminal; what matters is raised as an error."""
    # Many of dask's loggers have a level of their own.
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in _CHATTY]
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
