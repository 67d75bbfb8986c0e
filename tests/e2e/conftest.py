"""One browser a file of tests, and pages that note what they say and what they ask for."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
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
    tab = browser.new_page(viewport={"width": width, "height": height})
    tab.console_log, tab.request_log = [], []
    tab.on("console", lambda message: tab.console_log.append(message.text))
    tab.on("pageerror", lambda error: tab.console_log.append(str(error)))
    tab.on("request", lambda request: tab.request_log.append(request.url))
    tab.goto(report.as_uri())
    tab.wait_for_load_state("load")
    yield tab
    tab.close()


@pytest.fixture
def violations(browser) -> Callable[[Path, int, str], list[tuple[str, list[str]]]]:
    """Tell what axe-core has against a file, everything on it opened."""
    axe_playwright_python = pytest.importorskip(
        "axe_playwright_python", reason="axe-playwright-python is not installed"
    )

    def check_file(file: Path, width: int, scheme: str) -> list[tuple[str, list[str]]]:
        tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True)
        tab.goto(file.as_uri())
        tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        tab.add_script_tag(path=Path(axe_playwright_python.__file__).parent / "axe.min.js")
        # Of what passes, nobody asks which nodes they were.
        result = tab.evaluate("axe.run(document, {resultTypes: ['violations']})")
        tab.close()
        return [(one["id"], [node["html"] for node in one["nodes"]]) for one in result["violations"]]

    return check_file
