"""Largest difference of extracted heads from the model's own attention, by family of transformers.

Families come from tests/pretrained_models.py and this file, with two layers of random weights in float32 and
texts padded on either side. The last line is MiniLM on the texts of the tests.

    python benchmarks/architectures.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers as tf

from attsvm.pretrained import extract_heads

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from pretrained_models import CONFIGURATIONS, SENTENCES, batch, minilm, tiny

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {"vocab_size": 60, "max_position_embeddings": 64}
IMAGE = {**SIZES, "image_size": 16, "patch_size": 4}
SOUND = {
    **SIZES, "conv_dim": (8, 8), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
IMAGES, WAVES, MEL = ("pixel_values", (2, 3, 16, 16)), ("input_values", (2, 400)), ("input_features", (2, 16, 40))
# Configuration of each family, its settings, and the name and shape of its input unless that is a text.
OTHERS: dict[str, tuple[str, dict[str, Any], tuple[str, tuple[int, ...]] | None]] = {
    "xglm": (
        "XGLMConfig",
        {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48, "vocab_size": 60},
        None,
    ),
    "roformer": ("RoFormerConfig", {**SIZES, **TEXT, "embedding_size": 32}, None),
    "codegen": (
        "CodeGenConfig",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_ctx": 64, "vocab_size": 60, "rotary_dim": 4},
        None,
    ),
    "deit": ("DeiTConfig", IMAGE, IMAGES),
    "dinov2": ("Dinov2Config", IMAGE, IMAGES),
    "clip": ("CLIPVisionConfig", IMAGE, IMAGES),
    "beit": ("BeitConfig", {**IMAGE, "use_relative_position_bias": True}, IMAGES),
    "swin": (
        "SwinConfig",
        {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4},
        IMAGES,
    ),
    "wav2vec2": ("Wav2Vec2Config", {**SOUND, "num_feat_extract_layers": 2}, WAVES),
    "hubert": ("HubertConfig", {**SOUND, "num_feat_extract_layers": 2}, WAVES),
    "whisper": (
        "WhisperConfig",
        {
            "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
            "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_mel_bins": 16,
            "max_source_positions": 20, "max_target_positions": 20, "vocab_size": 60, "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
        },
        MEL,
    ),
}  # fmt: skip


def inputs_of(family: str) -> dict[str, torch.Tensor]:
    """Return a batch for a family of this file."""
    shaped = OTHERS[family][2]
    if shaped is None:
        return batch("bert")
    inputs = {shaped[0]: torch.randn(shaped[1], generator=torch.Generator().manual_seed(1))}
    if family == "whisper":
        inputs["decoder_input_ids"] = torch.tensor([[1, 5, 9, 7], [1, 8, 3, 6]])
    return inputs


def main() -> None:
    """Print a line per family."""
    CONFIGURATIONS.update({family: (name, settings) for family, (name, settings, _) in OTHERS.items()})
    for family in CONFIGURATIONS:
        if family != "resnet":  # has no attention
            inputs = inputs_of(family) if family in OTHERS else batch(family)
            heads = list(extract_heads(tiny(family), inputs))
            print(f"{family}: {max(head.error for head in heads):.0e} over {len(heads)} heads", flush=True)
    model, tokenizer = minilm()
    heads = list(extract_heads(model, SENTENCES, tokenizer=tokenizer))
    print(f"MiniLM: {max(head.error for head in heads):.1e} over {len(heads)} heads")


if __name__ == "__main__":
    tf.logging.set_verbosity_error()
    main()
