"""The Python of every page of the documentation runs, block after block, and prints what stands below it."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from pretrained_models import SENTENCES, minilm_path

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
# Pages of which every block that prints shows its output.
PRINTED = (
    "index.md", "how-to.md", "first-hour-theory.md", "first-hour-interpretability.md", "first-hour-teaching.md",
    "classification.md", "troubleshooting.md", "bags.md", "from-scikit-learn.md",
    "which-norm.md",
)  # fmt: skip
NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?")
PAGES = sorted(page.name for page in DOCS.glob("*.md") if BLOCK.search(page.read_text(encoding="utf-8")))
SLOW = {
    "pretrained.md", "beyond.md", "building-blocks.md", "first-hour-teaching.md", "training.md",
    "counterexample.md", "playground.md", "which-norm.md",
}  # fmt: skip


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page for page in PAGES]
)
def test_the_blocks_of_a_page_run_in_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # What a page asks its reader to bring: a model of theirs, and texts.
    reader: dict[str, Any] = {"folder": minilm_path(), "sentences": SENTENCES[:8]}
    namespace = reader if page in ("attribution.md", "pretrained.md", "first-hour-interpretability.md") else {}
    for block, output in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile(block, page, "exec"), namespace)
        if output or page in PRINTED:
            assert_printed(printed.getvalue(), output)


def assert_printed(printed: str, shown: str) -> None:
    """Compare words exactly and numbers within 2 %; seconds, and sizes of rounding, depend on the machine.

    Sizes of rounding are below 1e-6, eight times the distance of two neighbours of 1 in single precision.
    """
    printed, shown = (re.sub(r"[\d.e-]+ m?s\b|seconds [\d.e-]+", "# s", text) for text in (printed, shown))
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", shown).split()
    for ours, theirs in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        assert float(ours) == pytest.approx(float(theirs), rel=0.02, abs=1e-6), (ours, theirs)
