"""The ledger of published numbers, the only source of numbers that are called "published".

``ledger.json`` gives every number with its paper, version, page, figure, panel, curve, trials and reading error. A
verdict takes a :class:`LedgerNumber`, which only the ledger creates, so that our numbers cannot be mistaken for
published ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class LedgerNumber:
    """One published number.

    Attributes
    ----------
    key : str
        Its name in the ledger: figure, panel, curve and grid value, ``"Fig. 6a: W, n=5 @ 10"``.
    value : float
    trials : int or None
        Number of trials stated in the paper; None if it states none.
    error : float
        Largest reading error, in the number's unit.
    deviation : float or None
        Standard deviation over trials, if the figure shows one.
    """

    key: str
    value: float
    trials: int | None
    error: float
    deviation: float | None = None


@dataclass(frozen=True, eq=False)
class PrintedCurve:
    """One published curve.

    Attributes
    ----------
    key, figure, panel, curve : str
    page : int
    x_name, y_name : str
    x : tuple
        Numbers or words.
    y : tuple of float
    trials : int or None
    setting : str
        The settings that the paper states and the settings that it leaves open.
    sd : tuple of float or None
        Error bars or half widths of a band, one standard deviation.
    absolute, relative : float
        The reading error of y: absolute + relative |y|.
    line : mapping or None
        More points of the same curve, ``x``, ``y`` and possibly ``sd``, for drawing the whole curve.
    same_as : str or None
        The key of the curve that shows the same numbers in another panel.
    scatter : mapping or None
        The points of a scatter plot from which shares are counted: ``x`` and ``y``, decimal logarithms.
    """

    key: str
    figure: str
    panel: str
    curve: str
    page: int
    x_name: str
    y_name: str
    x: tuple[Any, ...]
    y: tuple[float, ...]
    trials: int | None
    setting: str
    sd: tuple[float, ...] | None = None
    absolute: float = 0.0
    relative: float = 0.0
    line: Mapping[str, list[float]] | None = field(default=None)
    same_as: str | None = None
    scatter: Mapping[str, list[float]] | None = field(default=None)

    @cached_property
    def points(self) -> dict[Any, LedgerNumber]:
        """Numbers keyed by grid value; numbers that another panel shows too have the other panel's key."""
        numbers = {}
        for at, (x, y) in enumerate(zip(self.x, self.y, strict=True)):
            numbers[x] = LedgerNumber(
                key=f"{self.same_as or self.key} @ {x}",
                value=y,
                trials=self.trials,
                error=self.absolute + self.relative * abs(y),
                deviation=None if self.sd is None else self.sd[at],
            )
        return numbers

    def at(self, x: Any) -> LedgerNumber | None:
        """Return the number printed at `x`, or None."""
        return self.points.get(x)

    @property
    def line_points(self) -> tuple[Sequence[float], Sequence[float]]:
        """Return x and y of the whole curve."""
        return (self.x, self.y) if self.line is None else (self.line["x"], self.line["y"])

    @property
    def band(self) -> Sequence[float] | None:
        """Standard deviations for :attr:`line_points`, if the figure shows them."""
        return self.sd if self.line is None else self.line.get("sd")


@dataclass(frozen=True, eq=False)
class Ledger:
    """All curves, and how they were read."""

    paper: str
    version: str
    how: str
    error: str
    curves: Mapping[str, PrintedCurve]

    def __iter__(self) -> Iterator[PrintedCurve]:
        return iter(self.curves.values())

    @cached_property
    def numbers(self) -> dict[str, LedgerNumber]:
        """Every distinct number by key."""
        return {one.key: one for curve in self for one in curve.points.values()}


@cache
def ledger() -> Ledger:
    """Read the ledger of the package."""
    content = json.loads((files("attsvm_paper.published") / "ledger.json").read_text(encoding="utf-8"))
    curves = {}
    for row in content["curves"]:
        error = row["error"]
        curves[row["key"]] = PrintedCurve(
            **{name: row[name] for name in ("key", "figure", "panel", "curve", "page", "x_name", "y_name", "trials")},
            x=tuple(row["x"]),
            y=tuple(map(float, row["y"])),
            setting=row["setting"],
            sd=None if row.get("sd") is None else tuple(row["sd"]),
            absolute=error.get("absolute", 0.0),
            relative=error.get("relative", 0.0),
            line=row.get("line"),
            same_as=row.get("same_as"),
            scatter=row.get("scatter"),
        )
    return Ledger(content["paper"], content["version"], content["how"], content["error"], curves)


def curve(key: str) -> PrintedCurve:
    """Return a curve of the ledger.

    Raises
    ------
    ValueError
        If there is no such curve.
    """
    curve_of_key = ledger().curves.get(key)
    if curve_of_key is None:
        raise ValueError(f"key is {key!r}; a curve of the ledger was expected, such as {next(iter(ledger())).key!r}.")
    return curve_of_key


def of_ledger(published: LedgerNumber | None) -> LedgerNumber | None:
    """Return a number of the ledger unchanged; refuse any other.

    Raises
    ------
    ValueError
        If it is a bare number, whose source is unknown.
    """
    if published is None:
        return None
    if not isinstance(published, LedgerNumber):
        raise ValueError(f"published is {published!r}; a number of the ledger, with its source, was expected.")
    if not math.isfinite(published.value):
        raise ValueError(f"published is {published.value} ({published.key}); a finite number was expected.")
    return published
