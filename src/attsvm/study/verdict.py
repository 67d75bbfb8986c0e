"""Results of a study: claims in sentences, and named numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attsvm.core.status import Status
from attsvm.platform.summary import counted
from attsvm.solution.solution import Solution
from attsvm.study.convergence import climbing, steps_to
from attsvm.study.intervals import share_interval
from attsvm.study.results import ARRIVAL, SELECTING, ControlDirections, PrecisionRun, Run, Study
from attsvm.study.spectrum import certified_rank
from attsvm.study.words import Nouns, correlation_text, nouns, share_text, small_text
from attsvm.theory.diagnosis import REMEDIES, Signature

# Factor by which the angle of W to its SVM must be smaller than its angle to any control. A shuffled control counts
# with its prediction limit.
NEARER = 3.0

# Number of held-out rows below which chance prediction cannot be shown.
FEW_HELD_OUT = 30

# Relation of a trained matrix to the SVM of its selection, which decides the claim about its direction.
ARRIVES, CLIMBS, ALIKE, MISSES, UNSOLVED = "arrives", "climbs", "alike", "misses", "unsolved"
HOLDS = {ARRIVES: True, CLIMBS: None, ALIKE: None, MISSES: False, UNSOLVED: None}

# Fall of the correlation from its largest value to the end of training above which a run has lost the direction.
CORRELATION_FALL = 0.02

# Name of a trained matrix, and the form of a verb that follows it.
TRAINED: dict[str, tuple[str, Callable[[str], str]]] = {
    "W": ("W", lambda verb: "does" if verb == "do" else f"{verb}s"),
    "KQ": ("K and Q", lambda verb: verb),
}
NORM_NAMES = {"frobenius": "Frobenius", "nuclear": "nuclear"}


@dataclass(frozen=True)
class TheoryClaim:
    """One claim of the theory, compared with the data.

    Attributes
    ----------
    holds : bool or None
        None if the study cannot decide.
    remedy : str
        Advice if the claim fails or is undecided; otherwise empty.
    """

    key: str
    question: str
    holds: bool | None
    sentence: str
    remedy: str = ""


def claims(study: Study) -> list[TheoryClaim]:
    """List the claims that the study can make, in the order of its stages."""
    words = nouns(study.setup.train)
    assertions = []
    if study.optimal is not None:
        assertions.append(_feasible(study, study.optimal, words))
    for run in study.runs.values():
        assertions.append(_selects(study, run, words))
        assertions.append(_direction(run, words))
        if run.locality is not None:
            assertions.append(_local(run, words))
        prediction = _predicts(study, run, words)
        if prediction is not None:
            assertions.append(prediction)
    tokens = study.setup.train.tokens
    if min(tokens.d, tokens.dz) > 1 and "W" in study.runs and {"frobenius", "nuclear"} <= set(study.runs["W"].curves):
        assertions.append(_rank(study.runs["W"]))
    if study.precision:
        assertions.append(_precision(study.precision))
    return assertions


def _all(n: int, words: Nouns) -> str:
    return f"the one {words.row}" if n == 1 else f"all {n:,} {words.rows}"


def _feasible(study: Study, solution: Solution, words: Nouns) -> TheoryClaim:
    question = f"Can one W select the best {words.token} of every training {words.row}?"
    rows = _all(len(study.setup.optimal), words)
    if np.isfinite(solution.objective):
        proof = (
            f"certified to a relative gap of {small_text(solution.gap)}"
            if solution.status is Status.OPTIMAL
            else "though not the smallest, which was not found in time"
        )
        sentence = f"One W can select the best {words.token} in {rows}: its norm is {solution.objective:.4g}, {proof}."
        return TheoryClaim("feasible", question, True, sentence)
    if solution.status is Status.INFEASIBLE:
        sentence = f"No W selects the best {words.token} in {rows} at once; a certificate proves it."
        return TheoryClaim("feasible", question, False, sentence, REMEDIES[Signature.INFEASIBLE])
    sentence = f"Whether one W can select the best {words.token} in {rows} is undecided. {solution.status.value}"
    return TheoryClaim("feasible", question, None, sentence, "Allow more time: --time-limit SECONDS.")


def _selects(study: Study, run: Run, words: Nouns) -> TheoryClaim:
    name, verb = TRAINED[run.parameterization]
    n = len(run.selected)
    count = int((run.concentration >= SELECTING).sum())
    best = int((run.selected == study.setup.optimal).sum())
    where = _all(n, words) if count == n else f"only {count} of {n} {words.rows}"
    sentence = (
        f"Trained {name} {verb('select')}: at least 99 % of the attention lies on one {words.token} in {where}; "
        f"the {words.token} attended to most is the best-scored one in {best} of {n}."
    )
    if count < n:
        sentence = sentence.replace(f"{verb('select')}:", f"{verb('do')} not quite select:", 1)
    question = f"Does training {name} end in a selection?"
    remedy = "" if count == n else f"{_longer(run)} If the attention stays shared, use attsvm.svm_equivalent."
    return TheoryClaim(f"selects_{run.parameterization}", question, count == n, sentence, remedy)


def _direction(run: Run, words: Nouns) -> TheoryClaim:
    name, verb = TRAINED[run.parameterization]
    norm = NORM_NAMES[run.own]
    key = f"direction_{run.parameterization}"
    question = f"Does the trained matrix point along the {norm} SVM of the {words.tokens} it selects?"
    value = run.correlation
    if value is None:
        solution = run.solutions[run.own]
        sentence = f"There is no {norm} SVM of the {words.tokens} that {name} {verb('select')} to compare with: "
        undecided = solution.status is not Status.INFEASIBLE and solution.objective != 0
        remedy = "Allow more time: --time-limit SECONDS." if undecided else ""
        return TheoryClaim(key, question, None, sentence + _why_unsolved(solution, words), remedy)
    state = direction_state(run)
    pointing = verb("point") if state == ARRIVES else f"{verb('do')} not point"
    pointing = {CLIMBS: f"{verb('do')} not yet point", ALIKE: verb("point")}.get(state, pointing)
    sentence = f"{name} {pointing} along the {norm} SVM of the {words.tokens} selected: "
    sentence += f"correlation {correlation_text(value)}"
    sentence += f", still climbing after {counted(int(run.trace.step[-1]), 'step')}; " if state == CLIMBS else "; "
    nearest = nearest_control(run)
    if nearest is None:
        sentence += "no control was computed."
    else:
        sentence += f"the nearest control, the {nearest.label}, reaches {correlation_text(nearest.final)}"
        if len(nearest.directions) > 2 and nearest.limit > nearest.final:
            sentence += f" (limit for a further shuffle {correlation_text(nearest.limit)})"
        sentence += ", too near to tell the two apart." if state == ALIKE else "."
    return TheoryClaim(key, question, HOLDS[state], sentence, _direction_remedy(run, state))


def _direction_remedy(run: Run, state: str) -> str:
    if state == ARRIVES:
        return ""
    if state == CLIMBS:
        return _longer(run)
    if state == ALIKE:
        return f"{_longer(run)} Among few weights, here {run.trace.W[-1].size}, controls come near by chance."
    if run.concentration.min() < SELECTING:
        return REMEDIES[Signature.NOT_SPARSE]
    return "It no longer climbs: try smaller steps (--lr 0.1), or see whether another split does (--seed 1)."


def direction_state(run: Run) -> str:
    """Return the relation of the trained matrix to its SVM: one of ARRIVES, CLIMBS, ALIKE, MISSES and UNSOLVED."""
    value = run.correlation
    if value is None:
        return UNSOLVED
    if value < ARRIVAL:
        return CLIMBS if climbing(run.trace.step, run.curves[run.own]) else MISSES
    nearest = nearest_control(run)
    if nearest is None:
        return ARRIVES
    if nearest.final >= value:
        return MISSES
    # Correlations are cosines: a value within rounding of 1 is an angle of zero.
    angle, control_angle = (math.acos(min(c, 1.0)) for c in (value, nearest.limit))
    return ARRIVES if NEARER * angle <= control_angle else ALIKE


def nearest_control(run: Run) -> ControlDirections | None:
    """Return the nearest control, by its limit; controls that equal the reference do not count."""
    rivals = [control for control in run.controls if not control.coincides]
    return max(rivals, key=lambda control: control.limit) if rivals else None


def needed_steps(run: Run) -> int:
    """Advise a number of steps: from the rise of the correlation, or ten times the completed steps if it arrived."""
    step, value = run.trace.step, run.correlation
    if value is None or value >= ARRIVAL:
        return 10 * max(int(step[-1]), 1)
    return steps_to(step, run.curves[run.own], ARRIVAL)


def _longer(run: Run) -> str:
    return f"Train longer: --steps {needed_steps(run)}."


def _why_unsolved(solution: Solution, words: Nouns) -> str:
    if solution.objective == 0:
        return f"no {words.row} shows a second {words.token}."
    if solution.status is Status.INFEASIBLE:
        return "a certificate proves that no matrix selects them all."
    return f"it was not solved accurately (relative gap {solution.gap:.0e}, {solution.status.name.lower()})."


def _local(run: Run, words: Nouns) -> TheoryClaim:
    assert run.locality is not None
    name, _ = TRAINED[run.parameterization]
    norm = NORM_NAMES[run.own]
    key, question = f"local_{run.parameterization}", f"Is the selection by {name} locally optimal?"
    count, better = int(run.locality.neighbours.sum()), int(run.locality.violations.sum())
    opening = f"The selection by {name} is {'' if better == 0 else 'not '}locally optimal: "
    if count == 0:
        detail = f"no other {words.token} lies at the margin of the {norm} SVM."
    elif better:
        detail = (
            f"{better} of {counted(count, words.token, words.tokens)} at the margin of the {norm} SVM "
            f"{'scores' if better == 1 else 'score'} as high as the one selected or higher; the theory expects longer "
            "training to leave it."
        )
    elif count == 1:
        detail = f"the one {words.token} at the margin of the {norm} SVM scores lower than the one selected."
    else:
        detail = f"all {count} {words.tokens} at the margin of the {norm} SVM score lower than the one selected."
    return TheoryClaim(key, question, better == 0, opening + detail, _longer(run) if better else "")


def _predicts(study: Study, run: Run, words: Nouns) -> TheoryClaim | None:
    """Compare the accuracy on held-out rows with uniform attention and with training on shuffled labels."""
    rows = {row.key: row for row in study.accuracies}
    if run.parameterization not in rows:
        return None
    name, _ = TRAINED[run.parameterization]
    key, question = f"predicts_{run.parameterization}", f"Does attention by {name} predict rows it was not trained on?"
    share, test = rows[run.parameterization].test, study.setup.test
    if share is None or test is None:
        sentence = f"Whether attention by {name} predicts is not known: nothing is held out."
        return TheoryClaim(key, question, None, sentence, "Train on fewer rows: --train N.")
    n = test.tokens.n
    low, high = share_interval(round(share * n), n)
    counted_rows = counted(n, words.row, words.rows)
    opening = (
        f"Attention by {name} is right in {share_text(share)} of {counted_rows} held out (95 % interval "
        f"{100 * low:.1f} to {100 * high:.1f} %), uniform attention in {share_text(rows['uniform'].test)}"
    )
    control = study.shuffled_labels.get(run.parameterization)
    if control is None or len(control.test) < 3:
        sentence = f"{opening}; fewer than three trainings on shuffled labels do not show what chance gives."
        return TheoryClaim(key, question, None, sentence, "Ask for more shuffles: --shuffles 10.")
    mean, limit = float(control.test.mean()), control.limit
    opening += f"; training on shuffled labels in {share_text(mean)}, by chance up to {share_text(min(limit, 1.0))}"
    if share > limit and low > mean:
        return TheoryClaim(key, question, True, f"{opening}.")
    if share <= limit < 1 and n >= FEW_HELD_OUT:
        remedy = "The theory holds for any labels, random ones included: use tokens that carry the label, or more rows."
        return TheoryClaim(key, question, False, f"{opening}: it predicts no better than chance.", remedy)
    remedy = f"Hold out more than {counted_rows}: --train N, or more data."
    return TheoryClaim(key, question, None, f"{opening}: too few to tell.", remedy)


def _rank(run: Run) -> TheoryClaim:
    ranks = {norm: certified_rank(run.solutions[norm]) for norm in run.curves}
    sentence = (
        f"For the selection by W the nuclear SVM has rank {ranks['nuclear']}, the Frobenius SVM {ranks['frobenius']}."
    )
    question = "Does the nuclear norm give a lower rank?"
    lower = ranks["frobenius"] - ranks["nuclear"]
    return TheoryClaim("rank", question, None if lower == 0 else lower > 0, sentence)


def _precision(runs: tuple[PrecisionRun, ...]) -> TheoryClaim:
    def has_drift(run: PrecisionRun) -> bool:
        return float(run.curve[-1]) < float(run.curve.max()) - CORRELATION_FALL

    def ends(numerics: str) -> str:
        group = [run for run in runs if run.numerics == numerics]
        return " and ".join(f"{correlation_text(float(run.curve[-1]))} in {run.dtype}" for run in group)

    plain = [run for run in runs if run.numerics == "autograd"]
    exact = [run for run in runs if run.numerics == "exact"]
    question = "Does plain autograd lose the direction that the exact gradient keeps?"
    if not plain or not exact:
        return TheoryClaim(
            "precision", question, None, f"Correlation of W in other arithmetic: {ends('exact') or ends('autograd')}."
        )
    holds = False if any(map(has_drift, exact)) else True if all(map(has_drift, plain)) else None
    verb = "loses" if all(map(has_drift, plain)) else "keeps" if not any(map(has_drift, plain)) else "partly loses"
    steps = counted(int(runs[0].step[-1]), "step")
    sentence = (
        f"Plain autograd {verb} the direction: after {steps} its correlation with the SVM is "
        f"{ends('autograd')}; the exact gradient reaches {ends('exact')}."
    )
    remedy = "Scale the data, or train in float64." if holds is False else ""
    return TheoryClaim("precision", question, holds, sentence, remedy)
