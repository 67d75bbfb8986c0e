"""Evaluation of the shards: in this process, or on the workers of a dask cluster."""

from __future__ import annotations

import pickle
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from attsvm.data.checksums import ShardRecord, check_files, record_of
from attsvm.data.shard_pieces import ShardArrays, ShardFile
from attsvm.data.shards import ShardedProblem
from attsvm.platform.cluster import gathered, local_client, losses_told, remote_client
from attsvm.solvers.schedule import KEPT_BYTES
from attsvm.solvers.working_sets.pricing import Source

# Number of answers that are joined at a time.
FAN_IN = 8

Task = Callable[..., Any]
Join = Callable[..., Any]
# For each call: the number of a shard, and the arguments for this shard only.
Calls = Sequence[tuple[Any, ...]]


class Pool:
    """Evaluates one shard after the other, in the calling process.

    Parameters
    ----------
    recording : bool
        Take checksums of every shard when it is read for the first time.

    Attributes
    ----------
    sent, received : int
        Bytes sent to the shards and received so far.
    records : dict of int to ShardRecord
        Records by the shard's number.
    """

    def __init__(self, sources: Sequence[Source], *, recording: bool = True) -> None:
        self._sources, self._recording = sources, recording
        whole = sum(source.whole_bytes for source in sources if isinstance(source, ShardFile))
        self._keeping, self._kept = whole <= KEPT_BYTES, dict[int, ShardArrays]()
        self.records: dict[int, ShardRecord] = {}
        self.sent = self.received = 0

    def collect(self, task: Task, join: Join, common: tuple[Any, ...], calls: Calls) -> Any:
        """Call ``task(source, *parts, *common)`` for all parts of ``calls``, and join the answers by ``join(answers)``.

        Answers are joined as they arrive, so that few are held at a time.

        Raises ValueError if a shard is damaged or not as expected; the message is a sentence.
        """
        answers: list[Any] = []
        for parts in calls:
            answers.append(_evaluate(task, self._source(parts[0]), self._is_new(parts[0]), *parts, *common))
            if len(answers) == FAN_IN:
                answers = [_join(join, answers)]
        return self._recorded(_join(join, answers))

    def _source(self, number: int) -> Source:
        """Return the shard, from memory if its tokens are read as a whole and all such tokens fit."""
        source = self._kept.get(number, self._sources[number])
        if self._keeping and isinstance(source, ShardFile) and source.whole_bytes:
            source = self._kept[number] = source.load()
        return source

    def inspect(self) -> tuple[str, ...]:
        """Compute missing checksums, and return the digest of every shard."""
        missing = [(number,) for number in range(len(self._sources)) if self._is_new(number)]
        if missing:
            self.collect(_read_only, _read_only, (), missing)
        return tuple(self.records[number].digest for number in range(len(self._sources)))

    def _is_new(self, number: int) -> bool:
        return self._recording and number not in self.records

    def _recorded(self, answer: tuple[Any, dict[int, ShardRecord]]) -> Any:
        """Store the records of an answer; once complete, compare them with the checksums that files state."""
        self.records |= answer[1]
        if answer[1] and len(self.records) == len(self._sources):
            check_files(self._sources, self.records)
        return answer[0]


class OnCluster(Pool):
    """Evaluation on the workers of a dask client, which recompute the results of a lost worker.

    Parameters
    ----------
    client : distributed.Client
    sources : sequence of ShardFile or ShardArrays
        Arrays are sent to the workers once, and blocks of a dask array are computed there. Workers must have access to
        files.
    """

    def __init__(self, client: Any, sources: Sequence[Source]) -> None:
        super().__init__(sources)
        self._client = client
        self._tokens = [self._place(source) for source in sources]

    def _place(self, source: Source) -> Any:
        tokens = getattr(source, "tokens", None)
        if tokens is None:
            return None
        if hasattr(tokens, "dask"):
            return self._client.compute(tokens)
        return self._client.submit(_same, tokens, pure=False)

    def _submit(self, task: Task, number: int, *arguments: Any) -> Any:
        tokens, source, is_new = self._tokens[number], self._sources[number], self._is_new(number)
        if tokens is None:
            return self._client.submit(_evaluate, task, source, is_new, number, *arguments, pure=False)
        bare: Any = replace(source, tokens=None)  # type: ignore[arg-type]
        return self._client.submit(_with_tokens, tokens, task, bare, is_new, number, *arguments, pure=False)

    def collect(self, task: Task, join: Join, common: tuple[Any, ...], calls: Calls) -> Any:
        """Join the answers on the workers, so that one answer arrives here."""
        with losses_told():
            # Common arguments are sent once; workers pass them on, and recompute lost ones.
            shared = [self._client.submit(_same, value, pure=False) for value in common]
            self.sent += sum(map(_size, common)) + sum(_size(parts) for parts in calls)
            level = [self._submit(task, *parts, *shared) for parts in calls]
            tasks = [*shared, *level]
            while len(level) > 1:
                level = [
                    self._client.submit(_join, join, level[k : k + FAN_IN], pure=False)
                    for k in range(0, len(level), FAN_IN)
                ]
                tasks += level
            answer = _join(join, gathered(self._client, level, tasks))
        self.received += _size(answer)
        return self._recorded(answer)


@contextmanager
def pool_of(problem: ShardedProblem, scheduler: str | None, workers: int | None) -> Iterator[Pool]:
    """Choose the process or cluster that evaluates the shards.

    Parameters
    ----------
    scheduler : str, optional
        Address of a running scheduler.
    workers : int, optional
        Number of local processes to start instead. If neither is given, this process evaluates the shards.
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
        yield Pool(problem.shards)


def _same(value: Any) -> Any:
    return value


def _with_tokens(tokens: Any, task: Task, source: Any, *arguments: Any) -> Any:
    return _evaluate(task, replace(source, tokens=tokens), *arguments)


def _evaluate(
    task: Task, source: Any, is_new: bool, number: int, *arguments: Any
) -> tuple[Any, dict[int, ShardRecord]]:
    """Evaluate a shard, and compute its checksums if it is new."""
    records = {}
    if is_new:
        source = source.load()  # the task reads it again from the system's cache
        records[number] = record_of(source.contents)
    return task(source, number, *arguments), records


def _join(join: Join, answers: Sequence[tuple[Any, dict[int, ShardRecord]]]) -> tuple[Any, dict[int, ShardRecord]]:
    records = dict(ChainMap(*(records for _, records in answers)))
    return join([answer for answer, _ in answers]), records


def _read_only(*_: Any) -> None:
    """Do nothing: the task and the join of calls that need checksums only."""


def _size(value: Any) -> int:
    return len(pickle.dumps(value, protocol=5))
