"""A model of two layers trained on texts that repeat, until its second layer does induction, with checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers as tf


@dataclass(frozen=True)
class Repeats:
    """Sizes of a training: the model, its texts and its steps.

    `shortest` and `longest` bound the length of the passage that repeats. Training ends at the step after which the
    loss on repeated words is below `loss`, at the latest after `steps`.
    """

    width: int
    heads: int
    words: int
    length: int
    shortest: int
    longest: int
    rate: float
    batch: int
    steps: int
    loss: float = 0.0

    def texts(self, rng: np.random.Generator, count: int) -> torch.Tensor:
        """Texts in which a random passage, after a start of its own, repeats to the end."""
        ids = rng.integers(0, self.words, size=(count, self.length))
        for row in ids:
            start, period = rng.integers(0, 6), rng.integers(self.shortest, self.longest)
            row[start + period :] = np.resize(row[start : start + period], self.length - start - period)
        return torch.from_numpy(ids)


# Induction within about 100 steps and two processor seconds, and within about 200 and ten.
SMALL = Repeats(48, 2, 20, 24, 6, 10, 8e-3, 32, 120)
LARGER = Repeats(64, 4, 40, 32, 8, 14, 5e-3, 48, 400, loss=0.35)


def train(sizes: Repeats, visit: Callable[[int, Any], object] = lambda step, model: None) -> tuple[Any, torch.Tensor]:
    """Train on repeats; `visit` is called with the number of finished steps and the model. Also returns 24 texts."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    config = tf.LlamaConfig(
        hidden_size=sizes.width, num_hidden_layers=2, num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads, intermediate_size=sizes.width, vocab_size=sizes.words,
        max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = tf.AutoModelForCausalLM.from_config(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.rate, betas=(0.9, 0.95), weight_decay=0.01)
    start = sizes.longest + 1
    for step in range(sizes.steps):
        visit(step, model)
        optimizer.param_groups[0]["lr"] = sizes.rate * min(1.0, (step + 1) / 30)
        ids = sizes.texts(rng, sizes.batch)
        logits = model(input_ids=ids).logits[:, start:-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, start + 1 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < sizes.loss:
            break
    assert loss.item() < (sizes.loss or 0.5 * np.log(sizes.words)), f"no induction: the loss is {loss.item():.2f}"
    visit(step + 1, model)
    return model.eval(), sizes.texts(rng, 24)


@cache
def induction_model() -> tuple[Any, torch.Tensor]:
    """The larger model and texts, once per session."""
    return train(LARGER)
