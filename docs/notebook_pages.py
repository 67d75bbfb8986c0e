"""The notebooks as pages: text, code and the outputs that the files hold."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config

DOCS = Path(__file__).parent
NOTEBOOKS = DOCS.parent / "notebooks"
PAGES = DOCS / "notebooks"


def _output(output: dict, picture: Path) -> str:
    """Return one output of a cell as Markdown; a picture becomes a file."""
    data = output.get("data", {})
    if "image/png" in data:
        picture.write_bytes(base64.b64decode(data["image/png"]))
        return f"![{data['text/plain']}]({picture.name})"
    if "text/html" in data:
        return f"```{{raw}} html\n{''.join(data['text/html'])}\n```"
    text = "".join(output.get("text") or data["text/plain"])
    return f"```text\n{text.rstrip()}\n```"


def page(notebook: Path) -> str:
    """Return a notebook as Markdown, and write its pictures."""
    parts = []
    for number, cell in enumerate(json.loads(notebook.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [
            _output(output, PAGES / f"{notebook.stem}-{number}-{index}.png")
            for index, output in enumerate(cell.get("outputs", []))
        ]
        if number == 0:
            parts.append(f"{{download}}`The notebook <../../notebooks/{notebook.name}>`")
    return "\n\n".join(parts) + "\n"


def write_pages(app: Sphinx, config: Config) -> None:
    """Write one page per notebook where its text has changed, and leave no others."""
    PAGES.mkdir(exist_ok=True)
    notebooks = sorted(NOTEBOOKS.glob("*.ipynb"))
    for page_of_none in set(PAGES.glob("*.md")) - {PAGES / f"{notebook.stem}.md" for notebook in notebooks}:
        page_of_none.unlink()
    for notebook in notebooks:
        target = PAGES / f"{notebook.stem}.md"
        text = page(notebook)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.connect("config-inited", write_pages)
    return {"parallel_read_safe": True}
