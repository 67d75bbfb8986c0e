"""Compress the query-key side of a whole model, write it back, and measure what that costs."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attsvm.core.files import replacing_files_in
from attsvm.core.summary import Worded
from attsvm.pretrained.extract import extract_heads, tokenize
from attsvm.pretrained.head import AttentionHead
from attsvm.pretrained.layers import layer_numbers
from attsvm.pretrained.lowrank import Method, compress_group, divergence
from attsvm.pretrained.maps import Place
from attsvm.pretrained.tracing import record


@dataclass(frozen=True)
class HeadCost:
    """What compression did to one head.

    Attributes
    ----------
    layer, head : int
    kl, top1 : float
        Of this head alone, everything before it as it was: mean KL divergence of its attention, and the share of
        queries with the same top token.
    """

    layer: int
    head: int
    kl: float
    top1: float


@dataclass(frozen=True, eq=False, repr=False)
class CompressedModel(Worded):
    """A model whose query-key products need fewer coordinates, and what that changes.

    Attributes
    ----------
    model : PreTrainedModel
        A copy with the new weights. Shapes are as before, since transformers ties them to those of the values: the
        coordinates that are not needed hold zeros, so it loads and runs anywhere, and a kernel or cache that skips them
        saves what is counted here.
    rank, width : int
        Query-key coordinates kept, and how many there were.
    method : str
    heads : tuple of HeadCost
        On the evaluation inputs.
    kl, top1 : float
        Mean over heads with all of them compressed, each reading what the compressed layers before it put out.
    loss, loss_before : float or None
        Mean cross-entropy of the next token, in nats, of a causal language model, or the loss that the model returns
        for evaluation inputs with labels. None for a model without either.
    output_change : float
        Norm of the change of the last hidden state over its norm.
    key_bytes, key_bytes_before : int
        Key-cache bytes a token, in the model's dtype.
    flops, flops_before : int
        Multiplications and additions of one query-key product, all heads together.

    Examples
    --------
    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> from attsvm import pretrained
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False)
    >>> inputs = {"input_ids": torch.arange(24).reshape(4, 6)}
    >>> compressed = pretrained.compress_model(model, 4, inputs)
    >>> compressed.method, len(compressed.heads), compressed.model.config.hidden_size
    ('whitened', 2, 16)
    """

    model: Any
    rank: int
    width: int
    method: str
    heads: tuple[HeadCost, ...]
    kl: float
    top1: float
    loss: float | None
    loss_before: float | None
    output_change: float
    key_bytes: int
    key_bytes_before: int
    flops: int
    flops_before: int

    @property
    def sentence(self) -> str:
        """Say what it saves and costs."""
        saving = 100 * (1 - self.key_bytes / self.key_bytes_before)
        outcome = f"the last hidden state changes by {100 * self.output_change:.0f} % of its norm"
        if self.loss is not None and self.loss_before is not None:
            outcome = f"the loss goes from {self.loss_before:.3f} to {self.loss:.3f}, and {outcome}"
        return (
            f"Rank {self.rank} of {self.width} ({self.method}): {outcome}; attention diverges by {self.kl:.2f} "
            f"nats, and its top token stays in {100 * self.top1:.0f} %. A kernel that skips the zeros saves "
            f"{saving:.0f} % of key-cache bytes and query-key products; as written the model saves nothing."
        )

    def save(self, directory: str | Path, tokenizer: Any = None) -> Path:
        """Write the model (and tokenizer) for ``from_pretrained``, with attsvm_compression.json beside it.

        Raises
        ------
        OSError
            If the directory cannot be written.
        """
        with replacing_files_in(directory) as beside:
            self.model.save_pretrained(beside)
            if tokenizer is not None:
                tokenizer.save_pretrained(beside)
            record = asdict(replace(self, model=None))
            del record["model"]
            (beside / "attsvm_compression.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        return Path(directory)


def compress_model(
    model: Any,
    rank: int,
    inputs: Mapping[str, Any] | Sequence[str],
    *,
    method: Method = "whitened",
    layers: Iterable[int] | None = None,
    tokenizer: Any = None,
    evaluate_on: Mapping[str, Any] | Sequence[str] | None = None,
) -> CompressedModel:
    """Reduce the rank of every head's query-key product.

    Parameters
    ----------
    model : PreTrainedModel
        Left as it is.
    rank : int
        Coordinates to keep in every head; even for rotary models.
    inputs : mapping or sequence of str
        What the heads are compressed for.
    method : {"svd", "whitened", "distilled"}
    layers : iterable of int, optional
        Attention calls to compress. Default: all.
    tokenizer : PreTrainedTokenizerBase, optional
        For inputs that are texts.
    evaluate_on : mapping or sequence of str, optional
        Other inputs to measure on. Default: the same.

    Returns
    -------
    CompressedModel

    Raises
    ------
    ValueError
        If a head stands behind a query/key norm, or its weights serve several layers.

    Examples
    --------
    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> from attsvm import pretrained
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False)
    >>> inputs = {"input_ids": torch.arange(24).reshape(4, 6)}
    >>> compressed = pretrained.compress_model(model, 4, inputs)
    >>> compressed.rank, compressed.width, compressed.key_bytes < compressed.key_bytes_before
    (4, 8, True)
    """
    batch = tokenize(inputs, tokenizer)
    layers = None if layers is None else list(layers)
    test = batch if evaluate_on is None else tokenize(evaluate_on, tokenizer)
    groups = _groups(extract_heads(model, batch, layers=layers))
    duplicate = copy.deepcopy(model)
    factors: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
    with torch.no_grad():
        for heads in groups.values():
            for index, product in enumerate(compress_group(heads, rank, method)):
                K, Q = (_padded(product, factor) for factor in (product.K, product.Q))
                factors[product.layer, product.head] = K, Q
                _write(duplicate, product.places[1], Q / product.scale, has_bias=True)
                if index == 0:
                    _write(duplicate, product.places[0], K, has_bias=product.rotary)
    return _measure(model, duplicate, rank, method, list(groups), factors, test, layers)


def _groups(heads: Iterable[AttentionHead]) -> dict[Place, list[AttentionHead]]:
    """Collect heads that share their key map."""
    groups: dict[Place, list[AttentionHead]] = {}
    for head in heads:
        if any(place.kind != "linear" for place in head.places):
            raise ValueError(
                f"layer {head.layer} of {head.model} normalises queries or keys after projecting them, so a lower rank "
                "cannot be written into its weights."
            )
        group = groups.setdefault(head.places[0], [])
        if group and group[0].layer != head.layer:
            raise ValueError(
                f"{head.model} uses the weights of {head.name} in several layers; one rank cannot fit all."
            )
        group.append(head)
    return groups


def _padded(head: AttentionHead, factor: np.ndarray) -> np.ndarray:
    """Put the columns that were kept back where they stand in the model, with zeros between."""
    columns = np.arange(factor.shape[1]) if head.columns is None else head.columns
    full = np.zeros((len(factor), head.places[0].width))
    full[:, columns] = factor
    return full


def _write(model: Any, place: Place, factor: np.ndarray, *, has_bias: bool) -> None:
    """Put a factor (d or d + 1, dh) in its place; its last row is the bias when the map had one that counts."""
    module = model.get_submodule(place.path)
    matrix = torch.from_numpy(factor / place.factor).to(module.weight.dtype)
    d = module.weight.shape[1] if place.rows else module.weight.shape[0]
    own = slice(place.start, place.start + place.width)
    if place.rows:
        module.weight[own] = matrix[:d].T
    else:
        module.weight[:, own] = matrix[:d]
    if getattr(module, "bias", None) is not None:
        module.bias[own] = matrix[d] if has_bias and len(matrix) > d else 0.0


def _measure(
    model: Any,
    duplicate: Any,
    rank: int,
    method: str,
    keys: list[Place],
    factors: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]],
    test: dict[str, Any],
    layers: list[int] | None,
) -> CompressedModel:
    width, count = keys[0].width, len(factors)
    size = next(model.parameters()).dtype.itemsize
    costs, joint = [], []
    recorder = record(duplicate, test)
    numbers = layer_numbers(recorder.seen)
    probabilities = {numbers[call.index]: call.probabilities for call in recorder.calls}
    for head in extract_heads(model, test, layers=layers):
        K, Q = factors[head.layer, head.head]
        costs.append(HeadCost(head.layer, head.head, *divergence(replace(head, K=K, Q=Q))))
        joint.append(
            divergence(head, probabilities[head.layer][:, head.head].double().numpy()[head.sequence, head.position])
        )
    kl, top1 = np.mean(joint, axis=0).tolist()
    loss_before, loss, change = _outputs(model, duplicate, test)
    return CompressedModel(
        model=duplicate,
        rank=rank,
        width=width,
        method=method,
        heads=tuple(costs),
        kl=kl,
        top1=top1,
        loss=loss,
        loss_before=loss_before,
        output_change=change,
        key_bytes=len(keys) * rank * size,
        key_bytes_before=len(keys) * width * size,
        flops=2 * count * rank,
        flops_before=2 * count * width,
    )


def _outputs(model: Any, duplicate: Any, batch: dict[str, Any]) -> tuple[float | None, float | None, float]:
    """Loss of both models where they have one, and the relative change of the last hidden state."""
    states, losses = [], []
    for one in (model, duplicate):
        mode = one.training
        one.eval()
        with torch.no_grad():
            output = one(**batch, output_hidden_states=True)
        one.train(mode)
        losses.append(_loss(one, output, batch))
        states.append((getattr(output, "hidden_states", None) or output.decoder_hidden_states)[-1].double())
    before, after = states
    weight = batch.get("attention_mask")
    if not isinstance(weight, torch.Tensor) or weight.shape != before.shape[:2]:
        weight = torch.ones(before.shape[:2])
    weight = weight[..., None].double()
    return losses[0], losses[1], float(((after - before) * weight).norm() / (before * weight).norm())


def _loss(model: Any, output: Any, batch: dict[str, Any]) -> float | None:
    """Return the loss that the model computed, or that of the next token where it predicts one."""
    if getattr(output, "loss", None) is not None:
        return float(output.loss)
    ids, logits = batch.get("input_ids"), getattr(output, "logits", None)
    if not type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")) or ids is None or logits is None:
        return None
    visible = batch.get("attention_mask", torch.ones_like(ids)).bool()
    counted = visible[:, 1:] & visible[:, :-1]
    return float(torch.nn.functional.cross_entropy(logits[:, :-1][counted].double(), ids[:, 1:][counted]))
