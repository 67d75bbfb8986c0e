"""Settings that may explain a printed figure.

A paper leaves choices open: score gap, omitted runs, end of training, start. A :class:`Reading` is one set of choices.
It names the cells to run and maps their rows to points of the printed figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attsvm_paper.judging.joint import JointTest
from attsvm_paper.judging.points import Point
from attsvm_paper.judging.verdict import Row


@dataclass(frozen=True, eq=False)
class Reading:
    """One set of choices that a paper leaves open.

    Attributes
    ----------
    figure : str
        Figure of the paper.
    factors : mapping of str to str
        Each choice and its value: ``{"score gap": "0.1", "filter": "none"}``.
    cells : tuple
        Configs to run.
    points : callable
        ``points(rows of those cells) -> list of Point``; a point that this reading cannot give has no trials.
    """

    figure: str
    factors: Mapping[str, str]
    cells: tuple[Any, ...]
    points: Callable[[Sequence[Row]], list[Point]]

    @property
    def name(self) -> str:
        """The choices in one line."""
        return ", ".join(f"{factor} {choice}" for factor, choice in self.factors.items())


@dataclass(frozen=True)
class Explanation:
    """A reading and its test.

    Attributes
    ----------
    figure : str
    factors : mapping of str to str
    points : int
        Number of printed numbers for which this reading gives a value, out of ``total``.
    total : int
    test : JointTest or None
    weight : float
        Likelihood divided by the sum over all readings of the figure (equal priors); 0 for a reading with points that
        have no trial.
    """

    figure: str
    factors: Mapping[str, str]
    points: int
    total: int
    test: JointTest | None
    weight: float
