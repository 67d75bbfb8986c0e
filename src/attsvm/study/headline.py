"""The verdict in one or two sentences, derived from the claims."""

from __future__ import annotations

from collections.abc import Sequence

from attsvm.platform.summary import counted
from attsvm.study.results import Run, Study
from attsvm.study.verdict import (
    ALIKE,
    ARRIVES,
    CLIMBS,
    FEW_HELD_OUT,
    MISSES,
    TRAINED,
    UNSOLVED,
    TheoryClaim,
    direction_state,
    nearest_control,
    needed_steps,
)
from attsvm.study.words import nouns, share_text

# Number of training rows below which a caution is shown.
FEW_TRAINING_ROWS = 20
# Share of one label from which accuracy must be compared with always predicting this label.
IMBALANCED = 0.9

# Outcomes of a run that do not follow from its direction alone.
SHARED, LEAVING = "shared", "leaving"


def run_state(run: Run, by_key: dict[str, TheoryClaim]) -> str:
    """Return the outcome of a run; ARRIVES only if every claim of the theory about it holds.

    ``by_key`` has the study's claims by key.
    """
    direction = direction_state(run)
    if direction in (CLIMBS, UNSOLVED):
        return direction
    if by_key[f"selects_{run.parameterization}"].holds is not True:
        return SHARED
    local = by_key.get(f"local_{run.parameterization}")
    if direction != MISSES and local is not None and local.holds is not True:
        return LEAVING
    return direction


def _phrase(state: str, run: Run) -> str:
    """Return the words that follow 'Training W'."""
    if state == CLIMBS:
        return f"is still approaching the max-margin token selector after {counted(int(run.trace.step[-1]), 'step')}"
    if state == ALIKE:
        nearest = nearest_control(run)
        assert nearest is not None
        return (
            f"came near the max-margin token selector, and too near the {nearest.label} to tell which of the two it "
            "became"
        )
    return {
        ARRIVES: "arrived at the max-margin token selector",
        SHARED: "left attention shared among tokens, so it selects none",
        LEAVING: "stands at a selection that is not locally optimal, which longer training may leave",
        MISSES: "did not arrive at the max-margin token selector",
        UNSOLVED: "ended at a selection whose SVM was not solved",
    }[state]


def outcomes(study: Study, assertions: Sequence[TheoryClaim]) -> dict[str, str]:
    """Return the outcome of each run, by parameterisation, from the study's claims."""
    by_key = {claim.key: claim for claim in assertions}
    return {name: run_state(run, by_key) for name, run in study.runs.items()}


def deciding_keys(study: Study) -> set[str]:
    """Return the keys of the claims from which the headline follows; none if the study was stopped."""
    if not study.complete:
        return set()
    return {f"{kind}_{name}" for kind in ("selects", "direction", "local") for name in study.runs} | {"predicts_W"}


def headline(study: Study, assertions: Sequence[TheoryClaim]) -> str:
    """Summarise the verdict: outcome of training, accuracy next to its controls, and number of failed claims."""
    return " ".join(filter(None, headline_parts(study, assertions)))


def headline_parts(study: Study, assertions: Sequence[TheoryClaim]) -> tuple[str, str]:
    """Split the verdict into the outcome of training and the rest."""
    words = nouns(study.setup.train)
    if not study.complete:
        stage = study.stopped_in
        while_doing = f" while {stage[0].lower()}{stage[1:]}" if stage else ""
        return f"Interrupted{while_doing}: there is no verdict yet, only what was done by then.", ""
    if all(solution.objective == 0 for run in study.runs.values() for solution in run.solutions.values()):
        return f"There is nothing to select: no {words.row} shows more than one {words.token}.", ""
    failing = sum(claim.holds is False for claim in assertions)
    rest = [_prediction(study, assertions)]
    if failing:
        rest.append(f"{failing} of {len(assertions)} claims {'does' if failing == 1 else 'do'} not hold.")
    return _training(study, assertions), " ".join(filter(None, rest))


def _training(study: Study, assertions: Sequence[TheoryClaim]) -> str:
    states = outcomes(study, assertions)
    if set(states.values()) == {ARRIVES}:
        return "Trained attention became the max-margin token selector."
    phrases = {name: _phrase(state, study.runs[name]) for name, state in states.items()}
    if len(set(phrases.values())) == 1:
        sentence = f"Training {next(iter(phrases.values()))}."
    else:
        sentence = "; ".join(f"training {TRAINED[name][0]} {phrase}" for name, phrase in phrases.items()) + "."
        sentence = sentence[0].upper() + sentence[1:]
    missing = [needed_steps(study.runs[name]) for name, state in states.items() if state == CLIMBS]
    return f"{sentence} Train longer: --steps {max(missing)}." if missing else sentence


def _prediction(study: Study, assertions: Sequence[TheoryClaim]) -> str:
    rows = {row.key: row for row in study.accuracies}
    claim = next((claim for claim in assertions if claim.key == "predicts_W"), None)
    if claim is None or rows["W"].test is None:
        return ""
    control = rows.get("W_shuffled_labels")
    comparisons = f"uniform attention {share_text(rows['uniform'].test)}"
    if control is not None:
        comparisons += f", trained on shuffled labels {share_text(control.test)}"
    opening = {
        True: "On held-out rows it is right in",
        False: "It predicts held-out rows no better than chance:",
        None: "Whether it predicts cannot be told: on held-out rows it is right in",
    }[claim.holds]
    return f"{opening} {share_text(rows['W'].test)} ({comparisons})."


def cautions(study: Study) -> list[str]:
    """List limits of the verdict."""
    words, sentences = nouns(study.setup.train), []
    n = study.setup.train.tokens.n
    if n < FEW_TRAINING_ROWS:
        sentences.append(
            f"Only {counted(n, words.row, words.rows)} {'was' if n == 1 else 'were'} trained on: so few can nearly "
            f"always be selected by one W, and what holds for them need not hold for the next {'one' if n == 1 else n}."
        )
    test = study.setup.test
    if study.settings.train is None and test is not None and test.tokens.n > n:
        sentences.append(
            f"Trained on {n:,} of {n + test.tokens.n:,} {words.rows}, about what two minutes allow; --train takes more."
        )
    labels = study.setup.train.tokens.labels
    larger = float(max((labels > 0).mean(), (labels < 0).mean()))
    if larger >= IMBALANCED:
        which = study.setup.train.classes[0 if (labels > 0).mean() == larger else 1]
        sentences.append(
            f"{100 * larger:.0f} % of the {words.rows} trained on are {which!r}: always saying so is right as often, "
            "and an accuracy near that says nothing. Use a file with equal numbers of both labels."
        )
    if test is not None and test.tokens.n < FEW_HELD_OUT:
        m = test.tokens.n
        sentences.append(
            f"Only {counted(m, words.row, words.rows)} {'is' if m == 1 else 'are'} held out: one more right or wrong "
            f"moves the accuracy by {100 / m:.0f} points."
        )
    return sentences
