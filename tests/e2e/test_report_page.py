"""The report in a browser, on a page and on a telephone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attsvm import TokenData
from attsvm.data.dataset import Dataset
from attsvm.data.digits import digits
from attsvm.report.study import render, write_study
from attsvm.study import Settings, study
from attsvm.study.verdict import claims

pytestmark = pytest.mark.slow  # the tests share a study of digits


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = study(digits(), Settings(train=30, steps=800, shuffles=1))
    return write_study(result, claims(result), tmp_path_factory.mktemp("digits"), "attsvm study digits --train 30")


def test_the_page_needs_no_other_file_and_complains_of_nothing(page) -> None:
    assert page.console_log == []
    assert [url for url in page.request_log if not url.startswith("data:")] == [page.url]


def test_nothing_is_wider_than_the_window(page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    wide = "[...document.querySelectorAll('p, h1, h2, li, figure, dd')].filter(e => e.scrollWidth > e.clientWidth + 1)"
    assert page.evaluate(f"{wide}.map(e => e.textContent)") == []


def test_every_picture_is_drawn_and_described(page) -> None:
    pictures = page.evaluate(
        """[...document.images].map(
            i => [i.naturalWidth, i.getBoundingClientRect().width, i.alt.length, i.currentSrc.length])"""
    )
    assert len(pictures) == 6
    for natural, box_width, description, embedded in pictures:
        assert natural > 100
        assert box_width > 300
        assert description > 20
        assert embedded > 1000


def test_a_dark_page_turns_charts_round_and_leaves_images_alone(browser, report: Path) -> None:
    tab = browser.new_page(color_scheme="dark")
    tab.goto(report.as_uri())
    expression = "[...document.images].filter((one) => getComputedStyle(one).filter !== 'none').map((one) => one.alt)"
    inverted_pictures = tab.evaluate("[...document.images].map((one) => one.alt)")
    for alt in tab.evaluate(expression):
        inverted_pictures.remove(alt)
    assert len(inverted_pictures) == 2
    assert all("patch" in alt and "raining image" in alt for alt in inverted_pictures)
    tab.close()


def test_the_narrow_window_gets_the_narrow_pictures(page) -> None:
    size = page.evaluate("[window.innerWidth, document.querySelector('#correlation img').naturalWidth]")
    # 3.7 and 7.6 inches at 96 pixels each, or 72 points, as the browser reads the SVG's unit.
    assert (size[1] < 500) == (size[0] == 400)


def test_the_first_screen_is_the_verdict(page) -> None:
    top = "where => document.querySelector(where).getBoundingClientRect().top"
    where = {"h1": "h1", "number": ".tile b", "claim": ".claims li", "picture": "#correlation img"}
    places = {name: page.evaluate(top, selector) for name, selector in where.items()}
    assert places["h1"] < places["number"] < places["claim"] < 800
    if page.viewport_size["width"] == 1280:
        assert places["picture"] < 400
        # Eleven claims with their remedies; the first half of them without scrolling.
        sixth = page.evaluate("document.querySelector('.claims li:nth-child(6)').getBoundingClientRect().bottom")
        assert sixth < 900


def test_the_page_says_what_the_json_says(page, report: Path) -> None:
    document = json.loads((report.parent / "verdict.json").read_text(encoding="utf-8"))
    assert " ".join(page.inner_text("h1").split()) == " ".join(document["headline"].split())
    sentences = page.evaluate("[...document.querySelectorAll('.claims li')].map(e => e.innerText)")
    expected = [" ".join(filter(None, (claim["sentence"], claim["remedy"]))) for claim in document["claims"]]
    assert [" ".join(line[1:].split()) for line in sentences] == [" ".join(text.split()) for text in expected]
    assert page.evaluate("[...document.querySelectorAll('.caution')].map(e => e.innerText)") == document["cautions"]
    marks = {True: "✓", False: "✗", None: "?"}
    assert [line[0] for line in sentences] == [marks[claim["holds"]] for claim in document["claims"]]


def test_names_from_a_file_are_text_and_not_markup(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tokens = TokenData(rng.standard_normal((4, 2, 3)), rng.standard_normal((4, 2)), np.array([1.0, -1, 1, -1]))
    result = study(Dataset("<script>alert(1)</script>", tokens), Settings(steps=2), lambda stage, share: True)
    text = render(result, claims(result), "attsvm study '<b>'", {})
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "<b>'" not in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing(violations, report: Path, width: int, scheme: str) -> None:
    assert violations(report, width, scheme) == []
