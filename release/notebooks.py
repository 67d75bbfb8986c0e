"""Run the notebooks and write the outputs of their cells into them.

``python release/notebooks.py [FILE ...]`` runs all of them or the ones named. A cell shows what it prints, its figures,
and its last expression, as Jupyter does. The first cell, which installs attsvm from a wheel in the notebook's folder,
is skipped, because this Python has attsvm.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def _figures() -> list[dict[str, Any]]:
    """Return the open figures as outputs, and close them."""
    outputs = []
    for number in plt.get_fignums():
        stream = io.BytesIO()
        plt.figure(number).savefig(stream, format="png", dpi=72, metadata={"Software": None})
        data = {"image/png": base64.b64encode(stream.getvalue()).decode(), "text/plain": "A figure of this cell"}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    plt.close("all")
    return outputs


def run_cell(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run one cell among the names of the cells before it, and return its outputs in the form of a notebook."""
    tree = ast.parse(source)
    last, value = tree.body[-1], None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "a cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "a cell", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    figures = _figures()
    # A widget has nothing to show before a browser displays it.
    if value is not None and not figures and not hasattr(value, "_repr_mimebundle_"):
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if html := getattr(value, "_repr_html_", None):
            data["text/html"] = html().splitlines(keepends=True)
        outputs.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return outputs + figures


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """Run every code cell except the first, store the outputs, and return the names."""
    plt.close("all")  # open figures of the caller do not belong to the first cell
    names: dict[str, Any] = {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(cells[1:], start=2):
        cell["outputs"] = run_cell("".join(cell["source"]), names, count)
        cell["execution_count"] = count
    return names


def main() -> None:
    """Run and write."""
    for path in map(Path, sys.argv[1:] or sorted(NOTEBOOKS.glob("*.ipynb"))):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        run(notebook)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path, flush=True)


if __name__ == "__main__":
    main()
