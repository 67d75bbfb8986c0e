r"""Inspect all heads of a model in bounded memory, for `attsvm inspect`.

Attention of H heads to T tokens takes 4 H T^2 bytes per text and layer in float32, and a few copies while it is
computed. The **kept** texts are drawn at random; their number is limited by `memory`, but is at least two. All reports
refer to them and are made layer by layer. The forward pass of each layer ends at that layer, and layers share a pass if
memory permits. The **other** texts are read once before that, in batches of the same size
(:mod:`attsvm_pretrained.inspection.survey`). Only the numbers of the selection report are stored of their attention.
Images and sounds are read like texts. The peak is

.. math:: \text{weights} + M + 8 B_k T d + 40 c B_k T^2 + 56 H L \min(n, 8192) \text{ bytes,}

with M the `memory`, B_k kept texts, width d, c heads inspected at once (one per core), L layers and n queries of the
other texts, plus 340 MB per core for the probes of rotary heads. It does not grow with the number of texts.

Finished heads are written to disk (:mod:`attsvm_pretrained.inspection.unfinished`), and an interrupted inspection
continues from them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from attsvm.platform.kernels import compiled_first
from attsvm.platform.meter import Meter
from attsvm_pretrained.activations.layers import AbsentLayer, absent_layers, layer_numbers
from attsvm_pretrained.activations.recording import AttentionCall
from attsvm_pretrained.activations.tracing import record
from attsvm_pretrained.heads.extract import RefusedHead, chosen_calls, examine_calls
from attsvm_pretrained.heads.head import AttentionHead
from attsvm_pretrained.heads.inputs import longest, model_inputs, on_device
from attsvm_pretrained.heads.media import Media
from attsvm_pretrained.inspection.finding import HeadFinding, Reports
from attsvm_pretrained.inspection.survey import Survey
from attsvm_pretrained.inspection.token_effects import TokenEffects
from attsvm_pretrained.inspection.unfinished import ResumeFile, fingerprint
from attsvm_pretrained.selection.rank import Roots
from attsvm_pretrained.selection.rules import Rules, digest
from attsvm_pretrained.selection.types import judge_heads

Progress = Callable[[str, float], object]
# Default number of bytes of attention patterns, including their copies while they are computed.
PATTERN_BYTES = 2 << 30
# Number of copies of a pattern in a forward pass: scores, masked scores, probabilities, and one being read.
COPIES = 4


@dataclass(frozen=True, eq=False)
class Inspection:
    """The inspected heads of a model on texts, images or sounds.

    Attributes
    ----------
    model : str
        Name of the model.
    kind : str
        Class of the model.
    kept : int
        Number of texts, images or sounds whose attention was stored. SVMs, probes, types, ranks and examples refer to
        these. Hardness and positions of the others are recorded for a random sample of queries.
    refused : tuple of RefusedHead
        Heads that could not be extracted or inspected, with the reason.
    absent : tuple of AbsentLayer
        Layers without attention, in a hybrid model.
    complete : bool
        False if stopped early.
    media : Media or None
        The kept images or sounds, if they were read instead of texts.
    """

    model: str
    kind: str
    texts: int
    kept: int
    heads: tuple[HeadFinding, ...]
    refused: tuple[RefusedHead, ...]
    absent: tuple[AbsentLayer, ...]
    queries: int
    seed: int
    complete: bool
    seconds: float
    media: Media | None = None


@dataclass(frozen=True, eq=False)
class Calls:
    """Attention calls of a forward pass: modules, layers, heads, tokens, and bytes per entry of a pattern."""

    paths: list[str]
    numbers: list[int]
    heads: list[int]
    length: int
    entry: int

    def bytes_of(self, length: int) -> int:
        """Return the bytes of the patterns of one layer for one text, with their copies."""
        return COPIES * self.entry * max(self.heads) * length * length


@compiled_first()
def inspect_model(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    name: str = "",
    layers: Sequence[int] | None = None,
    queries: int = 64,
    seed: int = 0,
    memory: int = PATTERN_BYTES,
    resume: Path | None = None,
    progress: Progress | None = None,
    interval: float = 1.0,
    media: Media | None = None,
    rules: Rules | None = None,
    effects: bool = False,
) -> Inspection:
    """Report on every head of a model.

    Parameters
    ----------
    model, tokenizer
        The model in any dtype, on any device.
    texts : sequence of str
        Ignored if there are media.
    name : str
        Name for the report. Default: the model's class.
    layers : sequence of int, optional
        Default: all.
    queries : int
        Number of queries of each head's SVM; the probe uses twice this number.
    memory : int
        Bytes for attention patterns, in addition to the model and the memory of a head.
    resume : Path, optional
        Folder to which finished heads are written. Heads of an inspection with the same arguments are read from it.
    progress : callable, optional
        Called with a sentence and the finished share. If it returns True, the inspection stops with the finished heads.
    interval : float
        Seconds between two new sentences.
    media : Media, optional
        Images or sounds, for a model that reads them.
    rules : mapping of str to rule, optional
        Other types of heads, as for :func:`attsvm.pretrained.head_types`.
    effects : bool
        Whether to measure the effect of each head on the next tokens of a few texts, for a causal language model.
    """
    wall_start = time.perf_counter()
    tell = progress or (lambda sentence, share: False)
    tell("Reading the model", 0.0)
    source = Inputs(model, tokenizer, texts, media)
    calls = source.calls()
    indices = chosen_calls(calls.paths, None if layers is None else list(layers), model)
    capacity = memory // calls.bytes_of(source.length(calls))
    kept, others = partition(source.count, capacity, seed)
    media = None if media is None else media.take(kept)
    settings = (queries, seed, memory, *indices, *(() if rules is None else (digest(rules),)), *["effects"] * effects)
    resumption = ResumeFile(resume, fingerprint(model, source.names, settings))
    survey = Survey(model, tokenizer, calls.numbers, source.inputs, media, seed=seed)
    results = resumption.heads()
    complete = True
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            if others:
                step = max(1, capacity)
                batches = [others[start : start + step] for start in range(0, len(others), step)]
                complete = survey.run(batches, indices, resumption, progress, interval)
            if complete:
                before = {(one.layer, one.head) for one in results}
                total = sum(calls.heads[i] for i in indices)
                meter = Meter("Inspecting heads", total, len(results), progress, interval, "heads")
                batch = source.inputs(kept)
                together = max(1, capacity // len(kept))
                pending = [
                    i for i in indices if any((calls.numbers[i], h) not in before for h in range(calls.heads[i]))
                ]
                heads = kept_heads(model, batch, calls, pending, together, tokenizer)
                reports = Reports(queries, seed, Roots(), media, rules)
                measured = None
                if effects:
                    kept_texts = [texts[i] for i in kept]
                    measured = TokenEffects(model, kept_texts, tokenizer, rules, queries=queries, seed=seed)
                fresh = (head for head in heads if (head.layer, head.head) not in before)
                heads_in_time = takewhile(lambda head: not meter.stopped, fresh)
                # BLAS threads of several heads would compete for the cores; each head gets one thread.
                with threadpool_limits(1, user_api="blas"):
                    for result in _inspect(pool, heads_in_time, reports, survey):
                        if measured is not None and isinstance(result, HeadFinding):
                            result = measured.of(result)
                        results.append(result)
                        resumption.add(result)
                        meter.add(1)
                complete = len(results) == total
        except KeyboardInterrupt:  # a second Ctrl-C discards unfinished heads and returns the finished ones
            complete = False
            pool.shutdown(wait=False, cancel_futures=True)
    results.sort(key=lambda one: (one.layer, one.head))
    absent = absent_layers(model, calls.paths) if layers is None and complete else ()
    kind = type(model).__name__
    inspected = [one for one in results if isinstance(one, HeadFinding)]
    judged = judge_heads([one.types for one in inspected])
    return Inspection(
        model=name or kind,
        kind=kind,
        texts=source.count,
        kept=len(kept),
        heads=tuple(one.named(types) for one, types in zip(inspected, judged, strict=True)),
        refused=tuple(one for one in results if isinstance(one, RefusedHead)),
        absent=absent,
        queries=queries,
        seed=seed,
        complete=complete,
        seconds=time.perf_counter() - wall_start,
        media=media,
    )


class Inputs:
    """The inputs of a model: texts, images or sounds."""

    def __init__(self, model: Any, tokenizer: Any, texts: Sequence[str], media: Media | None) -> None:
        self._model, self._tokenizer, self._texts, self._media = model, tokenizer, texts, media
        self.count = len(texts) if media is None else len(media.items)

    @property
    def names(self) -> Sequence[str]:
        """Names that identify the inputs."""
        if self._media is None:
            return self._texts
        return [f"{item.name} {item.digest}" for item in self._media.items]

    def inputs(self, which: Sequence[int]) -> dict[str, Any]:
        """Return keyword arguments of the model for some of the texts, images or sounds."""
        if self._media is None:
            return model_inputs(self._model, [self._texts[i] for i in which], self._tokenizer)
        return on_device(self._media.read(which), self._model)

    def calls(self) -> Calls:
        """Run the model on its shortest text and list the attention calls."""
        shortest = min(range(self.count), key=lambda i: len(self._texts[i])) if self._media is None else 0
        batch = self.inputs([shortest])
        heads: list[int] = []
        lengths: list[int] = []
        dtypes: set[torch.dtype] = set()

        def keep(call: AttentionCall) -> None:
            heads.append(call.query.shape[1])
            lengths.append(call.key.shape[2])
            dtypes.add(call.query.dtype)

        recorder = record(self._model, batch, keep=keep)
        # Each layer of a short dtype is repeated in float64.
        entry = 4 if dtypes <= {torch.float32} else 8
        return Calls(recorder.paths, layer_numbers(recorder.paths), heads, max(lengths), entry)

    def length(self, calls: Calls) -> int:
        """Return the number of tokens of the longest text, or of each image or sound."""
        if self._media is not None:
            return calls.length
        ids = self._tokenizer(list(self._texts), truncation=True, max_length=longest(self._tokenizer))["input_ids"]
        return max(len(one) for one in ids)


def partition(count: int, most: int, seed: int) -> tuple[list[int], list[int]]:
    """Divide texts into the kept texts, whose attention is stored, and the others."""
    if count <= max(2, most):
        return list(range(count)), []
    order = np.random.default_rng((seed, 3)).permutation(count).tolist()
    return sorted(order[: max(2, most)]), order[max(2, most) :]


def kept_heads(
    model: Any, batch: dict[str, Any], calls: Calls, indices: Sequence[int], together: int, tokenizer: Any
) -> Iterator[AttentionHead | RefusedHead]:
    """Extract the heads of some attention calls; memory limits the number of calls per forward pass."""
    for start in range(0, len(indices), together):
        yield from examine_calls(model, batch, calls.numbers, indices[start : start + together], tokenizer)


def _inspect(
    pool: ThreadPoolExecutor, heads: Iterable[AttentionHead | RefusedHead], reports: Reports, survey: Survey
) -> Iterator[HeadFinding | RefusedHead]:
    """Inspect heads in order, one per core; heads are extracted only as cores become free."""
    futures: deque[Future[HeadFinding | RefusedHead]] = deque()
    for head in heads:
        futures.append(pool.submit(reports.of, head, survey.numbers_of(head.layer, head.head)))
        if len(futures) > (os.cpu_count() or 1):
            yield futures.popleft().result()
    while futures:
        yield futures.popleft().result()
