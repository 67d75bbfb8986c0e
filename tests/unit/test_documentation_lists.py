"""The API page is compared with the package."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path

import attsvm

API = Path(__file__).parents[2] / "docs" / "api.md"


def test_the_api_page_lists_every_public_name_and_no_other() -> None:
    blocks = re.findall(r"autosummary::\n(.*?)```", API.read_text(encoding="utf-8"), re.DOTALL)
    entries = [entry for block in blocks for entry in block.split("generated")[1].split()]
    assert all(callable(attrgetter(entry)(attsvm)) for entry in entries)
    assert {entry.split(".")[0] for entry in entries} == set(attsvm.__all__) - {"__version__"}
