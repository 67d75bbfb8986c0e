"""Formulas and the glossary of the pages.

The terms come from the documentation's glossary. Browsers draw MathML; it is stored in formulas.json, which `python
docs/mathml.py` writes, because the package that converts TeX is not a dependency.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from markupsafe import Markup, escape

STORE, GLOSSARY, FONT = "formulas.json", "glossary.md", "font/stix-two-math.woff2"

# Displayed formulas, keyed by the name used in templates.
DISPLAY = {
    "layer": r"f(X_i)=v^\top X_i^\top\,\mathrm{softmax}(X_iWz_i)",
    "svm": r"\min_W\ \|W\|\ \text{ where }\ (x_{i\alpha_i}-x_{it})^\top Wz_i\ge1",
}

_TERM = re.compile(r"^(?P<term>\S.*)\n: (?P<text>.+(?:\n  .+)*)", re.MULTILINE)
_MARKUP = re.compile(r"\$(?P<tex>[^$]+)\$|\*(?P<emphasis>[^*]+)\*|`(?P<code>[^`]+)`")


def formula(name: str) -> Markup:
    """Return the MathML of a displayed formula."""
    return Markup(_store()[DISPLAY[name]])


@cache
def math_font() -> str:
    """Return the font of formulas as a data URI: a report is one file, and Linux and telephones lack such a font."""
    content = files("attsvm.report").joinpath(FONT).read_bytes()
    return f"data:font/woff2;base64,{base64.b64encode(content).decode()}"


def glossary(terms: Iterable[str]) -> list[tuple[str, Markup]]:
    """Return terms with their explanations, as HTML, in the given order.

    Raises KeyError if the glossary lacks a term.
    """
    meanings = _terms()
    return [(term, _html(meanings[term])) for term in terms]


def tex_of_pages() -> dict[str, bool]:
    """List all TeX that pages may contain, and whether it is displayed."""
    inline = (match["tex"] for text in _terms().values() for match in _MARKUP.finditer(text) if match["tex"])
    return dict.fromkeys(inline, False) | dict.fromkeys(DISPLAY.values(), True)


@cache
def _store() -> dict[str, str]:
    return json.loads(_read_file(STORE))


@cache
def _terms() -> dict[str, str]:
    return {match["term"]: " ".join(match["text"].split()) for match in _TERM.finditer(_read_file(GLOSSARY))}


def _read_file(name: str) -> str:
    return files("attsvm.report").joinpath(name).read_text(encoding="utf-8")


def _html(text: str) -> Markup:
    """Convert the markup of the glossary to HTML."""
    parts, at = [], 0
    for match in _MARKUP.finditer(text):
        parts.append(escape(text[at : match.start()]))
        if match["tex"]:
            parts.append(Markup(_store()[match["tex"]]))
        else:
            tag = "i" if match["emphasis"] else "code"
            parts.append(Markup(f"<{tag}>{escape(match[match.lastgroup or 0])}</{tag}>"))
        at = match.end()
    return Markup("").join([*parts, escape(text[at:])])
