"""The files of the page, and its scripts in one ES module for notebooks."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

# The folder is the whole page: a copy of it works on any host, and from disk.
FOLDER = Path(__file__).parent / "static"
INDEX_PAGE = FOLDER / "index.html"


def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@cache
def module() -> str:
    """Return an ES module that exports `render`: the page's scripts, in the order in which the page loads them."""
    scripts = re.findall(r'<script src="([\w.]+)"', _text(INDEX_PAGE.name))
    return "\n".join([*map(_text, scripts), "export default { render };\n"])


@cache
def style() -> str:
    """Return the style sheet."""
    return _text("playground.css")


@cache
def presets() -> dict[str, dict[str, Any]]:
    """Return the initial states of the page by name, each with `title`, `about` and `state`."""
    return json.loads(_text("presets.js").removeprefix("const PRESETS = ").rstrip().removesuffix(";"))
