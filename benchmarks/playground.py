"""Updates per second of the playground while a token is dragged, and the time of each.

    python playground.py [SECONDS]

The page runs in headless Chromium, wide and as wide as a telephone. In every frame the pointer moves in a circle around
token 1 of the first sequence (for classes, around a point). An update is training, SVMs and drawing. Its time (least,
median, 95 %) is wall time and needs an idle machine. Processor time per update counts everything that the page's thread
does between two updates; below 16 ms the page can draw 60 updates per second. Needs ``pip install attsvm playwright``.
"""

from __future__ import annotations

import math
import shutil
import sys
import time

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from attsvm.playground.frontend import INDEX_PAGE, presets

WIDTHS = (1280, 400)
RADIUS = 30

OBSERVED = """() => {
    window.latencies = [];
    const root = document.querySelector(".attsvm-play");
    new MutationObserver(() => window.latencies.push(Number(root.dataset.latency)))
        .observe(root, { attributes: true, attributeFilter: ["data-latency"] });
}"""


CIRCLE = """([x, y, radius, seconds]) => new Promise((done) => {
    const start = performance.now();
    (function step() {
        const angle = (performance.now() - start) / 1000;
        if (angle > seconds) return done();
        const place = { clientX: x + radius * (Math.cos(angle) - 1), clientY: y + radius * Math.sin(angle) };
        window.dispatchEvent(new MouseEvent("mousemove", { ...place, bubbles: true, view: window }));
        requestAnimationFrame(step);
    })();
})"""


def circle(page: Page, seconds: float) -> None:
    """Move the first token in a circle for some seconds, once per frame of the browser, and keep it."""
    box = page.locator(".token .touch").first.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.evaluate(CIRCLE, [x, y, RADIUS, seconds])


def drag(browser: Browser, address: str, width: int, seconds: float) -> tuple[list[float], float, float]:
    """Return milliseconds of the updates of a drag, their number per second, and their mean processor time."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(address)
    page.wait_for_selector(".attsvm-play[data-drawn]")
    page.wait_for_timeout(1500)
    page.evaluate(OBSERVED)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def processor() -> float:
        metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        return metrics["TaskDuration"]

    start, clock = processor(), time.perf_counter()
    circle(page, seconds)
    elapsed, used = time.perf_counter() - clock, processor() - start
    latencies = page.evaluate("window.latencies")
    page.mouse.up()
    page.close()
    return latencies, len(latencies) / elapsed, 1e3 * used / max(1, len(latencies))


def main() -> None:
    """Print the table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    print("| preset | width | updates a second | least / median / 95 % | processor time |")
    print("|---|---:|---:|---|---:|")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for preset in presets():
            for width in WIDTHS:
                latencies, rate, used = drag(browser, f"{INDEX_PAGE.as_uri()}#preset={preset}", width, seconds)
                least, median, high = np.quantile(latencies, [0.0, 0.5, 0.95]) if latencies else (math.nan,) * 3
                times = f"{least:.0f} / {median:.0f} / {high:.0f} ms"
                print(f"| {preset} | {width} | {rate:.0f} | {times} | {used:.1f} ms |", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
