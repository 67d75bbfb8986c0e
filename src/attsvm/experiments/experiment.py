"""What an experiment is: cells of parameters, trials that give rows, a figure and verdicts made from the rows.

An experiment is a module that defines a frozen dataclass `Config` (the parameters of one cell of its sweep) and one
:class:`Experiment` named ``EXPERIMENT``. The engine owns everything else: seeds, shards, workers, resuming, progress
and the report. A module must import fast; what is heavy (torch, matplotlib) is imported inside its functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attsvm.experiments.joint import JointTest
    from attsvm.experiments.readings import Reading

Row = dict[str, Any]
Effort = Literal["quick", "full"]
Kind = Literal["agrees", "differs", "corrected", "too weak to tell", "measured"]


class Config(Protocol):
    """Parameters of one cell: a frozen dataclass of numbers, strings and booleans."""

    trials: int
    """How many trials the cell has; it does not enter the seeds, so more trials extend fewer."""


@dataclass(frozen=True)
class Verdict:
    """One published number beside ours.

    Attributes
    ----------
    experiment, quantity : str
        Which number, in words and parameters: ``"P(global), W, n=5, T=5, d=10"``.
    published : float or None
        None where nothing was published; the verdict is then ``"measured"``.
    key : str
        Name of the published number in the ledger (:mod:`attsvm.experiments.published.ledger`), empty without one.
    measured, low, high : float
        Ours, and its 95 % confidence interval.
    trials, discarded, infeasible : int
        Trials asked for; those the published protocol throws away; those without an SVM solution.
    tolerance : float
        The difference that sampling error alone explains (of ours and of theirs); it follows from the trials.
    margin, power : float
        The difference that would matter, and the probability that one of that size is called different.
    verdict : {"agrees", "differs", "corrected", "too weak to tell", "measured"}
        ``"agrees"``: not different, and within the margin (two one-sided tests); ``"too weak to tell"``: neither shown.
        ``"corrected"``: the certified value differs, and agrees once the artefact that `note` names is put back.
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


@dataclass(frozen=True)
class Experiment:
    """One experiment, as the registry knows it.

    Attributes
    ----------
    name : str
        As on the command line: lower case, hyphens.
    title, source, claim : str
        A heading; the published figure (``"Fig. 6"``) or the question answered; the claim in one sentence.
    config : type
        The frozen dataclass of one cell.
    sweep : callable
        ``sweep(effort) -> sequence of configs``, the cells of a quick or a full run.
    trials : callable
        ``trials(config, seeds) -> rows``: a batch of trials in one call, one row or several a seed; `seeds` is an int64
        array, and a row's numbers depend on its own seed and the config alone. Rows are flat dicts of numbers, strings,
        booleans, None, or lists of numbers; each has the key ``"seed"``.
    figure : callable
        ``figure(rows) -> matplotlib Figure``, ours over the published curve, with error bars. Rows also carry the
        fields of their config and ``"trial"``; a key that only other rows have is there and None. With a second
        parameter, ``figure(rows, width)``, it draws at that width in inches, and the report asks for a narrow one too
        (:data:`attsvm.plots.style.WIDE`, :data:`~attsvm.plots.style.NARROW`). Rows may be those of any subset of the
        cells, or of cells that ``--set`` changed, never empty: what has no published counterpart is drawn alone.
    verdicts : callable
        ``verdicts(rows) -> list of Verdict``; :mod:`attsvm.experiments.statistics` makes them. Of any subset as well.
    instance : tuple of str
        The fields of the config that a trial's seed depends on; cells that agree in them see the same instances, so
        that parameterisations or numerics are compared on equal terms.
    minutes : mapping of effort to float
        Measured on two cores.
    batch : int
        Trials in a shard; enough for 0.1 s of work, few enough that a killed worker costs little.
    joint : callable, optional
        ``joint(rows) -> list of JointTest``: all points of a published figure tested at once.
    readings : callable, optional
        ``readings() -> list of Reading``: the protocols that ``attsvm reproduce NAME --explain`` tries.
    """

    name: str
    title: str
    source: str
    claim: str
    config: type
    sweep: Callable[[Effort], Sequence[Any]]
    trials: Callable[[Any, Any], list[Row]]
    figure: Callable[..., Figure]
    verdicts: Callable[[Sequence[Row]], list[Verdict]]
    instance: tuple[str, ...]
    minutes: Mapping[Effort, float]
    batch: int = 20
    joint: Callable[[Sequence[Row]], list[JointTest]] | None = None
    readings: Callable[[], list[Reading]] | None = None

    def __post_init__(self) -> None:
        names = {field.name for field in fields(self.config)}
        strangers = sorted(set(self.instance) - names)
        if strangers:
            raise ValueError(f"instance names {strangers} of {self.name}; fields of its config were expected: {names}.")
