"""From a model and inputs to an attention head: record a forward pass, explain the head, check it against the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from attsvm.pretrained.head import AttentionHead, Turns
from attsvm.pretrained.recording import AttentionCall, record
from attsvm.pretrained.sources import AffineMap, explain

# Float32 probabilities of the models supported differ from the factors' by 1e-7 to 1e-6.
TOLERANCE = 1e-5
_OUTSIDE = {"softcap": "a soft cap on the scores, s tanh(a/s)", "s_aux": "attention sinks, a score without a token"}


def extract_head(
    model: Any, layer: int | str, head: int, inputs: Mapping[str, Any] | Sequence[str], *, tokenizer: Any = None
) -> AttentionHead:
    """Extract one attention head of a transformers model on given inputs.

    Parameters
    ----------
    model : PreTrainedModel
        Loaded in float32 or float64. It is left as it was found.
    layer : int or str
        Number of the attention call in the forward pass (layers of an encoder or decoder in order; -1 is the last), or
        the path of an attention module, such as "decoder.block.0.layer.1.EncDecAttention".
    head : int
        Number of the head.
    inputs : mapping or sequence of str
        Keyword arguments of the model, such as a tokenizer returns; or texts, for which `tokenizer` is needed.
    tokenizer : PreTrainedTokenizerBase, optional
        Gives the head the text of its tokens.

    Returns
    -------
    AttentionHead

    Raises
    ------
    ValueError
        If the model, the layer or the head is none that can be extracted, or the extracted head disagrees with the
        model's own attention by more than 1e-5; one sentence says what was found.

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
    batch = tokenize(inputs, tokenizer)
    _check_precision(model)
    layer_names = None if layers is None else list(layers)
    head_indices = None if heads is None else list(heads)
    recorder = record(model, batch, _inclusion(layer_names))
    for call in _calls(recorder.calls, recorder.seen, layer_names, type(model).__name__):
        yield from _heads_of(call, model, batch, head_indices, tokenizer)


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
    longest = min(tokenizer.model_max_length, 1 << 20)
    return dict(tokenizer(texts, padding=len(texts) > 1, truncation=True, max_length=longest, return_tensors="pt"))


def _inclusion(layer_names: list[int | str] | None) -> Callable[[int, str], bool]:
    """Tell which calls to keep; a number from the end may turn out to be any of them."""
    if layer_names is None or any(not isinstance(layer, str) and layer < 0 for layer in layer_names):
        return lambda index, path: True
    return lambda index, path: index in layer_names or path in layer_names


def _check_precision(model: Any) -> None:
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise ValueError(f"model has type {type(model).__name__}; a transformers model was expected.")
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.dtype.is_floating_point}
    short = dtypes - {torch.float32, torch.float64}
    if short:
        raise ValueError(
            f"{type(model).__name__} computes in {', '.join(map(str, sorted(short, key=str)))}, too coarse to check a "
            "head to 1e-5; load it with dtype=torch.float32."
        )


def _calls(
    calls: list[AttentionCall], paths: list[str], layer_names: list[int | str] | None, model: str
) -> Iterator[AttentionCall]:
    if layer_names is None:
        yield from calls
        return
    by_index = {call.index: call for call in calls}
    for layer in layer_names:
        if isinstance(layer, str):
            matches = [call for call in calls if call.path == layer]
            if not matches:
                raise ValueError(f"layer {layer!r} is no attention module of {model}; it has {', '.join(paths)}.")
            yield from matches
            continue
        if not -len(paths) <= layer < len(paths):
            raise ValueError(f"layer is {layer}; a number from 0 to {len(paths) - 1} was expected for this {model}.")
        yield by_index[layer % len(paths)]


def _heads_of(
    call: AttentionCall, model: Any, batch: dict[str, Any], head_indices: list[int] | None, tokenizer: Any
) -> Iterator[AttentionHead]:
    _refuse_extras(call)
    count = call.query.shape[1]
    visible, additive = _read_mask(call)  # (B, H or 1, Tq, Tk) each
    ids = _identifiers(call, model, batch)
    asking = _asking(call, visible, ids, batch)
    where = np.nonzero(asking)
    texts, special = _texts(ids, tokenizer)
    shared = _Shared()
    for head in range(count) if head_indices is None else head_indices:
        if not -count <= head < count:
            raise ValueError(f"head is {head}; a number from 0 to {count - 1} was expected in layer {call.index}.")
        h = head % count
        own = min(h, visible.shape[1] - 1)
        query, key, rotation = explain(call, h)
        asks = query.bias is not None
        reads = rotation is not None and key.bias is not None
        turns = None
        if rotation is not None:
            table = rotation.turns.numpy()
            turns = Turns(rotation.pairs.numpy(), table, table[where])
        mask = visible[:, own][where]
        bias = None
        if additive is not None:
            bias = np.where(mask, additive[:, min(h, additive.shape[1] - 1)][where], 0.0)
        result = AttentionHead(
            model=type(model).__name__,
            name=call.path,
            layer=call.index,
            head=h,
            tokens=shared.tokens(key, reads),
            queries=shared.queries(query, asks, where),
            sequence=where[0],
            position=where[1],
            mask=mask,
            K=_factor(key, reads),
            Q=_factor(query, asks) * call.scaling,
            turns=turns,
            bias=bias,
            probabilities=call.probabilities[:, h].double().numpy()[where],
            scale=call.scaling,
            error=0.0,
            places=(key.place, query.place),
            self_attention=call.query.shape[2] == call.key.shape[2],
            texts=texts,
            special=special,
        )
        error = float(np.abs(result.attention() - result.probabilities).max())
        if not error <= TOLERANCE:
            raise ValueError(
                f"head {h} of {call.path} was extracted with an error of {error:.1e} against the model's own "
                f"attention, above {TOLERANCE:g}: there is more to it than a (rotated) bilinear form and a bias."
            )
        yield replace(result, error=error)


def _refuse_extras(call: AttentionCall) -> None:
    if call.extras:
        name = next((name for name in call.extras if name in _OUTSIDE), next(iter(call.extras)))
        what = _OUTSIDE.get(name, f"an argument {name!r}")
        raise ValueError(
            f"{call.path} ({type(call.module).__name__}) computes attention with {what}, which is outside the bilinear "
            "form x^T W z that an attention SVM speaks of."
        )


def _read_mask(call: AttentionCall) -> tuple[np.ndarray, np.ndarray | None]:
    """Split what is added to the scores into visible tokens and an additive term, (B, H or 1, Tq, Tk) each."""
    B, _, Tq, _ = call.query.shape
    Tk = call.key.shape[2]
    visible = torch.ones(B, 1, Tq, Tk, dtype=torch.bool)
    additive = None
    if call.bias is not None:
        additive = call.bias.detach().double().expand(B, -1, -1, -1)
    if call.mask is not None:
        call_mask = call.mask[..., :Tk].detach()
        if call_mask.dtype == torch.bool:
            visible = call_mask
        else:
            visible = call_mask > torch.finfo(call_mask.dtype).min / 2
            rest = torch.where(visible, call_mask, 0.0).double()
            if rest.any():
                additive = rest if additive is None else additive + rest
        visible = visible.expand(B, -1, Tq, -1)
    spread = None if additive is None or not additive.any() else additive.expand(B, -1, Tq, -1).numpy()
    return visible.numpy(), spread


def _asking(call: AttentionCall, visible: np.ndarray, ids: torch.Tensor | None, batch: dict[str, Any]) -> np.ndarray:
    """Tell which positions ask: no padding, and at least one token seen; (B, Tq)."""
    asking = np.asarray(visible.any(axis=(1, 3)))
    Tq, Tk = visible.shape[2:]
    for name in ("attention_mask", "decoder_attention_mask"):
        attention_mask = batch.get(name)
        mine = ids is batch.get("decoder_input_ids" if name.startswith("decoder") else "input_ids")
        if (
            isinstance(attention_mask, torch.Tensor)
            and tuple(attention_mask.shape) == asking.shape
            and Tq == Tk
            and mine
        ):
            return asking & attention_mask.bool().numpy()
    return asking & np.diagonal(visible.any(axis=1), axis1=1, axis2=2) if Tq == Tk else asking


def _identifiers(call: AttentionCall, model: Any, batch: dict[str, Any]) -> torch.Tensor | None:
    """Token ids of the keys: the decoder's for self-attention in the decoder of an encoder-decoder model."""
    name = "input_ids"
    if getattr(model.config, "is_encoder_decoder", False):
        inside = any(module is call.module for module in model.get_decoder().modules())
        query, key, _ = explain(call, 0)
        if inside and query.tokens is key.tokens:
            name = "decoder_input_ids"
    ids = batch.get(name)
    fits = isinstance(ids, torch.Tensor) and tuple(ids.shape) == (call.key.shape[0], call.key.shape[2])
    return ids if fits else None


def _texts(ids: torch.Tensor | None, tokenizer: Any) -> tuple[tuple[tuple[str, ...], ...] | None, np.ndarray | None]:
    if tokenizer is None or ids is None:
        return None, None
    texts = tuple(tuple(tokenizer.convert_ids_to_tokens(row.tolist())) for row in ids)
    return texts, np.isin(ids.numpy(), list(tokenizer.all_special_ids))


class _Shared:
    """Arrays of tokens and queries, made once for all heads of a layer that read the same tensor."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[int, bool], tuple[torch.Tensor, np.ndarray]] = {}
        self._queries: dict[int, np.ndarray] = {}

    def tokens(self, side: AffineMap, homogeneous: bool) -> np.ndarray:
        """Return x, with a last coordinate 1 when asked, (B, T, d)."""
        slot = (id(side.tokens), homogeneous)
        if slot not in self._tokens:
            x = side.tokens.detach().double().numpy()
            if homogeneous:
                x = np.concatenate([x, np.ones((*x.shape[:2], 1))], axis=2)
            self._tokens[slot] = (side.tokens, x)  # the tensor is kept so that its id stays its own
        return self._tokens[slot][1]

    def queries(self, side: AffineMap, homogeneous: bool, where: tuple[np.ndarray, ...]) -> np.ndarray:
        """Return z of the positions that ask, (n, dz)."""
        z = self.tokens(side, homogeneous)
        if id(z) not in self._queries:
            self._queries[id(z)] = z[where]
        return self._queries[id(z)]


def _factor(side: AffineMap, homogeneous: bool) -> np.ndarray:
    """Return A with the bias as a last row when asked, (d, dh)."""
    factor = side.weight.numpy()
    if homogeneous and side.bias is not None:
        factor = np.concatenate([factor, side.bias.numpy()[None]])
    return factor
