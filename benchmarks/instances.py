"""The instances of the benchmarks, made once and read from files by every solver.

* *off*: random data of the paper's code; the token with the best score is selected;
* *planted*: a random matrix selects, so that a W exists;
* *shared*: the same with one query, a number;
* *digits*, *hidden*: a random matrix selects among the correlated tokens of images and of a transformer;
* *infeasible*: random selections, with more constraints than a W can meet;
* *several*: up to three tied tokens per query;
* *classes*: tokens are class vectors and queries are inputs, many more than dimensions;
* *one-hot*: tokens and queries are unit vectors, as in words after contexts or documents for queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attsvm import SelectionProblem
from attsvm.data.digits import digits
from attsvm.data.synthetic import random_data

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Instance:
    """An instance and its sizes; ``work`` orders the instances of a family, so that larger ones can be skipped."""

    family: str
    sizes: tuple[int, int, int]

    @property
    def name(self) -> str:
        return f"{NAMES[self.family]} {', '.join(map(str, self.sizes))}"

    @property
    def work(self) -> int:
        n, T, d = self.sizes
        return n * T * d * d


def planted_selection(tokens: np.ndarray, queries: np.ndarray, seed: Any) -> np.ndarray:
    """Select the tokens with the largest score under a Gaussian matrix."""
    teacher = np.random.default_rng(seed).standard_normal((tokens.shape[2], queries.shape[1]))
    return np.matmul(tokens, (queries @ teacher.T)[:, :, None])[..., 0].argmax(axis=1)


def off(n: int, T: int, d: int) -> Arrays:
    data, v = random_data(None, n, T, d)
    selected = (data.labels[:, None] * (data.tokens @ v)).argmax(axis=1)
    return {"tokens": data.tokens, "queries": data.queries, "selected": selected}


def planted(n: int, T: int, d: int) -> Arrays:
    data, _ = random_data(None, n, T, d)
    selected = planted_selection(data.tokens, data.queries, [1, n, T, d])
    return {"tokens": data.tokens, "queries": data.queries, "selected": selected}


def shared(n: int, T: int, d: int) -> Arrays:
    arrays = planted(n, T, d)
    queries = np.ones((n, 1))
    return {
        "tokens": arrays["tokens"],
        "queries": queries,
        "selected": planted_selection(arrays["tokens"], queries, [6, n, T, d]),
    }


def infeasible(n: int, T: int, d: int) -> Arrays:
    arrays = planted(n, T, d)
    return arrays | {"selected": np.random.default_rng([2, n, T, d]).integers(T, size=n)}


def digit_patches(n: int, T: int, d: int) -> Arrays:
    """Return patches of n images, with position appended (d = 20) or on a blank canvas (d = 80); query: the mean."""
    data = digits("odd-even", query="mean" if d == 80 else "patch", positions="place" if d == 80 else "append").tokens
    tokens, queries = data.tokens[:n], data.queries[:n]
    if tokens.shape != (n, T, d):
        raise ValueError(f"there are digits of {tokens.shape[1:]}, not of {(T, d)}.")
    return {"tokens": tokens, "queries": queries, "selected": planted_selection(tokens, queries, [3, n, d])}


def hidden_states(n: int, T: int, d: int) -> Arrays:
    """Return output states of a transformer of two layers on random words; the last position is the query."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    with torch.no_grad():
        words = torch.nn.Embedding(100, d)(torch.randint(100, (n, T)))
        states = encoder(words + torch.nn.Embedding(T, d)(torch.arange(T))).double().numpy()
    queries = states[:, -1].copy()
    return {"tokens": states, "queries": queries, "selected": planted_selection(states, queries, [4, n, T, d])}


def class_vectors(n: int, T: int, d: int) -> Arrays:
    """Return n inputs as queries and T orthonormal class vectors as tokens, with labels from a random matrix."""
    rng = np.random.default_rng([7, n, T, d])
    queries = rng.standard_normal((n, d))
    tokens = np.tile(np.eye(T), (n, 1, 1))
    return {"tokens": tokens, "queries": queries, "selected": planted_selection(tokens, queries, [8, n, T, d])}


def several(n: int, T: int, d: int) -> Arrays:
    """Draw one to three tied tokens per query."""
    rng = np.random.default_rng([9, n, T, d])
    selected = rng.random((n, T)).argsort(axis=1) < rng.integers(1, 4, size=(n, 1))
    return planted(n, T, d) | {"selected": selected}


def one_hot(n: int, T: int, d: int) -> Arrays:
    """Draw one of T words after each of n contexts; words and contexts are unit vectors."""
    if d != T:
        raise ValueError(f"d is {d} for {T} words; the same number was expected.")
    selected = np.random.default_rng([10, n, T]).integers(T, size=n)
    return {"tokens": np.tile(np.eye(T), (n, 1, 1)), "queries": np.eye(n), "selected": selected}


MAKERS: dict[str, Callable[[int, int, int], Arrays]] = {
    "off": off,
    "planted": planted,
    "shared": shared,
    "digits": digit_patches,
    "hidden": hidden_states,
    "infeasible": infeasible,
    "classes": class_vectors,
    "several": several,
    "one-hot": one_hot,
}
# Families as readers of the tables know them.
NAMES = {
    "off": "random data of the paper",
    "planted": "labels from a random matrix",
    "shared": "one shared query",
    "digits": "patches of digits",
    "hidden": "hidden states of a transformer",
    "infeasible": "infeasible",
    "classes": "class vectors",
    "several": "several selected tokens",
    "one-hot": "one-hot words and contexts",
}
STREAMED_ROWS = 500


def write(instance: Instance, directory: Path, *, mapped: bool = False) -> Path:
    """Write an instance as a folder of .npy files; ``mapped``: planted tokens, block by block, for a memory map."""
    folder = directory / "-".join((instance.family, *map(str, instance.sizes)))
    if folder.exists():
        return folder
    temporary = folder.with_suffix(".partial")
    temporary.mkdir(parents=True, exist_ok=True)
    if mapped:
        _write_mapped(instance, temporary)
    else:
        for name, array in MAKERS[instance.family](*instance.sizes).items():
            np.save(temporary / f"{name}.npy", array)
    return temporary.rename(folder)


def _write_mapped(instance: Instance, folder: Path) -> None:
    n, T, d = instance.sizes
    rng = np.random.default_rng([5, n, T, d])
    queries, selected = rng.standard_normal((n, d)), np.empty(n, dtype=np.int64)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    tokens = np.lib.format.open_memmap(folder / "tokens.npy", mode="w+", dtype=np.float64, shape=(n, T, d))
    for start in range(0, n, STREAMED_ROWS):
        rows = slice(start, start + STREAMED_ROWS)
        block = rng.standard_normal(tokens[rows].shape)
        tokens[rows] = block / np.linalg.norm(block, axis=-1, keepdims=True)
        selected[rows] = planted_selection(tokens[rows], queries[rows], [6, n, T, d])
    tokens.flush()
    np.save(folder / "queries.npy", queries)
    np.save(folder / "selected.npy", selected)


def read_folder(folder: Path, *, mapped: bool = False) -> SelectionProblem:
    tokens = np.load(folder / "tokens.npy", mmap_mode="r" if mapped else None)
    return SelectionProblem(tokens, np.load(folder / "queries.npy"), np.load(folder / "selected.npy"))
