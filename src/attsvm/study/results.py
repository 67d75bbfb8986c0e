"""Settings of a study, and the results of its stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from attsvm.core.types import FactorNorm, Parameterization
from attsvm.data.dataset import Dataset
from attsvm.solution.solution import Solution
from attsvm.study.head import Head
from attsvm.study.intervals import upper_limit
from attsvm.theory.tokens import LocalOptimality, Trial

if TYPE_CHECKING:
    from attsvm.training import Trace


# Correlation above which training has arrived at the SVM direction (an angle of 11 degrees).
ARRIVAL = 0.98
# Attention on one token above which a query selects it.
SELECTING = 0.99


@dataclass(frozen=True)
class Settings:
    """The parameters of a study.

    Parameters
    ----------
    train : int, optional
        Number of training rows; the other rows are the test set. By default three quarters, or fewer if training would
        take more than about two minutes (digits: 100).
    steps : int
        Number of steps of normalised gradient descent, for W and for (K, Q).
    lr : float
        Length of each step of W, with tokens and queries scaled to mean length one. (K, Q) use the trainer's rule.
    seed : int
        Seed of the split, of the initial K and of the shuffles.
    shuffles : int
        Number of shuffled selections among the controls, and of shuffled labels.
    max_steps : int, optional
        Number of steps up to which training with a rising correlation is continued; by default ten times `steps`.
    time_limit : float
        Seconds per SVM after which it is undecided.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    train: int | None = None
    steps: int = 20_000
    lr: float = 1.0
    seed: int = 0
    shuffles: int = 10
    time_limit: float = 20.0
    max_steps: int | None = None

    def __post_init__(self) -> None:
        whole = {"steps": (self.steps, 1), "seed": (self.seed, 0), "shuffles": (self.shuffles, 0)}
        if self.max_steps is not None:
            whole["max_steps"] = (self.max_steps, 1)
        for name, (value, least) in whole.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is {value!r}; an integer of at least {least} was expected.")
        for name, number in (("lr", self.lr), ("time_limit", self.time_limit)):
            if not 0 < number < float("inf"):
                raise ValueError(f"{name} is {number!r}; a positive number was expected.")

    @property
    def budget(self) -> int:
        """Largest number of steps of a run whose correlation still rises."""
        return max(self.steps, 10 * self.steps if self.max_steps is None else self.max_steps)


@dataclass(frozen=True, eq=False)
class Setup:
    """The prepared data.

    Attributes
    ----------
    train, test : Dataset
        Scaled so that training tokens and training queries have mean length one; test is None if nothing is held out.
    token_scale, query_scale : float
        Divisors of the given tokens and (centred) queries.
    centred : bool
        Whether the mean training query was subtracted and a constant coordinate appended.
    trial : Trial
        The training rows in the notation of the theory: scores gamma_it = Y_i v^T x_it, and the globally optimal
        tokens.
    """

    train: Dataset
    test: Dataset | None
    token_scale: float
    query_scale: float
    centred: bool
    head: Head
    trial: Trial

    @property
    def optimal(self) -> np.ndarray:
        """The globally optimal token of every training row, argmax_t gamma_it, int (n,)."""
        return self.trial.optimal


@dataclass(frozen=True, eq=False)
class ControlDirections:
    """Directions to which a trained matrix should be less near than to its SVM.

    Attributes
    ----------
    curves : ndarray, shape (directions, records)
        Correlation of the trained matrix with each direction.
    note : str
        What replaces a direction that does not exist.
    coincides : bool
        Whether the control is the same problem as the reference, and therefore shows nothing.
    """

    key: str
    label: str
    directions: tuple[np.ndarray, ...]
    curves: np.ndarray
    note: str = ""
    coincides: bool = False

    @property
    def final(self) -> float:
        """The largest correlation with any of the directions at the end of training."""
        return float(self.curves[:, -1].max())

    @property
    def limit(self) -> float:
        """Prediction limit: 39 in 40 further directions have a lower correlation, by Fisher's z = artanh c."""
        nearly_one = 1 - np.finfo(float).eps
        return float(np.tanh(upper_limit(np.arctanh(np.clip(self.curves[:, -1], -nearly_one, nearly_one)))))


@dataclass(frozen=True, eq=False)
class Run:
    """One training run with the SVMs of the tokens it realised.

    Attributes
    ----------
    parameterization : {"W", "KQ"}
    selected : ndarray of int, shape (n,)
        Realised tokens: those with the highest attention at the end.
    solutions : dict of str to Solution
        The "frobenius" and the "nuclear" SVM of the realised tokens.
    curves : dict of str to ndarray, shape (records,)
        Correlation of the trained matrix with each SVM; missing if the SVM has no accurate solution.
    locality : LocalOptimality or None
        Local optimality under the SVM of the norm that the theory pairs with this parameterisation.
    """

    parameterization: Parameterization
    trace: Trace
    selected: np.ndarray
    solutions: dict[str, Solution]
    curves: dict[str, np.ndarray]
    locality: LocalOptimality | None
    controls: tuple[ControlDirections, ...] = ()

    @property
    def own(self) -> FactorNorm:
        """The norm paired with this parameterisation: Frobenius with W, nuclear with (K, Q)."""
        return "frobenius" if self.parameterization == "W" else "nuclear"

    @property
    def correlation(self) -> float | None:
        """Correlation at the end with the SVM of the paired norm."""
        return float(self.curves[self.own][-1]) if self.own in self.curves else None

    @property
    def settled_at(self) -> int:
        """The first recorded step after which no query changes its token."""
        tops = np.asarray(self.trace.attention).argmax(axis=-1)  # (records, n)
        changes = np.flatnonzero((tops != self.selected).any(axis=1))
        return int(self.trace.step[min(changes[-1] + 1, len(tops) - 1)]) if len(changes) else 0

    @property
    def concentration(self) -> np.ndarray:
        """The largest attention probability of each query at the end, (n,)."""
        return np.asarray(self.trace.attention[-1]).max(axis=-1)


@dataclass(frozen=True, eq=False)
class PrecisionRun:
    """Training of W in another arithmetic, compared with the SVM that exact float64 training reached.

    Attributes
    ----------
    dtype : {"float32", "float64"}
    numerics : {"exact", "autograd"}
    step, curve : ndarray, shape (records,)
    """

    dtype: str
    numerics: str
    step: np.ndarray
    curve: np.ndarray
    seconds: float

    @property
    def label(self) -> str:
        """Name in figures and sentences."""
        return f"{self.dtype}, {'exact gradient' if self.numerics == 'exact' else 'plain autograd'}"


@dataclass(frozen=True, eq=False)
class Accuracy:
    """Shares of right predictions, on the training rows and the test rows.

    Attributes
    ----------
    test : float or None
        None if nothing is held out.
    right : ndarray of bool, shape (test rows,), or None
        Which held-out rows are predicted right; None for a mean over trainings.
    """

    key: str
    label: str
    train: float
    test: float | None
    right: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class ShuffledLabels:
    """Accuracy of the same procedure on labels permuted among all rows.

    Attributes
    ----------
    train : ndarray, shape (shuffles,)
        Share of training rows whose permuted label is predicted.
    test : ndarray, shape (shuffles,)
        Share of held-out rows whose permuted label is predicted.
    steps : int
        Training steps per shuffle.
    """

    train: np.ndarray
    test: np.ndarray
    steps: int

    @property
    def limit(self) -> float:
        """Prediction limit: 39 in 40 further shuffles have a lower test share."""
        return upper_limit(self.test)


@dataclass(frozen=True)
class DecidingInstance:
    """The instance that decides a training bag.

    Attributes
    ----------
    row : int
        Index of the training bag.
    bag, label, instance : str
        Names of the bag and its class, and of the instance: its text, or its number.
    index : int
        Number of the instance in the bag.
    attention : float
        Share of the attention on it.
    margin : float
        Its margin over the other instances of the bag under the certified W of norm one; infinite if there is none.
    """

    row: int
    bag: str
    label: str
    instance: str
    index: int
    attention: float
    margin: float


@dataclass(frozen=True, eq=False)
class BagReport:
    """Attention and head trained together on bags of instances.

    Attributes
    ----------
    guarantee : str
        What is certified about the selection, in sentences.
    instances : tuple of DecidingInstance
        In the order of margins: the smallest change of W would alter the first selection.
    accuracies : tuple of Accuracy
        Accuracy of the classifier with the trained attention, with the certified W, and of the MI-SVM.
    """

    guarantee: str
    instances: tuple[DecidingInstance, ...]
    accuracies: tuple[Accuracy, ...]


@dataclass(eq=False)
class Study:
    """All results, stage by stage; a stage that was not reached is empty.

    Attributes
    ----------
    optimal : Solution or None
        The Frobenius SVM of the globally optimal tokens.
    runs : dict of str to Run
        "W" and "KQ".
    shuffled_labels : dict of str to ShuffledLabels
        By parameterisation; empty if nothing is held out.
    bags : BagReport or None
        Only for bags of instances.
    complete : bool
        False when the study was stopped early.
    stopped_in : str
        The sentence of the stage in which it was stopped; otherwise empty.
    """

    settings: Settings
    setup: Setup
    optimal: Solution | None = None
    runs: dict[str, Run] = field(default_factory=dict)
    shuffled_labels: dict[str, ShuffledLabels] = field(default_factory=dict)
    precision: tuple[PrecisionRun, ...] = ()
    bags: BagReport | None = None
    accuracies: tuple[Accuracy, ...] = ()
    complete: bool = False
    stopped_in: str = ""
    seconds: float = 0.0
