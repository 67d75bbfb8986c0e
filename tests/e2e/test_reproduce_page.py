"""The page of a reproduction in a browser, wide and narrow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from attsvm_paper import registry
from attsvm_paper.engine.runner import run
from attsvm_paper.judging.comparison import share_verdict
from attsvm_paper.published.ledger import ledger
from attsvm_paper.report.errata import ERRATA
from attsvm_paper.report.finished import FinishedRun
from attsvm_paper.report.reproduction import render, write_reproduction
from attsvm_paper.report.tally import conclusion, headline, number
from tiny_experiment import EXPERIMENT, figure


def responsive(rows, width: float) -> Figure:
    drawing = figure(rows)
    drawing.set_figwidth(width)
    return drawing


@pytest.fixture(scope="module")
def runs() -> list[FinishedRun]:
    rows = run(EXPERIMENT, "quick")
    other = replace(EXPERIMENT, name="other", figure=responsive)
    return [FinishedRun(one, rows, "quick", 0, {}, 3.0) for one in (EXPERIMENT, other)]


@pytest.fixture(scope="module")
def report(runs: list[FinishedRun], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.BEYOND, "other", runs[1].experiment)
        yield write_reproduction(runs, tmp_path_factory.mktemp("out"), "attsvm reproduce '<b>'", ["late"])


def test_the_page_needs_no_other_file_and_complains_of_nothing(page) -> None:
    assert page.console_log == []
    assert [url for url in page.request_log if not url.startswith("data:")] == [page.url]


def test_nothing_is_wider_than_the_window_not_even_opened(page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    texts = "[...document.querySelectorAll('p, h1, h2, h3, li, dd, summary')]"
    assert page.evaluate(f"{texts}.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)") == []


def test_every_figure_is_drawn_described_and_readable(page) -> None:
    pictures = page.evaluate(
        "[...document.images].map(i => [i.naturalWidth, i.getBoundingClientRect().width, i.alt, !!i.closest('.zoom')])"
    )
    assert len(pictures) == 2
    for natural, box_width, description, zooms in pictures:
        assert box_width > 300
        assert EXPERIMENT.claim in description
        if page.viewport_size["width"] == 400:
            assert zooms or natural < 500  # a narrow drawing, or one that a tap enlarges
    if page.viewport_size["width"] == 400:
        page.click(".zoom img")
        assert page.evaluate("document.querySelector('.zoom img').getBoundingClientRect().width") > 800
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_verdicts_stand_first_and_open_on_demand(page, runs: list[FinishedRun]) -> None:
    top = "where => document.querySelector(where).getBoundingClientRect().top"
    order = ["h1", ".tile", "#verdicts", "#published", "#tiny", "#beyond", "#other", "#errata"]
    places = [page.evaluate(top, where) for where in order]
    assert places == sorted(places)
    assert page.inner_text("h1") == headline([verdict for one in runs for verdict in one.verdicts])
    table = page.locator("#verdicts-tiny")
    assert not table.is_visible()
    page.click("section#verdicts summary >> nth=0")
    assert table.is_visible()
    texts = table.locator("tbody tr").all_inner_texts()
    assert len(texts) == len(runs[0].verdicts)
    for line, verdict in zip(texts, runs[0].verdicts, strict=True):
        for text in (verdict.quantity, number(verdict.measured), number(verdict.published), verdict.verdict):
            assert text in line


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    pairs = page.evaluate(
        """[...document.querySelectorAll('p, li, td, dt, dd, summary span, h1, h2, h3, code')].map(e => {
            let ground = e; while (ground && getComputedStyle(ground).backgroundColor == 'rgba(0, 0, 0, 0)')
                ground = ground.parentElement;
            return [getComputedStyle(e).color, ground ? getComputedStyle(ground).backgroundColor : 'rgb(255, 255, 255)',
                    e.className] })"""
    )

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    assert all((luminance(ground) < 0.5) == (scheme == "dark") for _, ground, _ in pairs)
    for ink, ground, name in pairs:
        if "none" not in name:  # zeros of the table are faint on purpose
            darker, lighter = sorted((luminance(ink), luminance(ground)))
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (ink, ground, name)


def test_what_is_on_the_page_without_a_browser(report: Path, runs: list[FinishedRun]) -> None:
    text = report.read_text(encoding="utf-8")
    links = set(re.findall(r"""(?:src|href|srcset)=["'](?!data:|#)([^"']*)""", text))
    assert links == {"other/index.html", "tiny/index.html"}
    assert all((report.parent / link).is_file() for link in links)
    assert "url(" not in text
    assert "@import" not in text
    assert "Tiny &lt;experiment&gt;" in text
    assert "<experiment>" not in text
    assert "&lt;b&gt;" in text
    assert "Interrupted before their end, and not shown: late." in text
    assert text.count('class="erratum"') == len(ERRATA)
    assert "attsvm reproduce tiny --quick" in re.sub("</?span[^>]*>", "", text)
    content = json.loads((report.parent / "verdicts.json").read_text(encoding="utf-8"))
    assert (content["complete"], content["unfinished"]) == (False, ["late"])
    beside = sorted(path.name for path in (report.parent / "tiny").iterdir())
    assert beside == ["figure.pdf", "figure.png", "index.html"]


@pytest.mark.parametrize("width", [1280, 400])
def test_an_experiment_has_a_page_of_its_own(browser, report: Path, runs: list[FinishedRun], width: int) -> None:
    tab = browser.new_page(viewport={"width": width, "height": 800})
    tab.goto((report.parent / "tiny" / "index.html").as_uri())
    assert tab.locator("h1").inner_text() == EXPERIMENT.title
    lines = tab.locator("#verdicts-tiny tbody tr").all_inner_texts()
    assert all(verdict.quantity in line for verdict, line in zip(runs[0].verdicts, lines, strict=True))
    assert tab.evaluate("document.images[0].naturalWidth") > 0
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    tab.locator(".kicker a").click()
    assert tab.url == report.as_uri()
    tab.close()


def test_nothing_published_is_said_so() -> None:
    single = replace(EXPERIMENT, verdicts=lambda rows: [v for v in EXPERIMENT.verdicts(rows) if v.published is None])
    rows = run(single, "quick", overrides={"d": 2})
    text = render([FinishedRun(single, rows, "quick", 0, {"d": "2"}, 1.0)], "c", ())
    assert "<h1>1 number measured that nobody has published</h1>" in text


def test_numbers_are_short() -> None:
    values = (None, float("nan"), float("inf"), 0.0, 1.0, 0.98765, 12.345, 1234.5, 2.5e-5, -0.5)
    texts = ["–", "–", "∞", "0", "1", "0.988", "12.35", "1,234", "2.5e−05", "−0.5"]
    assert [number(value) for value in values] == texts


def reading(weight: float, verdict: str = "agrees", p: float | None = 0.5, **factors: str) -> dict:
    return {"factors": factors, "weight": weight, "p": p, "verdict": verdict}


def test_readings_end_in_a_conclusion() -> None:
    text = conclusion([reading(0.6, gap="0.1", start="a"), reading(0.39, gap="0.1", start="b"), reading(0.01, gap="0")])
    assert text == (
        "Reconstructed: the likeliest of 3 readings, of which 3 agree (p = 0.5): gap 0.1. "
        "Not told apart, start: a (60 %) or b (39 %)."
    )
    none = conclusion([reading(1.0, "differs", 1e-9, gap="0.1"), reading(0.0, "differs", 1e-20, gap="0")])
    assert none == "Of 2 readings none fits; the likeliest, gap 0.1, differs too (p = 1e−09)."
    one = conclusion([reading(1.0, "differs", 1e-9, gap="0.1"), reading(0.0, "agrees", 0.5, gap="0")])
    assert one == "Of 2 readings 1 agrees; the likeliest, gap 0.1, differs (p = 1e−09)."
    weak = [reading(1.0, "too weak to tell", 0.5, gap="0.1"), reading(0.0, "differs", 1e-20, gap="0")]
    few = "Too few trials to tell: the likeliest of 2 readings, of which 0 agree (p = 0.5): gap 0.1."
    assert conclusion(weak) == few
    assert conclusion([reading(0.0, p=None, gap="0")]) == "No reading gives numbers for this figure."


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing(violations, report: Path, width: int, scheme: str) -> None:
    for file in (report, *report.parent.glob("*/index.html")):
        assert violations(file, width, scheme) == [], file


def test_provenance_says_where_each_published_number_was_read(runs: list[FinishedRun]) -> None:
    curve = next(curve for curve in ledger() if curve.trials and curve.same_as is None and max(curve.y) <= 1)
    first, second = list(curve.points.values())[:2]

    def verdicts(rows):
        return [share_verdict("tiny", f"share {k}", 5, 10, published=p) for k, p in enumerate((first, second, first))]

    one = replace(runs[0], experiment=replace(EXPERIMENT, verdicts=verdicts))
    assert 'id="provenance"' not in render(runs, "attsvm reproduce", [])
    page = render([one], "attsvm reproduce", [])
    part = unescape(page[page.index('id="provenance"') : page.index('id="errata"')])
    assert ledger().paper in part
    assert ledger().version in part
    assert "1 curves, 2 numbers" in part
    row = re.search(">" + re.escape(curve.key) + "</td>(.*?)</tr>", part)
    assert row is not None
    for text in (f">{curve.page}<", f"{curve.y_name} by {curve.x_name}", f">{curve.trials}<", curve.setting):
        assert text in row[1]
