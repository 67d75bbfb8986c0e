"""The parts of an experiment: cells of parameters, trials that give rows, a figure and verdicts made from the rows.

An experiment defines a frozen dataclass `Config` (the parameters of one cell of its sweep) and the functions that
:class:`Experiment` names. Experiments of attsvm are modules that ``registry.toml`` lists, with the text and minutes of
``attsvm list``. A user's file states all of this in an :class:`Experiment` named ``EXPERIMENT``. The engine does the
rest: seeds, shards, workers, resuming, progress and the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol

from attsvm_paper.judging.verdict import Row, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attsvm_paper.judging.joint import JointTest
    from attsvm_paper.judging.readings import Reading

Effort = Literal["quick", "full"]


class Config(Protocol):
    """Parameters of one cell: a frozen dataclass of numbers, strings and booleans."""

    trials: int
    """Number of trials of the cell; it does not enter the seeds, so more trials extend fewer."""


@dataclass(frozen=True)
class Experiment:
    """One experiment, as in the registry.

    Attributes
    ----------
    name : str
        Name on the command line: lower case, hyphens.
    title, source, claim : str
        A heading; the published figure (``"Fig. 6"``) or the question; the claim in one sentence.
    config : type
        The frozen dataclass of one cell.
    sweep : callable
        ``sweep(effort) -> sequence of configs``, the cells of a quick or a full run.
    trials : callable
        ``trials(config, seeds) -> rows``: a batch of trials in one call, one or more rows per seed; `seeds` is an int64
        array. The numbers of a row depend only on its seed and the config. Rows are flat dicts of numbers, strings,
        booleans, None, or lists of numbers; each has the key ``"seed"``.
    figure : callable
        ``figure(rows) -> matplotlib Figure``: our curves over the published ones, with error bars. Rows also contain
        the fields of their config and ``"trial"``; a key that only other rows have is None. A function with a second
        parameter, ``figure(rows, width)``, draws at that width in inches, and the report also has a narrow figure
        (:data:`attsvm.plots.style.WIDE`, :data:`~attsvm.plots.style.NARROW`). Rows may come from any non-empty subset
        of the cells, or from cells changed by ``--set``; rows with no published counterpart are drawn alone.
    verdicts : callable
        ``verdicts(rows) -> list of Verdict``, made by :mod:`attsvm_paper.judging.comparison`; rows may be any subset.
    instance : tuple of str
        The fields of the config that a trial's seed depends on. Cells that agree in them have the same instances, so
        that parameterisations or numerics are compared on equal instances.
    minutes : mapping of effort to float
        Running time on two cores.
    batch : int
        Trials per batch: enough for 0.1 s of work, few enough that a killed worker loses little.
    joint : callable, optional
        ``joint(rows) -> list of JointTest``: all points of a published figure tested together.
    readings : callable, optional
        ``readings() -> list of Reading``: the protocols tried by ``attsvm reproduce NAME --explain``.
    file : str
        Path of the file that defines it, as the caller wrote it; empty for the experiments of attsvm.
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
    file: str = ""

    def __post_init__(self) -> None:
        names = {field.name for field in fields(self.config)}
        unknown = sorted(set(self.instance) - names)
        if unknown:
            raise ValueError(f"instance names {unknown} of {self.name}; fields of its config were expected: {names}.")
