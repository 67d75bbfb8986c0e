"""Follow the heads of a model over the checkpoints of its training: types, margins and hardness by step.

Every checkpoint is read on the same inputs. At each checkpoint a head gets its types, with a null of that checkpoint's
weights, and its hardness. It also gets two margins: the lead of the selected token in logits, and the share of the
largest margin that its W has. A type appears in a head at the first step from which every checkpoint has its name.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from attsvm.platform.extras import drawing, frame
from attsvm.platform.meter import Meter
from attsvm.platform.summary import Listed, Worded, counted
from attsvm_pretrained.heads.extract import RefusedHead, chosen_calls, examine_heads
from attsvm_pretrained.heads.head import AttentionHead
from attsvm_pretrained.heads.loading import load
from attsvm_pretrained.inspection.finding import TIME_LIMIT
from attsvm_pretrained.inspection.inspection import PATTERN_BYTES, Inputs, Progress, kept_heads, partition
from attsvm_pretrained.selection.audit import margin_audit
from attsvm_pretrained.selection.rules import Rules
from attsvm_pretrained.selection.selectivity import has_choice, selection_report
from attsvm_pretrained.selection.types import HeadTypes, head_types, judge_heads

# Names of the folders in which a Trainer of transformers saves checkpoints.
_SAVED = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True, eq=False, repr=False)
class HeadSeries(Listed):
    """A head at the steps of its training.

    Attributes
    ----------
    layer, head : int
    steps : ndarray of int, shape (S,)
    names : tuple of str or None
        The type that names the head at each step.
    scores, null : dict of str to ndarray, shape (S,)
        Share of attention of each type, and the largest share of a head with rotated weights; nan if the type is not
        defined at a checkpoint.
    top1 : ndarray, shape (S,)
        Median over queries of the largest attention probability.
    margin : ndarray, shape (S,)
        Median over queries of the selected token's logit minus the runner-up's.
    efficiency : ndarray, shape (S,)
        Share of the largest margin at the norm of W; nan if no W makes the selection.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> model, inputs = pretrained.example_model("gpt2")
    >>> series = pretrained.over_checkpoints({0: model, 10: model}, inputs, draws=2).heads[0]
    >>> series.top1.shape, series.since == (None if series.names[-1] is None else 0)
    ((2,), True)
    """

    layer: int
    head: int
    steps: np.ndarray
    names: tuple[str | None, ...]
    scores: dict[str, np.ndarray]
    null: dict[str, np.ndarray]
    top1: np.ndarray
    margin: np.ndarray
    efficiency: np.ndarray

    @property
    def since(self) -> int | None:
        """First step from which the head has its name of the last checkpoint; None if it has no name there."""
        if self.names[-1] is None:
            return None
        same = sum(1 for _ in takewhile(lambda name: name == self.names[-1], reversed(self.names)))
        return int(self.steps[-same])


@dataclass(frozen=True, eq=False, repr=False)
class Checkpoints(Worded):
    """The heads of a model over its checkpoints.

    Attributes
    ----------
    steps : ndarray of int, shape (S,)
    heads : tuple of HeadSeries
        Heads that could be read at every checkpoint.
    refused : dict of int to tuple of RefusedHead
        The other heads by step, with the reason.
    complete : bool
        False if stopped early.
    seconds : float

    Examples
    --------
    >>> from attsvm import pretrained
    >>> model, inputs = pretrained.example_model("gpt2")
    >>> series = pretrained.over_checkpoints({0: model, 10: model}, inputs, draws=2)
    >>> series.steps.tolist(), len(series.heads)
    ([0, 10], 4)
    """

    steps: np.ndarray
    heads: tuple[HeadSeries, ...]
    refused: dict[int, tuple[RefusedHead, ...]]
    complete: bool
    seconds: float

    @property
    def appearances(self) -> dict[str, list[HeadSeries]]:
        """Heads by the type that names them at the last checkpoint, the earliest first."""
        out: dict[str, list[HeadSeries]] = {}
        for one in sorted(self.heads, key=lambda one: (one.since is None, one.since, one.layer, one.head)):
            name = one.names[-1]
            if name is not None:
                out.setdefault(name, []).append(one)
        return out

    @property
    def sentence(self) -> str:
        """State which types appear, and from which step."""
        if not self.heads:
            return "No head could be read at every checkpoint."
        opening = f"Of {counted(len(self.heads), 'head')}, at step {self.steps[-1]}"
        if not self.appearances:
            return f"{opening}, none has a named type."
        types = [
            f"{len(heads)} {'is' if len(heads) == 1 else 'are'} named {name} (the first from step {heads[0].since})"
            for name, heads in self.appearances.items()
        ]
        return f"{opening}, {', '.join(types)}."

    def to_frame(self) -> Any:
        """List heads and steps.

        Returns
        -------
        pandas.DataFrame
            Columns layer, head, step, type, top1, margin, efficiency and the score of every type.

        Raises
        ------
        ImportError
            Without pandas.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> series = pretrained.over_checkpoints({0: model, 10: model}, inputs, draws=2)
        >>> len(series.to_frame()) == 2 * len(series.heads)
        True
        """
        count, heads = len(self.steps), self.heads
        missing = np.full(count, np.nan)
        types = dict.fromkeys(name for one in heads for name in one.scores)
        columns: dict[str, list[Any]] = {
            "layer": [one.layer for one in heads for _ in range(count)],
            "head": [one.head for one in heads for _ in range(count)],
            "step": [int(step) for _ in heads for step in self.steps],
            "type": [name for one in heads for name in one.names],
        }
        for name in ("top1", "margin", "efficiency"):
            columns[name] = [float(value) for one in heads for value in getattr(one, name)]
        for name in types:
            columns[name] = [float(value) for one in heads for value in one.scores.get(name, missing)]
        return frame("Checkpoints.to_frame", columns)

    def plot(self, name: str = "induction", ax: Any = None) -> Any:
        """Draw the share of attention of a type over steps; see :func:`attsvm.plots.checkpoints`.

        Parameters
        ----------
        name : str
            The type.
        ax : matplotlib Axes, optional

        Returns
        -------
        Axes

        Raises
        ------
        ImportError
            Without matplotlib.
        ValueError
            If no head has the type.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> series = pretrained.over_checkpoints({0: model, 10: model}, inputs, draws=2)
        >>> series.plot("previous").get_xlabel()
        'training step'
        """
        return drawing("Checkpoints.plot").checkpoints(self, name, ax)


def saved_steps(folder: Path) -> dict[int, Path]:
    """Find the checkpoints that a Trainer saved in a folder, by step."""
    found = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _SAVED.fullmatch(path.name)
        if match and (path / "config.json").is_file():
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def over_checkpoints(
    checkpoints: str | Path | Mapping[int, Any],
    inputs: Mapping[str, Any] | Sequence[str],
    *,
    tokenizer: Any = None,
    layers: Sequence[int] | None = None,
    rules: Rules | None = None,
    draws: int = 30,
    queries: int = 32,
    seed: int = 0,
    memory: int = PATTERN_BYTES,
    dtype: str = "float32",
    device: str | None = None,
    progress: Progress | None = None,
    interval: float = 1.0,
) -> Checkpoints:
    """Report types, margins and hardness of every head over the checkpoints of a training.

    Parameters
    ----------
    checkpoints : path or mapping of int to model or path
        Output folder of a Trainer, with a folder "checkpoint-STEP" per step; or models or their folders by step.
    inputs : mapping or sequence of str
        Keyword arguments of the model, or texts; the same at every step.
    tokenizer : PreTrainedTokenizerBase, optional
        Tokenizer of texts. Default: the tokenizer in each checkpoint's folder.
    layers : sequence of int, optional
        Default: all.
    rules : mapping of str to rule, optional
        Other types, as for :func:`attsvm.pretrained.head_types`.
    draws : int
        Number of heads with re-drawn weights in the null of the types.
    queries : int
        Number of queries of each head's SVM.
    seed : int
    memory : int
        Bytes for attention patterns, which limit the number of texts; at least two are read.
    dtype, device : str
        As for `attsvm inspect`; used for folders.
    progress : callable, optional
        Called with a sentence and the finished share. If it returns True, the run stops with the finished checkpoints.
    interval : float
        Seconds between two new sentences.

    Returns
    -------
    Checkpoints

    Raises
    ------
    ValueError
        If there is no checkpoint, or one cannot be loaded.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> model, inputs = pretrained.example_model("gpt2")
    >>> series = pretrained.over_checkpoints({0: model, 10: model}, inputs, draws=2)
    >>> series.heads[0].steps.tolist()
    [0, 10]
    """
    start = time.perf_counter()
    places = dict(sorted(checkpoints.items())) if isinstance(checkpoints, Mapping) else saved_steps(Path(checkpoints))
    if not places:
        raise ValueError(f"{checkpoints} holds no folder checkpoint-STEP with config.json; one or more was expected.")
    meter = Meter("Reading checkpoints", len(places), 0, progress, interval, "checkpoints")
    rows: dict[int, dict[tuple[int, int], _Row]] = {}
    refused: dict[int, tuple[RefusedHead, ...]] = {}
    for step, place in places.items():
        if meter.stopped:
            break
        model, tokenizer_of_step = place, tokenizer
        if isinstance(place, (str, Path)):
            needs = tokenizer is None and not isinstance(inputs, Mapping)
            model, loaded = load(str(place), dtype=dtype, device=device, tokenizes=needs)
            tokenizer_of_step = loaded if needs else tokenizer
        found: dict[tuple[int, int], _Row] = {}
        refusals = []
        with threadpool_limits(1, user_api="blas"):
            for head in _heads(model, tokenizer_of_step, inputs, layers, memory, seed):
                if meter.show():
                    break
                if isinstance(head, AttentionHead):
                    found[head.layer, head.head] = _row(head, rules, draws, queries, seed)
                else:
                    refusals.append(head)
            else:
                together = judge_heads([row.types for row in found.values()])
                rows[step] = {
                    at: replace(row, types=types) for (at, row), types in zip(found.items(), together, strict=True)
                }
                refused |= {step: tuple(refusals)} if refusals else {}
                meter.add(1)
    steps = np.array(list(rows), dtype=int)
    complete = [at for at in next(iter(rows.values()), {}) if all(at in found for found in rows.values())]
    heads = tuple(_series(at, steps, [found[at] for found in rows.values()]) for at in complete)
    return Checkpoints(steps, heads, refused, len(rows) == len(places), time.perf_counter() - start)


@dataclass(frozen=True)
class _Row:
    """A head at one step."""

    types: HeadTypes
    top1: float
    margin: float
    efficiency: float | None


def _heads(
    model: Any, tokenizer: Any, inputs: Mapping[str, Any] | Sequence[str], layers: Sequence[int] | None, memory: int,
    seed: int,
) -> Iterator[AttentionHead | RefusedHead]:  # fmt: skip
    """Extract heads from the texts whose patterns fit into memory."""
    if isinstance(inputs, Mapping):
        yield from examine_heads(model, inputs, layers=layers, tokenizer=tokenizer)
        return
    source = Inputs(model, tokenizer, inputs, None)
    calls = source.calls()
    indices = chosen_calls(calls.paths, None if layers is None else list(layers), model)
    capacity = memory // calls.bytes_of(source.length(calls))
    kept, _ = partition(source.count, capacity, seed)
    yield from kept_heads(model, source.inputs(kept), calls, indices, max(1, capacity // len(kept)), tokenizer)


def _row(head: AttentionHead, rules: Rules | None, draws: int, queries: int, seed: int) -> _Row:
    audit = margin_audit(head, queries=queries, norms=(), draws=0, seed=seed, time_limit=TIME_LIMIT)
    several = has_choice(head)
    ordered = np.sort(head.scores()[several], axis=1)
    return _Row(
        head_types(head, draws=draws, seed=seed, rules=rules),
        selection_report(head).top1,
        float(np.median(ordered[:, -1] - ordered[:, -2])),
        audit.efficiency,
    )


def _series(at: tuple[int, int], steps: np.ndarray, rows: Sequence[_Row]) -> HeadSeries:
    names = dict.fromkeys(name for row in rows for name in row.types.scores)
    scores = {name: np.full(len(rows), np.nan) for name in names}
    null = {name: np.full(len(rows), np.nan) for name in names}
    for s, row in enumerate(rows):
        for name, one in row.types.scores.items():
            scores[name][s] = one.score
            null[name][s] = one.standing.draws.max() if len(one.standing.draws) else np.nan
    return HeadSeries(
        *at, steps, tuple(row.types.name for row in rows), scores, null,
        np.array([row.top1 for row in rows]), np.array([row.margin for row in rows]),
        np.array([np.nan if row.efficiency is None else row.efficiency for row in rows]),
    )  # fmt: skip
