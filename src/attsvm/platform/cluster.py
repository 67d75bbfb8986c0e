"""A dask cluster to work on, started here or already running, and the handling of its loss.

dask.distributed moves tasks and data, and repeats the tasks of a lost worker. It is imported only when a cluster is
requested.
"""

from __future__ import annotations

import logging
import re
import signal
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from attsvm.platform.extras import extra_for

CONNECT_SECONDS = 10.0
# Seconds that a run without any worker waits for one before it ends.
ALONE_SECONDS = 20.0
POLL_SECONDS = 0.2

GONE = "the dask cluster is gone; finished work is kept, and the same command continues from there."

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
_CHATTY = ("distributed", "tornado", "asyncio")


class ClusterLost(Exception):
    """The scheduler or all workers are gone, or a task killed several workers; finished work is kept."""


def _distributed() -> Any:
    with extra_for("A cluster"):
        import distributed

        return distributed


@contextmanager
def local_client(workers: int) -> Iterator[Any]:
    """Start single-threaded worker processes, yield a client, and end them.

    Parameters
    ----------
    workers : int
        At least 1.
    """
    if workers < 1:
        raise ValueError(f"workers is {workers}; an integer of at least 1 was expected.")
    distributed = _distributed()
    with ExitStack() as stack:
        stack.enter_context(quiet())
        cluster = stack.enter_context(
            distributed.LocalCluster(
                n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None,
                host="127.0.0.1", memory_limit=0, env=_ONE_THREAD, silence_logs=logging.CRITICAL + 1,
            )
        )  # fmt: skip
        client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
        client.register_plugin(_deaf_to_interrupts(distributed))
        yield client


@contextmanager
def remote_client(address: str) -> Iterator[Any]:
    """Connect to a running scheduler and yield a client; the scheduler and its workers keep running.

    Parameters
    ----------
    address : str
        Such as ``tcp://10.0.0.5:8786``.

    Raises
    ------
    ValueError
        If the address is malformed, no scheduler answers there, it has no workers, or the cluster lacks this version of
        attsvm. The scheduler needs attsvm too: it reads the tasks that it distributes.
    """
    from attsvm import __version__

    if "://" not in address and not re.search(r":\d+$", address):
        raise ValueError(f"scheduler is {address!r}; an address such as tcp://10.0.0.5:8786 was expected.")
    distributed = _distributed()
    with ExitStack() as stack:
        stack.enter_context(quiet())
        try:
            client = stack.enter_context(distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False))
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
        yield client


def gathered(client: Any, futures: Sequence[Any], tasks: Sequence[Any]) -> list[Any]:
    """Wait for futures and return their results.

    Parameters
    ----------
    client : distributed.Client
    tasks : sequence of Future
        Futures that are cancelled if the wait ends early.

    Raises
    ------
    ClusterLost
        If the scheduler is gone, there was no worker for :data:`ALONE_SECONDS`, or a task killed several workers.
    """
    distributed = _distributed()
    watch = ClusterWatch(client)
    try:
        pending = set(futures)
        with losses_told(), client.as_current():
            while pending:
                try:
                    pending = set(
                        distributed.wait(pending, timeout=POLL_SECONDS, return_when="FIRST_COMPLETED").not_done
                    )
                except TimeoutError:
                    watch.look()
            return [wait_for_result(future, watch) for future in futures]
    except BaseException:
        cancel(client, tasks)
        raise


def cancel(client: Any, futures: Iterable[Any]) -> None:
    """Cancel the futures that a cluster still computes; the error of a closed client is ignored."""
    with quiet(), suppress(_comm_error()):
        client.cancel(list(futures))


def wait_for_result(future: Any, watch: ClusterWatch) -> Any:
    """Return a future's result; if its worker is lost, wait while other workers exist.

    Raises
    ------
    ClusterLost
        As for :meth:`ClusterWatch.look`.
    """
    patience = 1.0
    while True:
        try:
            return future.result(timeout=patience)
        except TimeoutError:
            watch.look()
            patience = min(2.0 * patience, 8.0)  # large results take longer, but a loss must be reported soon


@contextmanager
def losses_told() -> Iterator[None]:
    """Turn dask's errors about a lost cluster into :class:`ClusterLost` with a one-sentence message."""
    distributed = _distributed()
    client = distributed.client
    errors = (
        client.FutureCancelledError,
        client.FuturesCancelledError,
        _comm_error(),
        distributed.comm.CommClosedError,
    )
    try:
        yield
    except distributed.KilledWorker as error:
        raise ClusterLost(
            "the same task killed several workers, perhaps for lack of memory; finished work is kept."
        ) from error
    except errors as error:
        raise ClusterLost(GONE) from error


def _comm_error() -> type[Exception]:
    """Return the error that a client raises when it has lost its scheduler."""
    return _distributed().client.ClosedClientError


class ClusterWatch:
    """Detects that a cluster has lost its scheduler or its last worker.

    Parameters
    ----------
    client : distributed.Client
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._alone_since: float | None = None

    def look(self) -> None:
        """Raise :class:`ClusterLost` if there is no scheduler, or has been no worker for :data:`ALONE_SECONDS`."""
        if self._client.status not in ("running", "connecting"):
            raise ClusterLost(GONE)
        workers = self._client.scheduler_info(n_workers=-1).get("workers")
        if workers or workers is None:  # unknown while the client reconnects
            self._alone_since = None
            return
        now = time.monotonic()
        if self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since > ALONE_SECONDS:
            raise ClusterLost(
                f"no worker of the dask cluster has been there for {ALONE_SECONDS:.0f} s; finished work is kept, and "
                "the same command continues from there."
            )


def _deaf_to_interrupts(distributed: Any) -> Any:
    """Worker plugin that ignores Ctrl-C: a terminal sends it to all processes, and the main process handles it."""

    class Deaf(distributed.WorkerPlugin):
        def setup(self, worker: Any) -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    return Deaf()


def _version() -> str:
    from attsvm import __version__

    return __version__


@contextmanager
def quiet() -> Iterator[None]:
    """Keep dask's log messages about workers off the terminal; losses that matter are raised as errors."""
    # Many of dask's loggers set a level themselves.
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
