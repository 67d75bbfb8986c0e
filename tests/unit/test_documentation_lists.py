"""What the README and the API page say is compared with the package."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path

import pytest

import attsvm

ROOT = Path(__file__).parents[2]


def test_the_api_page_lists_every_public_name_and_no_other() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"autosummary::\n(.*?)```", page, re.DOTALL)
    entries = [entry for block in blocks for entry in block.split("generated")[1].split()]
    assert all(callable(attrgetter(entry)(attsvm)) for entry in entries)
    assert {entry.split(".")[0] for entry in entries} == set(attsvm.__all__) - {"__version__"}


def test_the_readme_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    status, objective, gap, correlation = capsys.readouterr().out.split()
    assert (status, objective[:5]) == ("OPTIMAL", "3.162")
    assert abs(float(gap)) < 1e-12
    assert correlation.startswith("0.999")
