"""Next words of a real corpus, from 500 to 10,000 words and contexts: time, peak memory and certified gap.

The corpus is the docstrings of the installed packages of ``PACKAGES`` (about four million words). Words are the most
frequent ones, and contexts are the words before them. Contexts are one-hot, with a hard margin, and all words that
follow a context tie. Or contexts are word vectors of 64 dimensions, with a soft margin (C = 1, squared hinge), and the
most frequent next word alone is selected. Every row runs in a separate process, whose peak memory includes Python and
the problem.

    python benchmarks/next_words.py [--sizes 500 1000] [--norms frobenius nuclear] [--contexts one-hot learned]
        [--tol 1e-6] [--limit 600]
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.sparse import coo_array, csr_array, dia_array, eye_array, load_npz, save_npz
from scipy.sparse.linalg import svds

from attsvm import SelectionProblem, solve

PACKAGES = ("numpy", "scipy", "sklearn", "torch", "pandas", "sympy", "networkx", "matplotlib")
DOCSTRING, WORD = re.compile(r'"{3}(.*?)"{3}', re.DOTALL), re.compile(r"[^\W\d_]+")
SIZES, NORMS, CONTEXTS = (500, 1000, 2000, 5000, 10_000), ("frobenius", "nuclear"), ("one-hot", "learned")
DIMENSIONS, C, LOSS = 64, 1.0, "squared_hinge"


def texts() -> list[list[str]]:
    """Return the words of each distinct docstring, in lower case."""
    found: dict[str, None] = {}
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for path in sorted(Path(folder).rglob("*.py")):
                if "tests" not in path.parts and "testing" not in path.parts:
                    content = path.read_text(encoding="utf-8", errors="ignore")
                    found |= dict.fromkeys(DOCSTRING.findall(content))
    return [[sys.intern(word) for word in WORD.findall(text.lower())] for text in found]


def successors(size: int) -> coo_array:
    """Count how often each of the most frequent words (columns) follows each of them (rows), (size, size)."""
    corpus = texts()
    counts = Counter(word for text in corpus for word in text)
    vocabulary = sorted(counts, key=lambda word: (-counts[word], word))[:size]
    number = {word: i for i, word in enumerate(vocabulary)}
    coded = [np.array([number.get(word, -1) for word in text]) for text in corpus if len(text) > 1]
    before, after = np.concatenate([text[:-1] for text in coded]), np.concatenate([text[1:] for text in coded])
    known = (before >= 0) & (after >= 0)
    return coo_array((np.ones(known.sum()), (before[known], after[known])), shape=(size, size))


def word_vectors(counts: csr_array) -> np.ndarray:
    """Return vectors (n, 64) of contexts: singular vectors of log(1 + count) times roots of singular values."""
    U, sigma, _ = svds(counts.log1p(), k=DIMENSIONS, random_state=0)
    return U * np.sqrt(sigma)


def tied_rows(vectors: np.ndarray, supports: np.ndarray) -> tuple[int, int]:
    """Count the words that the ties give the row of the most frequent word, and the directions of W that stay free.

    A word has this row if it shares contexts in all dimensions with words that have it. Both numbers are bounds, of the
    words from below and of the directions from above: ties of the other words among themselves are left out. They are
    few, since almost every context with two words has one of the equal words.
    """
    dimensions = vectors.shape[1]
    equal = np.zeros(supports.shape[1], dtype=bool)
    equal[supports.sum(axis=0).argmax()] = True
    while True:
        shared = supports[:, equal].any(axis=1)[:, None] & supports
        joining = np.flatnonzero(~equal & (shared.sum(axis=0) >= dimensions))
        joining = [word for word in joining if np.linalg.matrix_rank(vectors[shared[:, word]]) == dimensions]
        if not joining:
            break
        equal[joining] = True
    ranks = [np.linalg.matrix_rank(vectors[rows]) for rows in shared.T[~equal] if rows.any()]
    return int(equal.sum()), dimensions * int(1 + (~equal).sum()) - int(sum(ranks))


def instance(file: str, size: int, contexts: str, *, ties: bool = True) -> tuple[np.ndarray | dia_array, np.ndarray]:
    """Read contexts (n, dz) from a file of counts, and the words that follow them or the most frequent, (n, size)."""
    counts = load_npz(file).tocsr()[:size, :size]
    supports = counts.toarray() > 0
    seen = supports.any(axis=1) & ~supports.all(axis=1)
    if not ties:
        supports = np.arange(size) == counts.argmax(axis=1)[:, None]
    return eye_array(seen.sum()) if contexts == "one-hot" else word_vectors(counts)[seen], supports[seen]


def row(file: str, size: int, norm: str, contexts: str, tol: float, limit: float) -> str:
    """Solve one instance with counts from a file; returns a row of the table."""
    vectors, supports = instance(file, size, contexts, ties=contexts == "one-hot")
    problem = SelectionProblem.from_contexts(vectors, supports)
    del supports
    wall, processor = time.perf_counter(), time.process_time()
    soft = {} if contexts == "one-hot" else {"C": C, "loss": LOSS}
    solution = solve(problem, norm, tol=tol, time_limit=limit, **soft)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    numbers = f"{processor:.1f} | {wall:.0f} | {peak:.2f} | {solution.gap:.0e}"
    return f"| {size:,} | {contexts} | {norm} | {numbers} | {solution.iterations} | {solution.status.name} |"


def main() -> None:
    """Print a row for each size, norm and kind of contexts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--norms", nargs="+", choices=NORMS, default=NORMS)
    parser.add_argument("--contexts", nargs="+", choices=CONTEXTS, default=CONTEXTS)
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--limit", type=float, default=600.0)
    parser.add_argument("--ties", action="store_true", help="count the words with equal rows, solve nothing")
    parser.add_argument("--row", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        file, size, norm, contexts = options.row
        print(row(file, int(size), norm, contexts, options.tol, options.limit))
        return
    if options.ties:
        with TemporaryDirectory() as folder:
            file = f"{folder}/counts.npz"
            save_npz(file, successors(max(options.sizes)))
            for size in options.sizes:
                equal, free = tied_rows(*instance(file, size, "learned"))
                print(f"{size:,} words: {equal:,} have one row, {free:,} of {size * DIMENSIONS:,} directions are free")
        return
    print("| words | contexts | norm | processor s | wall s | peak GiB | gap | steps | status |")
    print("|---:|---|---|---:|---:|---:|---:|---:|---|", flush=True)
    limits = ["--tol", str(options.tol), "--limit", str(options.limit)]
    with TemporaryDirectory() as folder:
        file = f"{folder}/counts.npz"
        save_npz(file, successors(max(options.sizes)))
        for contexts in options.contexts:
            for norm in options.norms:
                for size in options.sizes:
                    command = [sys.executable, __file__, "--row", file, str(size), norm, contexts, *limits]
                    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
