"""Bags of instances, read from lists of arrays, padded arrays with a mask, or tables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attsvm.platform.interop import to_numpy


@dataclass(frozen=True, eq=False)
class Bags:
    """Instances of all bags, without the padding that bags of unequal size would need.

    Attributes
    ----------
    instances : ndarray, shape (N, d)
        Instances of the first bag, then of the second, and so on.
    mask : ndarray of bool, shape (n, T)
        True where a padded array holds an instance.
    labels : ndarray, shape (n,), optional
        -1 and +1.
    """

    instances: np.ndarray
    mask: np.ndarray
    labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.mask)

    @cached_property
    def owner(self) -> np.ndarray:
        """Index of the bag of each instance, (N,)."""
        return np.nonzero(self.mask)[0]

    @cached_property
    def first(self) -> np.ndarray:
        """Index of the first instance of each bag, (n,)."""
        return np.searchsorted(self.owner, np.arange(len(self)))

    def take(self, rows: np.ndarray) -> Bags:
        """Return the given bags, in that order."""
        parts = np.split(self.instances, self.first[1:])
        labels = None if self.labels is None else self.labels[rows]
        return Bags(np.concatenate([parts[i] for i in rows]), self.mask[rows], labels)

    def padded(self, values: np.ndarray, fill: float = 0.0) -> np.ndarray:
        """Arrange values (N, ...) of the instances as (n, T, ...)."""
        arranged = np.full((*self.mask.shape, *values.shape[1:]), fill)
        arranged[self.mask] = values
        return arranged


def is_bags(X: Any, mask: Any, bag: Any) -> bool:
    """Tell whether X holds bags of instances; otherwise it is a matrix with one instance per row."""
    if mask is not None or (bag is not None and hasattr(X, "columns")):
        return True
    if _is_one_array(X):
        return X.ndim > 2
    return not hasattr(X, "columns") and hasattr(X, "__len__") and len(X) > 0 and np.ndim(X[0]) == 2


def read_bags(X: Any, mask: Any, bag: Any) -> Bags:
    """Read bags in any of their forms.

    Parameters
    ----------
    X : list of array (T_i, d), array (n, T, d), or table with one instance per row
    mask : array of bool, shape (n, T), or None
        True where a padded array holds an instance.
    bag : object
        Name of the table's column that names the bag of each row. Bags are in the order of their first rows.

    Raises
    ------
    ValueError
        If shapes do not fit, a bag is empty, or a number is not finite.
    """
    if bag is not None and hasattr(X, "columns"):
        rows, _ = table_bags(X, bag)
        features = X.drop(columns=bag).to_numpy()
        X = [features[part] for part in rows]
    if mask is None and not _is_one_array(X):
        bags = [_numbers(f"bags[{i}]", part) for i, part in enumerate(X)]
        width = bags[0].shape[-1]
        for i, part in enumerate(bags):
            if part.ndim != 2 or len(part) == 0 or part.shape[1] != width:
                raise ValueError(
                    f"bags[{i}] has shape {part.shape}; (instances, {width}) with one instance or more was expected."
                )
        sizes = np.array([len(part) for part in bags])
        visible = np.arange(sizes.max()) < sizes[:, None]
        return Bags(np.concatenate(bags), visible)
    tokens = np.asarray(to_numpy("bags", X))
    if tokens.ndim != 3 or 0 in tokens.shape:
        raise ValueError(f"bags has shape {tokens.shape}; (bags, instances, features) was expected.")
    visible = np.ones(tokens.shape[:2], dtype=bool) if mask is None else np.asarray(to_numpy("mask", mask))
    if visible.shape != tokens.shape[:2] or visible.dtype != bool or not visible.any(axis=1).all():
        raise ValueError(
            f"mask has shape {visible.shape} and dtype {visible.dtype}; booleans of shape {tokens.shape[:2]}, one True "
            "or more in each row, were expected."
        )
    return Bags(_numbers("bags", tokens[visible]), visible)


def table_bags(table: Any, bag: Any) -> tuple[list[np.ndarray], list[Any]]:
    """Return the rows of each bag of a table, and the bags' names, in the order of their first rows.

    Raises ValueError if the table lacks the column, or a row has no name.
    """
    if bag not in table.columns:
        raise ValueError(f"bag is {bag!r}; one of the columns {', '.join(map(repr, table.columns))} was expected.")
    missing = table[bag].isna().to_numpy()
    if missing.any():
        row = int(missing.argmax())
        raise ValueError(f"the column {bag!r} has no value in row {row}; the name of a bag in every row was expected.")
    groups = table.reset_index(drop=True).groupby(bag, sort=False).indices
    names = list(dict.fromkeys(table[bag]))
    return [np.asarray(groups[name]) for name in names], names


def _is_one_array(X: Any) -> bool:
    """Tell whether X is an array or table of numbers, not a list or array of arrays."""
    return hasattr(X, "ndim") and str(getattr(X, "dtype", "")) != "object"


def _numbers(name: str, array: Any) -> np.ndarray:
    try:
        numbers = np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} holds values that are not numbers; arrays of numbers were expected.") from None
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name} of shape {numbers.shape} has NaN or infinity; finite numbers were expected.")
    return numbers
