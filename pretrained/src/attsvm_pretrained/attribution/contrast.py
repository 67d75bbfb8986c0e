"""Split the margin of one token over another over the residual stream, from a model and a text.

The forward pass is recorded on a tape, and the query and the two keys are read from it
(:mod:`attsvm_pretrained.attribution.readings`). An :class:`attsvm_pretrained.attribution.attribution.Attribution`
combines their parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from attsvm_pretrained.activations.layers import layer_numbers
from attsvm_pretrained.activations.recording import AttentionCall, recording
from attsvm_pretrained.activations.residual import KINDS, Component
from attsvm_pretrained.activations.tape import Tape, record_tape
from attsvm_pretrained.activations.tracing import tracing
from attsvm_pretrained.attribution.attribution import Attribution
from attsvm_pretrained.attribution.readings import Question, Reader, Source, features_of, rounding
from attsvm_pretrained.heads.extract import extract_head, inner_model
from attsvm_pretrained.heads.head import AttentionHead
from attsvm_pretrained.heads.inputs import on_device, tokenize


def attribute(
    model: Any,
    layer: int | str,
    head: int,
    inputs: Mapping[str, Any] | Sequence[str] | str,
    *,
    query: int = -1,
    chosen: int | None = None,
    rival: int | None = None,
    sequence: int = 0,
    tokenizer: Any = None,
    dictionary: np.ndarray | None = None,
    activations: np.ndarray | None = None,
) -> Attribution:
    """Split the margin of a chosen token over a rival over the components of the residual stream.

    The whole forward pass is stored in memory: give it a text, not a corpus.

    Parameters
    ----------
    model : PreTrainedModel
        It does not change. A TransformerBridge of TransformerLens or an nnsight wrapper of a model is accepted too.
    layer, head
        As for :func:`attsvm.pretrained.extract_head`.
    inputs : mapping, str or sequence of str
        Keyword arguments of the model, or texts, which need `tokenizer`.
    query, chosen, rival : int
        Positions in the text; negative positions count from its end. Default: the query is the last token, `chosen` the
        token that it attends to most, and `rival` the token that it attends to second most.
    sequence : int
        Number of the text, if there are several.
    tokenizer : PreTrainedTokenizerBase, optional
    dictionary : array, shape (n, d), optional
        Directions of features, such as the decoder of a sparse autoencoder, of the hidden state that enters the layer.
        This state is then split into features and a remainder.
    activations : array, shape (T, n)
        Activations of the features on the tokens of the text.

    Returns
    -------
    Attribution

    Raises
    ------
    ValueError
        If there is no such head, query or token, or the hidden state is not the sum of its components.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> model, inputs = pretrained.example_model("gpt2")
    >>> split = pretrained.attribute(model, 1, 0, inputs, query=3, chosen=1, rival=2)
    >>> [component.name for component in split.components][:5]
    ['transformer.wte', 'transformer.wpe', 'transformer.h.0.attn[0]', 'transformer.h.0.attn[1]', 'transformer.h.0.mlp']
    >>> bool(abs(split.keys.sum() - split.margin) < 1e-6)
    True
    """
    model = inner_model(model)
    batch = on_device(tokenize(inputs, tokenizer), model)
    extracted = extract_head(model, layer, head, batch, tokenizer=tokenizer)
    if not 0 <= sequence < len(extracted.tokens):
        raise ValueError(f"sequence is {sequence}; a number from 0 to {len(extracted.tokens) - 1} was expected.")
    rows = np.flatnonzero(extracted.text_place[sequence] >= 0)
    queries = np.flatnonzero(extracted.sequence == sequence)
    # A query is a token of the text, but no null token; under cross-attention it is a token of another text.
    first = extracted.first_place if extracted.self_attention else 0
    query_rows = rows if extracted.self_attention else extracted.position[queries]
    i = _row(query_rows, query, "query", first)
    (number,) = queries[extracted.position[queries] == i]
    call, tape = _pass(model, batch, extracted)
    question = Question(call, extracted, sequence, int(number))
    vector, keys = question.query(call, sequence), question.keys(call, sequence)
    logits = question.logits(vector, keys)
    j = int(logits.argmax()) if chosen is None else _row(rows, chosen, "chosen")
    others = np.where(np.arange(len(logits)) == j, -np.inf, logits)
    k = int(others.argmax()) if rival is None else _row(rows, rival, "rival")
    if j == k or not np.isfinite(logits[[j, k]]).all():
        tokens = " and ".join(str(extracted.text_place[sequence, row]) for row in (j, k))
        raise ValueError(
            f"query {np.flatnonzero(query_rows == i)[0]} is to choose between tokens {tokens}; "
            "two tokens that it sees were expected."
        )
    end, features = features_of(tape, question, dictionary, activations)
    spread = not getattr(
        getattr(model, "config", None), "is_encoder_decoder", False
    )  # where tokens of another sequence would be read
    reader = Reader(tape, question, spread, end, features)
    source = Source(
        model,
        batch,
        question,
        reader.read("query", i, keys[j] - keys[k]),
        reader.read("keys", j, vector),
        reader.read("keys", k, vector),
        keys,
        rows,
        query_rows,
        reader.origins,
    )
    bias = 0.0 if extracted.bias is None else float(extracted.bias[number, j] - extracted.bias[number, k])
    return _attribution(source, logits, bias, rounding(call.query.dtype))


def _pass(model: Any, batch: dict[str, Any], head: AttentionHead) -> tuple[AttentionCall, Tape]:
    """Run the model, and record its operations on a tape and the attention of a head's layer."""
    for way in (recording, tracing):
        with way(model, lambda index, path: path == head.name) as recorder, record_tape(model) as tape, torch.no_grad():
            model(**batch)
        for call in recorder.calls:
            if layer_numbers(recorder.paths)[call.index] == head.layer:
                return call, tape
    raise ValueError(
        f"{head.name} was not recorded a second time; a model that runs the same way each time was expected."
    )


def _row(rows: np.ndarray, place: int, name: str, first: int = 0) -> int:
    """Find the row of a position in the text, from position `first` on."""
    number = isinstance(place, (int, np.integer)) and not isinstance(place, bool)
    if not number or not (first <= place < len(rows) or first - len(rows) <= place < 0):
        raise ValueError(f"{name} is {place!r}; a place from {first} to {len(rows) - 1} was expected.")
    return int(rows[place])


def _attribution(source: Source, logits: np.ndarray, bias: float, tolerance: float) -> Attribution:
    """Combine the parts of the three states."""
    question, rows = source.question, source.places
    head, sequence = question.head, question.sequence
    readings = source.query, source.chosen, source.rival
    components = tuple(sorted(dict.fromkeys(one for reading in readings for one in reading.parts), key=component_order))
    query, best, rival = (reading.vectors(components) @ reading.factor for reading in readings)  # (C, dh) each
    pairs = (best - rival) @ query.T
    j, k = source.chosen.row, source.rival.row
    margin = float(logits[j] - logits[k])
    queries = source.query.places(components)[:, source.query_rows]
    keys = (source.chosen.places(components) - source.rival.places(components))[:, rows]
    error = max(abs(float(one.sum()) - (margin - bias)) for one in (keys, queries, pairs))
    norms = [np.linalg.norm(one, axis=1).sum() for one in (query, best, rival)]
    if not error <= tolerance * norms[0] * (norms[1] + norms[2]):
        raise ValueError(
            f"the parts of the margin of layer {head.layer}, head {head.head} add up to something else than the "
            f"{margin - bias:.6g} of the model: the difference is {error:.1e}, more than rounding explains."
        )
    place = head.text_place[sequence]
    texts = ()
    if head.texts is not None:  # of the keys
        query_text = head.texts[sequence][source.query.row] if head.self_attention else ""
        texts = (query_text, head.texts[sequence][j], head.texts[sequence][k])
    return Attribution(
        layer=head.layer,
        head=head.head,
        query=int(np.flatnonzero(source.query_rows == source.query.row)[0]),
        chosen=int(place[j]),
        rival=int(place[k]),
        texts=texts,
        margin=margin,
        bias=bias,
        components=components,
        keys=keys,
        queries=queries,
        pairs=pairs,
        scores=logits[rows],
        error=error,
        source=source,
    )


def component_order(component: Component) -> tuple[int, int, int]:
    """Return a key that sorts components by layer, then in the order of KINDS."""
    layer = -1 if component.layer is None else component.layer
    return layer, KINDS.index(component.kind), component.head or 0
