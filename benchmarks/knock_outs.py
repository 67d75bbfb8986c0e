"""Rescue parts of the solvers, taken out one at a time: which statuses differ, and how much slower is what is left?

An instance is solved once as it is, with a count of the parts that act on it. Each part that acted is then replaced by
nothing and the instance solved again: a part that did not act can change neither status nor time, since runs repeat.
Seconds are processor seconds of one thread, the least of two runs where one takes below a second. The suites:

* *named*, *random*, *rows*: those of benchmarks/pairwise.py;
* *orthonormal*: those of benchmarks/orthonormal.py, relevance labels and words after contexts;
* *classes*: four data sets of scikit-learn, hard margins and three C;
* *words*: which words follow which in the pages of docs/, vectors of words fitted on them;
* *relevance*: images of scikit-learn's digits as documents and as queries, relevant where the digit is the same;
* *wide*: few prompts of hidden states in many dimensions, in entrywise norms;
* *many rows*: far more constraints than W has entries, digits among them;
* *label noise*: one input in a hundred repeated under another label, hard margins;
* *sharp*: families of tests/problems.py to a gap of 1e-12;
* *large C*: contradicted data of tests/problems.py with C from 1e4 to 1e7;
* *regularised*: random norms, C, losses and priors, as benchmarks/undecided.py draws them.

A part stays where an instance that users have changes its status for the worse, or takes three times as long. The limit
is wall-clock time: on a busy machine a TIME_LIMIT counts only with several times the processor seconds.
With --out each instance is a line of JSON as it is done, and those in the file are left out.

    python benchmarks/knock_outs.py [--suite named classes ...] [--part restart ...] [--limit 30] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, islice
from itertools import pairwise as neighbours
from pathlib import Path
from typing import Any
from unittest.mock import patch

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("ATTSVM_COMPILE", "first")
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

import numpy as np  # noqa: E402
import orthonormal  # noqa: E402
import pairwise  # noqa: E402
import undecided  # noqa: E402
from instances import MAKERS  # noqa: E402

import problems  # noqa: E402
from attsvm import SelectionProblem, solve  # noqa: E402
from attsvm.data.text import fit_vectors  # noqa: E402
from attsvm.proofs.certified import certify  # noqa: E402
from attsvm.solvers import answers, in_memory, solving  # noqa: E402
from attsvm.solvers.common import refinement  # noqa: E402
from attsvm.solvers.interior_point import general, semidefinite, terms  # noqa: E402
from attsvm.solvers.nuclear import portfolio  # noqa: E402

FINAL = ("OPTIMAL", "INFEASIBLE")
# A part stays from this ratio of times on; ratios are of times longer than the second, in seconds.
SLOWER, SHORTEST = 3.0, 5e-3
REPEATED = 1.0  # seconds below which a run is repeated
ROWS = 200  # of a data set, at most
NORMS = ("frobenius", "nuclear", "spectral", "max", "1", "1.5", "3")
ENTRYWISE = ("1", "max", "1.5")


@dataclass(frozen=True)
class Part:
    """One part: where its name is looked up, what takes its place, and whether a call of it acts.

    ``acts`` gets the arguments and the result, which is None for a generator.
    """

    owners: tuple[Any, ...]
    name: str
    instead: Callable[..., Any]
    acts: Callable[[tuple[Any, ...], Any], bool] = lambda arguments, result: True

    def counted(self, hits: Counter[str], label: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the part so that calls which act are counted."""

        def call(*arguments: Any, **options: Any) -> Any:
            result = whole(*arguments, **options)
            hits[label] += self.acts(arguments, None if isinstance(result, Generator) else result)
            return result

        return call


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _no_steps(*_: Any, **__: Any) -> Iterator[float]:
    return iter(())


def _not_finished(*_: Any, **__: Any) -> bool:
    return False


def _as_it_is(program: Any, W: Any, dual: Any, _: float) -> Any:
    return certify(program, W, dual)


def _is_open(arguments: tuple[Any, ...], _: Any) -> bool:
    control = arguments[1]
    return not (control.solved or control.stopped)


def _found(_: tuple[Any, ...], result: Any) -> bool:
    return result is not None


def _refined(arguments: tuple[Any, ...], result: Any) -> bool:
    program, W, dual, _ = arguments
    return result.gap < certify(program, W, dual).gap


PARTS = {
    "vertex": Part((terms.LinearTerm,), "finish", _not_finished),
    "alignment": Part((semidefinite.SpectralTerm,), "finish", _not_finished),
    "refinement": Part((answers,), "refine", _as_it_is, _refined),
    "refinement of W": Part((refinement,), "_correct", _nothing, _found),
    "refinement into the ball": Part((refinement,), "_into_ball", _nothing, _found),
    "restart": Part((general,), "restart", _no_steps),
    "resumed path": Part((general, portfolio), "resume", _no_steps, _is_open),
    "hard margin for large C": Part((general,), "_without_loss", _no_steps),
    "outer loop as a turn": Part(
        (in_memory,), "beside_rounds", lambda setting, work, whole, rounds: [whole], lambda _, turns: len(turns) > 1
    ),
    "opposite demands": Part((solving,), "opposite_demands", _nothing, _found),
}


@contextmanager
def counting(hits: Counter[str]) -> Iterator[None]:
    """Count which parts act."""
    with ExitStack() as stack:
        for label, part in PARTS.items():
            for owner in part.owners:
                whole = getattr(owner, part.name)
                stack.enter_context(patch.object(owner, part.name, part.counted(hits, label, whole)))
        yield


@contextmanager
def without(label: str) -> Iterator[None]:
    """Take one part out."""
    part = PARTS[label]
    with ExitStack() as stack:
        for owner in part.owners:
            stack.enter_context(patch.object(owner, part.name, part.instead))
        yield


@dataclass(frozen=True)
class Instance:
    """One instance: a label, what makes the problem, the norm, and the options of ``solve``."""

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
    """Yield classification of standardised features, hard where the classes are separable and soft anyway."""
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


@cache
def _successors(words: int, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (n, d) of the most frequent words of the pages of docs/, and which of them follow, (n, words)."""
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
    """Yield data that no W separates, with losses that dwarf the norm."""
    for family in ("contradicted", "published", "near_duplicates"):
        for size in ((10, 5, 4), (10, 6, 8), (30, 10, 8)):
            for norm in NORMS:
                for C in (1e4, 1e5, 1e6, 1e7):
                    label = f"large C {family} {size} {norm} C={C:g}"
                    yield Instance(label, partial(_of_family, family, size, 0), _as_norm(norm), {"C": C})


def of_regularised() -> Iterator[Instance]:
    """Yield norms in turn, all else at random."""
    for label, problem, norm, options in undecided.regularised(np.random.default_rng(0)):
        yield Instance(f"regularised {label}", lambda problem=problem: problem, norm, options)


SUITES: dict[str, Callable[[], Iterator[Instance]]] = {
    **{suite: partial(of_pairwise, suite) for suite in ("named", "random", "rows")},
    "orthonormal": of_orthonormal,
    "classes": of_classes,
    "words": of_words,
    "relevance": of_relevance,
    "wide": of_wide,
    "many rows": of_many_rows,
    "label noise": of_label_noise,
    "sharp": of_sharp,
    "large C": of_large_C,
    "regularised": of_regularised,
}


def timed(instance: Instance, limit: float) -> tuple[float, str, float]:
    """Solve; returns processor seconds, the least of two runs where they are short, status and gap."""
    best = np.inf
    for _ in range(2):
        problem = instance.make()
        start = time.process_time()
        solution = solve(problem, instance.norm, time_limit=limit, **instance.options)
        best = min(best, time.process_time() - start)
        if best > REPEATED:
            break
    return best, solution.status.name, float(solution.gap)


def knock_out(instance: Instance, parts: list[str], limit: float) -> dict[str, Any]:
    """Solve an instance as it is, and without each of the parts that act on it."""
    hits: Counter[str] = Counter()
    with counting(hits):
        solve(instance.make(), instance.norm, time_limit=limit, **instance.options)  # compiles what is not compiled yet
    acting = [label for label in parts if hits[label]]
    row: dict[str, Any] = {"label": instance.label, "without": {}}
    if not acting:
        return row
    row["whole"] = timed(instance, limit)
    for label in acting:
        with without(label):
            row["without"][label] = timed(instance, limit)
    return row


def verdict(row: dict[str, Any], label: str) -> str:
    """Say what taking out a part changes on one instance; empty where it changes nothing to speak of."""
    (seconds, status, gap), (seconds_without, status_without, gap_without) = row["whole"], row["without"][label]
    ratio = seconds_without / seconds
    if status == status_without and (max(seconds, seconds_without) < SHORTEST or 1 / SLOWER < ratio < SLOWER):
        return ""
    return (
        f"without {label}: {status} -> {status_without}, gap {gap:.0e} -> {gap_without:.0e}, "
        f"{seconds:.3f} -> {seconds_without:.3f} s, {row['label']}"
    )


def summary(rows: list[dict[str, Any]], label: str) -> str:
    """Count what a part decides and the ratios of times without it."""
    acted = [row for row in rows if label in row["without"]]
    pairs = [(row["whole"], row["without"][label]) for row in acted]
    lost = sum(whole[1] in FINAL and part[1] not in FINAL for whole, part in pairs)
    gained = sum(whole[1] not in FINAL and part[1] in FINAL for whole, part in pairs)
    decided = [(whole, part) for whole, part in pairs if whole[1] == part[1] in FINAL and whole[0] > SHORTEST]
    ratios = sorted(part[0] / whole[0] for whole, part in decided)
    spread = "-"
    if ratios:
        spread = ", ".join(f"{ratios[int(share * (len(ratios) - 1))]:.2f}" for share in (0.0, 0.5, 1.0))
    slower = sum(ratio >= SLOWER for ratio in ratios)
    return f"| {label} | {len(acted)} | {lost} | {gained} | {slower} | {spread} |"


def main() -> None:
    """Print every change, then a row for each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--limit", type=float, default=30.0)
    parser.add_argument("--count", type=int, default=300, help="instances of a suite, at most")
    parser.add_argument("--only", default="", help="part of the label")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = options.out.read_text().splitlines() if options.out is not None and options.out.exists() else []
    rows = {row["label"]: row for row in map(json.loads, lines)}
    for suite in options.suite:
        for instance in islice(SUITES[suite](), options.count):
            if options.only not in instance.label or instance.label in rows:
                continue
            row = rows[instance.label] = knock_out(instance, options.part, options.limit)
            for label in row["without"]:
                line = verdict(row, label)
                if line:
                    print(line, flush=True)
            if options.out is not None:
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    print(f"{len(rows)} instances")
    print("| without | acts on | decided no more | decided only now | 3 times as slow | ratio least, median, most |")
    print("|---|---:|---:|---:|---:|---:|")
    for label in options.part:
        print(summary(list(rows.values()), label))


if __name__ == "__main__":
    main()
