r"""Predict the limit of gradient descent on W, with the theorem that proves it, and compare training with it.

Only proved statements determine the outcome:

* **norm stays finite**: the sublevel set of the start is bounded (:mod:`attsvm.theory.divergence`).
* **global, n = 1**: under B.2 the gradient of a single sequence is a positive multiple of the gradient of
  :math:`\log(1+\sum_{t\ne opt}e^{-\mathrm{margin}_t})`. This is multinomial logistic regression, and its descent
  converges to the max-margin direction from any start. Theorems 4 and 5 of version 1 of arXiv 2308.16898 claim this for
  every n, but are false for n >= 2.
* **one local direction** (global if it is the optimal one): the start lies in the cone of Theorem 7, with the radius
  for which docs/theory.md proves it (:attr:`attsvm.theory.LocalConstants.radius`; the radius of Lemma 13 is too small).

Otherwise there is no guarantee, and :attr:`Prediction.expected` has the outcome that the experiments and the
overparameterisation conjecture suggest. It is the optimal direction if no other direction is locally optimal, and one
of the locally optimal directions if there are several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from attsvm.core.correlation import correlation
from attsvm.core.types import AnyNorm
from attsvm.platform.interop import to_numpy
from attsvm.platform.summary import Listed
from attsvm.theory.conditions import Condition, check_conditions, describe
from attsvm.theory.constants import in_cone, local_constants
from attsvm.theory.divergence import NAME_BOUNDED, NAME_DIVERGES, norm_bounded, norm_diverges
from attsvm.theory.landscape import Landscape
from attsvm.theory.tokens import SELECTED, LocalOptimality, Trial, local_optimality


class Outcome(Enum):
    """End of training; each member's value is its phrase.

    Examples
    --------
    >>> from attsvm import theory
    >>> for outcome in theory.Outcome:
    ...     print(outcome.name, "-", outcome.value)
    GLOBAL - global
    LOCAL - one of these local directions
    NOT_LOCAL - a direction that is not locally optimal
    FINITE - norm stays finite
    SHARED - attention is still shared
    NO_GUARANTEE - no guarantee
    """

    GLOBAL = "global"
    LOCAL = "one of these local directions"
    NOT_LOCAL = "a direction that is not locally optimal"
    FINITE = "norm stays finite"
    SHARED = "attention is still shared"
    NO_GUARANTEE = "no guarantee"


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(Listed):
    """A prediction and its basis.

    Attributes
    ----------
    outcome : Outcome
        The proved outcome: GLOBAL, LOCAL, FINITE or NO_GUARANTEE.
    rests_on : str
        The theorem.
    expected : Outcome
        The conjectured outcome if nothing is proved; otherwise the proved outcome.
    conjecture : str
        Basis of the conjecture; empty if the outcome is proved.
    hypotheses : dict of str to Condition
        Every hypothesis that was checked, by name.
    directions : tuple of LocalOptimality
        The predicted directions: one for GLOBAL, one or more for LOCAL.

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 3, 4, 8, seed=0))
    >>> prediction = theory.predict(trial, landscape=theory.explore(trial))
    >>> sorted(prediction.hypotheses)[:2], len(prediction.directions) >= 1
    (['A', 'B.1'], True)
    """

    outcome: Outcome
    rests_on: str
    expected: Outcome
    conjecture: str
    hypotheses: dict[str, Condition]
    directions: tuple[LocalOptimality, ...]

    def __str__(self) -> str:
        lines = [f"{self.outcome.value}: {self.rests_on}"]
        if self.conjecture:
            lines.append(f"expected, not proved: {self.expected.value} ({self.conjecture})")
        return "\n".join([*lines, *(f"  {condition}" for condition in self.hypotheses.values())])


@dataclass(frozen=True, eq=False, repr=False)
class Observation(Listed):
    """The selection of a trained W, compared with the theory.

    Attributes
    ----------
    outcome : Outcome
        GLOBAL, LOCAL or NOT_LOCAL if every query selects a token; SHARED if a query attends to several tokens.
    selected : ndarray of int, shape (n,)
        The token each query attends to most.
    least_attention : float
        The largest probability of a query, smallest over queries.
    locality : LocalOptimality
        The selected tokens with their SVM.
    correlation : float
        Correlation of W with the SVM of the selected tokens; NaN if they have none.

    Examples
    --------
    >>> from attsvm import theory, train
    >>> from attsvm.data.synthetic import random_data
    >>> data, v = random_data(None, 3, 4, 8, seed=0)
    >>> observation = theory.observe(theory.Trial.of(data, v), train(data, v, steps=500).W[-1])
    >>> observation.selected.shape, observation.least_attention > 0.9, observation.locality.holds
    ((3,), True, True)
    """

    outcome: Outcome
    selected: np.ndarray
    least_attention: float
    locality: LocalOptimality
    correlation: float


def observe(trial: Trial, W: Any, norm: AnyNorm = "frobenius", *, selected_above: float = SELECTED) -> Observation:
    """Compare the selection of a trained W with the theory.

    Parameters
    ----------
    trial : Trial
    W : array (d, dz)
    norm : str
        Norm of the SVM to compare with: "frobenius" if W was trained, "nuclear" for K and Q.
    selected_above : float
        Probability from which a token counts as selected.

    Examples
    --------
    >>> from attsvm import theory, train
    >>> from attsvm.data.synthetic import random_data
    >>> data, v = random_data(None, 3, 4, 8, seed=0)
    >>> observation = theory.observe(theory.Trial.of(data, v), train(data, v, steps=500).W[-1])
    >>> observation.outcome.name, observation.correlation > 0.99
    ('GLOBAL', True)
    """
    logits = trial.logits(W)
    weight = np.exp(logits - logits.max(axis=1, keepdims=True))
    least = float((weight.max(axis=1) / weight.sum(axis=1)).min())
    locality = local_optimality(trial, logits.argmax(axis=1), norm)
    matrix = to_numpy("W", W).astype(np.float64, copy=False)
    near = float(correlation(matrix, locality.W)) if locality.feasible else float("nan")
    if least < selected_above:
        outcome = Outcome.SHARED
    elif (locality.selected == trial.optimal).all():
        outcome = Outcome.GLOBAL
    else:
        outcome = Outcome.LOCAL if locality.holds else Outcome.NOT_LOCAL
    return Observation(outcome, locality.selected, least, locality, near)


def agrees(prediction: Prediction, observation: Observation) -> bool | None:
    """Compare a prediction with an observation.

    Predictions are about the limit. Attention is shared under a finite norm, and also before the end of training. So
    shared attention confirms a predicted finite norm and does not contradict a predicted direction.

    Returns
    -------
    bool or None
        None if nothing was predicted, or the observation cannot decide it.

    Examples
    --------
    >>> from attsvm import theory, train
    >>> from attsvm.data.synthetic import random_data
    >>> data, v = random_data(None, 1, 2, 4, seed=0)
    >>> trial = theory.Trial.of(data, v)
    >>> observation = theory.observe(trial, train(data, v, steps=500).W[-1])
    >>> theory.agrees(theory.predict(trial, landscape=theory.explore(trial)), observation)
    True
    """
    shared = observation.outcome is Outcome.SHARED
    if prediction.outcome is Outcome.FINITE:
        return True if shared else None
    if prediction.outcome is Outcome.NO_GUARANTEE or shared:
        return None
    return any((direction.selected == observation.selected).all() for direction in prediction.directions)


def predict(
    trial: Trial, *, init: Any = None, loss: str | Callable[..., Any] = "logistic", landscape: Landscape | None = None
) -> Prediction:
    """Predict the limit of gradient descent on W with steps up to 1/L_W.

    Parameters
    ----------
    trial : Trial
    init : array (d, dz), optional
        W(0); zero by default.
    loss : str or callable
    landscape : Landscape, optional
        The enumerated or searched selections. If None, only the optimal direction is considered, and D is not checked.

    Returns
    -------
    Prediction

    Examples
    --------
    >>> from attsvm import theory
    >>> from attsvm.data.synthetic import random_data
    >>> trial = theory.Trial.of(*random_data(None, 1, 2, 4, seed=0))
    >>> prediction = theory.predict(trial, landscape=theory.explore(trial))
    >>> prediction.outcome.name, prediction.expected.name
    ('GLOBAL', 'GLOBAL')
    """
    shape = (trial.tokens.shape[2], trial.queries.shape[1])
    start = np.zeros(shape) if init is None else to_numpy("init", init).astype(np.float64)
    if start.shape != shape:
        raise ValueError(f"init has shape {start.shape}; (d, dz) = {shape} was expected.")
    solution = trial.optimal_solution
    conditions = {
        "unique optimum": Condition(
            "unique optimum", trial.unique, f"smallest lead {trial.score_gap.min():.3g}", float(trial.score_gap.min())
        ),
        "separable": Condition(
            "separable", bool(np.isfinite(solution.objective)), f"optimal tokens: {describe(solution)}"
        ),
        **check_conditions(trial, loss, landscape),
        NAME_DIVERGES: norm_diverges(trial),
        NAME_BOUNDED: norm_bounded(trial, start, loss),
    }
    directions = landscape.directions if landscape is not None else _optimal_direction(trial)
    cones = [direction for direction in directions if _starts_in_cone(trial, start, direction, loss)]
    conditions["start in a cone"] = Condition(
        "start in a cone", bool(cones), f"proved cones of {len(directions)} locally optimal directions looked at"
    )
    proof = _proof(trial, conditions, cones)
    if proof is not None:
        outcome, rests_on, targets = proof
        return Prediction(outcome, rests_on, outcome, "", conditions, targets)
    expected, conjecture, targets = _expected(trial, conditions, landscape)
    reason = "no theorem covers this data and start"
    return Prediction(Outcome.NO_GUARANTEE, reason, expected, conjecture, conditions, targets)


def _optimal_direction(trial: Trial) -> tuple[LocalOptimality, ...]:
    locality = local_optimality(trial, trial.optimal)
    return (locality,) if locality.holds else ()


def _starts_in_cone(
    trial: Trial, start: np.ndarray, direction: LocalOptimality, loss: str | Callable[..., Any]
) -> bool:
    if not trial.linear or not direction.neighbours.any() or not start.any():
        return False
    constants = local_constants(trial, direction, loss)
    return in_cone(start, direction.W, constants.mu, constants.radius)


Proof = tuple[Outcome, str, tuple[LocalOptimality, ...]]


def _proof(trial: Trial, conditions: dict[str, Condition], cones: list[LocalOptimality]) -> Proof | None:
    if not conditions["A"].holds:
        return None
    if conditions[NAME_BOUNDED].holds:
        return Outcome.FINITE, "descent cannot leave the bounded sublevel set of its start", ()
    single = len(trial.labels) == 1 and trial.linear
    if (
        single
        and trial.mask.sum() > 1
        and all(conditions[name].holds for name in ("unique optimum", "separable", "B.2"))
    ):
        rests_on = "one sequence with equal non-optimal scores: the descent is multinomial logistic regression's"
        return Outcome.GLOBAL, rests_on, _optimal_direction(trial)
    if cones:
        optimal = bool((cones[0].selected == trial.optimal).all())
        rests_on = "arXiv 2308.16898 v1, Theorem 7: the start lies in the proved cone of a locally optimal direction"
        return (Outcome.GLOBAL if optimal else Outcome.LOCAL), rests_on, tuple(cones[:1])
    return None


def _expected(trial: Trial, conditions: dict[str, Condition], landscape: Landscape | None) -> Proof:
    if not conditions[NAME_DIVERGES].holds or landscape is None or not landscape.directions:
        return Outcome.NO_GUARANTEE, "", ()
    if landscape.only_optimal and landscape.exhaustive:
        return Outcome.GLOBAL, "the norm diverges and nothing else is locally optimal", landscape.directions
    partial = "" if landscape.exhaustive else " of those searched"
    count = len(landscape.directions)
    reason = f"the norm diverges; {count} {'direction is' if count == 1 else 'directions are'} locally optimal{partial}"
    return Outcome.LOCAL, reason, landscape.directions
