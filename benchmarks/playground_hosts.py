"""The playground in the hosts that could carry `attsvm play`: round trips while a token is dragged, and weight.

    python benchmarks/playground_hosts.py [HOST ...] [--seconds 5]

One module, three hosts: Starlette (`attsvm play`), marimo's app and Panel's ``AnyWidgetComponent``, each in a process
of its own, each with the first preset in the same headless Chromium. The pointer moves sixty times a second in a circle
around the first token. The page itself takes the latency, from its request to the picture drawn. Weight: what the host
adds to the packages of ``attsvm[cli]``, its memory with one page open, and what that page loads.

Needs an idle machine, since server and browser share it, and
``pip install 'attsvm[playground]' marimo panel playwright``.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, CDPSession, Error, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))
from installed_size import closure, size
from playground import circle, free_port

STARLETTE = """
import sys
from attsvm.cli import main
raise SystemExit(main(["play", "--no-browser", "--port", sys.argv[1]]))
"""
MARIMO = """
import marimo
app = marimo.App()

@app.cell
def _():
    from attsvm import Playground
    Playground()
    return

if __name__ == "__main__":
    app.run()
"""
PANEL = """
import param
from panel.custom import AnyWidgetComponent
from attsvm.playground.frontend import module, style
from attsvm.playground.picture import answer
from attsvm.playground.plane import PageMemory

class Page(AnyWidgetComponent):
    _esm = module()
    _stylesheets = [style()]
    request, answer, initial = param.Parameter(), param.Parameter(), param.Parameter()
    notice, addressed = param.String(""), param.Boolean(False)

    @param.depends("request", watch=True)
    def respond(self):
        self.answer = answer(self.request, self.memory)

page = Page(sizing_mode="stretch_width")
page.memory = PageMemory()
page.servable()
"""


@dataclass(frozen=True)
class Host:
    """A server of the page: its script, what comes between the interpreter and that, and after; and its packages."""

    script: str
    before: str
    after: str
    packages: tuple[str, ...]


HOSTS = {
    "Starlette": Host(STARLETTE, "", "{port}", ("starlette", "uvicorn", "websockets")),
    "marimo": Host(MARIMO, "-m marimo run", "--headless --no-token --port {port}", ("marimo", "anywidget")),
    "Panel": Host(PANEL, "-m panel serve", "--port {port}", ("panel",)),
}

OBSERVED = """root => {
    window.latencies = [];
    new MutationObserver(() => {
        if (root.dataset.draft === "true") window.latencies.push(Number(root.dataset.latency));
    }).observe(root, {attributes: true, attributeFilter: ["data-answered"]});
}"""


def resident(pid: int) -> int:
    """Bytes of memory of a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(resident(int(child)) for child in children)


def transfers(session: CDPSession) -> list[int]:
    """Let the browser note the bytes of each answer to a request for a file."""
    sizes: list[int] = []
    session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: sizes.append(int(event["encodedDataLength"])))
    return sizes


def measure(name: str, host: Host, browser: Browser, seconds: float) -> str:
    """Return a row of the table."""
    port = str(free_port())
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "page.py"
        script.write_text(host.script, encoding="utf-8")
        command = [sys.executable, *host.before.split(), str(script), *host.after.format(port=port).split()]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            bodies = transfers(page.context.new_cdp_session(page))
            path = "/page" if name == "Panel" else "/"
            for _ in range(300):
                try:
                    page.goto(f"http://127.0.0.1:{port}{path}")
                    break
                except Error:  # nothing listens yet
                    time.sleep(0.1)
            page.locator(".attsvm-play[data-answered]").wait_for(timeout=60_000)
            page.wait_for_timeout(5000)
            page.locator(".attsvm-play").evaluate(OBSERVED)
            circle(page, seconds)
            latencies = page.evaluate("window.latencies")
            page.mouse.up()
            memory = resident(server.pid)
            page.close()
        finally:
            server.kill()
            server.wait()
    least, median, high = np.quantile(latencies, [0.0, 0.5, 0.95]) if latencies else (math.nan,) * 3
    own = set().union(*(closure(package, set(), set()) for package in host.packages))
    extra = own - closure("attsvm", {"cli"}, set())
    return (
        f"| {name} | {len(latencies) / seconds:.0f} | {least:.0f} / {median:.0f} / {high:.0f} ms | {len(extra)} "
        f"| {sum(map(size, extra)) / 1e6:.0f} MB | {memory / 1e6:.0f} MB | {len(bodies)} | {sum(bodies) / 1e6:.2f} MB |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hosts", nargs="*", metavar="HOST", help=", ".join(HOSTS))
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    print("| host | updates a second | latency, least / median / 95 % | packages | on disk | memory | files | loaded |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in options.hosts or HOSTS:
            print(measure(name, HOSTS[name], browser, options.seconds), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
