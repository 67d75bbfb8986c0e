"""The state that the page sends: a scene with its data and settings, as checked JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.core.types import AnyNorm

if TYPE_CHECKING:
    from attsvm.training.optimisers.registry import OptimizerName

MOST_SEQUENCES = 3
TOKEN_LIMIT = 8
MOST_STEPS = 5000
MOST_POINTS = 60
# Largest coordinate: beyond it nothing in the plane is visible, and squares still cannot overflow.
LARGEST_COORDINATE = 1e3
NORM_CHOICES = ("frobenius", "nuclear", "spectral", "max", 1, 3)
NUMERICS = ("exact", "float32")
HEAD_NAMES = ("linear", "relu")
KEEPS = ("trained", "best")
# Optimisers of `train` with cheap steps: a gradient flow to its end would take minutes.
TRAINERS = (
    *("normalized_gd", "gd", "momentum", "polyak", "mirror", "sign"),
    *("signum", "lion", "adam", "muon", "spectral"),
)
CLASS_COUNT = 3


@dataclass(frozen=True, eq=False)
class Plane:
    """One to three sequences of tokens in the plane, and the settings of their training.

    Attributes
    ----------
    tokens : ndarray, shape (n, T, 2)
    queries : ndarray, shape (n, dz)
    labels : ndarray, shape (n,)
        Each -1 or +1.
    v : ndarray, shape (2,)
        Vector of the linear head v^T x, or the output weights of the ReLU head v^T ReLU(x).
    head : {"linear", "relu"}
    optimizer : str
        Optimiser of W. K and Q are trained by gradient descent: plain if W is, otherwise normalised.
    norm : str or number
        Norm of the SVM that W is compared with; K Q^T is compared with the nuclear one.
    steps : int
    numerics : {"exact", "float32"}
        "float32" differentiates plain softmax in single precision.
    keep : {"trained", "best"} or tuple of int
        The tokens selected by the SVM: those at the end of training, the best-scoring ones, or one per sequence.
    start : ndarray, shape (2,), or None
        W(0) z for the direction z of the first query; None for W(0) = 0.
    basins : bool
        Whether to colour starts by where training ends.
    """

    tokens: np.ndarray
    queries: np.ndarray
    labels: np.ndarray
    v: np.ndarray
    head: str
    optimizer: OptimizerName
    norm: AnyNorm
    steps: int
    numerics: str
    keep: str | tuple[int, ...]
    start: np.ndarray | None
    basins: bool


@dataclass(frozen=True, eq=False)
class Classes:
    """Points of three classes in the plane, for linear classifiers with an intercept.

    Attributes
    ----------
    points : ndarray, shape (n, 2)
    classes : ndarray of int, shape (n,)
    steps : int
    """

    points: np.ndarray
    classes: np.ndarray
    steps: int


def read_state(raw: Any) -> Plane | Classes:
    """Check the state that the page sent.

    Parameters
    ----------
    raw : dict
        Decoded JSON; `scene` names its class, and :class:`Plane` and :class:`Classes` list the keys.

    Raises
    ------
    ValueError
        If a key is invalid; one sentence names it and what was expected.
    """
    if not isinstance(raw, Mapping):
        raise ValueError(f"state has type {type(raw).__name__}; an object was expected.")
    scene = _one_of(raw, "scene", ("plane", "classes"), "plane")
    return _read_classes(raw) if scene == "classes" else _read_plane(raw)


def _read_plane(raw: Mapping[str, Any]) -> Plane:
    tokens = _array(raw, "tokens", (None, None, 2))
    n, T = tokens.shape[:2]
    if not (1 <= n <= MOST_SEQUENCES and 2 <= T <= TOKEN_LIMIT):
        raise ValueError(
            f"tokens has shape {tokens.shape}; one to {MOST_SEQUENCES} sequences of two to {TOKEN_LIMIT} tokens in the "
            "plane were expected."
        )
    queries = _array(raw, "queries", (n, None))
    if not 1 <= queries.shape[1] <= TOKEN_LIMIT or not queries.any(axis=1).all():
        raise ValueError(f"queries has shape {queries.shape}; nonzero rows of 1 to {TOKEN_LIMIT} were expected.")
    labels = _array(raw, "labels", (n,))
    if not (np.abs(labels) == 1).all():
        raise ValueError(f"labels is {labels.tolist()}; -1 and +1 were expected.")
    start = raw.get("start")
    return Plane(
        tokens,
        queries,
        labels,
        _array(raw, "v", (2,)),
        _one_of(raw, "head", HEAD_NAMES, "linear"),
        _one_of(raw, "optimizer", TRAINERS, "normalized_gd"),
        _one_of(raw, "norm", NORM_CHOICES, "frobenius"),
        _steps(raw),
        _one_of(raw, "numerics", NUMERICS, "exact"),
        _read_keep(raw.get("keep", "trained"), n, T),
        None if start is None else _array(raw, "start", (2,)),
        bool(raw.get("basins", False)),
    )


def _read_classes(raw: Mapping[str, Any]) -> Classes:
    points = _array(raw, "points", (None, 2))
    if not 1 <= len(points) <= MOST_POINTS:
        raise ValueError(f"points has shape {points.shape}; one to {MOST_POINTS} points were expected.")
    classes = _array(raw, "classes", (len(points),))
    if not np.isin(classes, range(CLASS_COUNT)).all():
        raise ValueError(f"classes is {classes.tolist()}; numbers from 0 to {CLASS_COUNT - 1} were expected.")
    return Classes(points, classes.astype(int), _steps(raw))


def _read_keep(value: Any, n: int, T: int) -> str | tuple[int, ...]:
    if isinstance(value, str) and value in KEEPS:
        return value
    fits = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == n
    if not fits or not all(type(token) is int and 0 <= token < T for token in value):
        raise ValueError(f"keep is {value!r}; 'trained', 'best' or {n} tokens from 0 to {T - 1} were expected.")
    return tuple(value)


def _one_of(raw: Mapping[str, Any], name: str, choices: Sequence[Any], default: Any) -> Any:
    value = raw.get(name, default)
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    raise ValueError(f"{name} is {value!r}; one of {', '.join(map(repr, choices))} was expected.")


def _steps(raw: Mapping[str, Any]) -> int:
    value = raw.get("steps", 2000)
    if type(value) is not int or not 1 <= value <= MOST_STEPS:
        raise ValueError(f"steps is {value!r}; a whole number from 1 to {MOST_STEPS} was expected.")
    return value


def _array(raw: Mapping[str, Any], name: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """Read finite numbers of the given shape; None stands for any length."""
    try:
        array = np.array(raw.get(name), dtype=np.float64)
    except (TypeError, ValueError, OverflowError):  # an integer may have any number of digits
        raise ValueError(f"{name} is no array of numbers; shape {_shape_text(shape)} was expected.") from None
    fits = array.ndim == len(shape) and all(
        length in (None, size) for length, size in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} has shape {array.shape}; {_shape_text(shape)} was expected.")
    if not (np.abs(array) <= LARGEST_COORDINATE).all():  # also false for NaN
        raise ValueError(
            f"{name} of shape {array.shape} leaves the plane; numbers up to {LARGEST_COORDINATE:g} were expected."
        )
    return array


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return f"({', '.join('any' if size is None else str(size) for size in shape)})"
