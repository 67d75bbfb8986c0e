"""Instances for benchmarks/knock_outs.py, by suite.

* *named*, *random*, *rows*: the suites of benchmarks/pairwise.py;
* *orthonormal*: relevance labels and words after contexts of benchmarks/orthonormal.py;
* *classes*: four data sets of scikit-learn, hard margins and three C;
* *words*: next words in the pages of docs/, with word vectors fitted on them;
* *relevance*: scikit-learn's digits as documents and queries; an image of the same digit is relevant;
* *tasks*: wine, digits and breast cancer in one problem; digits as documents for one-hot queries;
* *wide*: few prompts of hidden states in many dimensions, in entrywise norms;
* *many rows*: far more constraints than W has entries, digits among them;
* *label noise*: one input in a hundred repeated under another label, hard margins;
* *sharp*: families of tests/problems.py to a gap of 1e-12;
* *sharpest*: badly scaled and planted data to a gap of 1e-13;
* *large C*: inseparable data of tests/problems.py with C from 1e4 to 1e7;
* *regularised*: random norms, C, losses and priors, as benchmarks/undecided.py draws them.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from itertools import pairwise as neighbours
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

import numpy as np  # noqa: E402
import orthonormal  # noqa: E402
import pairwise  # noqa: E402
import undecided  # noqa: E402
from instances import MAKERS  # noqa: E402
from scipy.linalg import block_diag  # noqa: E402

import problems  # noqa: E402
from attsvm import SelectionProblem  # noqa: E402
from attsvm.data.text import fit_vectors  # noqa: E402

ROWS = 200  # largest number of rows of a data set
NORMS = ("frobenius", "nuclear", "spectral", "max", "1", "1.5", "3")
ENTRYWISE = ("1", "max", "1.5")
SEPARABLE = ("wine", "digits", "breast_cancer")


@dataclass(frozen=True)
class Instance:
    """A label, the function that makes the problem, the norm, and the options of ``solve``."""

    label: str
    make: Callable[[], SelectionProblem]
    norm: Any
    options: dict[str, Any]


def _as_norm(norm: str) -> Any:
    return norm if norm.isalpha() else float(norm)


def of_pairwise(suite: str) -> Iterator[Instance]:
    """Yield the instances of a suite of benchmarks/pairwise.py."""
    for order in pairwise.orders([suite]):
        family, *size = order.source
        if suite == "rows":
            make = lambda family=family, size=size: SelectionProblem(**MAKERS[family](*size))  # noqa: E731
        elif suite == "named":
            make = lambda family=family: problems.NAMED[family]().problem  # noqa: E731
        else:
            make = partial(_of_family, family, tuple(size), 11)
        yield Instance(order.label, make, _as_norm(order.norm), dict(order.options))


def _of_family(family: str, size: tuple[int, int, int], seed: int) -> SelectionProblem:
    return problems.FAMILIES[family].make(np.random.default_rng([seed, *size]), *size)


def of_orthonormal() -> Iterator[Instance]:
    """Yield the instances of benchmarks/orthonormal.py up to some seconds."""
    for label in (*orthonormal.ROWS, *orthonormal.HELD_OUT):
        if label == "relevance 46 1035 2":
            continue
        for norm in (*orthonormal.PEERS, "1"):
            yield Instance(f"orthonormal {label} {norm}", partial(orthonormal.make, label), _as_norm(norm), {})


@cache
def _data_set(name: str) -> tuple[np.ndarray, np.ndarray]:
    from sklearn import datasets

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(X))
    X = X[rows].astype(float)
    return (X - X.mean(axis=0)) / np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0), y[rows]


def of_classes() -> Iterator[Instance]:
    """Yield classification of standardised features: soft margins, and a hard margin if the classes are separable."""
    for name in ("iris", "wine", "breast_cancer", "digits"):
        for norm in NORMS:
            for options in ({}, {"C": 0.1}, {"C": 10.0}, {"C": 1e4}):
                label = " ".join(["classes", name, norm, *(f"C={C:g}" for C in options.values())])
                yield Instance(label, lambda name=name: _classes(name), _as_norm(norm), options)


def _classes(name: str, rows: int = ROWS, noise: bool = False) -> SelectionProblem:
    X, y = _data_set(name)
    X, y = X[:rows], np.unique(y[:rows], return_inverse=True)[1]
    if noise:
        repeated = np.arange(0, len(X), 100)
        X, y = np.vstack([X, X[repeated]]), np.append(y, (y[repeated] + 1) % (y.max() + 1))
    return SelectionProblem.from_classes(X, y)


def of_many_rows() -> Iterator[Instance]:
    """Yield problems with many more constraints than entries of W."""
    for norm in ("frobenius", "spectral", "max", "1.5"):
        make = partial(_of_family, "planted", (10_000, 8, 6), 11)
        yield Instance(f"many rows planted 10000 8 6 {norm}", make, _as_norm(norm), {})
    for options in ({}, {"C": 1.0}):
        label = " ".join(["many rows digits frobenius", *(f"C={C:g}" for C in options.values())])
        yield Instance(label, partial(_classes, "digits", 1797), "frobenius", options)


def of_label_noise() -> Iterator[Instance]:
    """Yield classification where a few inputs have two labels."""
    for name, rows in (("iris", ROWS), ("wine", ROWS), ("digits", ROWS), ("digits", 1797)):
        for norm in ("frobenius", "nuclear", "spectral", "max"):
            label = f"label noise {name} {rows} {norm}"
            yield Instance(label, partial(_classes, name, rows, True), norm, {})


def of_sharp() -> Iterator[Instance]:
    """Yield small problems to a gap near rounding."""
    for size in ((6, 8, 10), (15, 15, 20)):
        for family in problems.FAMILIES:
            for norm in NORMS:
                make = partial(_of_family, family, size, 11)
                label = " ".join(["sharp", family, *map(str, size), norm])
                yield Instance(label, make, _as_norm(norm), {"tol": 1e-12})


def of_sharpest() -> Iterator[Instance]:
    """Yield data of very different scales to a gap below the rounding of W's margins."""
    for family in ("badly_scaled", "planted"):
        for size in ((6, 8, 10), (15, 15, 20), (30, 10, 8)):
            for norm in ("frobenius", "nuclear", "max", "1.5"):
                make = partial(_of_family, family, size, 11)
                label = " ".join(["sharpest", family, *map(str, size), norm])
                yield Instance(label, make, _as_norm(norm), {"tol": 1e-13})


@cache
def _successors(words: int, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors (n, d) of the most frequent words of docs/, and which words follow them, (n, words)."""
    text = [re.findall(r"[a-z]+", page.read_text().lower()) for page in sorted((HERE.parent / "docs").glob("*.md"))]
    frequent = {word: k for k, (word, _) in enumerate(Counter(chain.from_iterable(text)).most_common(words))}
    numbers = [[frequent[word] for word in page if word in frequent] for page in text]
    supports = np.zeros((words, words), dtype=bool)
    for page in text:
        for one, other in neighbours(page):
            if one in frequent and other in frequent:
                supports[frequent[one], frequent[other]] = True
    kept = np.flatnonzero(supports.any(axis=1))
    return fit_vectors(numbers, words, dimensions)[kept], supports[kept]


def of_words() -> Iterator[Instance]:
    """Yield next-token supports."""
    for words, dimensions in ((20, 20), (40, 16), (60, 60)):
        for norm in NORMS:
            for options in ({}, {"C": 1.0}):
                make = lambda words=words, d=dimensions: SelectionProblem.from_contexts(*_successors(words, d))  # noqa: E731
                label = " ".join(["words", str(words), str(dimensions), norm, *("C=1" for _ in options)])
                yield Instance(label, make, _as_norm(norm), options)


def _relevance(documents: int, queries: int, seed: int) -> SelectionProblem:
    X, y = _data_set("digits")
    X = np.linalg.svd(X, full_matrices=False)[0][:, :24]
    rows = np.random.default_rng(seed).permutation(len(X))
    shown, asked = rows[:documents], rows[documents : documents + queries]
    preferred = y[asked][:, None] == y[shown]
    fine = preferred.any(axis=1) & ~preferred.all(axis=1)
    return SelectionProblem.from_preferences(X[shown], X[asked[fine]], preferred[fine])


def of_relevance() -> Iterator[Instance]:
    """Yield relevance labels of documents that are not orthonormal."""
    for documents, queries in ((20, 15), (30, 40)):
        for norm in NORMS:
            for options in ({}, {"C": 1.0}, {"C": 1e3}):
                make = partial(_relevance, documents, queries, 0)
                label = " ".join(
                    ["relevance", str(documents), str(queries), norm, *(f"C={C:g}" for C in options.values())]
                )
                yield Instance(label, make, _as_norm(norm), options)


def _tasks() -> SelectionProblem:
    """Put data sets into one problem: each has its own features and sees its own classes."""
    sets = [(X[:ROWS], np.unique(y[:ROWS], return_inverse=True)[1]) for X, y in map(_data_set, SEPARABLE)]
    classes = np.cumsum([0, *(y.max() + 1 for _, y in sets)])
    mask = np.concatenate([np.tile(_between(classes, k), (len(X), 1)) for k, (X, _) in enumerate(sets)])
    labels = np.concatenate([y + first for (_, y), first in zip(sets, classes, strict=False)])
    features = block_diag(*(X for X, _ in sets))
    return SelectionProblem(np.eye(classes[-1])[None], features, labels, mask=mask, sequence=np.zeros_like(labels))


def _between(ends: np.ndarray, k: int) -> np.ndarray:
    places = np.arange(ends[-1])
    return (places >= ends[k]) & (places < ends[k + 1])


def _free_queries(documents: int, queries: int) -> SelectionProblem:
    """Let each query choose its own vector, one column of W."""
    X, y = _data_set("digits")
    shown, asked = slice(0, documents), slice(documents, documents + queries)
    return SelectionProblem.from_preferences(X[shown], np.eye(queries), y[asked][:, None] == y[shown])


def of_tasks() -> Iterator[Instance]:
    """Yield problems that fall apart."""
    for norm in ("frobenius", "nuclear", "max"):
        for options in ({}, {"C": 1.0}):
            label = " ".join(["tasks", norm, *("C=1" for _ in options)])
            yield Instance(label, _tasks, _as_norm(norm), options)
    for norm in ("frobenius", "max", "1.5"):
        yield Instance(f"free queries {norm}", partial(_free_queries, 40, 40), _as_norm(norm), {})


def of_wide() -> Iterator[Instance]:
    """Yield few prompts in many dimensions."""
    for family, size in (
        ("hidden", (10, 8, 64)),
        ("hidden", (20, 16, 128)),
        ("planted", (20, 8, 256)),
        ("hidden", (20, 8, 512)),
        ("planted", (20, 8, 512)),
    ):
        for norm in ENTRYWISE:
            for options in ({}, {"C": 10.0}):
                make = lambda family=family, size=size: SelectionProblem(**MAKERS[family](*size))  # noqa: E731
                label = " ".join(["wide", family, *map(str, size), norm, *(f"C={C:g}" for C in options.values())])
                yield Instance(label, make, _as_norm(norm), options)


def of_large_C() -> Iterator[Instance]:
    """Yield data that no W separates, with losses much larger than the norm, and C in place of a hard margin."""
    for family in ("contradicted", "published", "near_duplicates"):
        for size in ((10, 5, 4), (10, 6, 8), (30, 10, 8)):
            for norm in NORMS:
                for C in (1e4, 1e5, 1e6, 1e7):
                    label = f"large C {family} {size} {norm} C={C:g}"
                    yield Instance(label, partial(_of_family, family, size, 0), _as_norm(norm), {"C": C})
    for family in ("planted", "several", "badly_scaled"):
        for size in ((10, 5, 4), (12, 6, 6), (15, 15, 20)):
            for norm in ("nuclear", "max", "1", "1.5"):
                for C in (1e15, 1e20, 1e30):
                    label = f"huge C {family} {size} {norm} C={C:g}"
                    yield Instance(label, partial(_of_family, family, size, 0), _as_norm(norm), {"C": C})


def of_regularised() -> Iterator[Instance]:
    """Yield norms in a fixed order, with everything else random."""
    for label, problem, norm, options in undecided.regularised(np.random.default_rng(0)):
        yield Instance(f"regularised {label}", lambda problem=problem: problem, norm, options)


SUITES: dict[str, Callable[[], Iterator[Instance]]] = {
    **{suite: partial(of_pairwise, suite) for suite in ("named", "random", "rows")},
    "orthonormal": of_orthonormal,
    "classes": of_classes,
    "words": of_words,
    "relevance": of_relevance,
    "tasks": of_tasks,
    "wide": of_wide,
    "many rows": of_many_rows,
    "label noise": of_label_noise,
    "sharp": of_sharp,
    "sharpest": of_sharpest,
    "large C": of_large_C,
    "regularised": of_regularised,
}
