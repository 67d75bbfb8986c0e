"""The published random instances (arXiv 2308.16898, Section 3 and Appendix; official code of the paper).

Tokens x_it, queries z_i and the head v are drawn independently on the unit sphere, labels by fair coins. As in the
official runs, numbers are drawn and normalised in float32 and widened to float64. If `gap` is given, tokens and queries
are redrawn until every sequence's best score Y_i v^T x_it exceeds the others by at least `gap`.

Trial j depends only on (seed, j) and the parameters, so a subset of the trials has the same numbers.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from attsvm.data.token_data import TokenData

# Number of draws after which a gap counts as out of reach.
_MAX_DRAWS = 100_000


def _sphere(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Uniform unit vectors, normalised in float32 and widened."""
    draw = rng.standard_normal(shape, dtype=np.float32)
    # In one dimension a float32 normal is exactly zero about once in ten million draws; either sign is valid then.
    draw[~draw.any(axis=-1), 0] = 1.0
    draw /= np.linalg.norm(draw, axis=-1, keepdims=True)
    return draw.astype(np.float64)


def score_gap(tokens: np.ndarray, labels: np.ndarray, v: np.ndarray) -> float:
    """Smallest difference, over the sequences, between the best and the second best score Y_i v^T x_it.

    Parameters
    ----------
    tokens : array, shape (n, T, d)
    labels : array, shape (n,)
    v : array, shape (d,)

    Returns
    -------
    float
        Infinity if sequences have one token.
    """
    if tokens.shape[1] == 1:
        return float("inf")
    gamma = np.sort(labels[:, None] * (tokens @ v), axis=1)
    return float((gamma[:, -1] - gamma[:, -2]).min())


def random_trial(
    rng: np.random.Generator, n: int, T: int, d: int, kind: Literal["cross", "self"] = "cross", gap: float | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw one trial: tokens (n, T, d), queries (n, d), labels (n,) and v (d,).

    Raises ValueError if no draw reaches `gap`.
    """
    for _ in range(_MAX_DRAWS):
        tokens = _sphere(rng, n, T, d)
        queries = tokens[:, 0].copy() if kind == "self" else _sphere(rng, n, d)
        v = _sphere(rng, d)
        labels = rng.choice(np.array([-1.0, 1.0]), n)
        if gap is None or score_gap(tokens, labels, v) >= gap:
            return tokens, queries, labels, v
    raise ValueError(
        f"gap is {gap}; none of {_MAX_DRAWS} draws with n={n}, T={T}, d={d} reached it, a smaller one was expected."
    )


def gapped_trial(
    rng: np.random.Generator, n: int, T: int, d: int, gap: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw one cross-attention trial; each sequence is redrawn separately until it has the score gap.

    The distribution is the same as for :func:`random_trial` with `gap`: given v, sequences are independent, and by
    symmetry the probability of a gap does not depend on v. Here the sequences need not have a gap in the same draw.

    Raises ValueError if some sequence has no draw with the gap.
    """
    v = _sphere(rng, d)
    labels = rng.choice(np.array([-1.0, 1.0]), n)
    queries = _sphere(rng, n, d)
    tokens = np.empty((n, T, d))
    pending = np.arange(n)
    for _ in range(_MAX_DRAWS):
        tokens[pending] = _sphere(rng, len(pending), T, d)
        # A float32 normal is exactly zero about once in ten million draws; its direction is then NaN, so it is redrawn.
        pending = pending[[not score_gap(tokens[i : i + 1], labels[i : i + 1], v) >= gap for i in pending]]
        if not len(pending):
            return tokens, queries, labels, v
    raise ValueError(
        f"gap is {gap}; none of {_MAX_DRAWS} draws of a sequence with T={T}, d={d} reached it, a smaller one was "
        "expected."
    )


def random_data(
    trials: int | None,
    n: int,
    T: int,
    d: int,
    *,
    kind: Literal["cross", "self"] = "cross",
    gap: float | None = None,
    seed: int | tuple[int, ...] = 0,
) -> tuple[TokenData, np.ndarray]:
    """Draw the published random data for many trials.

    Parameters
    ----------
    trials : int or None
        Number of trials; None gives one trial with no batch dimension.
    n, T, d : int
        Sequences, tokens per sequence, and dimension.
    kind : {"cross", "self"}
        Queries drawn on the sphere, or the first token of each sequence.
    gap : float, optional
        Smallest accepted score gap; published runs with a gap use 0.1.
    seed : int or tuple of int
        Trial j draws from (seed, j).

    Returns
    -------
    data : TokenData
        Tokens (trials, n, T, d).
    v : array, shape (trials, d)
        Linear heads.

    Raises
    ------
    ValueError
        If a size is not positive, `kind` is unknown, or the gap is out of reach.

    Examples
    --------
    >>> from attsvm.data.synthetic import random_data
    >>> data, v = random_data(100, n=6, T=8, d=10, seed=0)
    >>> data.tokens.shape, data.queries.shape, v.shape
    ((100, 6, 8, 10), (100, 6, 10), (100, 10))
    """
    for name, size in (("trials", trials), ("n", n), ("T", T), ("d", d)):
        if size is not None and (isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1):
            raise ValueError(f"{name} is {size!r}; a positive integer was expected.")
    if kind not in ("cross", "self"):
        raise ValueError(f"kind is {kind!r}; 'cross' or 'self' was expected.")
    root = (seed,) if isinstance(seed, (int, np.integer)) else tuple(seed)
    draws = [random_trial(np.random.default_rng((*root, trial)), n, T, d, kind, gap) for trial in range(trials or 1)]
    tokens, queries, labels, v = (np.stack(parts) for parts in zip(*draws, strict=True))
    if trials is None:
        return TokenData(tokens[0], queries[0], labels[0]), v[0]
    return TokenData(tokens, queries, labels), v
