"""Measure the effects of each head of an inspected model on the next tokens of a few texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from attsvm_pretrained.activations.interface import evaluating
from attsvm_pretrained.attribution.effects import NO_ANSWER, head_effects
from attsvm_pretrained.attribution.logits import attribute_logit
from attsvm_pretrained.heads.inputs import model_inputs
from attsvm_pretrained.inspection.finding import DRAWS, TIME_LIMIT, HeadFinding, NextTokens
from attsvm_pretrained.selection.rules import Rules

# Largest number of texts whose next tokens are measured.
MOST_TEXTS = 8
# Change of earlier logits with the last token, over the change of the last logits, above which a model is not causal.
FORESIGHT = 1e-3


class TokenEffects:
    """The next tokens of a few texts, and the direct effect of each head on the last of each text.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model.
    texts : sequence of str
        The first :data:`MOST_TEXTS` are read.
    tokenizer : PreTrainedTokenizerBase

    Raises
    ------
    ValueError
        If the model has no logits per token, or sees the token that it should predict.
    """

    def __init__(
        self, model: Any, texts: Sequence[str], tokenizer: Any, rules: Rules | None, *, queries: int, seed: int
    ) -> None:
        self._model, self._tokenizer, self._rules, self._queries, self._seed = model, tokenizer, rules, queries, seed
        self._inputs = model_inputs(model, list(texts[:MOST_TEXTS]), tokenizer)
        ids = self._inputs["input_ids"].cpu().numpy()
        visible = self._inputs.get("attention_mask", torch.ones(ids.shape)).cpu().numpy().astype(bool)
        self._labels = np.full(ids.shape, NO_ANSWER)
        self._labels[:, :-1] = np.where(visible[:, :-1] & visible[:, 1:], ids[:, 1:], NO_ANSWER)
        with evaluating(model), torch.no_grad():
            logits = getattr(model(**self._inputs), "logits", None)
            if logits is None or logits.shape[:2] != ids.shape:
                raise ValueError(
                    f"{type(model).__name__} returns no logits by place; a causal language model was expected."
                )
            _refuse_foresight(model, self._inputs, logits)
        self._direct = self._direct_effects(logits)

    def _direct_effects(self, logits: torch.Tensor) -> np.ndarray:
        """Return the mean direct effect of each head on the logit of the last token over its best rival, (L, H)."""
        splits = []
        for sequence, labels in enumerate(self._labels):
            positions = np.flatnonzero(labels != NO_ANSWER)
            if not len(positions):
                continue
            row = logits[sequence, positions[-1]].clone()
            answer = int(labels[positions[-1]])
            row[answer] = -torch.inf
            split = attribute_logit(
                self._model, self._inputs, answer=answer, rival=int(row.argmax()), place=-2, sequence=sequence
            )
            splits.append(split.by_head())
        return np.mean(splits, axis=0)

    def of(self, finding: HeadFinding) -> HeadFinding:
        """Return the finding with the effects of its head."""
        at = (finding.layer, finding.head)
        effects = head_effects(
            self._model, *at, self._inputs, answers=self._labels, tokenizer=self._tokenizer, rules=self._rules,
            draws=DRAWS, queries=self._queries, seed=self._seed, time_limit=TIME_LIMIT,
        )  # fmt: skip
        direct = self._direct
        inside = all(number < size for number, size in zip(at, direct.shape, strict=True))
        return replace(
            finding,
            effects=NextTokens(
                len(effects.before),
                float(effects.before.mean()),
                float(direct[at]) if inside and np.isfinite(direct[at]) else None,
                {name: effects.standing(name) for name in effects.changes},
                effects.types.label,
            ),
        )


def _refuse_foresight(model: Any, inputs: dict[str, Any], logits: torch.Tensor) -> None:
    """Refuse a model whose logits depend on later tokens."""
    ids = inputs["input_ids"].clone()
    ids[:, -1] = (ids[:, -1] + 1) % logits.shape[-1]
    change = (model(**{**inputs, "input_ids": ids}).logits - logits).abs()
    if change[:, :-1].max() > FORESIGHT * change[:, -1].max():
        raise ValueError(
            f"{type(model).__name__} sees the tokens that it predicts; a causal language model was expected."
        )
