r"""Measure the effects of training on attention, head by head, while it runs.

Every k steps, in the training forward pass itself, the monitor's function replaces transformers' attention function. It
measures some query rows of a few sequences, without padding, then calls the model's own function. If a step has several
forward passes, the first one counts. On other steps the model is unchanged. The numbers of every head, on these rows,
are:

* *non_finite*: the share of rows with a score that is no number or beyond the range of the queries' dtype. The numbers
  below, except the largest logit, are of the other rows, and nan if there are none;
* the largest logit, and the factor by which QK-clip (Kimi K2, arXiv 2507.20534) would shrink query-key products above
  its threshold;
* the median margin of the top logit over the second, and the mean entropy in nats;
* *saturated*: the share of rows whose largest probability is 1 in the dtype of the queries. Its gradient entry,
  p (g - <p, g>), is then a difference of equal numbers;
* *lost*: the mean over rows of the relative distance, at most 1, of the computed :math:`p_\top(1 - p_\top)` from the
  exact :math:`p_\top\sum_{t\neq\top}p_t`. Cancellation removes this share of a top entry's gradient;
  :func:`attsvm.functional.exact_softmax` preserves it. Rows whose other probabilities underflow count as zero.

The numbers of a head's weights in this forward pass are the norm and the stable rank of :math:`W = s K Q^\top`, and
:math:`\|K^\top K - Q^\top Q\|_F`, which gradient flow without weight decay does not change. transformers is imported
when a step is measured.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from attsvm.platform.json_values import json_values
from attsvm_pretrained.activations.interface import configurations, eager_function
from attsvm_pretrained.activations.layers import layer_numbers
from attsvm_pretrained.activations.recording import Recorder
from attsvm_pretrained.heads.extract import extract_heads
from attsvm_pretrained.monitoring.measures import Factors, factors_of, measure, query_mask, weights
from attsvm_pretrained.monitoring.records import IDENTITY, RecordFile, flat, line_of
from attsvm_pretrained.selection.audit import margin_audit

_COUNTER = itertools.count()


class AttentionMonitor:
    """Watch the attention of a transformers model during training.

    It is a callback for transformers' Trainer (``Trainer(callbacks=[monitor])``). In a training loop without Trainer it
    is a context around the forward and backward pass of each step.

    Parameters
    ----------
    model : PreTrainedModel, optional
        Required without Trainer, which passes its model itself.
    every : int
        Steps between measurements; step 0 is measured.
    path : path, optional
        File with one JSON record per line; nan becomes null. Only the first of several processes writes. A resumed run
        keeps the lines of earlier steps and replaces the others.
    report : callable, optional
        Called, in the first process, with a flat dict. It has every number, named "attention/L3H0/max_logit", and the
        largest or the mean over heads, named "attention/max_logit". ``trainer.log`` passes them to all of Trainer's
        reporters (TensorBoard, W&B, Trackio). It can be set later: ``monitor.report = trainer.log``.
    clip : float
        Threshold of QK-clip.
    svm_inputs : mapping or sequence of str, optional
        Inputs on which each measurement also compares each head with the SVM of its selection, for small models.
    tokenizer : optional
        Tokenizer of `svm_inputs` that are texts.

    Attributes
    ----------
    records : list of dict
        One record per measurement: "step"; "non_finite", the number of heads with scores that are not finite; and
        "heads", a list with a dict of numbers per head.

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
        self._file = None if self.path is None else RecordFile(self.path)
        self.report = report
        self.clip = clip
        self.records: list[dict[str, Any]] = []
        self._svm_inputs = svm_inputs
        self._tokenizer = tokenizer
        self._factors: dict[str, Factors] = {}
        self._crossing: dict[str, bool] = {}
        self._places_known = False
        self._numbers: dict[str, dict[str, torch.Tensor]] = {}
        self._not_padding: torch.Tensor | None = None
        self._svms: dict[tuple[int, int], dict[str, float | None]] = {}
        self._due = False
        self._warned = False
        self._undo: list[Callable[[], object]] = []

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Measure the forward pass inside the block if the step's number is a multiple of `every`.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> monitor = pretrained.AttentionMonitor(model, every=10)
        >>> for step in range(20):
        ...     with monitor.step(step):
        ...         loss = model(**inputs, labels=inputs["input_ids"]).loss
        >>> [record["step"] for record in monitor.records]
        [0, 10]
        """
        self._begin(number)
        try:
            yield
        except BaseException:
            self._restore()
            self._due = False
            raise
        self._end(number)

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **keywords: Any) -> None:
        """Event of Trainer."""
        self.model = model if model is not None else self.model
        self._begin(state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        """Event of Trainer."""
        self._finish()

    def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        """Event of Trainer, which counts the step before this event."""
        due = control.should_log
        self._end(state.global_step - 1)
        control.should_log = due  # a report through trainer.log clears it, and Trainer would skip its log

    def on_train_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        """Event of Trainer."""
        self._restore()

    def __getattr__(self, name: str) -> Any:
        """Ignore Trainer's other events."""
        if name.startswith("on_"):
            return lambda *arguments, **keywords: None
        raise AttributeError(f"AttentionMonitor has no attribute {name!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return settings and records as JSON values.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> monitor = pretrained.AttentionMonitor(model, every=10)
        >>> for step in range(20):
        ...     with monitor.step(step):
        ...         loss = model(**inputs, labels=inputs["input_ids"]).loss
        >>> sorted(monitor.to_dict())
        ['clip', 'every', 'records']
        """
        return {"every": self.every, "clip": self.clip, "records": json_values(self.records)}

    def to_json_lines(self) -> str:
        """Return one line of JSON per record.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> monitor = pretrained.AttentionMonitor(model, every=10)
        >>> for step in range(20):
        ...     with monitor.step(step):
        ...         loss = model(**inputs, labels=inputs["input_ids"]).loss
        >>> len(monitor.to_json_lines().splitlines())
        2
        """
        return "".join(line_of(record) for record in self.records)

    def series(self, number: str, layer: int, head: int) -> list[tuple[int, float]]:
        """Return one number of one head over the steps at which it was measured: (step, value).

        Raises
        ------
        ValueError
            If there is no such head or number.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> monitor = pretrained.AttentionMonitor(model, every=10)
        >>> for step in range(20):
        ...     with monitor.step(step):
        ...         loss = model(**inputs, labels=inputs["input_ids"]).loss
        >>> [step for step, value in monitor.series("max_logit", 0, 1)]
        [0, 10]
        """
        rows = [
            (record["step"], one)
            for record in self.records
            for one in record["heads"]
            if (one["layer"], one["head"]) == (layer, head)
        ]
        if rows and not any(number in one for _, one in rows):
            known = ", ".join(name for name in rows[0][1] if name not in IDENTITY)
            raise ValueError(f"number is {number!r}; one of head {layer}.{head} was expected: {known}.")
        if self.records and not rows:
            raise ValueError(f"head is {layer}.{head}; one of the records was expected.")
        return [(step, one[number]) for step, one in rows if number in one]

    def _begin(self, number: int) -> None:
        if number % self.every:
            return
        if self.model is None:
            raise ValueError("model is None; AttentionMonitor(model) was expected outside of Trainer.")
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        self._numbers, self._svms, self._not_padding, self._due = {}, {}, None, True
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
        if not self._places_known:  # the first time, hooks locate the weights of each head
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
            if path not in self._numbers:
                scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
                causal = keywords.get("is_causal")
                causal = getattr(module, "is_causal", True) if causal is None else causal
                with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
                    if not self._places_known:
                        self._crossing[path] = recorder.crosses()
                        self._factors[path] = factors_of(recorder.call_of(module, query, key, scale))
                    not_padding = self._without_padding(path, attention_mask, query, key.shape[2])
                    numbers = measure(query, key, attention_mask, scale, causal=bool(causal), not_padding=not_padding)
                    self._numbers[path] = numbers | weights(self.model, self._factors[path])
            function = eager_function(module) if original == "eager" else ALL_ATTENTION_FUNCTIONS[original]
            return function(module, query, key, value, attention_mask, scaling=scaling, **keywords)

        return attend

    def _without_padding(self, path: str, mask: Any, query: torch.Tensor, keys: int) -> torch.Tensor | None:
        """Mark queries that are no padding; cross-attention has the queries of the self-attention before it."""
        if not self._crossing.get(path, False):
            self._not_padding = query_mask(mask, query, keys)
        not_padding = self._not_padding
        return (
            not_padding
            if not_padding is not None and tuple(not_padding.shape) == (len(query), query.shape[2])
            else None
        )

    def _restore(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _end(self, number: int) -> None:
        self._finish()
        if not self._due:
            return
        self._due = False
        self._places_known = bool(self._numbers)
        numbers = dict(zip(self._numbers, layer_numbers(list(self._numbers)), strict=True))
        heads = []
        for path, layer in self._numbers.items():
            columns = {name: values.tolist() for name, values in layer.items()}
            for head in range(len(columns["max_logit"])):
                row = {name: values[head] for name, values in columns.items()}
                largest = row["max_logit"]
                row["clip_factor"] = 1.0 if largest <= self.clip else self.clip / largest
                row |= self._svms.get((numbers[path], head), {})
                heads.append({"layer": numbers[path], "head": head, "name": path, **row})
        record = {"step": number, "non_finite": sum(row["non_finite"] != 0 for row in heads), "heads": heads}
        self._warn(record)
        self.records = [one for one in self.records if one["step"] < number]
        self.records.append(record)
        if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_rank():
            return
        if self._file is not None:
            self._file.append(record)
        if self.report is not None:
            self.report(flat(record))

    def _warn(self, record: dict[str, Any]) -> None:
        bad = [f"{row['layer']}.{row['head']}" for row in record["heads"] if row["non_finite"] != 0]
        if bad and not self._warned:
            self._warned = True
            message = f"step {record['step']}: scores of {len(bad)} heads are not finite, of {bad[0]} first."
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _finish(self) -> None:
        """End the measurement before the weights of its forward pass change."""
        if not self._undo:
            return
        self._restore()
        if self._svm_inputs is None:
            return
        for head in extract_heads(self.model, self._svm_inputs, tokenizer=self._tokenizer):
            audit = margin_audit(head, queries=32, norms=(), draws=0)
            self._svms[head.layer, head.head] = {"svm_cosine": audit.cosine, "svm_efficiency": audit.efficiency}
