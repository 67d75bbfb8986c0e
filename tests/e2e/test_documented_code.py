"""The Python of every page of the documentation runs, block after block, as a reader would paste it."""

import re
from pathlib import Path
from typing import Any

import pytest

from pretrained_models import SENTENCES, minilm_path

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES = sorted(page.name for page in DOCS.glob("*.md") if BLOCK.search(page.read_text(encoding="utf-8")))
SLOW = {
    "pretrained.md", "paths.md", "monitor.md", "first-hour-teaching.md", "optimisers.md", "counterexample.md",
    "playground.md", "which-norm.md",
}  # fmt: skip


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page for page in PAGES]
)
def test_the_blocks_of_a_page_run_in_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # What a page asks its reader to bring: a model of theirs, and texts.
    reader: dict[str, Any] = {"folder": minilm_path(), "sentences": SENTENCES[:8]}
    namespace = reader if page in ("attribution.md", "pretrained.md", "first-hour-interpretability.md") else {}
    for block in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
        exec(compile(block, page, "exec"), namespace)
