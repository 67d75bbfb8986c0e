"""Texts padded on the left, in float64, whose lowest number is -inf in the float32 of softmax."""

from __future__ import annotations

import pytest
import torch

from attsvm_pretrained.heads.extract import examine_heads
from attsvm_pretrained.heads.head import AttentionHead
from pretrained_models import tiny


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_all_heads_are_read_in_float64(family: str) -> None:
    model = tiny(family).double().eval()
    ids = torch.randint(3, 60, (3, 9), generator=torch.Generator().manual_seed(0))
    visible = torch.ones(3, 9, dtype=torch.long)
    visible[2, :3] = 0
    heads = list(examine_heads(model, {"input_ids": ids, "attention_mask": visible}))
    assert len(heads) == 8
    for head in heads:
        assert isinstance(head, AttentionHead), head.reason
        assert head.error < 1e-6  # probabilities are float32
        assert len(head.mask) == 24  # no query is padding
