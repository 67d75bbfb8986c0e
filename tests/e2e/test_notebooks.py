"""The notebooks run from top to bottom, install from a wheel in their folder, and show what their files hold."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from attsvm import correlation
from notebooks import NOTEBOOKS, run

ROOT = Path(__file__).parents[2]
NAMES = ("heads", "optimiser", "scikit-learn", "teaching", "theory")
INSTALL = re.compile(r"%pip install -q --find-links \. (?:attsvm|'attsvm\[([a-z,]+)\]')")
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]\d+)?")


def read(name: str) -> dict[str, Any]:
    return json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))


def words(notebook: dict[str, Any]) -> list[str]:
    """How the cells' texts begin, without numbers: digits depend on the processor, methods on what is compiled."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    texts = ["".join(output.get("text", [])) or "".join(output["data"]["text/plain"]) for output in outputs]
    return [NUMBER.sub("#", text.partition(",")[0]) for text in texts]


def test_each_has_an_extra_that_its_first_cell_installs() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(NAMES)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for name in NAMES:
        code = next(cell for cell in read(name)["cells"] if cell["cell_type"] == "code")
        found = re.fullmatch(
            r"%pip install -q --find-links \. (?:attsvm|'attsvm\[([a-z,]+)\]')", "".join(code["source"])
        )
        assert found, name
        assert set((found[1] or "cli").split(",")) <= set(extras)
        assert code["outputs"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "theory"])
def test_it_runs_and_shows_what_it_holds(name: str) -> None:
    notebook = read(name)
    shown = words(copy.deepcopy(notebook))
    plt.figure()  # left open by somebody else
    run(notebook)
    assert words(notebook) == shown
    assert shown


@pytest.mark.slow
def test_the_theory_runs_and_its_cells_show_themselves() -> None:
    notebook = read("theory")
    names = run(notebook)
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    cards = [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert len(cards) >= 7
    assert all(len("".join(card)) < 20_000 for card in cards)
    assert names["solution"].status.name == "OPTIMAL"
    assert float(correlation(names["trace"].W[-1], names["solution"].W)) > 0.98
    assert names["report"].nearest == "max"
    distances = names["path"].distance(names["solution"])
    assert distances[-1] < distances[0]
    assert names["diagnosis"].observation.outcome.name in ("GLOBAL", "LOCAL")
