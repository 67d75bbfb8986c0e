"""The page that asks which norm an optimiser maximises prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "which-norm.md"


@pytest.mark.slow
def test_the_page_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    content = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```.*?```text\n(.*?)```", content, re.DOTALL)
    assert len(blocks) == content.count("```python") == 2
    namespace: dict[str, object] = {}
    for code, output in blocks:
        exec(compile(code, PAGE.name, "exec"), namespace)
        printed, expected = capsys.readouterr().out, output
        # Rounded shares depend on the processor by one in the last digit.
        number = re.compile(r"\d\.\d{3}")
        assert number.sub("#", printed) == number.sub("#", expected)
        for ours, theirs in zip(number.findall(printed), number.findall(expected), strict=True):
            assert float(ours) == pytest.approx(float(theirs), abs=1.5e-3)
