"""Hidden states of a frozen model as tokens of a study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from attsvm.data.passages import Span
from attsvm_pretrained.heads.inputs import longest, tokenize

# Number of texts per forward pass.
BATCH = 32


def hidden_states(model: Any, tokenizer: Any, texts: Sequence[str], most: int | None = None) -> list[np.ndarray]:
    """Return the last hidden states of each text's tokens, (T_i, d), without padding and special tokens.

    Parameters
    ----------
    model, tokenizer
        Of transformers. The model does not change.
    most : int, optional
        Number of first tokens of each text to return. Default: all.

    Returns
    -------
    list of ndarray
        In float64 if the model computes in float64, otherwise in float32.
    """
    training = model.training
    model.eval()
    special = list(tokenizer.all_special_ids)
    rows_of_texts: list[np.ndarray] = []
    try:
        for start in range(0, len(texts), BATCH):
            batch = tokenize(list(texts[start : start + BATCH]), tokenizer)
            with torch.no_grad():
                states = model(**batch).last_hidden_state
            states = (states if states.dtype == torch.float64 else states.float()).numpy()
            ordinary = batch["attention_mask"].bool().numpy() & ~np.isin(batch["input_ids"].numpy(), special)
            rows_of_texts += [row[tokens][:most].copy() for row, tokens in zip(states, ordinary, strict=True)]
    finally:
        model.train(training)
    return rows_of_texts


def hidden_spans(tokenizer: Any, texts: Sequence[str]) -> list[list[Span]] | None:
    """Locate the characters of each text that the rows of :func:`hidden_states` come from.

    Parameters
    ----------
    tokenizer
        Of transformers.

    Returns
    -------
    list of list of (int, int, int), or None
        First character, end and row, without the spaces that some tokenizers include in a word. None if the tokenizer
        does not record positions (one written in Python).
    """
    if not tokenizer.is_fast:
        return None
    special = set(tokenizer.all_special_ids)
    limit = longest(tokenizer)
    spans_of_texts: list[list[Span]] = []
    for text in texts:
        encoding = tokenizer(text, truncation=True, max_length=limit, return_offsets_mapping=True)
        pairs = zip(encoding["input_ids"], encoding["offset_mapping"], strict=True)
        places = [place for token, place in pairs if token not in special]
        spans_of_texts.append([(*_without_spaces(text, *place), row) for row, place in enumerate(places)])
    return spans_of_texts


def _without_spaces(text: str, first: int, end: int) -> tuple[int, int]:
    inside = text[first:end]
    return end - len(inside.lstrip()), first + len(inside.rstrip())
