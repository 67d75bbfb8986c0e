r"""What training leaves in attention, head by head, while it runs.

Every k steps, in the training forward pass itself, a function of ours stands in for transformers' attention function:
it looks at some query rows of a few sequences, then calls the function the model uses. On other steps the model is as
it was. Noted of every head, on those rows:

* the largest logit, and the factor by which QK-clip (Kimi K2, arXiv 2507.20534) would shrink query-key products above
  its threshold;
* the median margin of the top logit over the second, and the mean entropy in nats;
* *saturated*: the share of rows whose largest probability is 1 in the dtype of the queries. Its own gradient entry,
  p (g - <p, g>), is a difference of equal numbers then;
* *lost*: the mean over rows of the relative distance, at most 1, of the computed :math:`p_\top(1 - p_\top)` from the
  exact :math:`p_\top\sum_{t\neq\top}p_t`: the share of a top entry's gradient that cancellation takes and
  :func:`attsvm.functional.exact_softmax` keeps. Rows whose other probabilities underflow have nothing to keep;

and of its weights: norm and stable rank of :math:`W = s K Q^\top`, and :math:`\|K^\top K - Q^\top Q\|_F`, which
gradient flow without weight decay leaves as it was. Nothing of transformers is imported before a step is measured.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from attsvm.pretrained.activations.layers import layer_numbers
from attsvm.pretrained.activations.maps import Place
from attsvm.pretrained.activations.recording import AttentionCall, Recorder, configurations, own_eager
from attsvm.pretrained.activations.sources import explain
from attsvm.pretrained.audit import margin_audit
from attsvm.pretrained.extract import extract_heads

_COUNTER = itertools.count()
# Rows of queries looked at: these many sequences, and about these many rows of each.
SEQUENCES, ROWS = 4, 32
# Squarings of K^T K Q^T Q before a power step: its largest eigenvalue stands out by the 32nd power.
SQUARINGS = 5
Factors = list[tuple[Place, Place, float]]


class AttentionMonitor:
    """Watch the attention of a transformers model during training.

    It is a callback for transformers' Trainer (``Trainer(callbacks=[monitor])``), and in a loop of your own a context
    around the forward and backward pass of each step.

    Parameters
    ----------
    model : PreTrainedModel, optional
        Trainer passes its own; a loop must give one.
    every : int
        Steps between measurements; step 0 is measured.
    path : path, optional
        A file to which each record is appended as a line of JSON.
    report : callable, optional
        Called with a flat dict of every number, named "attention/L3H0/max_logit", and of the largest or the mean over
        heads, "attention/max_logit"; ``trainer.log`` hands them to all of Trainer's reporters (TensorBoard, W&B,
        Trackio). It can be set later: ``monitor.report = trainer.log``.
    clip : float
        Threshold of QK-clip.
    svm_inputs : mapping or sequence of str, optional
        Inputs on which each head is also held against the SVM of its selection, when measured. For small models.
    tokenizer : optional
        For `svm_inputs` that are texts.

    Attributes
    ----------
    records : list of dict
        A record a measurement: "step", and "heads", a dict of numbers each.

    Raises
    ------
    ValueError
        If `every` or `clip` is not positive.

    Examples
    --------
    >>> monitor = AttentionMonitor(model, every=50)  # doctest: +SKIP
    >>> for step in range(1000):  # doctest: +SKIP
    ...     with monitor.step(step):
    ...         model(**batch).loss.backward()
    """

    def __init__(
        self,
        model: Any = None,
        *,
        every: int = 50,
        path: str | os.PathLike[str] | None = None,
        report: Callable[[dict[str, float]], object] | None = None,
        clip: float = 100.0,
        svm_inputs: Mapping[str, Any] | Any = None,
        tokenizer: Any = None,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every is {every!r}; a positive integer was expected.")
        if not clip > 0:
            raise ValueError(f"clip is {clip!r}; a positive number was expected.")
        self.model = model
        self.every = every
        self.path = None if path is None else Path(path)
        self.report = report
        self.clip = clip
        self.records: list[dict[str, Any]] = []
        self._svm_inputs = svm_inputs
        self._tokenizer = tokenizer
        self._factors: dict[str, Factors] = {}
        self._located = False
        self._measured: dict[str, dict[str, torch.Tensor]] = {}
        self._undo: list[Callable[[], object]] = []

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Measure the forward passes inside the block if it is the turn of this step.

        Examples
        --------
        >>> import torch
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from attsvm.pretrained import AttentionMonitor
        >>> config = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=50, bos_token_id=None, eos_token_id=None)
        >>> model, tokens = GPT2LMHeadModel(config), torch.tensor([[7, 3, 9, 3, 1]])
        >>> monitor = AttentionMonitor(model, every=10)
        >>> for step in range(20):
        ...     with monitor.step(step):
        ...         loss = model(tokens, labels=tokens).loss
        >>> [record["step"] for record in monitor.records]
        [0, 10]
        """
        self._begin(number)
        try:
            yield
        except BaseException:
            self._restore()
            raise
        self._end(number)

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **keywords: Any) -> None:
        """Event of Trainer."""
        self.model = model if model is not None else self.model
        self._begin(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        """Event of Trainer, which has counted the step by then."""
        due = control.should_log
        self._end(state.global_step - 1)
        control.should_log = due  # which a report through trainer.log clears, and Trainer's own log would be left out

    def on_train_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        """Event of Trainer."""
        self._restore()

    def __getattr__(self, name: str) -> Any:
        """Ignore Trainer's other events."""
        if name.startswith("on_"):
            return lambda *arguments, **keywords: None
        raise AttributeError(f"AttentionMonitor has no attribute {name!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return settings and records, as JSON can hold them.

        Examples
        --------
        >>> import torch
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from attsvm.pretrained import AttentionMonitor
        >>> config = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=50, bos_token_id=None, eos_token_id=None)
        >>> model, tokens = GPT2LMHeadModel(config), torch.tensor([[7, 3, 9, 3, 1]])
        >>> monitor = AttentionMonitor(model, every=10)
        >>> for step in range(20):
        ...     with monitor.step(step):
        ...         loss = model(tokens, labels=tokens).loss
        >>> sorted(monitor.to_dict())
        ['clip', 'every', 'records']
        """
        return {"every": self.every, "clip": self.clip, "records": self.records}

    def to_json_lines(self) -> str:
        """Return a line of JSON a record.

        Examples
        --------
        >>> import torch
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from attsvm.pretrained import AttentionMonitor
        >>> config = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=50, bos_token_id=None, eos_token_id=None)
        >>> model, tokens = GPT2LMHeadModel(config), torch.tensor([[7, 3, 9, 3, 1]])
        >>> monitor = AttentionMonitor(model, every=10)
        >>> for step in range(20):
        ...     with monitor.step(step):
        ...         loss = model(tokens, labels=tokens).loss
        >>> len(monitor.to_json_lines().splitlines())
        2
        """
        return "".join(json.dumps(record) + "\n" for record in self.records)

    def series(self, number: str, layer: int, head: int) -> list[tuple[int, float]]:
        """Return one number of one head over the steps measured: (step, value).

        Examples
        --------
        >>> import torch
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from attsvm.pretrained import AttentionMonitor
        >>> config = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=50, bos_token_id=None, eos_token_id=None)
        >>> model, tokens = GPT2LMHeadModel(config), torch.tensor([[7, 3, 9, 3, 1]])
        >>> monitor = AttentionMonitor(model, every=10)
        >>> for step in range(20):
        ...     with monitor.step(step):
        ...         loss = model(tokens, labels=tokens).loss
        >>> [step for step, value in monitor.series("max_logit", 0, 1)]
        [0, 10]
        """
        return [
            (record["step"], one[number])
            for record in self.records
            for one in record["heads"]
            if (one["layer"], one["head"]) == (layer, head)
        ]

    def _begin(self, number: int) -> None:
        if number % self.every:
            return
        if self.model is None:
            raise ValueError("model is None; AttentionMonitor(model) was expected outside of Trainer.")
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        self._measured = {}
        recorder = Recorder(self.model, lambda index, path: False)
        for config in configurations(self.model):
            original = config._attn_implementation_internal or "eager"
            name = f"attsvm_monitor_{next(_COUNTER)}"
            ALL_ATTENTION_FUNCTIONS.register(name, self._standing_in(original, recorder))
            if original in ALL_MASK_ATTENTION_FUNCTIONS:
                ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS[original])
            self._undo += [
                lambda config=config, original=original: setattr(config, "_attn_implementation_internal", original),
                lambda name=name: ALL_ATTENTION_FUNCTIONS._global_mapping.pop(name, None),
                lambda name=name: ALL_MASK_ATTENTION_FUNCTIONS._global_mapping.pop(name, None),
            ]
            config._attn_implementation_internal = name
        if not self._located:  # the first time, hooks show where the weights of each head are
            for module in self.model.modules():
                handles = (
                    module.register_forward_pre_hook(recorder.enter, with_kwargs=True),
                    module.register_forward_hook(recorder.leave, with_kwargs=True),
                )
                self._undo += [handle.remove for handle in handles]

    def _standing_in(self, original: str, recorder: Recorder) -> Callable[..., Any]:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        def attend(
            module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, **keywords: Any
        ) -> Any:
            path = recorder.path_of(module)
            if path not in self._measured:
                scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
                causal = keywords.get("is_causal")
                causal = getattr(module, "is_causal", True) if causal is None else causal
                with torch.no_grad():
                    self._measured[path] = _measure(query, key, attention_mask, scale, causal=bool(causal))
                    if not self._located:
                        self._factors[path] = _places(recorder.call_of(module, query, key, scale))
            function = own_eager(module) if original == "eager" else ALL_ATTENTION_FUNCTIONS[original]
            return function(module, query, key, value, attention_mask, scaling=scaling, **keywords)

        return attend

    def _restore(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _end(self, number: int) -> None:
        if not self._undo:
            return
        self._restore()
        self._located = bool(self._measured)
        numbers = dict(zip(self._measured, layer_numbers(list(self._measured)), strict=True))
        heads = []
        for path, measured in self._measured.items():
            with torch.no_grad():
                measured |= _weights(self.model, self._factors.get(path, []))
            columns = {name: values.tolist() for name, values in measured.items()}
            for head in range(len(columns["max_logit"])):
                row = {name: values[head] for name, values in columns.items()}
                row["clip_factor"] = min(1.0, self.clip / row["max_logit"]) if row["max_logit"] > 0 else 1.0
                heads.append({"layer": numbers[path], "head": head, "name": path, **row})
        if self._svm_inputs is not None:
            self._hold_against_svms(heads)
        record = {"step": number, "heads": heads}
        self.records.append(record)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        if self.report is not None:
            self.report(flat(record))

    def _hold_against_svms(self, heads: list[dict[str, Any]]) -> None:
        rows = {(row["layer"], row["head"]): row for row in heads}
        for head in extract_heads(self.model, self._svm_inputs, tokenizer=self._tokenizer):
            audit = margin_audit(head, queries=32, norms=(), draws=0)
            if (head.layer, head.head) in rows:
                rows[head.layer, head.head] |= {"svm_cosine": audit.cosine, "svm_efficiency": audit.efficiency}


def flat(record: dict[str, Any]) -> dict[str, float]:
    """Name every number of a record for a reporter, and add the largest (of logits, norms) or mean over heads."""
    named: dict[str, float] = {}
    totals: dict[str, list[float]] = {}
    for row in record["heads"]:
        for name, value in row.items():
            if name not in ("layer", "head", "name") and value is not None and math.isfinite(value):
                named[f"attention/L{row['layer']}H{row['head']}/{name}"] = value
                totals.setdefault(name, []).append(value)
    for name, values in totals.items():
        total = max(values) if name in ("max_logit", "norm", "imbalance") else sum(values) / len(values)
        named[f"attention/{name}"] = total
    return named


def _measure(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, scaling: float, *, causal: bool
) -> dict[str, torch.Tensor]:
    """Look at some rows of a layer's scores; (H,) each."""
    count, length = min(SEQUENCES, len(query)), query.shape[2]
    rows = torch.arange(0, length, max(1, length // ROWS), device=query.device)
    q, k = query[:count, :, rows].float(), key[:count].float()
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = scaling * (q @ k.mT)  # (b, H, R, Tk)
    if mask is not None:
        own = mask[:count, :, :, : k.shape[2]]
        own = own[:, :, rows] if own.shape[2] == length else own
        scores = scores.masked_fill(~own, -torch.inf) if own.dtype == torch.bool else scores + own
        hidden = scores <= torch.finfo(own.dtype).min / 2 if own.dtype.is_floating_point else ~own
        scores = scores.masked_fill(hidden, -torch.inf)
    elif causal and length > 1:
        places = torch.arange(k.shape[2], device=query.device)
        scores = scores.masked_fill(places > rows[:, None] + (k.shape[2] - length), -torch.inf)
    scores = scores.transpose(0, 1).flatten(1, 2)  # (H, rows, Tk)
    counted = torch.isfinite(scores).sum(dim=-1) > 1  # rows that choose
    top = scores.topk(min(2, scores.shape[-1]), dim=-1)
    highest = top.values[..., :1]
    others = (scores - highest).exp().scatter(-1, top.indices[..., :1], 0.0).sum(dim=-1)
    others = torch.where(counted, others, 0.0)
    p = 1.0 / (1.0 + others)
    rounded = p.to(query.dtype)
    exact, computed = p * (others * p), (rounded * (1.0 - rounded)).float()
    probability = torch.softmax(scores.masked_fill(~counted[..., None], 0.0), dim=-1)
    total = counted.sum(dim=-1).clamp_min(1)
    lost = ((exact - computed).abs() / exact.clamp_min(torch.finfo(torch.float32).tiny)).clamp_max(1.0)
    margin = torch.where(counted, top.values[..., 0] - top.values[..., -1], torch.nan)
    return {
        "max_logit": torch.where(torch.isfinite(scores), scores, -torch.inf).amax(dim=(1, 2)),
        "margin": margin.nanmedian(dim=-1).values,
        "entropy": torch.where(counted, torch.special.entr(probability).sum(dim=-1), 0.0).sum(dim=-1) / total,
        "saturated": (counted & (rounded == 1)).sum(dim=-1) / total,
        "lost": torch.where(counted & (exact > 0), lost, 0.0).sum(dim=-1) / total,
    }


def _places(call: AttentionCall) -> Factors:
    """Find where each head's key and query maps are written; nothing where a head has no linear maps of its own."""
    places: Factors = []
    try:
        for head in range(call.query.shape[1]):
            query, key, _ = explain(call, head)
            places.append((key.place, query.place, call.scaling))
    except ValueError:
        return []
    return places if all(one.kind == "linear" for pair in places for one in pair[:2]) else []


def _weights(model: Any, factors: Factors) -> dict[str, torch.Tensor]:
    """Norm and stable rank of W, and imbalance of K and Q, of a layer's heads; (H,) each."""
    if not factors:
        return {}
    keys = torch.stack([_gram(model, place) for place, _, _ in factors])  # (H, dh, dh)
    queries = torch.stack([_gram(model, place) for _, place, _ in factors])
    scale = factors[0][2]
    product = keys @ queries
    squared = product.diagonal(dim1=-2, dim2=-1).sum(dim=-1).clamp_min(0.0)
    power = product / product.flatten(1).norm(dim=1).clamp_min(1e-30)[:, None, None]
    for _ in range(SQUARINGS):
        power = power @ power
        power = power / power.flatten(1).norm(dim=1).clamp_min(1e-30)[:, None, None]
    vector = power.sum(dim=-1, keepdim=True)
    largest = (product @ vector).norm(dim=1)[:, 0] / vector.norm(dim=1)[:, 0].clamp_min(1e-30)
    return {
        "norm": scale * squared.sqrt(),
        "stable_rank": squared / largest.clamp_min(1e-30),
        "imbalance": (keys - queries).flatten(1).norm(dim=1),
    }


def _gram(model: Any, place: Place) -> torch.Tensor:
    """Return A^T A of a head's map A (d, dh), without its bias."""
    weight = model.get_submodule(place.path).weight.detach()
    own = slice(place.start, place.start + place.width)
    A = (weight[own].mT if place.rows else weight[:, own]).float() * place.factor
    return A.mT @ A
