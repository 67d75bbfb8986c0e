"""Photograph the playground, light and dark: python docs/pictures/playground.py (needs chromium)."""

import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

from attsvm.playground.frontend import INDEX_PAGE

HERE = Path(__file__).parent

with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    for scheme in ("light", "dark"):
        page = browser.new_page(viewport={"width": 1180, "height": 940}, color_scheme=scheme)
        page.goto(INDEX_PAGE.as_uri())
        page.wait_for_selector(".attsvm-play[data-drawn]")
        page.screenshot(path=HERE / f"playground-{scheme}.png")
    browser.close()
