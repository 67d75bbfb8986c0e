"""Tokenize texts and move the inputs to the model's device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def on_device(batch: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Move keyword arguments to the model's device."""
    device = getattr(model, "device", None)
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def tokenize(inputs: Mapping[str, Any] | Sequence[str], tokenizer: Any) -> dict[str, Any]:
    """Return keyword arguments for the model.

    Raises ValueError if texts are given without a tokenizer, or there are no texts.
    """
    if isinstance(inputs, Mapping):
        return dict(inputs)
    texts = [inputs] if isinstance(inputs, str) else list(inputs)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"inputs has type {type(inputs).__name__}; keyword arguments of the model, or a sequence of texts "
            "that is not empty, were expected."
        )
    if tokenizer is None:
        raise ValueError(f"inputs are {len(texts)} texts; a tokenizer was expected with them.")
    if tokenizer.pad_token is None and len(texts) > 1:
        raise ValueError(
            f"{type(tokenizer).__name__} has no padding token for {len(texts)} texts of different lengths; one "
            "was expected: set tokenizer.pad_token, for example to tokenizer.eos_token."
        )
    most = longest(tokenizer)
    return dict(tokenizer(texts, padding=len(texts) > 1, truncation=True, max_length=most, return_tensors="pt"))


def longest(tokenizer: Any) -> int:
    """Return the largest number of tokens of a text; a tokenizer without a limit states an absurdly large one."""
    return min(tokenizer.model_max_length, 1 << 20)


def model_inputs(model: Any, texts: Sequence[str], tokenizer: Any) -> dict[str, Any]:
    """Tokenize texts for a model, on its device.

    If the decoder of an encoder-decoder needs inputs, it reads the same text, shifted by one.
    """
    batch = on_device(tokenize(texts, tokenizer), model)
    shift = getattr(model, "_shift_right", None)
    reads = getattr(model.config, "is_encoder_decoder", False) and "input_ids" in batch
    if reads and shift is not None and "decoder_input_ids" not in batch:
        padding = {"decoder_attention_mask": batch["attention_mask"]} if "attention_mask" in batch else {}
        return {**batch, **padding, "decoder_input_ids": shift(batch["input_ids"])}
    return batch
