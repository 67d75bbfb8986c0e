"""User-defined rules for the types of heads: which tokens a query should attend to."""

from __future__ import annotations

import hashlib
import marshal
import re
import runpy
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attsvm_pretrained.heads.head import AttentionHead

# A function of a head; or a pair of regular expressions, for the texts of queries and tokens; or booleans (n, T).
Rule = Callable[[AttentionHead], Any] | tuple[str, str] | np.ndarray
Rules = Mapping[str, Rule]


def read_rules(path: Path) -> dict[str, Rule]:
    """Read the rules of a Python file: its public functions and pairs of strings, by name.

    Parameters
    ----------
    path : Path
        The file is run.

    Raises
    ------
    ValueError
        If the file defines no rule, or cannot be run.
    """
    try:
        names = runpy.run_path(str(path))
    except Exception as error:
        raise ValueError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    rules = {
        name.replace("_", " "): value
        for name, value in names.items()
        if not name.startswith("_")
        and ((callable(value) and getattr(value, "__module__", None) == "<run_path>") or _is_pair(value))
    }
    if not rules:
        raise ValueError(f"{path} defines no rule; a function of a head, or a pair of patterns, was expected.")
    return rules


def rule_sets(rules: Rules, head: AttentionHead, rows: np.ndarray, taken: Collection[str]) -> dict[str, np.ndarray]:
    """Evaluate rules on the queries ``rows`` of a head, bool (rows, T).

    Raises ValueError if a rule fails, has a name in ``taken``, needs texts of a head without texts, or has another
    shape.
    """
    sample = head.take(rows)
    return {name: _evaluate(name, rule, head, rows, sample, taken) for name, rule in rules.items()}


def digest(rules: Rules) -> str:
    """Return a digest of the names of rules and their code, patterns or arrays."""
    out = hashlib.sha256()
    for name, rule in sorted(rules.items()):
        code = getattr(rule, "__code__", None)
        content = rule.tobytes() if isinstance(rule, np.ndarray) else repr(rule).encode()
        out.update(name.encode() + b"\0" + (content if code is None else marshal.dumps(code)))
    return out.hexdigest()


def _evaluate(
    name: str, rule: Rule, head: AttentionHead, rows: np.ndarray, sample: AttentionHead, taken: Collection[str]
) -> np.ndarray:
    if name in taken:
        raise ValueError(f"rules has the name {name!r}, which a type bears already; another name was expected.")
    if isinstance(rule, tuple):
        return _matches(name, rule, sample)
    try:
        tokens = np.asarray(rule(sample) if callable(rule) else rule)
    except Exception as error:
        raise ValueError(f"rule {name!r} failed with {type(error).__name__}: {error}") from error
    expected = (sample if callable(rule) else head).mask.shape
    if tokens.shape != expected or tokens.dtype != bool:
        raise ValueError(
            f"rule {name!r} gives {tokens.dtype} of shape {tokens.shape}; booleans {expected} were expected, True for "
            "the tokens of each query."
        )
    return tokens if callable(rule) else tokens[rows]


def _matches(name: str, patterns: tuple[str, str], head: AttentionHead) -> np.ndarray:
    """Mark tokens that match the second pattern, for queries that match the first; a match is of the whole text."""
    if head.texts is None:
        raise ValueError(f"rule {name!r} is a pair of patterns, and the head has no texts; a function was expected.")
    queries, tokens = (
        np.array([[re.fullmatch(pattern, text) is not None for text in row] for row in head.texts])
        for pattern in patterns
    )
    return queries[head.sequence, head.position][:, None] & tokens[head.sequence]


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, str) for part in value)
