r"""The four models of the atlas: training data, and the max-margin problem that is compared with the limit.

Attention is trained on the published random instances. Multiclass classification and next-token prediction are the same
model with classes or words as tokens (unit vectors that every query reads). The softmax weight of the right token is
the prediction, its negative logarithm the loss. A context that two words may follow is two queries whose weights add up
to one, so that the risk is the cross-entropy with the true distribution. In the limit the two words must get equal
scores (arXiv 2402.18551).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from attsvm.core.norms import get_norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.types import LossName
from attsvm.data.token_data import TokenData
from attsvm.solvers.solving import solve
from attsvm_paper.beyond.atlas_cells import NORMS
from attsvm_paper.published.instances import draw

# The score gap of the published experiments.
_GAP = 0.1
# Length of an input's noise around its class mean, which has length one.
_NOISE = 0.5
# Certified relative gap of the largest margins, far smaller than the differences of shares from one.
_TOL = 1e-6


@dataclass(frozen=True)
class Sizes:
    """Model and sizes of an instance.

    Attributes
    ----------
    model : str
    n, T, d : int
        Number of queries, inputs or contexts; number of tokens, classes or words; dimension.
    """

    model: str
    n: int
    T: int
    d: int


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Instances stacked into one batch.

    Attributes
    ----------
    data : TokenData
    head : ndarray
    loss : str
    weight : ndarray or None
    """

    data: TokenData
    head: np.ndarray
    loss: LossName
    weight: np.ndarray | None


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _classes(seed: int, sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Draw inputs (n, d) around a mean for each class, and labels (n,), every class in turn."""
    rng = np.random.default_rng(seed)
    labels = np.arange(sizes.n) % sizes.T
    means = _unit(rng.standard_normal((sizes.T, sizes.d)))
    return means[labels] + _NOISE * _unit(rng.standard_normal((sizes.n, sizes.d))), labels


def _contexts(seed: int, sizes: Sizes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw contexts (n, d), two words (n, 2) for each, and their probabilities: (1, 0) for every other context."""
    rng = np.random.default_rng(seed)
    contexts = _unit(rng.standard_normal((sizes.n, sizes.d)))
    words = np.stack([rng.permutation(sizes.T)[:2] for _ in range(sizes.n)])
    first = np.where(np.arange(sizes.n) % 2 == 0, rng.uniform(0.3, 0.7, sizes.n), 1.0)
    return contexts, words, np.stack([first, 1 - first], 1)


def training_set(seeds: Sequence[int] | np.ndarray, sizes: Sizes) -> TrainingSet:
    """Draw the instance of each seed."""
    if sizes.model in ("attention", "factors"):
        instances = draw(seeds, sizes.n, sizes.T, sizes.d, _GAP)
        return TrainingSet(instances.data, instances.v, "logistic", None)
    if sizes.model == "multiclass":
        pairs = [_classes(int(seed), sizes) for seed in seeds]
        queries, targets = (np.stack(part) for part in zip(*pairs, strict=True))
        weight = None
    else:
        triples = [_contexts(int(seed), sizes) for seed in seeds]
        queries = np.stack([np.repeat(contexts, 2, axis=0) for contexts, _, _ in triples])
        targets = np.stack([words.ravel() for _, words, _ in triples])
        weight = np.stack([shares.ravel() for _, _, shares in triples])
    tokens = np.broadcast_to(np.eye(sizes.T), (*targets.shape, sizes.T, sizes.T))
    right = (targets[..., None] == np.arange(sizes.T)).astype(float)
    data = TokenData(tokens, queries, np.ones(targets.shape), values=right[..., None])
    return TrainingSet(data, np.ones(1), "log", weight)


def problem_of(seed: int, sizes: Sizes, selected: np.ndarray) -> SelectionProblem:
    """Pose the max-margin problem of an instance; `selected` (n,) is used only for attention."""
    if sizes.model in ("attention", "factors"):
        data = draw([seed], sizes.n, sizes.T, sizes.d, _GAP).data
        return SelectionProblem(data.tokens[0], data.queries[0], selected)
    if sizes.model == "multiclass":
        return SelectionProblem.from_classes(*_classes(seed, sizes), classes=sizes.T)
    contexts, words, shares = _contexts(seed, sizes)
    supports = np.zeros((sizes.n, sizes.T), dtype=bool)
    np.put_along_axis(supports, words, shares > 0, axis=1)
    return SelectionProblem.from_contexts(contexts, supports)


@lru_cache(maxsize=1 << 12)
def _smallest_norms(seed: int, sizes: Sizes, selected: bytes) -> dict[str, tuple[float, float]]:
    problem = problem_of(seed, sizes, np.frombuffer(selected, dtype=np.int64))
    bounds = {}
    for name, norm in NORMS.items():
        certified = solve(problem, get_norm(norm), tol=_TOL).certified
        bounds[name] = (certified.lower_bound, certified.upper_bound)
    return bounds


def smallest_norms(seed: int, sizes: Sizes, selected: np.ndarray) -> dict[str, tuple[float, float]]:
    """Return certified bounds on the smallest norm of a W with margins of one, in every norm; infinite for none."""
    selection = np.ascontiguousarray(selected, dtype=np.int64)
    if sizes.model not in ("attention", "factors"):
        selection = selection[:0]  # their problems do not depend on it and are solved once
    return _smallest_norms(int(seed), sizes, selection.tobytes())


def margin(problem: SelectionProblem, W: np.ndarray) -> float:
    """Return the smallest margin of any selected token over any rejected one."""
    leads = problem.apply(W)  # of the first selected token
    lag = np.where(problem.tied, leads, 0.0).max(axis=1, keepdims=True)
    return float((leads - lag)[problem.rejected].min())
