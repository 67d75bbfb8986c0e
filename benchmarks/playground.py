"""How many updates a second the playground draws while a token is dragged, and how long each takes.

    python playground.py [SECONDS]

Headless Chromium, wide and as wide as a telephone; the pointer moves sixty times a second in a circle around token 1
of the first sequence (of the classes: a point). Latency runs from a request of the page to its answer. Needs an idle
machine, since server and browser share it, and ``pip install 'attsvm[playground]' playwright``.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from attsvm.playground.presets import PRESETS

WIDTHS = (1280, 400)
RATE, RADIUS = 60, 30


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def processor(process: subprocess.Popen[str]) -> float:
    """Processor seconds of a process so far."""
    with open(f"/proc/{process.pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def circle(page: Page, seconds: float) -> None:
    """Move the first token in a circle for so many seconds, and keep it."""
    box = page.locator(".touch").first.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    start = time.perf_counter()
    for step in range(int(seconds * RATE)):
        angle = step / RATE
        page.mouse.move(x + RADIUS * (math.cos(angle) - 1), y + RADIUS * math.sin(angle))
        page.wait_for_timeout(max(0.0, 1e3 * (start + (step + 1) / RATE - time.perf_counter())))


def drag(browser: Browser, address: str, width: int, seconds: float) -> list[float]:
    """Latencies in milliseconds of the updates that a drag of so many seconds got."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    starts: dict[int, float] = {}
    latencies: list[float] = []

    def on_request(frame: Any) -> None:
        starts[json.loads(frame)["seq"]] = time.perf_counter()

    def on_answer(frame: Any) -> None:
        start = starts.pop(json.loads(frame).get("seq", -1), None)
        if start is not None:
            latencies.append(1e3 * (time.perf_counter() - start))

    page.on("websocket", lambda socket: (socket.on("framesent", on_request), socket.on("framereceived", on_answer)))
    page.goto(address)
    page.wait_for_selector(".touch")
    page.wait_for_timeout(3000)
    latencies.clear()
    circle(page, seconds)
    during = list(latencies)
    page.mouse.up()
    page.close()
    return during


def main() -> None:
    """Print the table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    port = free_port()
    code = f"from attsvm.cli import main; raise SystemExit(main(['play', '--no-browser', '--port', '{port}']))"
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    server.stdout.readline()
    print("| preset | width | updates a second | latency, least / median / 95 % | server, an update |")
    print("|---|---:|---:|---|---:|")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for preset in PRESETS:
                for width in WIDTHS:
                    before = processor(server)
                    latencies = drag(browser, f"http://127.0.0.1:{port}/#{preset}", width, seconds)
                    least, median, high = np.quantile(latencies, [0.0, 0.5, 0.95]) if latencies else (math.nan,) * 3
                    own = 1e3 * (processor(server) - before) / max(len(latencies), 1)
                    latency = f"{least:.0f} / {median:.0f} / {high:.0f} ms"
                    print(
                        f"| {preset} | {width} | {len(latencies) / seconds:.0f} | {latency} | {own:.0f} ms |",
                        flush=True,
                    )
            browser.close()
    finally:
        server.kill()


if __name__ == "__main__":
    main()
