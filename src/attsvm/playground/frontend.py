"""The front end for both hosts: D3 and our module in one text, a style sheet, and the page of `play`."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from attsvm.playground.presets import PRESETS

# In the order of their dependencies; the last exports `render`.
PARTS = ("d3.js", "address.js", "controls.js", "plane.js", "classes.js", "charts.js", "playground.js")


def _text(name: str) -> str:
    return files("attsvm.playground").joinpath("static", name).read_text(encoding="utf-8")


@cache
def module() -> str:
    """Return the ES module, which both hosts display."""
    presets = f"const PRESETS = {json.dumps(PRESETS)};"
    return "\n".join([_text(PARTS[0]), presets, *(_text(name) for name in PARTS[1:])])


@cache
def style() -> str:
    """Return the style sheet."""
    return _text("playground.css")


@cache
def host_script() -> str:
    """Return the script with which the page of `attsvm play` gives the module its model."""
    return _text("host.js")


PAGE_HTML = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>attsvm playground</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="playground.css">
<body class="attsvm-page">
<main id="playground"></main>
<script type="module" src="host.js"></script>
</body>
</html>
"""
