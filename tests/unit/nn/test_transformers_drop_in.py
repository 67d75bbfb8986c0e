"""A Hugging Face script with one line changed for each function: the same training, and exact gradients."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from attsvm.functional import exact_attention, exact_cross_entropy

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

STEPS, BATCH, LENGTH, WORDS = 12, 4, 9, 23


class Texts(torch.utils.data.Dataset):
    """Random texts of different lengths; padding is labelled -100, as transformers' collators do."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.words = torch.randint(2, WORDS, (STEPS * BATCH, LENGTH), generator=generator)
        self.visible = torch.arange(LENGTH) < torch.randint(4, LENGTH + 1, (len(self.words), 1), generator=generator)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words, visible = self.words[index], self.visible[index]
        return {
            "input_ids": words.masked_fill(~visible, 0),
            "attention_mask": visible.long(),
            "labels": words.masked_fill(~visible, -100),
        }


def tiny_llama() -> Any:
    """Two key heads for four query heads, and attention dropout."""
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attention_dropout=0.1, attn_implementation="sdpa", use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


def by_loop(autocast: bool) -> list[float]:
    model, texts = tiny_llama().train(), Texts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for first in range(0, len(texts), BATCH):
        rows = [texts[index] for index in range(first, first + BATCH)]
        batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def by_trainer(folder: Path) -> list[float]:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=BATCH, max_steps=STEPS, logging_steps=1, learning_rate=1e-2,
        report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True, seed=0, label_smoothing_factor=0.0,
    )  # fmt: skip
    trainer = transformers.Trainer(tiny_llama(), arguments, train_dataset=Texts())
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Put both functions in torch's place, and count that the model calls them."""
    counts = {"cross_entropy": 0, "scaled_dot_product_attention": 0}

    def replace(name: str, function: Any) -> None:
        def counted(*inputs: Any, **options: Any) -> Any:
            counts[name] += 1
            return function(*inputs, **options)

        monkeypatch.setattr(functional, name, counted)

    replace("cross_entropy", exact_cross_entropy)
    replace("scaled_dot_product_attention", exact_attention)
    return counts


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Losses of the unchanged script."""
    trainer = by_trainer(tmp_path_factory.mktemp("plain"))
    return {"loop": by_loop(False), "autocast": by_loop(True), "trainer": trainer}


# Float32 rounds a step by 1e-7 of it, which Adam's quotients of small gradients amplify; bfloat16 by 4e-3.
TOLERANCES = {"loop": 1e-3, "trainer": 1e-3, "autocast": 5e-2}


@pytest.mark.parametrize("script", TOLERANCES)
@pytest.mark.slow
def test_training_is_that_of_torch(script: str, plain: dict, calls: dict[str, int], tmp_path: Path) -> None:
    losses = by_trainer(tmp_path) if script == "trainer" else by_loop(script == "autocast")
    assert calls["cross_entropy"] == STEPS
    assert calls["scaled_dot_product_attention"] == 2 * STEPS
    assert losses == pytest.approx(plain[script], rel=TOLERANCES[script])
    assert len(losses) == STEPS
    assert losses != plain[script][:1] * STEPS
