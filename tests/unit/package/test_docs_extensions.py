"""What docs/ adds to the pages by itself: defaults of signatures, and links to the glossary."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parents[3]


def extension(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(ROOT / "docs")
    return __import__(name)


def test_a_default_stands_behind_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(data, tol=1e-9, start=None, shape=(2, 3), norm="nuclear"): ...

    lines = [
        "Do.",
        "",
        "Parameters",
        "----------",
        "data : array",
        "tol : float, optional",
        "    Gap.",
        "start : array, optional",
    ]
    lines += ["shape : tuple", "norm : str, default nuclear", "", "Returns", "-------", "tol : float"]
    defaults = extension("defaults", monkeypatch)
    assert defaults.with_defaults(lines, inspect.signature(function)) == [
        *lines[:4], "data : array", "tol : float, default 1e-09", "    Gap.", "start : array, optional",
        "shape : tuple, default (2, 3)", "norm : str, default nuclear", *lines[10:],
    ]  # fmt: skip


def test_a_term_is_a_link_where_it_first_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    links = extension("glossary_links", monkeypatch)
    from docutils import nodes
    from docutils.utils import new_document

    glossary, page = new_document("glossary"), new_document("page")
    glossary += [
        nodes.term("", term, ids=[f"term-{term}"]) for term in ("Margin", "Soft margin", "Neighbour, support token")
    ]
    page += nodes.title("", "Margins")
    page += nodes.paragraph(
        "", "", nodes.literal("", "margin"), nodes.Text(" Soft margins and the margin of neighbours.")
    )
    page += nodes.paragraph("", "A support token at the margin, marginal.")
    builder = SimpleNamespace(get_relative_uri=lambda start, end: f"{end}.html")
    app = SimpleNamespace(builder=builder, env=SimpleNamespace(get_doctree=lambda name: glossary))
    before = page.astext()
    links._link(app, page, "page")
    found = [(link.astext(), link["refuri"]) for link in page.findall(nodes.reference)]
    assert found == [
        ("Soft margins", "glossary.html#term-Soft margin"),
        ("margin", "glossary.html#term-Margin"),
        ("neighbours", "glossary.html#term-Neighbour, support token"),
    ]
    assert page.astext() == before
