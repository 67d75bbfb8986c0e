"""Who looks at the shards: this process, or the workers of a dask cluster."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from attsvm.core.cluster import gathered, local_client, losses_told, remote_client
from attsvm.data.shards import ShardedProblem
from attsvm.solvers.working_sets.pricing import Source

# Answers that are joined at a time on their way.
JOINED = 8

Join = Callable[..., Any]
Own = Sequence[tuple[Any, ...]]


class Pool(Protocol):
    """Whoever looks at the shards.

    Attributes
    ----------
    sent, received : int
        Bytes that went to the shards and came back so far.
    """

    sent: int
    received: int

    def joined(self, task: Callable[..., Any], join: Join, common: tuple[Any, ...], own: Own) -> Any:
        """Call ``task(source, *own[k], *common)`` on every shard k, and join the answers, ``join(answers)``."""
        ...

    def each(self, task: Callable[..., Any], chosen: Sequence[int], own: Own) -> list[Any]:
        """Call ``task(source, *own)`` on chosen shards."""
        ...


class Here:
    """Looks at one shard after the other, in the process that asks."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.sent = self.received = 0

    def joined(self, task: Callable[..., Any], join: Join, common: tuple[Any, ...], own: Own) -> Any:
        """Join as the answers come, so that few are held at a time."""
        answers: list[Any] = []
        for source, parts in zip(self._sources, own, strict=True):
            answers.append(task(source, *parts, *common))
            if len(answers) == JOINED:
                answers = [join(answers)]
        return join(answers)

    def each(self, task: Callable[..., Any], chosen: Sequence[int], own: Own) -> list[Any]:
        """Look at one chosen shard after the other."""
        return [task(self._sources[k], *parts) for k, parts in zip(chosen, own, strict=True)]


class OnCluster:
    """The workers of a dask client; what a lost worker had is computed again by another.

    Parameters
    ----------
    client : distributed.Client
    sources : sequence of ShardFile or ShardArrays
        Arrays go to the workers once, blocks of a dask array are computed there; files must be where workers find them.
    """

    def __init__(self, client: Any, sources: Sequence[Source]) -> None:
        self._client, self._sources = client, sources
        self._tokens = [self._placed(source) for source in sources]
        self.sent = self.received = 0

    def _placed(self, source: Source) -> Any:
        tokens = getattr(source, "tokens", None)
        if tokens is None:
            return None
        if hasattr(tokens, "dask"):
            return self._client.compute(tokens)
        return self._client.submit(_same, tokens, pure=False)

    def _submit(self, task: Callable[..., Any], k: int, *arguments: Any) -> Any:
        tokens, source = self._tokens[k], self._sources[k]
        if tokens is None:
            return self._client.submit(task, source, *arguments, pure=False)
        bare: Any = replace(source, tokens=None)  # type: ignore[arg-type]
        return self._client.submit(_with_tokens, tokens, task, bare, *arguments, pure=False)

    def joined(self, task: Callable[..., Any], join: Join, common: tuple[Any, ...], own: Own) -> Any:
        """Join answers on the workers, so that one arrives here."""
        with losses_told():
            # What all are sent leaves this process once; workers hand it on, and make it again if it is lost.
            shared = [self._client.submit(_same, value, pure=False) for value in common]
            self.sent += sum(map(_size, common)) + sum(_size(parts) for parts in own)
            level = [self._submit(task, k, *parts, *shared) for k, parts in enumerate(own)]
            tasks = [*shared, *level]
            while len(level) > 1:
                level = [
                    self._client.submit(join, level[k : k + JOINED], pure=False) for k in range(0, len(level), JOINED)
                ]
                tasks += level
            answer = join(gathered(self._client, level, tasks))
        self.received += _size(answer)
        return answer

    def each(self, task: Callable[..., Any], chosen: Sequence[int], own: Own) -> list[Any]:
        """Look at all chosen shards at once."""
        with losses_told():
            futures = [self._submit(task, k, *parts) for k, parts in zip(chosen, own, strict=True)]
            answers = gathered(self._client, futures, futures)
        self.sent += sum(map(_size, own))
        self.received += _size(answers)
        return answers


@contextmanager
def pool_of(problem: ShardedProblem, scheduler: str | None, workers: int | None) -> Iterator[Pool]:
    """Choose who looks at the shards.

    Parameters
    ----------
    problem : ShardedProblem
    scheduler : str, optional
        Address of a running scheduler.
    workers : int, optional
        Processes to start here instead. Without either this process does it.
    """
    if scheduler is not None:
        if workers is not None:
            raise ValueError(f"workers is {workers} and scheduler {scheduler!r}; one of the two was expected.")
        with remote_client(scheduler) as client:
            yield OnCluster(client, problem.shards)
    elif workers is not None:
        with local_client(workers) as client:
            yield OnCluster(client, problem.shards)
    else:
        yield Here(problem.shards)


def _same(value: Any) -> Any:
    return value


def _with_tokens(tokens: Any, task: Callable[..., Any], source: Any, *arguments: Any) -> Any:
    return task(replace(source, tokens=tokens), *arguments)


def _size(value: Any) -> int:
    return len(pickle.dumps(value, protocol=5))
