"""Hidden states of a frozen model as tokens of a study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from attsvm.pretrained.extract import tokenize

BATCH = 32


def hidden_states(model: Any, tokenizer: Any, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the last hidden states of each text's own tokens, (T_i, d), without padding and special tokens.

    Parameters
    ----------
    model, tokenizer
        Of transformers. The model is left as it was found.
    texts : sequence of str
    """
    training = model.training
    model.eval()
    special = list(tokenizer.all_special_ids)
    rows_of_texts: list[np.ndarray] = []
    try:
        for start in range(0, len(texts), BATCH):
            batch = tokenize(list(texts[start : start + BATCH]), tokenizer)
            with torch.no_grad():
                states = model(**batch).last_hidden_state.double().numpy()
            own = batch["attention_mask"].bool().numpy() & ~np.isin(batch["input_ids"].numpy(), special)
            rows_of_texts += [row[visible] for row, visible in zip(states, own, strict=True)]
    finally:
        model.train(training)
    return rows_of_texts
