"""The playground as a visitor meets it: a server, a browser, and real pointers and keys."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from attsvm import SelectionProblem, solve

pytest.importorskip("starlette", reason="the extra playground is not installed")

from attsvm.playground.picture import answer
from attsvm.playground.plane import PageMemory
from attsvm.playground.presets import PRESETS
from attsvm.playground.state import TRAINERS


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(port: int) -> subprocess.Popen[str]:
    code = f"from attsvm.cli import main; raise SystemExit(main(['play', '--no-browser', '--port', '{port}']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    assert f"http://127.0.0.1:{port}/" in process.stdout.readline()
    return process


class Server:
    """A server that a test may kill and start again."""

    def __init__(self) -> None:
        self.port = free_port()
        self.process = start(self.port)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def restart(self) -> None:
        self.process = start(self.port)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.kill()


class Visit:
    """A page, and what went over its WebSocket."""

    def __init__(self, browser, port: int, preset: str, width: int = 1280, **options) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.page = self.context.new_page()
        self.requests: list[dict] = []
        self.replies: list[dict] = []
        self.console_log: list[str] = []
        self.request_log: list[str] = []
        self.page.on("console", lambda message: self.console_log.append(message.text))
        self.page.on("pageerror", lambda error: self.console_log.append(str(error)))
        self.page.on("request", lambda request: self.request_log.append(request.url))
        self.page.on("websocket", self._listen)
        self.page.goto(f"http://127.0.0.1:{port}/#{preset}")
        self.settle()

    def _listen(self, socket) -> None:
        self.request_log.append(socket.url)
        socket.on("framesent", lambda frame: self.requests.append(json.loads(frame)))
        socket.on("framereceived", lambda frame: self.replies.append(json.loads(frame)))

    def settle(self) -> None:
        """Wait until what was asked last, at rest, is drawn."""
        self.page.wait_for_function(
            "seq => { const at = document.querySelector('.attsvm-play').dataset;"
            " return at.draft === 'false' && Number(at.answered) >= seq; }",
            arg=self.requests[-1]["seq"] if self.requests else 1,
        )

    @property
    def state(self) -> dict:
        return self.requests[-1]["state"]

    @property
    def picture(self) -> dict:
        return next(one for one in reversed(self.replies) if one["seq"] == self.requests[-1]["seq"])

    def centre(self, token: str) -> tuple[float, float]:
        box = self.page.locator(f'[aria-label^="{token}"] .touch').bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.fixture
def visit(browser, server):
    sockets = []

    def open_page(preset: str = "preset=five-tokens", width: int = 1280, **options) -> Visit:
        sockets.append(Visit(browser, server.port, preset, width, **options))
        return sockets[-1]

    yield open_page
    for one in sockets:
        one.context.close()


def test_a_drag_changes_the_picture_and_its_numbers_are_those_of_solve(visit) -> None:
    here = visit()
    before, path = here.picture, here.page.locator(".path.W").first.get_attribute("d")
    x, y = here.centre("Sequence 1, token 1")
    here.page.mouse.move(x, y)
    here.page.mouse.down()
    for step in range(1, 25):
        here.page.mouse.move(x - 3 * step, y + 4 * step)
    here.page.mouse.up()
    here.settle()
    assert sum(message["draft"] for message in here.requests) >= 2  # answered while dragged, not only at the end
    now, state = here.picture, here.state
    assert state["tokens"][0][0] != PRESETS["five-tokens"]["state"]["tokens"][0][0]
    assert here.page.locator(".path.W").first.get_attribute("d") != path
    for name, norm in (("W", "frobenius"), ("KQ", "nuclear")):
        run = now["runs"][name]
        assert run["objective"] != before["runs"][name]["objective"]
        solution = solve(SelectionProblem(state["tokens"], state["queries"], run["kept"]), norm)
        # Both answers are certified to 1e-9 of the optimum, and both come from the same arithmetic.
        assert run["objective"] == pytest.approx(solution.objective, rel=1e-9)
        np.testing.assert_allclose(run["margins"], solution.margins, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(run["W"], solution.W, rtol=1e-9, atol=1e-9)
        assert run["support"] == solution.support.tolist()
    numbers = here.page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.facts div')].map(e => e.innerText.split('\\n')))"
    )
    assert float(numbers["SVM, Frobenius norm"]) == pytest.approx(now["runs"]["W"]["objective"], abs=1e-6)
    assert float(numbers["Certified gap"]) == pytest.approx(now["runs"]["W"]["gap"], rel=0.05)
    assert here.page.inner_text(".verdict").startswith(now["verdict"]["word"])


def test_one_request_is_under_way_at_a_time_and_the_last_is_the_newest(visit) -> None:
    here = visit()
    x, y = here.centre("Sequence 1, token 1")
    here.page.mouse.move(x, y)
    here.page.mouse.down()
    here.page.mouse.move(x + 60, y - 40, steps=120)
    here.page.mouse.up()
    here.settle()
    drafts = [message["seq"] for message in here.requests if message["draft"]]
    numbers = {one["seq"] for one in here.replies}
    assert len(drafts) < 120  # positions that came while an answer was awaited were never sent
    assert set(drafts) <= numbers
    assert here.requests[-1]["draft"] is False
    # The token ends under the pointer, whichever positions before were skipped.
    assert here.centre("Sequence 1, token 1") == pytest.approx((x + 60, y - 40), abs=2)


def test_touch_moves_a_token_on_a_narrow_screen(visit) -> None:
    here = visit(width=400, has_touch=True, is_mobile=True, device_scale_factor=2)
    assert here.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    x, y = here.centre("Sequence 1, token 1")
    session = here.context.new_cdp_session(here.page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        where = [{"x": at[0], "y": at[1]} for at in points]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": where})

    touch("touchStart", (x, y))
    for step in range(1, 9):
        touch("touchMove", (x - 5 * step, y + 6 * step))
    touch("touchEnd")
    here.settle()
    assert here.state["tokens"][0][0][0] < 1.0
    assert here.page.evaluate("window.scrollY") == 0  # the page did not scroll under the finger


def test_keys_move_keep_and_are_told(visit) -> None:
    here = visit()
    here.page.locator('[aria-label^="Sequence 1, token 2"]').focus()
    here.page.keyboard.press("Shift+ArrowRight")
    here.page.wait_for_function("() => location.hash.includes('tokens')")
    here.settle()
    assert here.state["tokens"][0][1][0] == pytest.approx(-0.19 + 0.25)
    assert here.page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Sequence 1, token 2")
    here.page.keyboard.press("Enter")
    here.page.wait_for_function("() => location.hash.includes('keep')")
    here.settle()
    assert here.state["keep"] == [1, 0]
    assert here.page.evaluate("document.querySelector('.verdict').ariaLive") == "polite"
    assert here.page.locator("select[name=keep]").input_value() == "hand"


@pytest.mark.parametrize("preset", ["infeasible", "classes"])
def test_a_setting_that_is_chosen_leaves_what_was_dragged(visit, preset: str) -> None:
    here = visit(f"preset={preset}")
    one = here.page.locator('svg [role="button"]').last
    one.focus()
    here.page.keyboard.press("Shift+ArrowUp")
    points = "points" if preset == "classes" else "tokens"
    here.page.wait_for_function("name => location.hash.includes(name)", arg=points)
    here.settle()
    points_after = here.state[points]
    assert points_after != PRESETS[preset]["state"][points]
    here.page.select_option("select[name=steps]", "500")
    here.page.wait_for_function("() => location.hash.includes('steps')")
    here.settle()
    assert (here.state[points], here.state["steps"]) == (points_after, 500)


def test_the_address_holds_the_state(visit) -> None:
    here = visit("preset=three-tokens")
    here.page.select_option("select[name=norm]", "max")
    here.page.wait_for_function("() => location.hash.includes('norm')")
    here.page.select_option("select[name=sequences]", "3")
    here.page.wait_for_function("() => location.hash.includes('queries')")
    here.settle()
    address = urllib.parse.urlparse(here.page.url).fragment
    there = visit(address)
    assert there.state == here.state
    assert there.picture["runs"] == here.picture["runs"]
    assert urllib.parse.urlparse(there.page.url).fragment == address


def test_an_address_that_was_cut_is_told_and_the_way_back_leads_to_the_picture_before(visit) -> None:
    here = visit("preset=three-tokens&tokens=%5B%5B%5B1.0%2C0.")
    assert "perhaps it was cut" in here.page.inner_text(".notice")
    assert here.state == next(iter(PRESETS.values()))["state"]
    here.page.select_option("select[name=preset]", "infeasible")
    here.page.wait_for_function("() => location.hash.includes('infeasible')")
    here.settle()
    assert not here.page.is_visible(".notice")
    here.page.select_option("select[name=norm]", "max")
    here.page.wait_for_function("() => location.hash.includes('norm')")
    here.page.select_option("select[name=preset]", "classes")
    here.page.wait_for_function("() => location.hash.includes('classes')")
    here.page.go_back()
    here.page.wait_for_function("() => location.hash.includes('infeasible')")
    here.settle()
    assert here.state == PRESETS["infeasible"]["state"] | {"norm": "max"}


@pytest.mark.parametrize("address", ["tokens=5", "preset=nobody", "preset=classes&points=%5B1%5D", "scene=%22sea%22"])
def test_no_address_leaves_the_page_empty(visit, address: str) -> None:
    here = visit(address)
    assert here.console_log == []
    assert "perhaps it was cut" in here.page.inner_text(".notice")
    assert here.picture["verdict"]["sentence"] in here.page.inner_text(".verdict")


def test_a_label_keeps_the_focus_and_a_second_copy_the_name_of_its_button(visit) -> None:
    here = visit()
    here.page.locator("[name=label-1]").focus()
    here.page.keyboard.press("Enter")
    here.page.wait_for_function("() => location.hash.includes('labels')")
    assert here.page.evaluate("document.activeElement.name") == "label-1"
    button = here.page.get_by_role("button", name="Copy as Python")
    handle = button.element_handle()
    for _ in range(2):
        handle.click()
    here.page.wait_for_function("one => one.textContent === 'Copy as Python'", arg=handle)


def test_every_preset_is_listed_and_answers(visit) -> None:
    here = visit()
    options = here.page.locator("select[name=preset] option").all_inner_texts()
    assert options == [preset["title"] for preset in PRESETS.values()]
    presets = here.page.evaluate(
        "() => [...document.querySelector('select[name=optimizer]').options].map(o => o.value)"
    )
    assert sorted(presets) == sorted(TRAINERS)
    for name, preset in PRESETS.items():
        here.page.select_option("select[name=preset]", name)
        here.page.wait_for_function(
            "scene => document.querySelector('.attsvm-play').dataset.scene === scene", arg=preset["state"]["scene"]
        )
        here.page.wait_for_timeout(20)
        here.settle()
        assert here.state == preset["state"]
        assert here.page.inner_text(".about") == preset["about"]
    assert here.console_log == []
    assert {urllib.parse.urlparse(url).hostname for url in here.request_log if not url.startswith("data:")} == {
        "127.0.0.1"
    }


@pytest.mark.parametrize(("preset", "width", "scheme"), [("counterexample", 1280, "light"), ("classes", 400, "dark")])
def test_axe_finds_nothing(visit, preset: str, width: int, scheme: str) -> None:
    import axe_playwright_python

    here = visit(f"preset={preset}", width, color_scheme=scheme, bypass_csp=True)
    here.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    here.page.add_script_tag(path=Path(axe_playwright_python.__file__).parent / "axe.min.js")
    result = here.page.evaluate("axe.run(document, {resultTypes: ['violations']})")  # as in conftest.violations
    assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in result["violations"]] == []
    assert here.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_in_a_notebook_the_colours_are_those_of_its_theme(visit) -> None:
    here = visit()
    light, dark = "rgb(251, 250, 248)", "rgb(21, 24, 28)"

    def ground(system: str) -> str:
        here.page.emulate_media(color_scheme=system)
        return here.page.evaluate("getComputedStyle(document.querySelector('.attsvm-play')).backgroundColor")

    assert (ground("light"), ground("dark")) == (light, dark)
    here.page.evaluate("document.body.className = ''")
    assert (ground("light"), ground("dark")) == (light, light)  # a notebook that says nothing is white
    # What VS Code and JupyterLab write on the body of their pages.
    for attribute, theme, colour in (
        ("data-vscode-theme-kind", "vscode-light", light),
        ("data-vscode-theme-kind", "vscode-dark", dark),
        ("data-vscode-theme-kind", "vscode-high-contrast", dark),
        ("data-vscode-theme-kind", "vscode-high-contrast-light", light),
        ("data-jp-theme-light", "true", light),
        ("data-jp-theme-light", "false", dark),
    ):
        here.page.evaluate("([name, value]) => document.body.setAttribute(name, value)", [attribute, theme])
        assert (ground("light"), ground("dark")) == (colour, colour), theme
        here.page.evaluate("name => document.body.removeAttribute(name)", attribute)


@pytest.mark.slow
def test_a_page_whose_server_is_killed_says_so_and_goes_on_when_it_is_back(visit, server) -> None:
    here = visit()
    number = here.requests[-1]["seq"]
    server.kill()
    here.page.wait_for_function("() => document.querySelector('.notice').textContent.includes('server has stopped')")
    here.page.locator('[aria-label^="Sequence 2, token 1"]').focus()
    here.page.keyboard.press("ArrowUp")
    server.restart()
    here.page.wait_for_function("() => document.querySelector('.notice').hidden")
    # The frames of an answer reach this process before the news that the page has drawn it.
    expression = "seq => Number(document.querySelector('.attsvm-play').dataset.answered) > seq"
    here.page.wait_for_function(expression, arg=number)
    here.settle()
    assert here.page.evaluate("location.hash.includes('tokens')")
    assert here.state["tokens"][1][0] == [1.0, -0.45]
    assert here.picture["runs"]["W"]["status"] == "OPTIMAL"


def test_the_server_answers_this_machine_and_its_own_pages_only(server) -> None:
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    port = server.port
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.2", port)):
        pass
    with pytest.raises(InvalidStatus):
        connect(f"ws://127.0.0.1:{port}/model", origin="http://example.org")  # pyright: ignore[reportArgumentType]
    with connect(f"ws://127.0.0.1:{port}/model") as mine:
        mine.send("not JSON")
        assert json.loads(mine.recv())["error"] == "state has type NoneType; an object was expected."


def test_a_taken_port_is_told_in_one_line(server) -> None:
    code = f"from attsvm.cli import main; raise SystemExit(main(['play', '--no-browser', '--port', '{server.port}']))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 2
    assert run.stderr.startswith(f"attsvm: port {server.port} cannot be used: ")
    assert run.stderr.count("\n") == 1


def test_an_interrupt_ends_the_server_quietly() -> None:
    process = start(free_port())
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "")


@pytest.mark.parametrize("name", PRESETS)
def test_the_script_prints_the_numbers_of_the_page(name: str) -> None:
    state = PRESETS[name]["state"]
    picture = answer({"seq": 1, "state": {**state, "steps": min(state["steps"], 300)}}, PageMemory())
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        exec(picture["script"], {})
    lines = [line.split() for line in stream.getvalue().splitlines()]
    values = {
        key: [float(line[-1]) for line in lines if line[0] == key and len(line) == 2] for key in ("loss", "correlation")
    }
    rows = [line[1:] for line in lines if line[0] == "SVM"]
    runs = (
        picture["races"]
        if name == "classes"
        else [picture["runs"][key] for key in ("W", "KQ") if key in picture["runs"]]
    )
    assert len(rows) == len(runs)
    for run, (status, *numbers) in zip(runs, rows, strict=True):
        assert run["status"] == status
        if run["objective"] is not None:
            assert float(numbers[1]) == pytest.approx(run["objective"], rel=1e-9)
            assert float(numbers[3]) == pytest.approx(run["gap"], abs=1e-9)
    # A script of float32 training computes its loss in float32.
    rel = 1e-5 if name == "float32" else 1e-12
    assert values["loss"] == pytest.approx([run["loss"][-1] for run in runs if "loss" in run], rel=rel)
    ends = [run["correlation"] if name == "classes" else run["correlation"][-1] for run in runs]
    ends = [end for end in ends if end is not None]
    assert values["correlation"] == pytest.approx(ends, abs=1e-9)


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1", None, 200),  # so browsers name port 80
        ("localhost", "http://localhost", 200),
        ("localhost:{port}", "http://localhost:{port}", 200),
        ("localhost", "http://localhost:{port}", 403),
        ("127.0.0.1", "http://example.org", 403),
        ("example.org", None, 403),
        ("127.0.0.1.example.org:{port}", None, 403),
        ("", None, 403),
    ],
)
def test_a_host_without_a_port_is_this_machine_too(server, host: str, origin: str | None, status: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Host": host} | ({} if origin is None else {"Origin": origin})
    connection.request("GET", "/", headers={name: value.format(port=server.port) for name, value in headers.items()})
    assert connection.getresponse().status == status
    connection.close()


def test_messages_of_any_kind_are_answered_on_one_socket(server) -> None:
    from websockets.sync.client import connect

    def message(seq: str, **change: str) -> str:
        state = {name: json.dumps(value) for name, value in PRESETS["five-tokens"]["state"].items()} | change
        fields = ", ".join(f'"{name}": {value}' for name, value in state.items())
        return f'{{"seq": {seq}, "draft": true, "state": {{{fields}}}}}'

    frames = [
        b"\x00\xff",
        message("NaN"),
        message("1e999"),
        message("1" + 400 * "0"),
        message("1", tokens=f"[[[1{400 * '0'}, 0], [0, 1]]]"),
        message("1", tokens="1" + 5000 * "0"),
        100_000 * "[",
    ]
    with connect(f"ws://127.0.0.1:{server.port}/model", open_timeout=60) as mine:
        for frame in frames:
            mine.send(frame)
            assert "expected" in json.loads(mine.recv(timeout=60))["error"]
        mine.send(message("7"))
        assert json.loads(mine.recv(timeout=60))["verdict"]
