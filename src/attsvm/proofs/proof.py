"""The result of a proof."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from fractions import Fraction

from attsvm.platform.summary import BAD, GOOD, Summarised, Summary

Bound = Fraction | float


@dataclass(frozen=True, repr=False)
class Proof(Summarised):
    """An interval that contains the smallest norm, and the method that proves it.

    Attributes
    ----------
    proven : bool
        Whether the solution's claim (an optimum, or infeasibility) was proven.
    low, high : Fraction or float
        Bounds on the smallest norm; both are infinite when no W exists. A missing bound is 0 or infinite.
    statement : str
        One sentence.
    method : str
        The arithmetic used.

    Examples
    --------
    >>> from attsvm import SelectionProblem, solve
    >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])
    >>> proof = solve(problem).verify(exact=True)
    >>> bool(proof), float(proof.low) <= 0.1 <= float(proof.high)
    (True, True)
    """

    proven: bool
    low: Bound
    high: Bound
    statement: str
    method: str

    @property
    def gap(self) -> float:
        """Relative width of the interval."""
        if self.low == self.high:
            return 0.0
        if self.low <= 0 or self.high == float("inf"):
            return float("inf")
        return float(Fraction(self.high) / Fraction(self.low) - 1)

    def __bool__(self) -> bool:
        return self.proven

    def _summary(self) -> Summary:
        state, colour = ("proven", GOOD) if self.proven else ("not proven", BAD)
        facts = [("low", f"{_nearest(self.low):.9g}"), ("high", f"{_nearest(self.high):.9g}"), ("method", self.method)]
        return Summary("Proof", state, colour, facts, notes=[self.statement])


def interval_statement(norm: str, low: Bound, high: Bound) -> str:
    """Sentence that states an interval, its ends rounded outward to decimals."""
    if high == math.inf:
        return f"A W that satisfies the constraints, if there is one, has a {norm} norm of at least {_down(low)}."
    return f"The smallest {norm} norm of a W that satisfies the constraints lies in {interval(low, high)}."


def interval(low: Bound, high: Bound) -> str:
    """Write an interval with its ends rounded outward to decimals."""
    return f"[{_down(low)}, {_up(high)}]"


def unproven(reason: str, method: str, low: Bound = 0.0, high: Bound = float("inf")) -> Proof:
    """Report a failed proof."""
    return Proof(False, low, high, f"Not proven: {reason}", method)


def _nearest(value: Bound) -> float:
    """Round to a float; infinite above the largest float."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _down(value: Bound) -> str:
    nearest = min(_nearest(value), sys.float_info.max)
    text = f"{nearest:.17g}"
    return text if Fraction(text) <= Fraction(value) else f"{math.nextafter(nearest, -math.inf):.17g}"


def _up(value: Bound) -> str:
    nearest = _nearest(value)
    text = f"{nearest:.17g}"
    above = nearest == math.inf or Fraction(text) >= Fraction(value)
    return text if above else f"{math.nextafter(nearest, math.inf):.17g}"
