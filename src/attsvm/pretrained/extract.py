"""From a model and inputs to an attention head: record a forward pass, explain the head, check it against the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from attsvm.pretrained.activations import tokens
from attsvm.pretrained.activations.layers import absent_layers, layer_numbers, own_number, spelled
from attsvm.pretrained.activations.maps import AffineMap
from attsvm.pretrained.activations.recording import AttentionCall, Stream
from attsvm.pretrained.activations.relative import RelativeForm, relative_forms
from attsvm.pretrained.activations.repetition import in_float64
from attsvm.pretrained.activations.sources import explain
from attsvm.pretrained.activations.tracing import record
from attsvm.pretrained.head import AttentionHead, Turns

# Float32 probabilities of the models supported differ from the factors' by 1e-7 to 1e-6.
TOLERANCE = 1e-5
# A score q.k is wrong by the rounding of q, k and their product, less than ROUNDINGS eps |q||k| in all models tried;
# half of that reaches a probability. Beyond LOOSEST that says nothing any more and the model is run again in float64.
ROUNDINGS, LOOSEST = 8.0, 1e-3
# Arguments of an attention function that a head has a place for: a soft cap, and the scores of null tokens.
_SOFT_CAP, SINKS = "softcap", "s_aux"
NULL_TOKEN = "[null]"


def extract_head(
    model: Any, layer: int | str, head: int, inputs: Mapping[str, Any] | Sequence[str], *, tokenizer: Any = None
) -> AttentionHead:
    """Extract one attention head of a transformers model on given inputs.

    Parameters
    ----------
    model : PreTrainedModel
        Loaded in float32 or float64. It is left as it was found. Or one of TransformerLens (HookedTransformer), or an
        object of nnsight that holds a model.
    layer : int or str
        The model's own number of the layer (in a model of several stacks, such as an encoder and a decoder, the number
        of the attention call in the forward pass); -1 is the last call. Or the path of an attention module, such as
        "decoder.block.0.layer.1.EncDecAttention".
    head : int
        Number of the head.
    inputs : mapping or sequence of str
        Keyword arguments of the model, such as a tokenizer returns (TransformerLens: {"input": tokens}); or texts, for
        which `tokenizer` is needed.
    tokenizer : PreTrainedTokenizerBase, optional
        Gives the head the text of its tokens.

    Returns
    -------
    AttentionHead

    Raises
    ------
    ValueError
        If the model, the layer or the head is none that can be extracted, or the extracted head disagrees with the
        model's own attention by more than 1e-5 or, where logits are large, than the rounding of its dtype explains,
        in float32 and in float64; one sentence says what was found.

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
    """Extract several heads in one forward pass, layer by layer; otherwise as :func:`extract_head`.

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
    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> from attsvm import pretrained
    >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False)
    >>> inputs = {"input_ids": torch.arange(24).reshape(4, 6)}
    >>> [(head.layer, head.head) for head in pretrained.extract_heads(model, inputs)]
    [(0, 0), (0, 1)]
    """
    for result in examine_heads(model, inputs, layers=layers, heads=heads, tokenizer=tokenizer):
        if isinstance(result, RefusedHead):
            raise ValueError(result.reason)
        yield result


@dataclass(frozen=True)
class RefusedHead:
    """A head that cannot be extracted, and the sentence that says why.

    Attributes
    ----------
    layer, head : int
    name : str
        Path of the attention module.
    reason : str
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
    """Extract heads as :func:`extract_heads` does, with a sentence in place of each that cannot be."""
    model = inner_model(model)
    batch = on_device(tokenize(inputs, tokenizer), model)
    _check_model(model)
    layer_names = None if layers is None else list(layers)
    head_indices = None if heads is None else list(heads)
    recorder = record(model, batch, _inclusion(layer_names))
    numbers = layer_numbers(recorder.seen)
    calls = {call.index: call for call in recorder.calls}
    for index in chosen_calls(recorder.seen, layer_names, model):
        call = calls[index]
        yield from _examine(_Reader(call, numbers[call.index], model, recorder.streams, tokenizer), head_indices)


def examine_calls(
    model: Any, batch: Mapping[str, Any], numbers: Sequence[int], indices: Sequence[int], tokenizer: Any
) -> Iterator[AttentionHead | RefusedHead]:
    """Extract the heads of some attention calls; the forward pass ends after the last of them.

    Parameters
    ----------
    model : PreTrainedModel
    batch : mapping
        Keyword arguments of the model.
    numbers : sequence of int
        The layer of every attention call.
    indices : sequence of int
        Which calls.
    tokenizer : PreTrainedTokenizerBase, optional
    """
    recorder = record(model, batch, lambda index, path: index in indices, until=max(indices))
    while recorder.calls:  # what is read is let go
        call = recorder.calls.pop(0)
        yield from _examine(_Reader(call, numbers[call.index], model, recorder.streams, tokenizer), None)


def on_device(batch: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """Move keyword arguments to where the model is."""
    device = getattr(model, "device", None)
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def _examine(reader: _Reader, asked: list[int] | None) -> Iterator[AttentionHead | RefusedHead]:
    """Read the heads of a call, in float64 where its own dtype does not do."""
    precise: list[_Reader] | None = None  # not run yet; empty where the module does not run in float64
    for h in reader.heads(asked):
        reason = ""
        try:
            if not reader.short:
                yield reader.read(h)
                continue
        except _OutsideForm as error:
            yield RefusedHead(reader.layer, h, reader.call.path, str(error))
            continue
        except ValueError as error:
            reason = str(error)
        precise = reader.in_float64() if precise is None else precise
        yield _first_read(precise, h, reader, reason)


def _first_read(precise: list[_Reader], h: int, own: _Reader, reason: str) -> AttentionHead | RefusedHead:
    """Read a head by the first repetition that explains it."""
    for reader in precise:
        try:
            head = reader.read(h)
        except ValueError as error:
            reason = reason or str(error)
        else:
            return replace(head, rounding=own.rounding(head))
    reason = (
        reason or f"{own.call.path} does not run in float64, so head {h}, of {own.call.query.dtype}, is not checked."
    )
    return RefusedHead(own.layer, h, own.call.path, reason)


class _OutsideForm(ValueError):
    """Attention that no precision makes bilinear."""


def tokenize(inputs: Mapping[str, Any] | Sequence[str], tokenizer: Any) -> dict[str, Any]:
    """Return keyword arguments for the model.

    Raises
    ------
    ValueError
        If texts come without a tokenizer, or there are none.
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
            f"{type(tokenizer).__name__} has no padding token for {len(texts)} texts of different lengths; set "
            "tokenizer.pad_token, for example to tokenizer.eos_token."
        )
    most = longest(tokenizer)
    return dict(tokenizer(texts, padding=len(texts) > 1, truncation=True, max_length=most, return_tensors="pt"))


def longest(tokenizer: Any) -> int:
    """Return the most tokens of a text; a tokenizer that knows no limit has an absurd one."""
    return min(tokenizer.model_max_length, 1 << 20)


def model_inputs(model: Any, texts: Sequence[str], tokenizer: Any) -> dict[str, Any]:
    """Tokenize texts for a model, where it is.

    The decoder of an encoder-decoder that makes no inputs by itself reads the text too, shifted by one.
    """
    batch = on_device(tokenize(texts, tokenizer), model)
    shift = getattr(model, "_shift_right", None)
    reads = getattr(model.config, "is_encoder_decoder", False) and "input_ids" in batch
    if reads and shift is not None and "decoder_input_ids" not in batch:
        padding = {"decoder_attention_mask": batch["attention_mask"]} if "attention_mask" in batch else {}
        return {**batch, **padding, "decoder_input_ids": shift(batch["input_ids"])}
    return batch


def _inclusion(layer_names: list[int | str] | None) -> Callable[[int, str], bool]:
    """Tell which calls to keep; a number from the end may turn out to be any of them."""
    if layer_names is None or any(not isinstance(layer, str) and layer < 0 for layer in layer_names):
        return lambda index, path: True
    return lambda index, path: index in layer_names or own_number(path) in layer_names or path in layer_names


def inner_model(model: Any) -> Any:
    """Return the module that a wrapper such as nnsight's runs; a module is returned as it is."""
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
    """Return the numbers of the attention calls of some layers, from the modules of all calls in their order.

    Raises
    ------
    ValueError
        If there is no such layer; one sentence says which there are.
    """
    if layers is None:
        return list(range(len(paths)))
    numbers, kind = layer_numbers(paths), type(model).__name__
    indices: list[int] = []
    for layer in layers:
        if isinstance(layer, str):
            matches = [index for index, path in enumerate(paths) if path == layer]
            if not matches:
                raise ValueError(f"layer {layer!r} is no attention module of {kind}; it has {', '.join(paths)}.")
            indices += matches
            continue
        number = numbers[layer] if -len(numbers) <= layer < 0 else layer
        if number not in numbers:
            absent = {one.number: one.kind for one in absent_layers(model, paths)}
            why = f", whose layer {layer} computes no attention ({absent[layer]})" if layer in absent else ""
            raise ValueError(f"layer is {layer}; {spelled(numbers)} was expected for this {kind}{why}.")
        indices.append(numbers.index(number))
    return indices


class _Reader:
    """Reads the heads of one attention call."""

    def __init__(self, call: AttentionCall, layer: int, model: Any, streams: list[Stream], tokenizer: Any) -> None:
        self.call = call
        self.layer = layer
        self._model = model
        self._streams = streams
        self._tokenizer = tokenizer
        self._visible, self._additive = tokens.read_mask(call)  # (B, H or 1, Tq, Tk) each
        self._shared = tokens.Shared()

    def heads(self, asked: list[int] | None) -> list[int]:
        """Check numbers of heads; from the end they are negative."""
        count = self.call.query.shape[1]
        for head in asked or ():
            if not -count <= head < count:
                raise ValueError(f"head is {head}; a number from 0 to {count - 1} was expected in layer {self.layer}.")
        return list(range(count)) if asked is None else [head % count for head in asked]

    @property
    def short(self) -> bool:
        """Whether the call's own dtype is too coarse to check a head to 1e-5."""
        return self.call.query.dtype not in (torch.float32, torch.float64)

    def in_float64(self) -> list[_Reader]:
        """Read the same call repeated in float64 on the same hidden states; nothing where that does not run."""
        return [
            _Reader(call, self.layer, self._model, self._streams, self._tokenizer) for call in in_float64(self.call)
        ]

    def rounding(self, head: AttentionHead) -> float:
        """Largest difference of the model's own probabilities from a head's."""
        own = self.call.probabilities[:, head.head].double().cpu().numpy()[head.sequence, _rows(head)]
        return float(np.abs(own - head.probabilities[:, -own.shape[1] :]).max())

    def read(self, h: int) -> AttentionHead:
        """Explain a head and check it against the model."""
        call, shared = self.call, self._shared
        _refuse_extras(call)
        query, key, rotation = explain(call, h)
        self_attention = query.reads_like(key)
        asking = tokens.asking(call, self._visible, self_attention=self_attention)
        where = np.nonzero(asking)
        stream = tokens.key_stream(call, self._streams, self_attention=self_attention)
        ids = tokens.identifiers(stream, (call.key.shape[0], call.key.shape[2]))
        texts, special = tokens.token_texts(ids, self._tokenizer)
        asks = query.bias is not None
        # A key bias adds one number to all scores of a query, but for what depends on place.
        reads = key.bias is not None and (rotation is not None or bool(call.relative))
        turns = None
        if rotation is not None:
            table = rotation.turns.cpu().numpy()
            turns = Turns(rotation.pairs.cpu().numpy(), table, table[where])
        mask = self._visible[:, min(h, self._visible.shape[1] - 1)][where]
        bias = None
        if self._additive is not None:
            bias = np.where(mask, self._additive[:, min(h, self._additive.shape[1] - 1)][where], 0.0)
        sinks = call.extras.get(SINKS)
        result = AttentionHead(
            model=type(self._model).__name__,
            name=call.path,
            layer=self.layer,
            head=h,
            tokens=shared.tokens(key, reads),
            queries=shared.queries(query, asks, where),
            sequence=where[0],
            position=where[1],
            text_place=tokens.text_places(self._visible, asking, stream),
            mask=mask,
            K=_factor(key, reads),
            Q=_factor(query, asks) * call.scaling,
            turns=turns,
            bias=bias,
            probabilities=call.probabilities[:, h].double().cpu().numpy()[where],
            scale=call.scaling,
            error=0.0,
            places=(key.place, query.place),
            self_attention=self_attention,
            ids=ids,
            texts=texts,
            special=special,
            softcap=call.extras.get(_SOFT_CAP),
        )
        if call.relative:
            result = with_relative_forms(result, relative_forms(call, h, where))
        if sinks is not None:
            result = with_null_token(result, float(sinks.detach().flatten()[h]), shared)
        error = float(np.abs(result.attention() - result.probabilities).max())
        tolerance = _tolerance(call, h)
        if not error <= min(tolerance, LOOSEST):
            raise ValueError(
                f"head {h} of {call.path} was extracted with an error of {error:.1e} against the model's own "
                f"attention, above {min(tolerance, LOOSEST):.0e}: there is more to it than a (rotated) bilinear form "
                "and a bias."
            )
        return replace(result, error=error)


def _tolerance(call: AttentionCall, h: int) -> float:
    """Return the error that rounding explains: of scores in the call's dtype, and of a softmax computed in float32."""
    query, key = call.query[:, h].double(), call.key[:, h * call.key.shape[1] // call.query.shape[1]].double()
    lengths = query.norm(dim=-1).amax(dim=1) * key.norm(dim=-1).amax(dim=1) * abs(call.scaling)
    largest = ((query @ key.mT).abs().amax() * abs(call.scaling)).item()
    of_scores = ROUNDINGS * torch.finfo(call.query.dtype).eps * float(lengths.max())
    return max(TOLERANCE, 0.5 * (of_scores + torch.finfo(torch.float32).eps * largest))


def _refuse_extras(call: AttentionCall) -> None:
    unknown = [name for name in call.extras if name not in (_SOFT_CAP, SINKS)]
    if unknown:
        raise _OutsideForm(
            f"{call.path} ({type(call.module).__name__}) computes attention with an argument {unknown[0]!r}, which is "
            "outside the bilinear form x^T W z that an attention SVM speaks of."
        )


def with_relative_forms(head: AttentionHead, forms: tuple[RelativeForm, ...]) -> AttentionHead:
    """Add forms of content and relative position to the additive term."""
    keys, asked = head.tokens @ head.K, head.queries @ head.Q
    added = sum(form.scores(keys, asked, head.sequence) for form in forms)
    bias = np.where(head.mask, added, 0.0) + (0.0 if head.bias is None else head.bias)
    return replace(head, bias=bias, relative=forms)


def with_null_token(head: AttentionHead, score: float, shared: tokens.Shared) -> AttentionHead:
    """Put a token of vector 0 and a fixed score before each sequence; it gets the attention that the others lack."""

    def before(array: np.ndarray, value: float) -> np.ndarray:
        return np.pad(array, [(0, 0), (1, 0)], constant_values=value)

    n, T = head.mask.shape
    turns = head.turns
    if turns is not None:
        turns = Turns(turns.pairs, np.pad(turns.tokens, [(0, 0), (1, 0), (0, 0)], constant_values=1.0), turns.queries)
    bias = np.zeros((n, T)) if head.bias is None else head.bias
    lacking = np.maximum(1.0 - head.probabilities.sum(axis=1), 0.0)
    return replace(
        head,
        tokens=shared.with_null(head.tokens),
        position=head.position + head.self_attention,
        text_place=before(np.where(head.text_place < 0, -1, head.text_place + 1), 0),
        mask=before(head.mask, value=True),
        turns=turns,
        bias=before(bias, score),
        probabilities=np.concatenate([lacking[:, None], head.probabilities], axis=1),
        ids=None if head.ids is None else before(head.ids, -1),
        texts=None if head.texts is None else tuple((NULL_TOKEN, *text) for text in head.texts),
        special=None if head.special is None else before(head.special, value=False),
        sink=score,
    )


def _rows(head: AttentionHead) -> np.ndarray:
    """Rows of the queries in their sequences, a null token not counted."""
    return head.position - (head.self_attention and head.sink is not None)


def _factor(side: AffineMap, homogeneous: bool) -> np.ndarray:
    """Return A with the bias as a last row when asked, (d, dh)."""
    factor = side.weight.cpu().numpy()
    if homogeneous and side.bias is not None:
        factor = np.concatenate([factor, side.bias.cpu().numpy()[None]])
    return factor
