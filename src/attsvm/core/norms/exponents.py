"""Exponents of l_p norms: reading, conjugates, and norms of tensors."""

from __future__ import annotations

import math
from typing import Any


def exponent(name: str, p: object) -> float:
    """Read an exponent p in [1, inf]; raise ValueError if it is not such a number."""
    try:
        number = math.nan if isinstance(p, bool) else float(p)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        number = math.nan
    if not number >= 1:
        raise ValueError(f"{name} is {p!r}; a number p >= 1 was expected.")
    return number


def conjugate(p: float) -> float:
    """Return q with 1/p + 1/q = 1, p in [1, inf]."""
    return math.inf if p == 1 else 1.0 if math.isinf(p) else p / (p - 1.0)


def vector_norm(tensor: Any, p: float, axes: int | tuple[int, int]) -> Any:
    """Evaluate l_p over some dimensions of a torch tensor."""
    from torch import linalg

    return linalg.vector_norm(tensor, p, dim=axes)
