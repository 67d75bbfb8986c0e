"""What the README and the API page say is compared with the package."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import attsvm

ROOT = Path(__file__).parents[3]


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


def test_the_readme_examples_print_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    content, names = (ROOT / "README.md").read_text(encoding="utf-8"), {}
    blocks = re.findall(r"```python\n(.*?)```\s+```text\n(.*?)```", content, re.DOTALL)
    assert len(blocks) == content.count("```python") == 2
    for code, output in blocks:
        exec(compile(code, "README.md", "exec"), names)
        printed = capsys.readouterr().out
        # Last digits depend on the processor.
        digits = re.compile(r"\d+\.\d{7,}")
        assert digits.sub("#", printed) == digits.sub("#", output)
        for ours, theirs in zip(digits.findall(printed), digits.findall(output), strict=True):
            assert float(ours) == pytest.approx(float(theirs), rel=1e-9)


@pytest.fixture
def mathml(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(ROOT / "docs")
    return lambda tex: re.sub(r"\n *", "", import_module("mathml").mathml(tex, block=False))


def test_the_bar_of_a_norm_stays_on_its_line(mathml) -> None:
    markup = mathml(r"\|A^\top \lambda\|_*")
    assert markup.count('<mo stretchy="false">‖</mo>') == markup.count("‖") == 2


def test_the_bars_of_an_absolute_value_stand_close(mathml) -> None:
    markup = mathml(r"|w|\,\langle w, v\rangle")
    assert markup.count('<mo stretchy="false" lspace="0" rspace="0">|</mo>') == markup.count("|") == 2
    assert '<mo stretchy="false">⟨</mo>' in markup


def test_the_index_of_a_letter_with_an_accent_stands_beside_it(mathml) -> None:
    markup = '<msub><mover accent="true"><mi>γ</mi><mo stretchy="false">ˉ</mo></mover>'
    assert markup + "<mi>i</mi></msub>" in mathml(r"\bar\gamma_i")
    assert markup + "<mrow><mi>i</mi><mi>t</mi></mrow></msub>" in mathml(r"\bar\gamma_{it}-a")


def test_pages_and_packages_hold_the_font_of_formulas() -> None:
    folder = ROOT / "src" / "attsvm" / "report" / "font"
    style = (ROOT / "docs" / "_static" / "figures.css").read_text(encoding="utf-8")
    (name,) = re.findall(r'url\("([^"]+)"\)', style)
    assert (folder / name).read_bytes()[:4] == b"wOF2"
    assert '"../src/attsvm/report/font"' in (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    licence = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["license-files"]
    assert (folder / "stix-two-math-LICENSE.txt").relative_to(ROOT).as_posix() in licence
