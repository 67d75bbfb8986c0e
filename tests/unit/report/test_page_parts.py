"""What all pages share: embedded figures, and templates."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from attsvm.plots.style import NARROW, WIDE
from attsvm.report.page import Picture, data_uri, environment


def test_only_a_picture_that_uses_the_width_is_drawn_for_telephones() -> None:
    widths: list[float] = []

    def draw(width: float) -> Figure:
        widths.append(width)
        return Figure(figsize=(width, 1.0))

    fixed, fluid = (Picture("name", draw, "alt", "caption", responsive=responsive) for responsive in (False, True))
    assert fixed.wide.startswith("data:image/")
    assert fixed.narrow is None
    assert widths == [WIDE]
    assert fluid.narrow is not None
    assert widths == [WIDE, NARROW]


def test_a_figure_is_an_svg_unless_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = Figure(figsize=(1.0, 1.0))
    kind, content = data_uri(figure).split(";base64,")
    assert kind == "data:image/svg+xml"
    assert b"<svg" in base64.b64decode(content)
    size = len(base64.b64decode(content))
    monkeypatch.setattr("attsvm.report.page.LARGEST_SVG", size)
    assert data_uri(figure).startswith("data:image/svg+xml")
    monkeypatch.setattr("attsvm.report.page.LARGEST_SVG", size - 1)
    kind, content = data_uri(figure).split(";base64,")
    assert kind == "data:image/png"
    assert base64.b64decode(content).startswith(b"\x89PNG")


def test_a_picture_is_saved_under_its_name_or_another(tmp_path: Path) -> None:
    picture = Picture("own", lambda width: Figure(figsize=(width, 1.0)), "alt", "caption")
    picture.save(tmp_path)
    picture.save(tmp_path, "other")
    assert {path.name for path in tmp_path.iterdir()} == {"own.png", "own.pdf", "other.png", "other.pdf"}


def test_the_lines_of_blocks_of_a_template_leave_no_space() -> None:
    template = environment().from_string("a{% if true %}\n  {% endif %}\nb")
    assert template.render() == "ab"
