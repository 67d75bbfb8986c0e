"""Read and write traces as .npz files: data, records and parts of the risk as plain arrays; nothing is pickled.

Loss, attention and norms are computed from these arrays, as from the original trace. Words and small numbers are in one
array, ``meta``: the bytes of a JSON object.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.data.npz import read_arrays, write_arrays
from attsvm.data.token_data import TokenData
from attsvm.nn.heads import LambdaHead, LinearHead, PredictionHead, ReLUHead, ValueHead
from attsvm.nn.losses import CallableLoss, Loss, as_loss
from attsvm.platform.interop import to_numpy
from attsvm.training.risk.embeddings import EmbeddingTraining, Vocabulary
from attsvm.training.risk.objective import Objective

TRACE_FORMAT = "attsvm trace 1"
_HEADS: dict[str, type[PredictionHead]] = {
    kind.__name__: kind for kind in (LinearHead, ReLUHead, LambdaHead, ValueHead)
}
_DATA = ("tokens", "queries", "labels", "mask", "values")


def write_trace(path: str | os.PathLike[str], trace: Any) -> None:
    """Write a trace; see :meth:`attsvm.Trace.save`."""
    objective, data = trace._objective, trace.data
    arrays: dict[str, Any] = {f"data.{name}": getattr(data, name) for name in _DATA}
    if data.values is data.tokens:
        del arrays["data.values"]
    arrays |= {f"record.{name}": rows for name, rows in trace._records.items() if name != "W" or trace.K is None}
    arrays |= {name: getattr(trace, name) for name in ("step", "flipped", "last_step")}
    arrays["weights"] = objective.weights
    head = objective.head
    if type(head).__name__ in _HEADS and isinstance(head, PredictionHead):
        arrays |= {f"head.{name}": value for name, value in head.state_dict().items()}
    if trace._evaluation is not None:
        arrays |= {f"held_out.{name}": part for name, part in zip(_DATA, _parts(trace._evaluation), strict=True)}
    embedding = trace._embedding
    if embedding is not None:
        arrays |= {"words.tokens": embedding.tokens, "words.queries": embedding.queries}
    plain = {name: to_numpy(name, array) for name, array in arrays.items() if array is not None}
    meta = {
        "format": TRACE_FORMAT,
        "dtypes": {name: str(array.dtype) for name, array in plain.items()},
        "dtype": str(to_numpy("W", trace.W).dtype),
        "work": str(objective.labels.dtype).removeprefix("torch."),
        "batch": list(data.batch_shape),
        "heads": trace._records["W"].shape[2] if trace._records["W"].ndim == 5 else 1,
        "head": type(head).__name__ if any(name.startswith("head.") for name in plain) else None,
        "loss": _name(objective.loss),
        "embedding": None if embedding is None else [embedding.lr, embedding.normalized],
        **{name: getattr(trace, name) for name in ("optimizer", "numerics", "backend", "stopped", "seconds", "notice")},
    }
    write_arrays(path, plain | {"meta": np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)})


def read_trace(path: str | os.PathLike[str], head: Any, loss: Any) -> dict[str, Any]:
    """Read the fields of a trace by name; see :meth:`attsvm.Trace.load`."""
    try:
        meta = json.loads(bytes(read_arrays(path, ("meta",))["meta"]))
    except (UnicodeDecodeError, json.JSONDecodeError, TypeError) as error:
        raise ValueError(f"meta in {path} is no text of a trace; a file that Trace.save wrote was expected.") from error
    if not isinstance(meta, dict) or meta.get("format") != TRACE_FORMAT:
        raise ValueError(f"{path} is no trace of this version; a file that Trace.save wrote was expected.")
    contents = read_arrays(path, meta["dtypes"])
    arrays = {name: array.astype(meta["dtypes"][name]) for name, array in contents.items()}
    data = TokenData(*(arrays.get(f"data.{name}") for name in _DATA))
    work, batch = getattr(torch, meta["work"]), tuple(meta["batch"])
    records = {
        name.removeprefix("record."): torch.as_tensor(a) for name, a in arrays.items() if name.startswith("record.")
    }
    trained = any(name.startswith("head.") for name in records)
    trace_head = _head(meta["head"], arrays, batch, head, path)
    law = _loss(meta["loss"], loss, path)
    objective = Objective.from_data(data, trace_head, law, work, meta["numerics"], meta["heads"], train_head=trained)
    if "weights" in arrays:
        objective.weights = torch.as_tensor(arrays["weights"])
    embedding = None
    if meta["embedding"] is not None:
        lr, normalized = meta["embedding"]
        table = records["embeddings"][:, 0].reshape(*batch, *records["embeddings"].shape[2:])
        words = {name: arrays.get(f"words.{name}") for name in ("tokens", "queries")}
        words = {
            name: None if index is None else index.reshape(*batch, *index.shape[1:]) for name, index in words.items()
        }
        vocabulary = Vocabulary(table, words["tokens"], words["queries"])
        embedding = EmbeddingTraining(objective, vocabulary, batch, lr, normalized)
    if "K" in records:
        records["W"] = records["K"] @ records["Q"].mT
    results = {
        name: tensor.numpy().reshape(*batch, *tensor.shape[1:]).astype(meta["dtype"])
        for name, tensor in records.items()
    }
    return {
        "data": data,
        **{name: arrays[name] for name in ("step", "flipped", "last_step")},
        **{name: results.get(name) for name in ("W", "K", "Q", "embeddings")},
        "head": {name.removeprefix("head."): rows for name, rows in results.items() if name.startswith("head.")},
        **{name: meta[name] for name in ("optimizer", "numerics", "backend", "stopped", "seconds", "notice")},
        "_objective": objective,
        "_records": records,
        "_evaluation": _held_out(arrays, objective, meta["heads"]),
        "_embedding": embedding,
    }


def _under(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Return the arrays whose names begin with a prefix, as tensors, by the rest of their names."""
    return {name.removeprefix(prefix): torch.as_tensor(a) for name, a in arrays.items() if name.startswith(prefix)}


def _parts(objective: Objective) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    """Return tokens, queries, labels, mask and values of an objective, without the dimension of attention heads."""
    tokens, queries, values, hidden = objective.tokens, objective.queries, objective.values, objective.hidden
    if tokens.ndim == 5:
        tokens, queries, values = tokens.squeeze(1), queries.squeeze(1), values.squeeze(1)
        hidden = None if hidden is None else hidden.squeeze(1)
    return tokens, queries, objective.labels, None if hidden is None else ~hidden, values


def _held_out(arrays: dict[str, np.ndarray], objective: Objective, heads: int) -> Objective | None:
    if "held_out.tokens" not in arrays:
        return None
    parts = {name: arrays.get(f"held_out.{name}") for name in _DATA}
    tokens, queries, labels, mask, values = (None if a is None else torch.as_tensor(a) for a in parts.values())
    assert tokens is not None
    assert queries is not None
    assert labels is not None
    assert values is not None
    return Objective(
        tokens, queries, labels, mask, values, objective.head, objective.loss, objective.numerics, heads=min(heads, 2)
    )


def _name(loss: Loss) -> str | None:
    """Return the name of a loss of the package; None for a user-defined loss."""
    try:
        has_name = type(as_loss(loss.name)) is type(loss)
    except (AttributeError, ValueError):
        has_name = False
    return loss.name if has_name and not isinstance(loss, CallableLoss) else None


def _loss(name: str | None, loss: Any, path: object) -> Any:
    if name is None and loss is None:
        raise ValueError(f"loss is None and {path} has one that is not of attsvm; the loss of train() was expected.")
    return loss if name is None else name


def _head(kind: str | None, arrays: dict[str, np.ndarray], batch: tuple[int, ...], head: Any, path: object) -> Any:
    if kind is None:
        if head is None:
            raise ValueError(
                f"head is None and {path} has one that is not of attsvm; the head of train() was expected."
            )
        return head
    if kind not in _HEADS:
        raise ValueError(f"{path} has the head {kind!r}; one of {', '.join(_HEADS)} was expected.")
    parts = _under("head.", arrays)
    for name, dims in _HEADS[kind].own_dims.items():
        part = parts[name]
        if part.ndim > dims:
            parts[name] = part.reshape(*batch, *part.shape[1:])
    return _HEADS[kind](**parts)
