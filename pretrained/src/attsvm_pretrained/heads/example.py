"""Small transformers with random weights, on which the functions of this package can be tried."""

from __future__ import annotations

from typing import Any, Literal

import torch

from attsvm_pretrained.activations.backend import transformers
from attsvm_pretrained.heads.extract import extract_head
from attsvm_pretrained.heads.head import AttentionHead

VOCABULARY = 50


def example_model(architecture: Literal["bert", "gpt2", "llama"] = "bert") -> tuple[Any, dict[str, torch.Tensor]]:
    """Return a transformer of width 16 with two heads per layer, and token ids for it.

    Parameters
    ----------
    architecture : str
        "bert": one layer, position embeddings, biases. "llama": one layer, rotary positions. "gpt2": two causal layers
        and a language-model head.

    Returns
    -------
    model : transformers.PreTrainedModel
        In evaluation mode, on the CPU. Its weights are random and the same in every call.
    inputs : dict of str to tensor
        "input_ids", int64: shape (4, 6), all different; shape (1, 5) with one token twice for "gpt2".

    Raises
    ------
    MissingExtra
        If transformers is not installed.
    ValueError
        If `architecture` is another word.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> model, inputs = pretrained.example_model("gpt2")
    >>> [(head.layer, head.head) for head in pretrained.extract_heads(model, inputs)]
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    library = transformers()
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = torch.arange(24).reshape(4, 6)
    # A separate generator, so that the caller's random numbers do not change.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if architecture == "bert":
            model = library.BertModel(library.BertConfig(vocab_size=VOCABULARY, **sizes), add_pooling_layer=False)
        elif architecture == "llama":
            model = library.LlamaModel(library.LlamaConfig(vocab_size=VOCABULARY, **sizes))
        elif architecture == "gpt2":
            ends = {"bos_token_id": None, "eos_token_id": None}
            config = library.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=VOCABULARY, **ends)
            model, ids = library.GPT2LMHeadModel(config), torch.tensor([[7, 3, 9, 3, 1]])
        else:
            raise ValueError(f"architecture is {architecture!r}; 'bert', 'gpt2' or 'llama' was expected.")
    return model.eval(), {"input_ids": ids}


def example_head(architecture: Literal["bert", "gpt2", "llama"] = "bert") -> AttentionHead:
    """Return the second head of the last layer of :func:`example_model` on its inputs.

    Parameters
    ----------
    architecture : str
        As for :func:`example_model`.

    Returns
    -------
    AttentionHead

    Raises
    ------
    MissingExtra, ValueError
        As :func:`example_model`.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> pretrained.example_head().attention().shape
    (24, 6)
    >>> pretrained.example_head("llama").rotary
    True
    """
    model, inputs = example_model(architecture)
    return extract_head(model, model.config.num_hidden_layers - 1, 1, inputs)
