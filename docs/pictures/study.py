"""Photograph a study of texts, light and dark: python docs/pictures/study.py (needs chromium; half a minute)."""

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from attsvm.data.docstrings import docstrings
from attsvm.data.text import word_dataset
from attsvm.report.study import write_study
from attsvm.study import Settings, study
from attsvm.study.verdict import claims

HERE = Path(__file__).parent
# Pixels: down to the end of the second text.
HEIGHT = 510

result = study(word_dataset(docstrings()), Settings(train=60, steps=4000, shuffles=3))
with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
    report = write_study(result, claims(result), folder, "attsvm study")
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    for scheme in ("light", "dark"):
        page = browser.new_page(viewport={"width": 1080, "height": 880}, color_scheme=scheme)
        page.goto(report.as_uri())
        box = page.locator("#passages").bounding_box()
        page.screenshot(path=HERE / f"study-{scheme}.png", full_page=True, clip={**box, "height": HEIGHT})
    browser.close()
