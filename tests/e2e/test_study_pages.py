"""A study of texts and the comparison of two studies, in a browser: every word on the screen, axe-core content."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from attsvm.data.text import LabelledTexts, word_dataset
from attsvm.report.comparison import write_comparison
from attsvm.report.page import environment
from attsvm.report.study import write_numbers, write_study
from attsvm.study import Settings, study
from attsvm.study.comparison import compare, read_record
from attsvm.study.verdict import claims

pytestmark = pytest.mark.slow  # the tests share two studies and their comparison


def texts() -> LabelledTexts:
    rng = np.random.default_rng(5)
    common = [f"word{k}" for k in range(12)]
    marks = {1.0: ["good", "fine"], -1.0: ["bad", "poor"]}
    labels = np.where(np.arange(40) % 2, 1.0, -1.0)
    sentences = [", ".join(rng.permutation([*rng.choice(common, 4), rng.choice(marks[y])])) for y in labels.tolist()]
    return LabelledTexts("told.csv", tuple(sentences), labels, ("good", "bad"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    data = word_dataset(texts())
    for name, steps in (("short", 40), ("long", 120)):
        settings = Settings(train=24, steps=steps, max_steps=steps, shuffles=0, time_limit=2.0)
        write = write_study if name == "long" else write_numbers  # of the short one no page is opened
        result = study(data, settings)
        write(result, claims(result), folder / name, f"attsvm study told.csv --steps {steps}")
    comparison = compare(read_record(folder / "short"), read_record(folder / "long"))
    write_comparison(comparison, folder / "compared", "attsvm compare short long")
    return folder


@pytest.fixture(params=["long/report.html", "compared/compare.html"])
def report(request: pytest.FixtureRequest, folder: Path) -> Path:
    return folder / request.param


def test_nothing_is_wider_than_the_window(page) -> None:
    assert page.console_log == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    cut = """[...document.querySelectorAll('p, h1, h2, h3, li, dd, td, th, .formula')].filter(
        (one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).clipPath === 'none'
            && !one.closest('thead'))"""
    assert page.evaluate(f"{cut}.map((one) => one.textContent)") == []


def test_formulas_are_drawn(page) -> None:
    heights = page.evaluate(
        "[...document.querySelectorAll('.formula math')].map((one) => one.getBoundingClientRect().height)"
    )
    assert len(heights) == 2
    assert min(heights) > 12


def fonts(page, selector: str) -> set[tuple[str, bool]]:
    """Families that draw the text of elements, and whether each comes with the page."""
    session = page.context.new_cdp_session(page)
    session.send("DOM.enable")
    session.send("CSS.enable")
    root = session.send("DOM.getDocument")["root"]["nodeId"]
    nodes = session.send("DOM.querySelectorAll", {"nodeId": root, "selector": selector})["nodeIds"]
    node_fonts = [session.send("CSS.getPlatformFontsForNode", {"nodeId": node})["fonts"] for node in nodes]
    return {(font["familyName"], font["isCustomFont"]) for node in node_fonts for font in node}


def test_formulas_are_drawn_in_the_font_of_the_page(page) -> None:
    assert fonts(page, "math :is(mi, mn, mo, mtext)") == {("STIX Two Math", True)}


def test_the_font_has_every_character_that_formulas_of_the_documentation_use(browser) -> None:
    pytest.importorskip("sphinx")
    from docutils.utils.math import latex2mathml

    leaves = set()
    for page in (Path(__file__).parents[2] / "docs").glob("*.md"):
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for tex in re.findall(r"(?<![`$\\])\$([^$`]+)\$", prose):
            leaves |= set(re.findall(r"<m[ino][^>]*>[^<]+</m[ino]>", latex2mathml.tex2mathml(tex)))
    assert len(leaves) > 200
    tab = browser.new_page()
    style = environment().get_template("formulas.css").render()
    tab.set_content(f"<style>{style}</style><math>{''.join(sorted(leaves))}</math>")
    tab.evaluate("document.fonts.ready.then(() => true)")
    assert fonts(tab, "math *") == {("STIX Two Math", True)}
    tab.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_axe_finds_nothing(violations, folder: Path, width: int, scheme: str) -> None:
    for page in ("long/report.html", "compared/compare.html"):
        assert violations(folder / page, width, scheme) == [], page


def test_marks_differ_by_more_than_colour(browser, folder: Path) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    tab.goto((folder / "long" / "report.html").as_uri())
    look = """(name) => { const one = getComputedStyle(document.querySelector(`.excerpt .${name}:not(.selected.best)`));
        return [one.fontWeight, one.borderBottomStyle, one.borderTopStyle]; }"""
    assert tab.evaluate(look, "selected") == ["700", "solid", "solid"]
    assert tab.evaluate(look, "support") == ["400", "dashed", "none"]
    page_texts = tab.evaluate("[...document.querySelectorAll('.passage')].map((one) => one.textContent)")
    assert set(page_texts) <= set(texts().texts)
    notes = tab.inner_text("#passages")
    for word in tab.evaluate("[...document.querySelectorAll('.excerpt .token')].map((one) => one.textContent)"):
        assert f"“{word}”" in notes
    tab.close()


def test_the_comparison_says_what_its_json_says(browser, folder: Path) -> None:
    tab = browser.new_page(viewport={"width": 400, "height": 800})
    tab.goto((folder / "compared" / "compare.html").as_uri())
    content = json.loads((folder / "compared" / "compare.json").read_text(encoding="utf-8"))
    page_texts = tab.inner_text("main")
    for rows in content["tables"].values():
        for row in rows:
            assert {row["label"], row["first"], row["second"]} <= set(page_texts.replace(" *", "").split("\n"))
    labels = "[...document.querySelectorAll('.compared td')].map((one) => getComputedStyle(one, '::before').content)"
    assert set(tab.evaluate(labels)) == {'"short"', '"long"', '"difference"'}
    tab.close()
