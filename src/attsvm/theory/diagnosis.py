"""Diagnosis of training on given data: the theory's prediction, the observation, and names for failures.

A :class:`Diagnosis` has the theory's answers side by side: the hypotheses that hold, their prediction, and the
selection of the trained matrix. Five failure signatures have a name, a sentence and a remedy. A finding is *certain*
when the data prove it or the trained matrix shows it, and *possible* when the data merely allow it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from attsvm.core.status import Status
from attsvm.core.types import FactorNorm
from attsvm.data.token_data import TokenData
from attsvm.platform.extras import frame
from attsvm.platform.interop import to_numpy
from attsvm.platform.summary import BAD, GOOD, UNSURE, Summarised, Summary, counted
from attsvm.theory.conditions import Condition, condition_e
from attsvm.theory.landscape import ENUMERATE, SAMPLES, Landscape, explore
from attsvm.theory.search import STARTS
from attsvm.theory.separability import Separability, check_separability
from attsvm.theory.tokens import Trial
from attsvm.theory.verdict import Observation, Outcome, Prediction, agrees, observe, predict

# Attention above which a second token of a query counts as selected (the published threshold of Gen-SVM).
ATTENTION_FLOOR = 1e-3
# Rounding error of logits above which precision is a finding: attention changes by the same relative amount.
LOGIT_ERROR = 0.1


class Signature(Enum):
    """A way in which training fails to reach the SVM of the optimal tokens; each member's value is its sentence."""

    LOCAL = "Training is caught by a local direction instead of the global one."
    ORDER = "The head breaks the order of the scores, so tokens are not selected one by one."
    NOT_SPARSE = "Attention stays shared among several tokens."
    PRECISION = "Arithmetic, not the theory, decides the direction."
    INFEASIBLE = "No matrix selects the optimal tokens of all sequences at once."


REMEDIES = {
    Signature.LOCAL: "Start from zero, take a large first step, or compare with the SVM of the realised tokens.",
    Signature.ORDER: "Compare with svm_equivalent (Gen-SVM: several tokens tie) instead of the one-token SVM.",
    Signature.NOT_SPARSE: "Train longer if the norm still grows; if it has settled, use svm_equivalent.",
    Signature.PRECISION: "Use numerics='exact' and float64, or scale the data.",
    Signature.INFEASIBLE: "Raise the dimension: d >= max(T - 1, n) is enough for almost all data.",
}


@dataclass(frozen=True)
class Finding:
    """A failure signature that applies.

    Attributes
    ----------
    certain : bool
        Whether it is proved or observed, and not merely possible.
    detail : str
        The numbers that show it.
    """

    signature: Signature
    certain: bool
    detail: str

    @property
    def remedy(self) -> str:
        """The remedy, a sentence."""
        return REMEDIES[self.signature]

    def __str__(self) -> str:
        sure = "" if self.certain else "Possible: "
        return f"{sure}{self.signature.value} {self.detail} {self.remedy}"


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis(Summarised):
    """The theory's answers about one trial.

    Attributes
    ----------
    trial : Trial
    landscape : Landscape
        Its selections, with the locally optimal directions.
    separability : Separability
    prediction : Prediction
        With every hypothesis in `prediction.hypotheses`.
    observation : Observation or None
        The selection and direction of the trained matrix, if one was given.
    agrees : bool or None
        Whether the observation is what was predicted; None if nothing was predicted or observed.
    findings : tuple of Finding

    Examples
    --------
    >>> from attsvm import diagnose, train
    >>> from attsvm.data.synthetic import random_data
    >>> data, v = random_data(None, 1, 2, 4, seed=0)
    >>> trace = train(data, v, steps=500)
    >>> diagnosis = diagnose(data, v, trace)
    >>> diagnosis.observation.outcome.name, diagnosis.agrees
    ('GLOBAL', True)
    >>> sorted(diagnosis.hypotheses)[:3]
    ['A', 'B.1', 'B.1 (slack)']
    """

    trial: Trial
    landscape: Landscape
    separability: Separability
    prediction: Prediction
    observation: Observation | None
    agrees: bool | None
    findings: tuple[Finding, ...]

    @property
    def hypotheses(self) -> dict[str, Condition]:
        """The hypotheses by name."""
        return self.prediction.hypotheses

    def finding(self, signature: Signature) -> Finding | None:
        """Return the finding with that signature, if it applies.

        Examples
        --------
        >>> from attsvm import diagnose, train
        >>> from attsvm.data.synthetic import random_data
        >>> data, v = random_data(None, 1, 2, 4, seed=0)
        >>> diagnosis = diagnose(data, v, train(data, v, steps=500))
        >>> from attsvm.theory.diagnosis import Signature
        >>> diagnosis.finding(Signature.LOCAL) is None
        True
        """
        return next((finding for finding in self.findings if finding.signature is signature), None)

    def to_frame(self) -> Any:
        """List the hypotheses.

        Returns
        -------
        pandas.DataFrame
            Columns hypothesis, holds (None if undecided), value and detail.

        Raises
        ------
        ImportError
            Without pandas.

        Examples
        --------
        >>> from attsvm import diagnose, train
        >>> from attsvm.data.synthetic import random_data
        >>> data, v = random_data(None, 1, 2, 4, seed=0)
        >>> diagnosis = diagnose(data, v, train(data, v, steps=500))
        >>> list(diagnosis.to_frame().columns)
        ['hypothesis', 'holds', 'value', 'detail']
        """
        conditions = list(self.hypotheses.values())
        columns = {"hypothesis": list(self.hypotheses)}
        columns |= {name: [getattr(one, name) for one in conditions] for name in ("holds", "value", "detail")}
        return frame("Diagnosis.to_frame", columns)

    def _summary(self) -> Summary:
        certain = any(finding.certain for finding in self.findings)
        state = ", ".join(finding.signature.name for finding in self.findings) or "no failure signature applies"
        facts = [("predicted", self.prediction.outcome.value)]
        if self.observation is not None:
            facts.append(("observed", self.observation.outcome.value))
        facts += [("landscape", self.landscape.counted)]
        for holds, word in ((True, "what holds"), (False, "what fails"), (None, "undecided")):
            names = [condition.name for condition in self.hypotheses.values() if condition.holds is holds]
            facts += [(word, ", ".join(names))] if names else []
        colour = BAD if certain else UNSURE if self.findings else GOOD
        return Summary("Diagnosis", state, colour, facts, notes=[str(finding) for finding in self.findings])

    def __str__(self) -> str:
        lines = ["Predicted: " + str(self.prediction)]
        if self.observation is not None:
            observation = self.observation
            lines.append(
                f"Observed: {observation.outcome.value}; tokens {observation.selected.tolist()}, least attention "
                f"{observation.least_attention:.4g}, correlation with their SVM {observation.correlation:.4g}"
            )
        lines.append(f"Landscape: {self.landscape.counted}")
        if self.landscape.ends:
            count = sum(end.count for end in self.landscape.ends)
            lines.append(f"Ends of training from {count} starts, zero and random:")
            lines += [f"  {line}" for line in self.landscape.table().splitlines()]
        lines += [f"- {finding}" for finding in self.findings] or ["No failure signature applies."]
        return "\n".join(lines)


def diagnose(
    data: TokenData,
    head: Any,
    trained: Any = None,
    *,
    init: Any = None,
    loss: str | Callable[..., Any] = "logistic",
    norm: FactorNorm = "frobenius",
    limit: int = ENUMERATE,
    samples: int = SAMPLES,
    seed: int = 0,
    starts: int = STARTS,
) -> Diagnosis:
    """Check the theory's hypotheses on one trial, predict, compare with training, and name failures.

    Parameters
    ----------
    data : TokenData
        One trial: without leading dimensions.
    head : array (dv,), module or callable
    trained : Trace or array (d, dz), optional
        Result of training: a trace of this trial, or a matrix.
    init : array (d, dz), optional
        The start. Default: the start of the trace, or zero.
    loss : str or callable
    norm : {"frobenius", "nuclear"}
        Norm of the SVM with which the trained matrix is compared: nuclear for K and Q.
    limit, samples, seed : int
        Up to `limit` selections are enumerated. Otherwise `samples` selections are searched: the realised ones, swaps
        from locally optimal ones, and random ones.
    starts : int
        Number of random starts to train from, for the table of ends.

    Returns
    -------
    Diagnosis

    Raises
    ------
    ValueError
        If an argument does not fit; the message names it.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import TokenData, diagnose
    >>> tokens = np.array([[[0.0], [1.0], [2.0]]])  # the middle token scores best and can never win
    >>> values = np.array([[[0.0], [1.0], [0.0]]])
    >>> diagnosis = diagnose(TokenData(tokens, [[1.0]], [1.0], values=values), [1.0])
    >>> [finding.signature.name for finding in diagnosis.findings]
    ['INFEASIBLE', 'NOT_SPARSE']
    """
    trial = Trial.of(data, head)
    W, start, numerics = _trained(trained, init)
    realised = None if W is None else trial.logits(W).argmax(axis=1)
    terrain = explore(trial, limit=limit, samples=samples, seed=seed, realised=realised, starts=starts)
    prediction = predict(trial, init=start, loss=loss, landscape=terrain)
    observation = None if W is None else observe(trial, W, norm)
    separability = check_separability(trial, terrain)
    candidates = [
        _infeasible(trial, separability),
        _local(trial, terrain, prediction, observation),
        _order(trial, prediction, observation),
        _not_sparse(trial, prediction, W),
        _precision(trial, W, numerics),
    ]
    return Diagnosis(
        trial,
        terrain,
        separability,
        prediction,
        observation,
        None if observation is None else agrees(prediction, observation),
        tuple(finding for finding in candidates if finding is not None),
    )


def _trained(trained: Any, init: Any) -> tuple[Any, Any, str | None]:
    """Return the final W, the start, and the numerics of the run; None for what is not known."""
    if trained is None:
        return None, init, None
    if not hasattr(trained, "numerics"):
        return to_numpy("trained", trained), init, None
    records = to_numpy("trained", trained.W)
    if records.ndim != 3:
        raise ValueError(f"trained has records of shape {records.shape}; a trace of one trial was expected.")
    return records[-1], records[0] if init is None else init, trained.numerics


def _infeasible(trial: Trial, separability: Separability) -> Finding | None:
    if separability.optimal is Status.OPTIMAL:
        return None
    n, T, d = trial.tokens.shape
    enough = "meets" if separability.dimension else "is below"
    detail = f"d = {d} {enough} max(T - 1, n) = {max(T - 1, n)}. {separability.optimal.value}"
    return Finding(Signature.INFEASIBLE, separability.optimal is Status.INFEASIBLE, detail)


def _local(
    trial: Trial, landscape: Landscape, prediction: Prediction, observation: Observation | None
) -> Finding | None:
    gradient = prediction.hypotheses["C"]
    aligned = "The initial gradient points to the optimal tokens (C holds)."
    if not gradient.holds:
        aligned = f"The initial gradient is misaligned (C fails: {gradient.detail})."
    if observation is not None:
        misses = int((observation.selected != trial.optimal).sum())
        if observation.outcome not in (Outcome.LOCAL, Outcome.NOT_LOCAL):
            return None
        kind = (
            "locally optimal" if observation.locality.holds else "not locally optimal, so longer training may leave it"
        )
        return Finding(
            Signature.LOCAL,
            True,
            f"{misses} of {len(observation.selected)} tokens differ; the selection is {kind}. {aligned}",
        )
    others = [direction for direction in landscape.directions if (direction.selected != trial.optimal).any()]
    if not others or prediction.outcome in (Outcome.GLOBAL, Outcome.FINITE):
        return None
    return Finding(
        Signature.LOCAL,
        False,
        f"{landscape.counted}; {len(others)} {'is' if len(others) == 1 else 'are'} not the optimal one. {aligned}",
    )


def _order(trial: Trial, prediction: Prediction, observation: Observation | None) -> Finding | None:
    hypotheses = [prediction.hypotheses["E"]]
    if observation is not None and (observation.selected != trial.optimal).any():
        hypotheses.append(condition_e(trial, observation.selected))
    violations = [condition for condition in hypotheses if condition.holds is False]
    if not violations:
        return None
    return Finding(
        Signature.ORDER,
        True,
        f"A mixture with lower-scored tokens beats the token itself (E fails: {violations[0].detail}).",
    )


def _not_sparse(trial: Trial, prediction: Prediction, W: Any) -> Finding | None:
    if W is None:
        if prediction.outcome is Outcome.FINITE:
            return Finding(Signature.NOT_SPARSE, True, f"The norm stays finite: {prediction.rests_on}.")
        if not trial.unique:
            shared = int((trial.score_gap <= trial.score_error).sum())
            return Finding(Signature.NOT_SPARSE, False, f"In {counted(shared, 'sequence')} the best score is shared.")
        return None
    logits = trial.logits(W)
    weight = np.exp(logits - logits.max(axis=1, keepdims=True))
    support_sizes = (weight / weight.sum(axis=1, keepdims=True) > ATTENTION_FLOOR).sum(axis=1)
    shared = int((support_sizes > 1).sum())
    if shared == 0:
        return None
    most = int(support_sizes.max())
    detail = f"{shared} of {len(support_sizes)} queries keep two to {most} tokens above {ATTENTION_FLOOR:g}."
    growing = bool(prediction.hypotheses["norm diverges"].holds)
    if growing:
        detail += " No finite matrix is stationary, so training is unfinished."
    return Finding(Signature.NOT_SPARSE, not growing, detail)


def _precision(trial: Trial, W: Any, numerics: str | None) -> Finding | None:
    if W is None:
        return None
    eps = float(np.finfo(W.dtype).eps) if W.dtype.kind == "f" else float(np.finfo(float).eps)
    d, dz = W.shape
    size = float((np.linalg.norm(trial.tokens, axis=2) * np.linalg.norm(trial.queries, axis=1)[:, None]).max())
    error = (d + dz) * eps * size * float(np.linalg.norm(W.astype(np.float64)))
    if error > LOGIT_ERROR:
        return Finding(Signature.PRECISION, True, f"Logits in {W.dtype} at this size are rounded by up to {error:.2g}.")
    if numerics == "exact":
        return None
    order_statistics = np.sort(trial.logits(W), axis=1)
    lead = (
        order_statistics[:, -1] - order_statistics[:, -2]
        if order_statistics.shape[1] > 1
        else np.full(len(order_statistics), np.inf)
    )
    blind = int((lead > -np.log(eps)).sum())
    if blind == 0:
        return None
    detail = (
        f"In {blind} of {len(lead)} sequences the margin passes {-np.log(eps):.1f}, where a plain gradient is zero."
    )
    return Finding(Signature.PRECISION, numerics == "autograd", detail)
