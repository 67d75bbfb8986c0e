"""Rows in readable form: the words of a text, or names of tokens side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# Marks a piece that shows no token, such as a comma.
BETWEEN = -1

Span = tuple[int, int, int]
"""First character, end (exclusive), and the token that these characters show."""


@dataclass(frozen=True)
class Passages:
    """Texts divided into pieces, and the token that each piece shows.

    Parameters
    ----------
    pieces : tuple of tuple of str
        Pieces of each row; joined, they are its text.
    tokens : tuple of tuple of int
        The token of each piece, or :data:`BETWEEN`. Pieces may share a token: a repeated word of a text is one token.
    prose : bool
        Whether rows are written texts rather than names of tokens.
    """

    pieces: tuple[tuple[str, ...], ...]
    tokens: tuple[tuple[int, ...], ...]
    prose: bool

    @classmethod
    def of_texts(cls, texts: Iterable[str], spans: Iterable[Sequence[Span]]) -> Passages:
        """Divide texts at the spans of their tokens, in order; if two spans overlap, the first gets the characters."""
        rows = [_cut(text, of_text) for text, of_text in zip(texts, spans, strict=True)]
        return cls(tuple(pieces for pieces, _ in rows), tuple(tokens for _, tokens in rows), prose=True)

    @classmethod
    def of_names(cls, names: np.ndarray, mask: np.ndarray) -> Passages:
        """Join the names (n, T) of the visible tokens, with a dot between."""
        pieces, tokens = [], []
        for row, visible in zip(names.tolist(), mask, strict=True):
            visible_places = np.flatnonzero(visible).tolist()
            pieces.append(tuple(part for t in visible_places for part in (" · ", row[t]))[1:])
            tokens.append(tuple(part for t in visible_places for part in (BETWEEN, t))[1:])
        return cls(tuple(pieces), tuple(tokens), prose=False)

    def take(self, rows: np.ndarray) -> Passages:
        """Return the given rows, in that order."""
        indices = [int(i) for i in rows]
        return Passages(tuple(self.pieces[i] for i in indices), tuple(self.tokens[i] for i in indices), self.prose)

    def name(self, row: int, token: int) -> str:
        """Return the text of a token's first piece; empty if no piece shows it."""
        places = (place for place, content in enumerate(self.tokens[row]) if content == token)
        place = next(places, None)
        return "" if place is None else self.pieces[row][place]


def _cut(text: str, spans: Sequence[Span]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    pieces, tokens, at = [], [], 0
    for first, end, token in spans:
        start = max(first, at)
        if end <= start:
            continue
        if start > at:
            pieces.append(text[at:start])
            tokens.append(BETWEEN)
        pieces.append(text[start:end])
        tokens.append(token)
        at = end
    if at < len(text):
        pieces.append(text[at:])
        tokens.append(BETWEEN)
    return tuple(pieces), tuple(tokens)
