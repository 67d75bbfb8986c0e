"""Everything that `attsvm inspect` says about the heads of a model, computed head by head."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import groupby
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np

from attsvm.core.threads import one_thread
from attsvm.pretrained.audit import MarginAudit, margin_audit
from attsvm.pretrained.backend import transformers
from attsvm.pretrained.extract import RefusedHead, examine_heads, tokenize
from attsvm.pretrained.head import AttentionHead, text_of
from attsvm.pretrained.layers import AbsentLayer, absent_layers
from attsvm.pretrained.media import Media, MediaKind, Parts, media_kind
from attsvm.pretrained.probe import SelectionProbe, fit_selection
from attsvm.pretrained.rank import HeadRank, head_ranks
from attsvm.pretrained.selectivity import SelectionReport, selection_report, several_seen
from attsvm.pretrained.types import HeadTypes, head_types

Progress = Callable[[str, float], object]
EXAMPLES = 6
# Seconds for one SVM; what is not solved by then is said to be undecided.
TIME_LIMIT = 4.0
# Heads with re-drawn weights, an SVM each.
DRAWS = 12


@dataclass(frozen=True)
class Example:
    """One query with the attention it pays.

    Attributes
    ----------
    tokens : tuple of str
    attention : tuple of float
    query : int or None
        Its place among the tokens; None for cross-attention.
    sequence : int
        The text, image or sound.
    """

    tokens: tuple[str, ...]
    attention: tuple[float, ...]
    query: int | None
    sequence: int = 0


@dataclass(frozen=True, eq=False)
class HeadFinding:
    """What was found about one head.

    Its `shows` are queries that show the type it is named by, its `examples` are drawn at random; `parts` says where
    its tokens are in an image or a sound.
    """

    layer: int
    head: int
    name: str
    error: float
    types: HeadTypes
    report: SelectionReport
    audit: MarginAudit
    probe: SelectionProbe | None
    rank: HeadRank
    shows: tuple[Example, ...]
    examples: tuple[Example, ...]
    parts: Parts | None = None


@dataclass(frozen=True, eq=False)
class Inspection:
    """Heads of a model on a text.

    Attributes
    ----------
    model : str
        As it was named.
    kind : str
        Class of the model.
    texts : int
    heads : tuple of HeadFinding
    refused : tuple of RefusedHead
        Heads that could not be extracted or inspected, and why.
    absent : tuple of AbsentLayer
        Layers without attention, of a hybrid.
    queries, seed : int
    complete : bool
        False when stopped early.
    seconds : float
    media : Media or None
        The images or sounds that were read in place of texts.
    """

    model: str
    kind: str
    texts: int
    heads: tuple[HeadFinding, ...]
    refused: tuple[RefusedHead, ...]
    absent: tuple[AbsentLayer, ...]
    queries: int
    seed: int
    complete: bool
    seconds: float
    media: Media | None = None


def load(name: str, reads: MediaKind | None = None) -> tuple[Any, Any]:
    """Load a model and its tokenizer from a folder or, where there is a network, from the hub.

    Parameters
    ----------
    name : str
    reads : {"images", "audio"}, optional
        Default: text. There is no tokenizer then where the model has none; of a model of text and images the tower of
        images is returned.

    Raises
    ------
    ValueError
        If there is no such model or it cannot be reached, in one sentence.
    """
    tf = transformers()
    tf.utils.logging.disable_progress_bar()
    tf.utils.logging.set_verbosity_error()
    import_module("huggingface_hub.utils.logging").set_verbosity_error()
    folder = Path(name).expanduser()
    local = folder.is_dir()
    if not local and (folder.exists() or name.startswith((".", "/", "~"))):
        raise ValueError(f"{name} is no folder of a model; one with config.json and weights was expected.")
    if local and not (folder / "config.json").is_file():
        raise ValueError(f"{name} holds no config.json; a folder that save_pretrained wrote was expected.")
    source = str(folder) if local else name
    damaged = import_module("safetensors").SafetensorError
    try:
        _refuse_other_inputs(tf.AutoConfig.from_pretrained(source), name, reads)
        tokenizer = tf.AutoTokenizer.from_pretrained(source) if reads is None else None
        model = tf.AutoModel.from_pretrained(source, dtype="float32")
    except _NoText:
        raise
    except (OSError, ValueError, ImportError, KeyError, RuntimeError, EOFError, UnpicklingError, damaged) as error:
        reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")
        if local:
            raise ValueError(f"the model in {name} could not be loaded: {reason}.") from error
        raise ValueError(
            f"{name} is no folder here, and could not be fetched from the Hugging Face hub: without a network, give "
            "the folder of a model that save_pretrained wrote."
        ) from error
    if reads is not None:
        return (model if media_kind(model) == reads else model.vision_model), tokenizer
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


class _NoText(ValueError):
    """A model of something else than what is there to read."""


def _refuse_other_inputs(config: Any, name: str, reads: MediaKind | None) -> None:
    """Refuse models that read something else."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    kind = MODEL_MAPPING.get(type(config), None)
    own = media_kind(kind)
    if own == reads or (reads == "images" and hasattr(config, "vision_config")):
        return
    needed = getattr(kind, "main_input_name", "input_ids")
    remedy = "a text file (--text)" if own is None else f"a folder of {own} (--{own})"
    raise _NoText(f"{name} is a {getattr(kind, '__name__', 'model')}, which reads {needed}; {remedy} was expected.")


def inspect_model(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    name: str = "",
    layers: Sequence[int] | None = None,
    queries: int = 64,
    seed: int = 0,
    progress: Progress | None = None,
    media: Media | None = None,
) -> Inspection:
    """Report on every head of a model.

    Parameters
    ----------
    model, tokenizer
    texts : sequence of str
        Not read where there are media.
    name : str
        For the report. Default: the model's class.
    layers : sequence of int, optional
        Default: all.
    queries : int
        Queries each head's SVM is solved for; twice as many fit the probe.
    seed : int
    progress : callable, optional
        Called with a sentence and the share done; a true result stops, and the heads done so far are returned.
    media : Media, optional
        Images or sounds, for a model that reads those.

    Returns
    -------
    Inspection
    """
    began = time.perf_counter()
    tell = progress or (lambda sentence, share: False)
    tell("Recording the model's attention", 0.0)
    total = _count(model) if layers is None else len(layers)
    findings: list[HeadFinding] = []
    refused: list[RefusedHead] = []
    paths: dict[str, None] = {}
    interrupted = False
    # The BLAS of several heads at once would fight over the cores; one thread each and a head for every core does not.
    with one_thread(), ThreadPoolExecutor(os.cpu_count()) as pool:
        batch = _with_decoder_inputs(model, tokenize(texts, tokenizer) if media is None else media.inputs)
        pending = examine_heads(model, batch, layers=layers, tokenizer=tokenizer)
        try:
            for count, (layer, heads) in enumerate(groupby(pending, key=lambda head: head.layer)):
                if tell(f"Inspecting layer {layer}", min(1.0, count / max(total, 1))):
                    interrupted = True
                    break
                for result in pool.map(lambda head: _inspect_or_refuse(head, queries, seed, media), heads):
                    paths[result.name] = None
                    if isinstance(result, RefusedHead):
                        refused.append(result)
                    else:
                        findings.append(result)
        except KeyboardInterrupt:  # a second Ctrl-C gives up the heads under way and not those before them
            interrupted = True
            pool.shutdown(wait=False, cancel_futures=True)
    kind = type(model).__name__
    seconds = time.perf_counter() - began
    absent = absent_layers(model, list(paths)) if layers is None and not interrupted else ()
    count = len(texts if media is None else media.items)
    return Inspection(
        name or kind,
        kind,
        count,
        tuple(findings),
        tuple(refused),
        absent,
        queries,
        seed,
        not interrupted,
        seconds,
        media,
    )


def _with_decoder_inputs(model: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Let the decoder of an encoder-decoder that makes no inputs by itself read the text too, shifted by one."""
    shift = getattr(model, "_shift_right", None)
    reads = getattr(model.config, "is_encoder_decoder", False) and "input_ids" in batch
    if reads and shift is not None and "decoder_input_ids" not in batch:
        return {**batch, "decoder_input_ids": shift(batch["input_ids"])}
    return batch


def _inspect_or_refuse(
    head: AttentionHead | RefusedHead, queries: int, seed: int, media: Media | None
) -> HeadFinding | RefusedHead:
    """Inspect a head; one that cannot be does not end the inspection of the others."""
    if isinstance(head, RefusedHead):
        return head
    try:
        if media is None:
            return inspect_head(head, queries=queries, seed=seed)
        finding = inspect_head(media.labelled(head), queries=queries, seed=seed)
        return replace(finding, parts=media.parts_of(head))
    except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
        return RefusedHead(head.layer, head.head, head.name, str(error))


def inspect_head(head: AttentionHead, *, queries: int, seed: int) -> HeadFinding:
    """Run every report on one head."""
    sequences = len(np.unique(head.sequence[several_seen(head)]))
    probe = None
    if sequences > 1:
        probe = fit_selection(head, queries=2 * queries, seed=seed, time_limit=TIME_LIMIT)
    types = head_types(head, seed=seed)
    return HeadFinding(
        layer=head.layer,
        head=head.head,
        name=head.name,
        error=head.error,
        types=types,
        report=selection_report(head),
        audit=margin_audit(head, queries=queries, norms=(), draws=DRAWS, seed=seed, time_limit=TIME_LIMIT),
        probe=probe,
        rank=next(head_ranks([head])),
        shows=_examples(head, types.shows),
        examples=_examples(head, _drawn(head, seed)),
    )


def _count(model: Any) -> int:
    return int(getattr(model.config, "num_hidden_layers", 1) or 1)


def _drawn(head: AttentionHead, seed: int) -> np.ndarray:
    """Draw queries of different sequences, special tokens apart where there are others."""
    asking = head.mask.sum(axis=1) > 1
    if head.special is not None and head.self_attention:
        ordinary = asking & ~head.special[head.sequence, head.position]
        asking = ordinary if ordinary.any() else asking
    rng = np.random.default_rng((seed, 1))
    rows = rng.permutation(np.flatnonzero(asking))
    _, first = np.unique(head.sequence[rows], return_index=True)
    return rows[np.sort(first)[:EXAMPLES]]


def _examples(head: AttentionHead, rows: np.ndarray) -> tuple[Example, ...]:
    """Put queries into words; none where the head has no text."""
    examples = []
    for i in rows if head.texts is not None else ():
        words = text_of(head, int(head.sequence[i]))
        query = int(head.query_place[i]) if head.self_attention else None
        attention = np.zeros(len(words))
        attention[head.text_place[head.sequence[i], head.mask[i]]] = head.probabilities[i, head.mask[i]]
        length = int(max(np.flatnonzero(attention).max(initial=0), query or 0)) + 1
        examples.append(
            Example(words[:length], tuple(attention[:length].round(4).tolist()), query, int(head.sequence[i]))
        )
    return tuple(examples)
