"""What the README and the API page say is compared with the package."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import attsvm

ROOT = Path(__file__).parents[2]


# Packages whose public names, those of `__all__`, each need an entry.
PACKAGES = ("norms", "theory", "training", "pretrained", "proofs", "plots")


def _resolve(entry: str) -> object:
    value, path = attsvm, "attsvm"
    for part in entry.split("."):
        path = f"{path}.{part}"
        value = getattr(value, part) if hasattr(value, part) else import_module(path)
    return value


def test_the_api_page_lists_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"autosummary::\n(.*?)```", page, re.DOTALL)
    entries = [entry for block in blocks for entry in block.split("generated")[1].split()]
    assert len(entries) == len(set(entries))
    assert all(callable(_resolve(entry)) for entry in entries)
    listed = {entry.split(".")[-1] for entry in entries}
    modules = {name for name in attsvm.__all__ if isinstance(getattr(attsvm, name), ModuleType)}
    assert set(attsvm.__all__) - modules - {"__version__"} <= listed
    assert modules <= {entry.split(".")[0] for entry in entries}
    for package in PACKAGES:
        names = import_module(f"attsvm.{package}").__all__
        assert {name for name in names if not name.isupper()} <= listed, package


def test_the_readme_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    status, objective, gap, correlation = capsys.readouterr().out.split()
    assert (status, objective[:5]) == ("OPTIMAL", "3.162")
    assert abs(float(gap)) < 1e-12
    assert correlation.startswith("0.999")


def test_the_bar_of_a_norm_stays_on_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(ROOT / "docs")
    formula = import_module("docutils.nodes").math(r"\|A^\top \lambda\|_*", r"\|A^\top \lambda\|_*")
    markup = import_module("mathml")._convert(formula, block=False)
    assert markup.count('<mo stretchy="false">‖</mo>') == markup.count("‖") == 2
