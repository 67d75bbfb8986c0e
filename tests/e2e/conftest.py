"""One browser a file of tests, and pages that note what they say and what they ask for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(params=[(1280, 800), (400, 800)], ids=["page", "telephone"])
def page(request: pytest.FixtureRequest, browser, report: Path) -> Iterator:
    """The file's ``report``, opened wide and narrow."""
    width, height = request.param
    opened = browser.new_page(viewport={"width": width, "height": height})
    opened.said, opened.asked = [], []
    opened.on("console", lambda message: opened.said.append(message.text))
    opened.on("pageerror", lambda error: opened.said.append(str(error)))
    opened.on("request", lambda request: opened.asked.append(request.url))
    opened.goto(report.as_uri())
    opened.wait_for_load_state("load")
    yield opened
    opened.close()
