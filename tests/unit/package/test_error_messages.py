"""Errors about arguments follow one grammar: what the argument is or has, then what was expected."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from sources import FILES, place

KINDS = ("BadInput", "TypeError", "ValueError")
# Parts of messages that are about something else than the form of an argument.
ELSEWHERE = (
    # A cluster, a directory, a port or an installation is in a state that the message tells how to leave.
    "not part of the installed package",
    "cannot be written",
    "--port chooses another",
    "reproduce needs",
    "cannot be run with these --set",
    "{} cannot be run: {}.",  # what a file of one's own raises, and where
    "no dask scheduler answers",
    "has no workers",
    "cannot import attsvm",
    "{}: {}",  # what an experiment itself says of its parameters
    "start over with --fresh",
    "holds another run",
    "holds rows without",
    "could not be loaded",
    "has no verdicts or figure",
    "the checkpoint names",
    "to begin anew",
    # A model computes something that no bilinear form gives, which another argument would not change.
    "comes without an eager_attention_forward",
    "is not supported",
    "has no vector for each",
    "no attention was recorded",
    "add up to something else",
    "was extracted with an error",
    "would not add up",
    # A solution has no proof.
    "multipliers that cancel exactly",
)


def _text(node: ast.expr) -> str | None:
    """Return the message of a literal, with {} for what is filled in; None for what is computed elsewhere."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


@cache
def messages(path: Path) -> list[tuple[int, str]]:
    """Line and text of every message that a module raises as a literal."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            text = _text(node.exc.args[0])
            if ast.unparse(node.exc.func).split(".")[-1] in KINDS and text is not None:
                found.append((node.lineno, text))
    return found


@pytest.mark.parametrize("path", FILES, ids=place)
def test_messages_about_arguments_say_what_was_expected(path: Path) -> None:
    violations = [
        f"{line}: {text}"
        for line, text in messages(path)
        if "expected" not in text and not any(part in text for part in ELSEWHERE)
    ]
    assert violations == []


def test_every_exception_is_of_a_message_there_is() -> None:
    texts = [text for path in FILES for _, text in messages(path)]
    assert [part for part in ELSEWHERE if not any(part in text for text in texts)] == []
