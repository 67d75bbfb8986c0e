"""Tokens of a page as readable text, with characters in place of the letters that tokenizers write for bytes."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

# Marks of tokens that begin a word: byte-level BPE, and SentencePiece.
_BYTE_SPACE, _SPACE = "Ġ", "▁"
# Text of a token that ends within a character.
_PART = "·"


def _byte_letters() -> dict[str, int]:
    """Return bytes by the letters of byte-level BPE: the same letter if printable, else a letter from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + k): byte for k, byte in enumerate(others)}


_BYTES = _byte_letters()


class TokenText:
    """Converts the tokens of a tokenizer to readable text.

    The tokens of some texts show whether the tokenizer marks the beginning or the continuation of words, and whether it
    writes bytes.
    """

    def __init__(self, texts: Iterable[Sequence[str]]) -> None:
        tokens = [token for text in texts for token in text]
        self._bytes = any(_BYTE_SPACE in one for one in tokens) and all(set(one) <= _BYTES.keys() for one in tokens)
        self._marks_spaces = self._bytes or any(one.startswith((_BYTE_SPACE, _SPACE)) for one in tokens)

    def __call__(self, tokens: Sequence[str]) -> list[tuple[str, bool]]:
        """Return the text of each token, and whether a space precedes it; a character is in its last byte's token."""
        if not self._bytes:
            return [self._word(token) for token in tokens]
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        decoded = [decoder.decode(bytes(_BYTES[letter] for letter in token)) for token in tokens]
        # A token of spaces alone is the space itself.
        shown = [one.strip(" ").replace("\n", "↵") or (" " if one else _PART) for one in decoded]
        return [(text, one.startswith(" ") and text != " ") for text, one in zip(shown, decoded, strict=True)]

    def _word(self, token: str) -> tuple[str, bool]:
        if token.startswith("##"):
            return token[2:], False
        marks = _BYTE_SPACE + _SPACE
        return token.lstrip(marks) or " ", token.startswith(tuple(marks)) or not self._marks_spaces
