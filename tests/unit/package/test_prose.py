"""Sentences that a reader has to decode stay as rare as in well-read libraries of the field."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# A kind of construction, and how often POT (Python Optimal Transport) has it in 10,000 words.
RATES = {
    "an opening that delays the subject": (
        r"(?:^|(?<=[.!?:;] ))(?:Of|That of|Those|Where|What|With|Without|From|Beside|Nor|But for|Likewise)\b",
        4.0,
    ),
    "a quantity that points at another line": (r"\b(?:so|as) (?:many|much|few|long)\b", 0.0),
    "a relative without its noun": (
        r"\b(?:beside|but for|in parts of|of which|apart from that|the same for|alike|likewise)\b",
        1.0,
    ),
    "a stand-in for a noun": (r"\b(?:that of|those of|the one of|that which|such as has|of its own)\b", 2.0),
}
PARTS = {
    "the package": ["src", "pretrained"],
    "the reproduction": ["paper"],
    "the pages": ["docs", "README.md", "CONTRIBUTING.md"],
}
GENERATED = {"_build", "auto_examples", "generated"}
NO_WORDS = re.compile(r"`[^`]*`|\$[^$]*\$|:\w+:")


def paragraphs(path: Path) -> Iterator[str]:
    """Yield the paragraphs of a page, or of a module: its docstrings and comments."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
        for block in re.split(r"\n\s*\n", text):
            yield "\n".join(row for row in block.splitlines() if not row.startswith(("|", "#", "!", "$$")))
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield from re.split(r"\n\s*\n", (ast.get_docstring(node) or "").split("\nExamples\n")[0])
    comments = [
        token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
    ]
    for _, block in groupby(enumerate(comments), key=lambda pair: pair[1].start[0] - pair[0]):
        yield " ".join(token.string[1:].strip() for _, token in block)


def prose(names: list[str]) -> list[str]:
    """Return what a part says, paragraph by paragraph, with x for code and formulas."""
    found = []
    for place in (ROOT / name for name in names):
        files = [place] if place.is_file() else sorted([*place.rglob("*.py"), *place.rglob("*.md")])
        for path in files:
            if not GENERATED & set(path.parts):
                found += [NO_WORDS.sub("x", " ".join(text.split())) for text in paragraphs(path)]
    return found


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.slow
def test_constructions_that_must_be_decoded_are_rare(part: str) -> None:
    texts = prose(PARTS[part])
    words = sum(len(text.split()) for text in texts)
    assert words > 10_000
    for kind, (pattern, rate) in RATES.items():
        hits = [
            text[max(match.start() - 40, 0) : match.end() + 40]
            for text in texts
            for match in re.finditer(pattern, text)
        ]
        # Rates are rounded, since a quotation may need what a sentence of ours does not.
        assert round(len(hits) / words * 10_000) <= rate, (kind, hits)
