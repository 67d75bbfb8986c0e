"""Photograph the playground, light and dark: python docs/pictures/playground.py (needs chromium)."""

import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PORT = 8379
HERE = Path(__file__).parent

code = f"from attsvm.cli import main; main(['play', '--no-browser', '--port', '{PORT}'])"
server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
try:
    server.stdout.readline()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1180, "height": 880}, color_scheme=scheme)
            page.goto(f"http://127.0.0.1:{PORT}/")
            page.wait_for_selector(".attsvm-play[data-draft=false]")
            page.screenshot(path=HERE / f"playground-{scheme}.png")
        browser.close()
finally:
    server.kill()
