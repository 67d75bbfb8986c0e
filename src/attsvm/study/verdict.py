"""What a study found, as claims in plain sentences and as named numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.core.status import Status
from attsvm.solution.solution import Solution
from attsvm.study.results import PrecisionRun, Run, Study
from attsvm.study.spectrum import certified_rank
from attsvm.study.words import Nouns, correlation_text, counted, nouns, share_text, small_text

# Training approaches the SVM direction like 1/k^2 at best and stops somewhere; 0.98 (11 degrees) is where the project
# calls it arrived. The controls must lie below the correlation that is reached.
ARRIVED = 0.98
# Attention counts as a selection when it leaves less than a hundredth for all other tokens together.
SELECTING = 0.99

# A run whose correlation ends this far below its best on the way has drifted; exact runs rise to the end.
DRIFT = 0.02

# How a trained matrix is called, and the form of the verbs that follow.
TRAINED: dict[str, tuple[str, Callable[[str], str]]] = {
    "W": ("W", lambda verb: "does" if verb == "do" else f"{verb}s"),
    "KQ": ("K and Q", lambda verb: verb),
}
NORM_NAMES = {"frobenius": "Frobenius", "nuclear": "nuclear"}


@dataclass(frozen=True)
class Claim:
    """One claim of the theory, held against the data.

    Attributes
    ----------
    key : str
    question : str
    holds : bool or None
        None when the study cannot tell.
    sentence : str
    """

    key: str
    question: str
    holds: bool | None
    sentence: str


def claims(found: Study) -> list[Claim]:
    """List what the study can say, in the order of its stages."""
    words = nouns(found.setup.train)
    made = []
    if found.optimal is not None:
        made.append(_feasible(found, found.optimal, words))
    for run in found.runs.values():
        made.append(_selects(found, run, words))
        made.append(_direction(run, words))
        if run.locality is not None:
            made.append(_local(run, words))
    if "W" in found.runs and {"frobenius", "nuclear"} <= set(found.runs["W"].curves):
        made.append(_rank(found.runs["W"]))
    if found.precision:
        made.append(_precision(found.precision))
    return made


def headline(found: Study) -> str:
    """Say the verdict in one sentence."""
    words = nouns(found.setup.train)
    if "W" not in found.runs:
        return f"The study of {found.setup.train.name} was stopped before training had said anything."
    if all(solution.objective == 0 for run in found.runs.values() for solution in run.solutions.values()):
        return f"There is nothing to select: no {words.row} shows more than one {words.token}."
    arrived = [name for name, run in found.runs.items() if _direction(run, words).holds]
    if arrived == ["W", "KQ"] or (arrived == ["W"] and len(found.runs) == 1):
        return "Trained attention became the max-margin token selector."
    if arrived:
        reached, missed = ("W", "K and Q") if arrived == ["W"] else ("K and Q", "W")
        return f"Training {reached} arrived at the max-margin token selector; training {missed} did not."
    if any(run.own in run.curves for run in found.runs.values()):
        return "Training did not arrive at the max-margin token selector."
    return "Training did not settle on tokens that one matrix can select."


def _all(n: int, words: Nouns) -> str:
    return f"the one {words.row}" if n == 1 else f"all {n:,} {words.rows}"


def _feasible(found: Study, solution: Solution, words: Nouns) -> Claim:
    question = f"Can one W select the best {words.token} of every training {words.row}?"
    rows = _all(len(found.setup.optimal), words)
    if np.isfinite(solution.objective):
        proof = (
            f"certified to a relative gap of {small_text(max(solution.gap, 0.0))}"
            if solution.status is Status.OPTIMAL
            else "though not the smallest, which was not found in time"
        )
        sentence = f"One W can select the best {words.token} in {rows}: its norm is {solution.objective:.4g}, {proof}."
        return Claim("feasible", question, True, sentence)
    if solution.status is Status.INFEASIBLE:
        sentence = f"No W selects the best {words.token} in {rows} at once; a certificate proves it."
        return Claim("feasible", question, False, sentence)
    sentence = f"Whether one W can select the best {words.token} in {rows} is undecided. {solution.status.value}"
    return Claim("feasible", question, None, sentence)


def _selects(found: Study, run: Run, words: Nouns) -> Claim:
    name, verb = TRAINED[run.parameterization]
    n = len(run.selected)
    settled = int((run.concentration >= SELECTING).sum())
    best = int((run.selected == found.setup.optimal).sum())
    where = _all(n, words) if settled == n else f"only {settled} of {n} {words.rows}"
    sentence = (
        f"Trained {name} {verb('select')}: at least 99 % of the attention lies on one {words.token} in {where}; "
        f"the {words.token} attended to most is the best-scored one in {best} of {n}."
    )
    if settled < n:
        sentence = sentence.replace(f"{verb('select')}:", f"{verb('do')} not quite select:", 1)
    return Claim(f"selects_{run.parameterization}", f"Does training {name} end in a selection?", settled == n, sentence)


def _direction(run: Run, words: Nouns) -> Claim:
    name, verb = TRAINED[run.parameterization]
    norm = NORM_NAMES[run.own]
    key = f"direction_{run.parameterization}"
    question = f"Does the trained matrix point along the {norm} SVM of the {words.tokens} it selects?"
    value = run.correlation
    if value is None:
        sentence = f"There is no {norm} SVM of the {words.tokens} that {name} {verb('select')} to compare with: "
        return Claim(key, question, None, sentence + _why_unsolved(run.solutions[run.own], words))
    rivals = [control for control in run.controls if not control.coincides]
    holds = value >= ARRIVED and all(control.final < value for control in rivals)
    pointing = verb("point") if holds else f"{verb('do')} not point"
    sentence = f"{name} {pointing} along the {norm} SVM of the {words.tokens} selected: "
    sentence += f"correlation {correlation_text(value)}; "
    if rivals:
        nearest = max(rivals, key=lambda control: control.final)
        sentence += f"the nearest control, the {nearest.label}, reaches {correlation_text(nearest.final)}."
    else:
        sentence += "no control was computed."
    return Claim(key, question, holds, sentence)


def _why_unsolved(solution: Solution, words: Nouns) -> str:
    if solution.objective == 0:
        return f"no {words.row} shows a second {words.token}."
    if solution.status is Status.INFEASIBLE:
        return "a certificate proves that no matrix selects them all."
    return f"it was not solved accurately (relative gap {solution.gap:.0e}, {solution.status.name.lower()})."


def _local(run: Run, words: Nouns) -> Claim:
    assert run.locality is not None
    name, _ = TRAINED[run.parameterization]
    norm = NORM_NAMES[run.own]
    key, question = f"local_{run.parameterization}", f"Is the selection by {name} locally optimal?"
    count, better = int(run.locality.neighbours.sum()), int(run.locality.violations.sum())
    begun = f"The selection by {name} is {'' if better == 0 else 'not '}locally optimal: "
    if count == 0:
        said = f"no other {words.token} lies at the margin of the {norm} SVM."
    elif better:
        said = (
            f"of {counted(count, words.token, words.tokens)} at the margin of the {norm} SVM, {better} "
            f"{'scores' if better == 1 else 'score'} as high as the one selected or higher; the theory expects longer "
            "training to leave it."
        )
    elif count == 1:
        said = f"the one {words.token} at the margin of the {norm} SVM scores lower than the one selected."
    else:
        said = f"all {count} {words.tokens} at the margin of the {norm} SVM score lower than the one selected."
    return Claim(key, question, better == 0, begun + said)


def _rank(run: Run) -> Claim:
    ranks = {norm: certified_rank(run.solutions[norm]) for norm in run.curves}
    sentence = (
        f"For the selection by W the nuclear SVM has rank {ranks['nuclear']}, the Frobenius SVM {ranks['frobenius']}."
    )
    question = "Does the nuclear norm give a lower rank?"
    lower = ranks["frobenius"] - ranks["nuclear"]
    return Claim("rank", question, None if lower == 0 else lower > 0, sentence)


def _precision(runs: tuple[PrecisionRun, ...]) -> Claim:
    def drifted(run: PrecisionRun) -> bool:
        return float(run.curve[-1]) < float(run.curve.max()) - DRIFT

    def ends(numerics: str) -> str:
        chosen = [run for run in runs if run.numerics == numerics]
        return " and ".join(f"{correlation_text(float(run.curve[-1]))} in {run.dtype}" for run in chosen)

    plain = [run for run in runs if run.numerics == "autograd"]
    exact = [run for run in runs if run.numerics == "exact"]
    question = "Does plain autograd lose the direction that the exact gradient keeps?"
    if not plain or not exact:
        return Claim(
            "precision", question, None, f"Correlation of W in other arithmetic: {ends('exact') or ends('autograd')}."
        )
    holds = False if any(map(drifted, exact)) else True if all(map(drifted, plain)) else None
    verb = "loses" if all(map(drifted, plain)) else "keeps" if not any(map(drifted, plain)) else "partly loses"
    sentence = (
        f"Plain autograd {verb} the direction: after {int(runs[0].step[-1]):,} steps its correlation with the SVM is "
        f"{ends('autograd')}, that of the exact gradient {ends('exact')}."
    )
    return Claim("precision", question, holds, sentence)


def _number(value: Any) -> Any:
    """Make a value JSON can hold; NaN and infinity become null."""
    if isinstance(value, (bool, np.bool_)) or value is None or isinstance(value, str):
        return bool(value) if isinstance(value, np.bool_) else value
    if isinstance(value, (int, np.integer)):
        return int(value)
    return float(value) if math.isfinite(value) else None


def quantities(found: Study) -> dict[str, dict[str, Any]]:
    """Name every number of the report: {name: {value, meaning}}."""
    out: dict[str, dict[str, Any]] = {}

    def put(name: str, value: Any, meaning: str) -> None:
        out[name] = {"value": _number(value), "meaning": meaning}

    setup = found.setup
    put("train_rows", setup.train.tokens.n, "rows trained on")
    put("test_rows", 0 if setup.test is None else setup.test.tokens.n, "rows held out")
    put(
        "smallest_score_gap",
        setup.trial.score_gap.min(),
        "score of the best token less the second best, smallest over rows",
    )
    if found.optimal is not None:
        put("optimal_status", found.optimal.status.name, "Frobenius SVM of the globally optimal tokens")
        put("optimal_norm", found.optimal.objective, "its norm")
        put("optimal_gap", found.optimal.gap, "its certified relative gap")
    for name, run in found.runs.items():
        _put_run(put, name, run, setup.optimal)
    for run in found.precision:
        put(f"correlation_{run.dtype}_{run.numerics}", run.curve[-1], f"W trained in {run.label}, with the same SVM")
    for row in found.accuracies:
        put(f"accuracy_train_{row.key}", row.train, f"{row.label}: share of training rows predicted right")
        put(f"accuracy_test_{row.key}", row.test, f"{row.label}: share of test rows predicted right")
    return out


def _put_run(put: Any, name: str, run: Run, optimal: np.ndarray) -> None:
    put(f"steps_{name}", int(run.trace.step[-1]), f"training steps of {name}")
    put(f"least_attention_{name}", run.concentration.min(), "largest attention probability, smallest over rows")
    put(f"rows_on_optimal_{name}", int((run.selected == optimal).sum()), "rows whose realised token is the best one")
    for norm, solution in run.solutions.items():
        put(f"status_{name}_{norm}", solution.status.name, f"{norm} SVM of the tokens realised by {name}")
        put(f"norm_{name}_{norm}", solution.objective, "its norm")
        put(f"gap_{name}_{norm}", solution.gap, "its certified relative gap")
        if norm in run.curves:
            put(f"rank_{name}_{norm}", certified_rank(solution), "its rank at the certified accuracy")
            put(f"correlation_{name}_{norm}", run.curves[norm][-1], f"trained {name} with that SVM")
    if run.locality is not None:
        put(f"neighbours_{name}", int(run.locality.neighbours.sum()), f"SVM-neighbours under the {run.own} SVM")
        put(
            f"better_neighbours_{name}",
            int(run.locality.violations.sum()),
            "of which score as high as the selected token or higher",
        )
    for control in run.controls:
        put(f"control_{control.key}_{name}", control.final, f"trained {name} with the {control.label}")


def accuracy_lines(found: Study) -> list[tuple[str, str, str]]:
    """Rows of the accuracy table: label, training share, test share."""
    return [(row.label, share_text(row.train), share_text(row.test)) for row in found.accuracies]
