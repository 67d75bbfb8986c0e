"""The instances of the benchmarks, made once and read from files by every solver.

*off* draws tokens, queries and labels as the paper's code does and selects the token of best score. *planted* selects
what a random matrix selects, so that a W exists. *shared* does this for one query, a number; *digits* and *hidden* do
it for the correlated tokens of images and of a transformer. *infeasible* selects at random and has more constraints
than a W can meet. *several* ties up to three tokens per query. *classes* has class vectors for tokens and inputs for
queries, many more inputs than dimensions. *one-hot* has unit vectors for tokens and queries, as words and contexts.
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
    """What is made, and how large: ``work`` orders the instances of a family, for skipping past a limit."""

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
    """Select what a Gaussian matrix selects."""
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
    """Patches of n images; their position is appended (d = 20) or they lie in their place (d = 80), query the mean."""
    data = digits("odd-even", query="mean" if d == 80 else "patch", positions="place" if d == 80 else "append").tokens
    tokens, queries = data.tokens[:n], data.queries[:n]
    if tokens.shape != (n, T, d):
        raise ValueError(f"there are digits of {tokens.shape[1:]}, not of {(T, d)}.")
    return {"tokens": tokens, "queries": queries, "selected": planted_selection(tokens, queries, [3, n, d])}


def hidden_states(n: int, T: int, d: int) -> Arrays:
    """Output states of a transformer of two layers on random words; the last position asks."""
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
    """Multiclass classification: n inputs ask for one of T orthonormal class vectors, labels by a random matrix."""
    rng = np.random.default_rng([7, n, T, d])
    queries = rng.standard_normal((n, d))
    tokens = np.tile(np.eye(T), (n, 1, 1))
    return {"tokens": tokens, "queries": queries, "selected": planted_selection(tokens, queries, [8, n, T, d])}


def several(n: int, T: int, d: int) -> Arrays:
    """One to three tied tokens a query, at random."""
    rng = np.random.default_rng([9, n, T, d])
    selected = rng.random((n, T)).argsort(axis=1) < rng.integers(1, 4, size=(n, 1))
    return planted(n, T, d) | {"selected": selected}


def one_hot(n: int, T: int, d: int) -> Arrays:
    """Each of n contexts is followed by one of T words: unit vectors on both sides, words at random."""
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
    beside = folder.with_suffix(".partial")
    beside.mkdir(parents=True, exist_ok=True)
    if mapped:
        _write_mapped(instance, beside)
    else:
        for name, array in MAKERS[instance.family](*instance.sizes).items():
            np.save(beside / f"{name}.npy", array)
    return beside.rename(folder)


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
