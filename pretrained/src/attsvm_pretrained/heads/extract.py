"""Extract an attention head from a model: record a forward pass, explain the head, check it against the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from attsvm_pretrained.activations.layers import absent_layers, layer_numbers, number_in_path, run_lengths
from attsvm_pretrained.activations.tracing import record
from attsvm_pretrained.heads.head import AttentionHead
from attsvm_pretrained.heads.inputs import on_device, tokenize
from attsvm_pretrained.heads.reader import HeadReader, OutsideForm


def extract_head(
    model: Any, layer: int | str, head: int, inputs: Mapping[str, Any] | Sequence[str], *, tokenizer: Any = None
) -> AttentionHead:
    """Extract one attention head of a transformers model on given inputs.

    Parameters
    ----------
    model : PreTrainedModel
        A model in float32 or float64; it does not change. A model of TransformerLens (TransformerBridge,
        HookedTransformer) or an nnsight wrapper of a model is accepted too.
    layer : int or str
        The model's own number of the layer; -1 is the last attention call. In a model of several stacks, such as an
        encoder and a decoder, it is the number of the attention call in the forward pass. A string is the path of an
        attention module, such as "decoder.block.0.layer.1.EncDecAttention".
    head : int
        Number of the head.
    inputs : mapping or sequence of str
        Keyword arguments of the model, such as a tokenizer returns (TransformerLens: {"input": tokens}); or texts,
        which need `tokenizer`.
    tokenizer : PreTrainedTokenizerBase, optional
        Adds the text of its tokens to the head.

    Returns
    -------
    AttentionHead

    Raises
    ------
    ValueError
        If the head cannot be extracted: there is no such layer or head, or the model's attention has another form. Also
        if the head's attention differs from the model's by more than rounding: 1e-5, or more with large logits.

    Examples
    --------
    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> from attsvm import pretrained
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False)
    >>> inputs = {"input_ids": torch.arange(24).reshape(4, 6)}
    >>> head = pretrained.extract_head(model, 0, 1, inputs)
    >>> head.tokens.shape, head.W.shape, head.error < 1e-5
    ((4, 6, 16), (16, 17), True)
    """
    return next(iter(extract_heads(model, inputs, layers=[layer], heads=[head], tokenizer=tokenizer)))


def extract_heads(
    model: Any,
    inputs: Mapping[str, Any] | Sequence[str],
    *,
    layers: Iterable[int | str] | None = None,
    heads: Iterable[int] | None = None,
    tokenizer: Any = None,
) -> Iterator[AttentionHead]:
    """Extract several heads in one forward pass, layer by layer; see :func:`extract_head`.

    Parameters
    ----------
    layers, heads : iterable, optional
        Default: all of them.

    Yields
    ------
    AttentionHead
        Heads of a layer share their arrays of tokens and queries.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> model, inputs = pretrained.example_model()
    >>> [(head.layer, head.head) for head in pretrained.extract_heads(model, inputs)]
    [(0, 0), (0, 1)]
    """
    for result in examine_heads(model, inputs, layers=layers, heads=heads, tokenizer=tokenizer):
        if isinstance(result, RefusedHead):
            raise ValueError(result.reason)
        yield result


@dataclass(frozen=True)
class RefusedHead:
    """A head that cannot be extracted, and why.

    Attributes
    ----------
    name : str
        Path of the attention module.
    """

    layer: int
    head: int
    name: str
    reason: str


def examine_heads(
    model: Any,
    inputs: Mapping[str, Any] | Sequence[str],
    *,
    layers: Iterable[int | str] | None = None,
    heads: Iterable[int] | None = None,
    tokenizer: Any = None,
) -> Iterator[AttentionHead | RefusedHead]:
    """Extract heads as :func:`extract_heads` does; a head that cannot be extracted yields the reason."""
    model = inner_model(model)
    batch = on_device(tokenize(inputs, tokenizer), model)
    _check_model(model)
    layer_names = None if layers is None else list(layers)
    head_indices = None if heads is None else list(heads)
    recorder = record(model, batch, _inclusion(layer_names))
    numbers = layer_numbers(recorder.paths)
    calls = {call.index: call for call in recorder.calls}
    for index in chosen_calls(recorder.paths, layer_names, model):
        call = calls[index]
        yield from _examine(HeadReader(call, numbers[call.index], model, recorder.streams, tokenizer), head_indices)


def examine_calls(
    model: Any, batch: Mapping[str, Any], numbers: Sequence[int], indices: Sequence[int], tokenizer: Any
) -> Iterator[AttentionHead | RefusedHead]:
    """Extract the heads of some attention calls; the forward pass ends after the last requested call.

    Parameters
    ----------
    model : PreTrainedModel
    batch : mapping
        Keyword arguments of the model.
    numbers : sequence of int
        The layer of every attention call.
    indices : sequence of int
        Numbers of the calls.
    tokenizer : PreTrainedTokenizerBase, optional
    """
    recorder = record(model, batch, lambda index, path: index in indices, until=max(indices))
    while recorder.calls:  # a call is freed once its heads are read
        call = recorder.calls.pop(0)
        yield from _examine(HeadReader(call, numbers[call.index], model, recorder.streams, tokenizer), None)


def _examine(reader: HeadReader, heads: list[int] | None) -> Iterator[AttentionHead | RefusedHead]:
    """Read the heads of a call, in float64 if its own dtype is too coarse."""
    precise: list[HeadReader] = []
    repetitions = reader.in_float64()  # a generator: the modules run only when they are needed
    for h in reader.heads(heads):
        reason = ""
        try:
            if not reader.short:
                yield reader.read(h)
                continue
        except OutsideForm as error:
            yield RefusedHead(reader.layer, h, reader.call.path, str(error))
            continue
        except ValueError as error:
            reason = str(error)
        yield _first_head(_repetitions(precise, repetitions), h, reader, reason)


def _repetitions(readers: list[HeadReader], repetitions: Iterator[HeadReader]) -> Iterator[HeadReader]:
    """Iterate over the repetitions made for other heads, then over new ones."""
    yield from tuple(readers)
    for reader in repetitions:
        readers.append(reader)
        yield reader


def _first_head(
    precise: Iterator[HeadReader], h: int, original: HeadReader, reason: str
) -> AttentionHead | RefusedHead:
    """Read a head by the first repetition that explains it."""
    for reader in precise:
        try:
            head = reader.read(h)
        except ValueError as error:
            reason = reason or str(error)
        else:
            return replace(head, rounding=original.rounding(head))
    reason = (
        reason
        or f"{original.call.path} does not run in float64, so head {h}, of {original.call.query.dtype}, is not checked."
    )
    return RefusedHead(original.layer, h, original.call.path, reason)


def _inclusion(layer_names: list[int | str] | None) -> Callable[[int, str], bool]:
    """Tell which calls to record; with a number from the end, all of them, as their number is not known yet."""
    if layer_names is None or any(not isinstance(layer, str) and layer < 0 for layer in layer_names):
        return lambda index, path: True
    return lambda index, path: index in layer_names or number_in_path(path) in layer_names or path in layer_names


def inner_model(model: Any) -> Any:
    """Return the module inside a wrapper such as nnsight's; a module is returned unchanged."""
    if isinstance(model, torch.nn.Module):
        return model
    inner = (getattr(model, name, None) for name in ("_model", "_module"))
    return next((one for one in inner if isinstance(one, torch.nn.Module)), model)


def _check_model(model: Any) -> None:
    if not isinstance(model, torch.nn.Module) or not any(hasattr(model, name) for name in ("config", "cfg")):
        raise ValueError(
            f"model has type {type(model).__name__}; a model of transformers or TransformerLens was expected."
        )


def chosen_calls(paths: list[str], layers: list[int | str] | None, model: Any) -> list[int]:
    """Return the numbers of the attention calls of some layers, given the paths of all calls in order.

    Raises ValueError if there is no such layer (the message lists the layers), or `layers` is empty.
    """
    if layers is None:
        return list(range(len(paths)))
    if not layers:
        raise ValueError("layers is empty; one number or more, or None for all, was expected.")
    numbers, kind = layer_numbers(paths), type(model).__name__
    indices: list[int] = []
    for layer in layers:
        if isinstance(layer, str):
            matches = [index for index, path in enumerate(paths) if path == layer]
            if not matches:
                raise ValueError(
                    f"layer {layer!r} is no attention module of {kind}; one of {', '.join(paths)} was expected."
                )
            indices += matches
            continue
        number = numbers[layer] if -len(numbers) <= layer < 0 else layer
        if number not in numbers:
            absent = {one.number: one.kind for one in absent_layers(model, paths)}
            why = f", whose layer {layer} computes no attention ({absent[layer]})" if layer in absent else ""
            raise ValueError(f"layer is {layer}; {run_lengths(numbers)} was expected for this {kind}{why}.")
        indices.append(numbers.index(number))
    return indices
