"""A few rows as text, chosen by a rule, with the attention in each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from attsvm.data.dataset import Dataset
from attsvm.data.passages import BETWEEN, Passages
from attsvm.study.accuracy import soft_attention
from attsvm.study.results import Run, Study
from attsvm.study.words import Nouns, nouns, share_text
from attsvm.theory.tokens import Trial

# Number of closest decisions, and of most frequent selections per class, that are shown.
CLOSEST, FREQUENT = 2, 8
# Number of characters shown after the last token of a text.
TAIL = 60
SELECTED_MARK, SUPPORT_MARK, BEST_MARK = "selected", "support", "best"


@dataclass(frozen=True)
class Piece:
    """Consecutive characters of a row.

    Attributes
    ----------
    attention : float or None
        Share of the attention on their token; None between tokens.
    marks : tuple of str
        Any of "selected", "support" and "best".
    """

    text: str
    attention: float | None = None
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Excerpt:
    """A row with its tokens marked.

    Attributes
    ----------
    title : str
        Why the row is shown.
    notes : tuple of str
        The marks in sentences.
    """

    title: str
    pieces: tuple[Piece, ...]
    notes: tuple[str, ...]


def excerpts(study: Study, run: Run) -> list[Excerpt]:
    """Choose the closest decisions, a typical one, and the held-out rows that are most clearly right and wrong.

    Decisions are ordered by the margin of the trained matrix, scaled to the norm of the SVM if there is one. Among all
    matrices of that norm the SVM has the largest smallest margin: one. The study is of data with passages.
    """
    words = nouns(study.setup.train)
    margins = trained_margins(study, run)
    order = np.argsort(margins, kind="stable")
    order = order[np.isfinite(margins[order])]
    titles = {int(i): f"Closest decision {place + 1}" for place, i in enumerate(order[:CLOSEST])}
    if len(order):
        titles.setdefault(int(order[len(order) // 2]), f"A typical {words.row}")
    rows = [_trained_on(study, run, i, title, float(margins[i])) for i, title in titles.items()]
    return rows + _held_out(study, run, words)


def trained_margins(study: Study, run: Run) -> np.ndarray:
    """Return each row's smallest margin under the trained matrix at the norm of the SVM, (n,); inf for one token."""
    solution = run.solutions[run.own]
    W = np.asarray(run.trace.W[-1])
    scale = solution.objective / solution.norm.value(W) if run.own in run.curves else 1.0
    logits = scale * study.setup.trial.logits(W)
    rows = np.arange(len(run.selected))
    gaps = np.where(solution.problem.rejected, logits[rows, run.selected][:, None] - logits, np.inf)
    return gaps.min(axis=1)


def frequent(data: Dataset, selected: np.ndarray) -> dict[str, list[tuple[str, int]]]:
    """Count the selected tokens by their text, the most frequent first, for each class."""
    passages = _passages(data)
    counts = {}
    for name, side in zip(data.classes, (1, -1), strict=True):
        rows = np.flatnonzero(data.tokens.labels == side)
        counter = Counter(passages.name(int(i), int(selected[i])).lower() for i in rows)
        counts[name] = [(text, number) for text, number in counter.most_common(FREQUENT) if text]
    return counts


def _passages(data: Dataset) -> Passages:
    assert data.passages is not None
    return data.passages


def _pieces(data: Dataset, i: int, attention: np.ndarray, marks: dict[str, np.ndarray]) -> tuple[Piece, ...]:
    passages = _passages(data)
    pieces = []
    for text, t in zip(passages.pieces[i], passages.tokens[i], strict=True):
        if t == BETWEEN:
            pieces.append(Piece(text))
        else:
            pieces.append(
                Piece(text, float(attention[t]), tuple(name for name, tokens in marks.items() if t in tokens))
            )
    last = pieces[-1]
    if last.attention is None and len(last.text) > TAIL:
        pieces[-1] = Piece(last.text[:TAIL].rsplit(" ", 1)[0] + " …")
    return tuple(pieces)


def _quotation(data: Dataset, i: int, tokens: np.ndarray) -> str:
    return ", ".join(f"“{_passages(data).name(i, int(t))}”" for t in tokens)


def _trained_on(study: Study, run: Run, i: int, title: str, margin: float) -> Excerpt:
    setup = study.setup
    token, best = int(run.selected[i]), int(setup.optimal[i])
    support = np.flatnonzero(np.asarray(run.solutions[run.own].support)[i])
    marks = {SELECTED_MARK: np.array([token]), SUPPORT_MARK: support}
    if best != token:
        marks[BEST_MARK] = np.array([best])
    attention = np.asarray(run.trace.attention[-1])[i]
    name = setup.train.classes[0 if setup.train.tokens.labels[i] > 0 else 1]
    caption = f"Labelled {name}; {_quotation(setup.train, i, np.array([token]))} is selected with "
    caption += f"{share_text(attention[token])} of the attention"
    notes = [f"{caption} and a margin of {margin:.2f}; the SVM has 1." if run.own in run.curves else f"{caption}."]
    if len(support):
        notes.append(f"At margin 1 under the SVM: {_quotation(setup.train, i, support)}.")
    if best != token:
        notes.append(f"Best score: {_quotation(setup.train, i, np.array([best]))}.")
    return Excerpt(title, _pieces(setup.train, i, attention, marks), tuple(notes))


def _held_out(study: Study, run: Run, words: Nouns) -> list[Excerpt]:
    test = study.setup.test
    if test is None:
        return []
    trial = Trial.of(test.tokens, study.setup.head.v)
    attention = soft_attention(trial, np.asarray(run.trace.W[-1]))
    # gamma includes the label: a positive outcome is a right prediction.
    outcome = np.where(trial.mask, attention * np.where(trial.mask, trial.gamma, 0.0), 0.0).sum(axis=1)
    quotations = []
    for row, title, fits in (
        (int(outcome.argmax()), f"Held out, the {words.row} most clearly right", outcome.max() > 0),
        (int(outcome.argmin()), f"Held out, the {words.row} most clearly wrong", outcome.min() <= 0),
    ):
        if not fits:
            continue
        top = np.array([int(attention[row].argmax())])
        label = 0 if test.tokens.labels[row] > 0 else 1
        prediction = test.classes[label if outcome[row] > 0 else 1 - label]
        note = (
            f"Labelled {test.classes[label]}, predicted {prediction}: {_quotation(test, row, top)} gets "
            f"{share_text(attention[row, top[0]])} of the attention."
        )
        quotations.append(Excerpt(title, _pieces(test, row, attention[row], {SELECTED_MARK: top}), (note,)))
    return quotations
