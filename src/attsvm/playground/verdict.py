"""The sentence under the picture: the outcome of training, and the theory's explanation."""

from __future__ import annotations

import numpy as np

from attsvm.core.status import Status
from attsvm.platform.summary import counted
from attsvm.playground.runs import PlaygroundRun, attention_of
from attsvm.playground.state import Plane
from attsvm.theory.tokens import SELECTED, LocalOptimality, Trial, compare_with_neighbours

GOOD_WORD, UNSURE_WORD, BAD_WORD = "good", "unsure", "bad"
# Smallest loss of correlation that is visible in the picture.
VISIBLE_LOSS = 1e-3


def plane_verdict(state: Plane, trial: Trial, run: PlaygroundRun, exact: PlaygroundRun | None) -> dict[str, str]:
    """Return a word and one or two sentences about the picture.

    Parameters
    ----------
    state : Plane
    trial : Trial
    run : PlaygroundRun
        Training of W.
    exact : PlaygroundRun or None
        The same training in exact arithmetic, if `run` is in float32.

    Returns
    -------
    dict
        `tone` ("good", "unsure" or "bad"), `word` and `sentence`.
    """
    tone, word, sentence = _composition(run) if state.head == "relu" else _selected(trial, run)
    if exact is not None:
        loss_text = _precision_loss(run, exact)
        tone, word, sentence = (
            (BAD_WORD, "Direction lost", loss_text) if loss_text else (tone, word, f"{sentence} Nothing is lost yet.")
        )
    if run.trace.notice:
        sentence = f"{sentence} {run.trace.notice}"
    return {"tone": tone, "word": word, "sentence": sentence}


def _selected(trial: Trial, run: PlaygroundRun) -> tuple[str, str, str]:
    """Judge the tokens that a linear head selects."""
    attention = attention_of(trial, np.asarray(run.trace.W, dtype=np.float64)[-1:])[0]
    shared = [i for i, row in enumerate(attention) if row.max() < SELECTED]
    if run.solution.status is Status.INFEASIBLE:
        return BAD_WORD, "Infeasible", f"{_contradiction(run)} {_instead(shared, attention, run)}"
    if run.solution.status is not Status.OPTIMAL:
        return UNSURE_WORD, "Undecided", run.solution.sentence
    locality = compare_with_neighbours(trial, run.solution)
    on_target = (attention.argmax(axis=1) == run.selected).all()
    if shared and on_target:
        where, verb = _sequences(shared), "shares" if len(shared) == 1 else "share"
        most = min(float(attention[i].max()) for i in shared)
        return UNSURE_WORD, "Under way", (
            f"After {counted(int(run.trace.step[-1]), 'step')} {where} still {verb} attention: "
            f"{most:.0%} on the kept token. {_angle(run)}"
        )  # fmt: skip
    if not on_target:
        return (
            UNSURE_WORD,
            "Elsewhere",
            (
                f"Training ends on other tokens than those the SVM keeps: on {_tokens(attention.argmax(axis=1))}. "
                f"{_angle(run)}"
            ),
        )
    if (run.selected == trial.optimal).all():
        return GOOD_WORD, "Globally optimal", f"Every sequence keeps its best-scoring token. {_angle(run)}"
    return _judge_locality(trial, run, locality)


def _judge_locality(trial: Trial, run: PlaygroundRun, locality: LocalOptimality) -> tuple[str, str, str]:
    lower = [i for i in range(len(run.selected)) if run.selected[i] != trial.optimal[i]]
    if locality.holds:
        reasons = "; ".join(_reason(trial, run, locality, i) for i in lower)
        return GOOD_WORD, "Locally optimal", f"{reasons[0].upper()}{reasons[1:]}. {_angle(run)}"
    i, t = (int(at) for at in np.argwhere(locality.violations)[0])
    return (
        BAD_WORD,
        "Not locally optimal",
        (
            f"In sequence {i + 1} token {t + 1} is at margin one and scores no less than the kept token "
            f"{run.selected[i] + 1}: longer training may leave it. {_angle(run)}"
        ),
    )


def _reason(trial: Trial, run: PlaygroundRun, locality: LocalOptimality, i: int) -> str:
    """Explain why sequence i selects a token without the best score."""
    own, best = run.selected[i] + 1, trial.optimal[i] + 1
    keeps = f"sequence {i + 1} keeps token {own} although token {best} scores higher, because"
    near = np.flatnonzero(locality.neighbours[i])
    if not len(near):
        return f"{keeps} none of its other tokens is at margin one: none is near enough to pull"
    if len(near) == 1:
        return f"{keeps} only token {near[0] + 1} is at margin one, and it scores lower"
    return f"{keeps} only tokens {_listed([str(t + 1) for t in near])} are at margin one, and they score lower"


def _contradiction(run: PlaygroundRun) -> str:
    """Explain why no W selects the tokens: the sequences that the proof's multipliers name."""
    certificate = run.solution.certificate
    weight = np.zeros(len(run.selected)) if certificate is None else np.asarray(certificate.dual).sum(axis=1)
    rows = np.flatnonzero(weight > 1e-9 * max(weight.max(initial=0.0), 1e-300))
    if len(rows) == 1:
        i = int(rows[0])
        return (
            f"No W keeps token {run.selected[i] + 1} of sequence {i + 1}: it lies inside the hull of the others, so "
            "whatever the direction, one of them gets as much attention or more (Farkas multipliers prove it)."
        )
    return (
        f"No single W keeps {_tokens(run.selected)}: what {_sequences(rows.tolist())} ask for adds up to 0 ≥ 1 "
        "(Farkas multipliers prove it)."
    )


def _instead(shared: list[int], attention: np.ndarray, run: PlaygroundRun) -> str:
    if shared:
        verb = "shares" if len(shared) == 1 else "share"
        return f"After {counted(int(run.trace.step[-1]), 'step')} {_sequences(shared)} {verb} attention."
    return f"Training ends on {_tokens(attention.argmax(axis=1))}."


def _composition(run: PlaygroundRun) -> tuple[str, str, str]:
    """Judge the sets of tokens that a nonlinear head selects."""
    equivalence = run.equivalence
    if equivalence is not None and (equivalence.solution is None or not np.isfinite(equivalence.solution.objective)):
        return UNSURE_WORD, "Under way", "No matrix ties the tokens that hold attention now and separates the others."
    if equivalence is None or bool(run.trace.stationary):
        return UNSURE_WORD, "At rest", (
            "The output lies where the head is flat: the gradient is zero, training has ended, and the tokens keep the "
            "attention they had there."
        )  # fmt: skip
    if not run.solution.problem.has_rejected:
        return UNSURE_WORD, "Under way", "Every token still holds attention; there is nothing to separate yet."
    sets = [np.flatnonzero(row) for row in equivalence.selected]
    attention = np.asarray(run.trace.attention)[-1]
    parts = [
        f"sequence {i + 1} mixes tokens {_listed([str(t + 1) for t in tokens])} "
        f"({_listed([f'{attention[i, t]:.0%}' for t in tokens])})"
        if len(tokens) > 1
        else f"sequence {i + 1} keeps token {tokens[0] + 1}"
        for i, tokens in enumerate(sets)
    ]
    sentence = _listed(parts)
    word = "Composition" if any(len(tokens) > 1 for tokens in sets) else "Selection"
    return GOOD_WORD, word, (
        f"{sentence[0].upper()}{sentence[1:]}: W approaches a finite part, which sets the shares, plus the SVM "
        f"that ties the kept tokens. {_angle(run, 'that SVM equivalent')}"
    )  # fmt: skip


def _precision_loss(run: PlaygroundRun, exact: PlaygroundRun) -> str:
    """Return what single precision lost compared with exact arithmetic; empty if nothing is visible."""
    ours, theirs = run.correlation[-1], exact.correlation[-1]
    if not (run.selected == exact.selected).all():
        return f"In single precision training ends on {_tokens(run.selected)}, exactly on {_tokens(exact.selected)}."
    if not theirs - ours > VISIBLE_LOSS:  # also of NaN
        return ""
    return (
        f"Plain float32 ends {_degrees(ours)} from the max-margin direction: softmax is saturated and its gradient is "
        f"rounding. Exact gradients end {_degrees(theirs)} from it."
    )


def _angle(run: PlaygroundRun, what: str = "the max-margin direction") -> str:
    last = run.correlation[-1]
    if not np.isfinite(last):
        return ""
    return f"W is {_degrees(last)} from {what}."


def _degrees(cosine: float) -> str:
    return f"{np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0))):.2g}°"


def _tokens(selected: np.ndarray) -> str:
    parts = [f"token {token + 1} of sequence {i + 1}" for i, token in enumerate(selected)]
    return _listed(parts)


def _sequences(indices: list[int]) -> str:
    return f"sequence{'s' if len(indices) > 1 else ''} {_listed([str(i + 1) for i in indices])}"


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
