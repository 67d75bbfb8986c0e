"""A row of an experiment, and the verdict on one number that rows give."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Row = dict[str, Any]
Kind = Literal["agrees", "differs", "corrected", "too weak to tell", "measured"]


@dataclass(frozen=True)
class Verdict:
    """One published number compared with ours.

    Attributes
    ----------
    experiment, quantity : str
        The number, in words and parameters: ``"P(global), W, n=5, T=5, d=10"``.
    published : float or None
        None if nothing was published; the verdict is then ``"measured"``.
    key : str
        Name of the published number in the ledger (:mod:`attsvm_paper.published.ledger`); empty if there is none.
    measured, low, high : float
        Our value, and its 95 % confidence interval.
    trials, discarded, infeasible : int
        Number of requested trials, of trials discarded by the published protocol, and of trials with no SVM solution.
    tolerance : float
        The difference that sampling errors (ours and theirs) explain; it follows from the numbers of trials.
    margin, power : float
        The smallest difference that matters, and the probability that a difference of this size is called different.
    verdict : {"agrees", "differs", "corrected", "too weak to tell", "measured"}
        ``"agrees"``: not different, and within the margin (two one-sided tests); ``"too weak to tell"``: neither shown.
        ``"corrected"``: the certified value differs, but agrees once the artefact named in `note` is restored.
    note : str
    """

    experiment: str
    quantity: str
    published: float | None
    measured: float
    low: float
    high: float
    trials: int
    tolerance: float
    verdict: Kind
    discarded: int = 0
    infeasible: int = 0
    note: str = ""
    key: str = ""
    margin: float = math.nan
    power: float = math.nan


def listed(function: Callable[P, Iterator[T]]) -> Callable[P, list[T]]:
    """Make a function that yields verdicts return them in a list."""

    @wraps(function)
    def of(*arguments: P.args, **options: P.kwargs) -> list[T]:
        return list(function(*arguments, **options))

    return of
