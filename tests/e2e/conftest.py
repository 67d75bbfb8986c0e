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
    opened = browser.new_page(viewport={"width": width, "height": height})
    opened.said, opened.asked = [], []
    opened.on("console", lambda message: opened.said.append(message.text))
    opened.on("pageerror", lambda error: opened.said.append(str(error)))
    opened.on("request", lambda request: opened.asked.append(request.url))
    opened.goto(report.as_uri())
    opened.wait_for_load_state("load")
    yield opened
    opened.close()


@pytest.fixture
def violations(browser) -> Callable[[Path, int, str], list[tuple[str, list[str]]]]:
    """Tell what axe-core has against a file, everything on it opened."""
    axe_playwright_python = pytest.importorskip(
        "axe_playwright_python", reason="axe-playwright-python is not installed"
    )

    def found(file: Path, width: int, scheme: str) -> list[tuple[str, list[str]]]:
        opened = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True)
        opened.goto(file.as_uri())
        opened.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        opened.add_script_tag(path=Path(axe_playwright_python.__file__).parent / "axe.min.js")
        result = opened.evaluate("axe.run(document)")
        opened.close()
        return [(one["id"], [node["html"] for node in one["nodes"]]) for one in result["violations"]]

    return found
