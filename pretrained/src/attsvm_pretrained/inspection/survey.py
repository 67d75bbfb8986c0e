"""Read many texts, images or sounds once, and store only the numbers of a sample of queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from attsvm.platform.meter import Meter
from attsvm_pretrained.activations import tokens
from attsvm_pretrained.activations.maps import AffineMap
from attsvm_pretrained.activations.recording import AttentionCall, Stream
from attsvm_pretrained.activations.repetition import in_float64, too_coarse
from attsvm_pretrained.activations.sources import explain
from attsvm_pretrained.activations.tracing import record
from attsvm_pretrained.heads.media import Media
from attsvm_pretrained.heads.reader import SINKS
from attsvm_pretrained.inspection.unfinished import ResumeFile
from attsvm_pretrained.selection.selectivity import QueryNumbers, numbers_of

# Number of queries stored per head; two standard deviations of a share are then 1.1 %.
MOST_POSITIONS = 8192


class Survey:
    """Numbers of queries of the texts that are not kept, by layer and head.

    Parameters
    ----------
    model, tokenizer
    layers : sequence of int
        The layer of every attention call.
    inputs : callable
        Returns keyword arguments of the model for some of the texts, images or sounds, given their numbers.
    media : Media, optional
        Images or sounds, which tell which tokens are no part of them.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        layers: Sequence[int],
        inputs: Callable[[Sequence[int]], dict[str, Any]],
        media: Media | None = None,
        *,
        seed: int,
    ) -> None:
        self._model, self._tokenizer, self._layers, self._seed = model, tokenizer, layers, seed
        self._inputs, self._media = inputs, media
        self._numbers: dict[tuple[int, int], list[QueryNumbers]] = {}
        self._self_attention: dict[int, bool] = {}

    def numbers_of(self, layer: int, head: int) -> Sequence[QueryNumbers]:
        """Return the numbers of a head's queries; empty if all texts were kept."""
        return self._numbers.get((layer, head), ())

    def run(
        self,
        batches: Sequence[Sequence[int]],
        indices: Sequence[int],
        resumption: ResumeFile,
        progress: Callable[[str, float], object] | None,
        interval: float,
    ) -> bool:
        """Read batches, after those that an earlier run has read; return whether all were read.

        Parameters
        ----------
        indices : sequence of int
            Attention calls to record.
        progress, interval
            As for :func:`attsvm_pretrained.inspection.inspection.inspect_model`.
        """
        total = sum(len(batch) for batch in batches)
        position = self._read_back(resumption)
        meter = Meter(
            "Reading texts", total, sum(len(batch) for batch in batches[:position]), progress, interval, "texts"
        )
        is_stopped = meter.stopped
        try:
            while position < len(batches) and not is_stopped:
                self._read_batch(
                    batches[position], indices, MOST_POSITIONS / total, np.random.default_rng((self._seed, 4, position))
                )
                is_stopped = meter.add(len(batches[position]))
                position += 1
        finally:
            resumption.write_survey(self._arrays(position))
        return position == len(batches)

    def _read_batch(self, which: Sequence[int], indices: Sequence[int], share: float, rng: np.random.Generator) -> None:
        batch = self._inputs(which)
        streams: list[Stream] = []
        # Every text has the same number of queries, in any batch.
        count = max(1, round(share * len(which)))

        def keep(call: AttentionCall) -> None:
            streams.append(call.stream)
            self._note(call, streams, len(which), count, rng)

        record(self._model, batch, lambda index, path: index in indices, keep=keep, until=max(indices))

    def _reads_itself(self, call: AttentionCall) -> bool:
        """Tell whether a call is self-attention, from the first of its heads that can be explained."""
        if call.index not in self._self_attention:
            self._self_attention[call.index] = next((query.reads_like(key) for query, key in _maps(call)), False)
        return self._self_attention[call.index]

    def _special(self, ids: np.ndarray | None, shape: tuple[int, int], texts: int) -> np.ndarray | None:
        """Mark the tokens that a tokenizer adds, or that lie outside an image or a sound, (B, T)."""
        if ids is not None:
            return None if self._tokenizer is None else np.isin(ids, list(self._tokenizer.all_special_ids))
        parts = None if self._media is None or shape[0] != texts else self._media.parts(shape[1])
        return None if parts is None else np.broadcast_to([box is None for box in parts.boxes], shape)

    def _note(
        self, call: AttentionCall, streams: list[Stream], texts: int, count: int, rng: np.random.Generator
    ) -> None:
        visible, _ = tokens.read_mask(call)
        self_attention = self._reads_itself(call)
        query_mask = tokens.query_mask(call, visible, self_attention=self_attention)
        stream = tokens.key_stream(call, streams, self_attention=self_attention)
        places = tokens.text_places(visible, query_mask, stream)
        shape = call.key.shape[0], call.key.shape[2]
        special = self._special(tokens.identifiers(stream, shape), shape, texts)
        null = call.extras.get(SINKS) is not None
        several = np.stack(np.nonzero(query_mask & (visible.sum(axis=3) + null > 1).all(axis=1)))
        where = several[:, np.sort(rng.permutation(several.shape[1])[:count])]
        rows, columns = torch.from_numpy(where).to(call.probabilities.device)
        patterns = call.probabilities[rows, :, columns].double().cpu().numpy()  # (sample, H, T)
        sequence, position = where
        if null:  # a null token stands before each text, and gets the remaining attention
            places = np.pad(np.where(places < 0, -1, places + 1), [(0, 0), (1, 0)])
            position = position + self_attention
            patterns = np.concatenate([np.maximum(1.0 - patterns.sum(axis=2, keepdims=True), 0.0), patterns], axis=2)
            visible = np.pad(visible, [(0, 0), (0, 0), (self_attention, 0), (1, 0)], constant_values=True)
            special = None if special is None else np.pad(special, [(0, 0), (1, 0)])
        query_places = places[sequence, position] if self_attention else None
        for h in range(patterns.shape[1]):
            mask = visible[sequence, min(h, visible.shape[1] - 1), position]
            numbers = numbers_of(
                patterns[:, h], mask, places[sequence], query_places, None if special is None else special[sequence]
            )
            self._numbers.setdefault((self._layers[call.index], h), []).append(_short(numbers))

    def _arrays(self, position: int) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {"read": np.array(position)}
        for (layer, head), parts in self._numbers.items():
            streams = parts[0].with_others(parts[1:])
            self._numbers[layer, head] = [streams]
            arrays |= {f"{layer}.{head}.{field.name}": getattr(streams, field.name) for field in fields(streams)}
        return arrays

    def _read_back(self, resumption: ResumeFile) -> int:
        arrays = resumption.survey()
        places = {tuple(int(part) for part in name.split(".")[:2]) for name in arrays if "." in name}
        for layer, head in places:
            self._numbers[layer, head] = [
                QueryNumbers(*(arrays[f"{layer}.{head}.{field.name}"] for field in fields(QueryNumbers)))
            ]
        return int(arrays.get("read", 0))


def _maps(call: AttentionCall) -> Iterator[tuple[AffineMap, AffineMap]]:
    """Explain queries and keys of the heads of a call, in float64 if its dtype is too coarse."""
    for one in in_float64(call) if too_coarse(call) else (call,):
        for h in range(one.query.shape[1]):
            try:
                query, key, _ = explain(one, h)
            except ValueError:
                continue
            yield query, key


def _short(numbers: QueryNumbers) -> QueryNumbers:
    """Halve the bytes: float32 and int32 are precise enough for a report."""
    shorter = (
        value.astype(np.float32 if value.dtype.kind == "f" else np.int32)
        for value in (getattr(numbers, field.name) for field in fields(numbers))
    )
    return QueryNumbers(*shorter)
