"""The notebook runs from top to bottom, and shows what its text says."""

import ast
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

from attsvm import correlation

NOTEBOOK = Path(__file__).parents[2] / "examples" / "attention_is_an_svm.ipynb"


def test_the_notebook_runs_and_its_cells_show_themselves() -> None:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    outputs = []
    for cell in content["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == []
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop()
        assert isinstance(last, ast.Expr)
        exec(compile(tree, NOTEBOOK.name, "exec"), names)
        outputs.append(eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names))
    plt.close("all")
    cards = [value._repr_html_() for value in outputs if hasattr(value, "_repr_html_")]
    assert len(cards) >= 7
    assert all(len(card) < 20_000 for card in cards)
    assert names["solution"].status.name == "OPTIMAL"
    assert float(correlation(names["trace"].W[-1], names["solution"].W)) > 0.98
    assert names["report"].nearest == "max"
    distances = names["path"].distance(names["solution"])
    assert distances[-1] < distances[0]
    assert names["diagnosis"].observation.outcome.name in ("GLOBAL", "LOCAL")
