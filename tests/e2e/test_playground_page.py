"""The playground as a visitor meets it: a file, a browser without a network, and real pointers and keys."""

from __future__ import annotations

import json
import shutil
import urllib.parse
from pathlib import Path

import pytest

from attsvm.playground.frontend import FOLDER, INDEX_PAGE, presets

PRESETS = presets()
KILOBYTES = 300


class Visit:
    """The page, opened from its file."""

    def __init__(self, browser, fragment: str, page: Path = INDEX_PAGE, width: int = 1280, **options) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **options)
        self.page = self.context.new_page()
        self.console_log: list[str] = []
        self.request_log: list[str] = []
        self.page.on("console", lambda message: self.console_log.append(message.text))
        self.page.on("pageerror", lambda error: self.console_log.append(str(error)))
        self.page.on("request", lambda request: self.request_log.append(request.url))
        self.page.goto(f"{page.as_uri()}#{fragment}")
        self.page.wait_for_selector(".attsvm-play[data-drawn]")

    @property
    def root(self):
        return self.page.locator(".attsvm-play")

    def wait(self, expression: str) -> None:
        self.page.wait_for_function(f"() => {expression}")

    def act(self, action) -> None:
        """Do something and wait until the address knows of it and the page has drawn it."""
        before = int(self.root.get_attribute("data-settled"))
        action()
        self.wait(f"document.querySelector('.attsvm-play').dataset.settled > {before}")
        drawn = int(self.root.get_attribute("data-drawn"))
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert int(self.root.get_attribute("data-drawn")) >= drawn

    @property
    def state(self) -> dict:
        return self.page.evaluate("decodeState(location.hash).state")

    @property
    def picture(self) -> dict:
        """The picture of the state in the address."""
        return self.page.evaluate("numbersOf(pictureOf(decodeState(location.hash).state, trainings()))")

    @property
    def verdict(self) -> str:
        return self.page.inner_text(".verdict")

    def centre(self, token: str) -> tuple[float, float]:
        box = self.page.locator(f'[aria-label^="{token}"] .touch').bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.fixture
def visit(browser):
    contexts = []

    def open_page(fragment: str = "preset=five-tokens", page: Path = INDEX_PAGE, width: int = 1280, **options) -> Visit:
        here = Visit(browser, fragment, page, width, **options)
        contexts.append(here.context)
        return here

    yield open_page
    for context in contexts:
        context.close()


def test_the_page_is_small_and_asks_for_nothing_but_its_files(visit) -> None:
    here = visit()
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 1000 * KILOBYTES
    assert all(url.startswith((FOLDER.as_uri(), "data:")) for url in here.request_log)
    assert here.console_log == []


def test_verdict_and_numbers_follow_a_drag_in_every_frame(visit) -> None:
    here = visit()
    here.page.evaluate("""() => {
        window.seen = [];
        const root = document.querySelector(".attsvm-play");
        const near = () => [...root.querySelectorAll(".facts dd")].map((one) => one.textContent);
        new MutationObserver(() => {
            const at = d3.select(root.querySelector(".token")).datum().at;
            window.seen.push({ at, verdict: root.querySelector(".verdict").textContent, facts: near() });
        }).observe(root, { attributes: true, attributeFilter: ["data-drawn"] });
    }""")
    x, y = here.centre("Sequence 1, token 1")
    here.page.mouse.move(x, y)
    here.page.mouse.down()

    def let_go() -> None:
        for step in range(1, 25):
            here.page.mouse.move(x - 6 * step, y + 8 * step)
        here.page.mouse.up()

    here.act(let_go)
    seen = here.page.evaluate("window.seen")
    assert len({json.dumps(one["at"]) for one in seen}) >= 2  # drawn while dragged, not only at the end
    # What a frame says belongs to what it shows.
    state = here.state
    for one in seen[:: max(1, len(seen) // 5)]:
        moved = state | {"tokens": [[one["at"], *state["tokens"][0][1:]], state["tokens"][1]]}
        expected = here.page.evaluate("state => pictureOf(state, trainings()).verdict", moved)
        assert one["verdict"] == f"{expected['word']}. {expected['sentence']}"
    assert here.centre("Sequence 1, token 1") == pytest.approx((x - 144, y + 192), abs=2)
    assert float(seen[-1]["facts"][1]) == pytest.approx(here.picture["runs"]["W"]["objective"], abs=1e-6)


@pytest.mark.parametrize("preset", ["turn", "composition"])
def test_a_frame_of_a_drag_writes_only_what_changes(visit, preset: str) -> None:
    here = visit(f"preset={preset}")
    here.page.evaluate("""() => {
        window.again = [];
        const root = document.querySelector(".attsvm-play");
        const texts = (nodes) => [...nodes].map((node) => node.data ?? "a node").join();
        new MutationObserver((records) => records.forEach((one) => {
            const written = one.type === "attributes"
                ? one.oldValue === one.target.getAttribute(one.attributeName)
                : one.addedNodes.length === 1 && texts(one.removedNodes) === texts(one.addedNodes);
            if (written && one.target !== root) window.again.push(`${one.target.outerHTML} ${one.attributeName}`);
        })).observe(root, { subtree: true, attributes: true, attributeOldValue: true, childList: true });
    }""")
    x, y = here.centre("Sequence 1, token 1")
    here.page.mouse.move(x, y)
    here.page.mouse.down()
    drawn = int(here.root.get_attribute("data-drawn"))
    for step in range(1, 6):
        here.page.mouse.move(x + 5 * step, y + 3 * step)
    here.wait(f"document.querySelector('.attsvm-play').dataset.drawn > {drawn}")
    assert here.page.evaluate("window.again") == []
    here.page.mouse.up()


# Centres of the elements that match a selector, and half their widths.
CENTRES = """selector => [...document.querySelectorAll(selector)].map((one) => {
    const box = one.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2, box.width / 2];
})"""


def test_w_turns_in_the_first_picture_and_no_tokens_cover_each_other(visit) -> None:
    here = visit("", width=400)
    first = PRESETS[next(iter(PRESETS))]["state"]
    assert here.state == first
    start, end = here.page.evaluate(
        """state => {
            const svm = pictureOf(state, trainings()).runs.W.target;
            return [1, 2000].map((step) => cosine(pictureOf({ ...state, step }, trainings()).runs.W.trained, svm));
        }""",
        first,
    )
    assert start < 0.5  # more than a sixth of a turn
    assert end > 0.999
    rings = here.page.evaluate(CENTRES, ".token .ring")
    for i, (x, y, r) in enumerate(rings):
        assert all((x - a) ** 2 + (y - b) ** 2 > (2 * r) ** 2 for a, b, _ in rings[:i])


@pytest.mark.parametrize("width", [400, 1280])
def test_tokens_that_nearly_coincide_are_drawn_apart(visit, width: int) -> None:
    """Fig. 1 has a token of each sequence 0.04 from the other."""
    here = visit("preset=five-tokens", width=width)
    shapes = here.page.evaluate(CENTRES, ".token .shape")
    (a, b, r), (c, d, s) = shapes[3], shapes[9]
    assert ((a - c) ** 2 + (b - d) ** 2) ** 0.5 > 0.9 * (r + s)
    numbers = here.page.evaluate(CENTRES, ".token .name")
    assert abs(numbers[3][1] - numbers[9][1]) > 12


@pytest.mark.parametrize("name", [name for name, one in PRESETS.items() if one["state"]["scene"] == "plane"])
def test_the_score_direction_can_be_taken_hold_of(visit, name: str) -> None:
    """Tokens lie above it, each under a finger of radius 17."""
    here = visit(f"preset={name}", width=400)
    x, y = here.centre("Output weights v" if PRESETS[name]["state"]["head"] == "relu" else "Score direction v")
    tokens = here.page.evaluate(CENTRES, ".token .touch")
    assert min((x - a) ** 2 + (y - b) ** 2 for a, b, _ in tokens) > 17**2


def test_steps_play_pause_and_slide(visit) -> None:
    here = visit("preset=turn")
    counter, slider = here.page.locator(".step"), here.page.locator("input[type=range]")
    here.act(lambda: here.page.get_by_role("button", name="One step").click())
    assert here.state["step"] == 1
    assert here.verdict.startswith("Under way. After 1 step ")
    here.act(lambda: here.page.get_by_role("button", name="One step").click())
    assert counter.inner_text() == "step 2 of 2,000"
    here.page.get_by_role("button", name="Play").click()
    here.page.wait_for_timeout(300)
    here.act(lambda: here.page.get_by_role("button", name="Pause").click())
    step = here.state["step"]
    assert 2 < step < 2000
    here.page.wait_for_timeout(100)
    assert here.state["step"] == step
    slider.focus()
    here.act(lambda: here.page.keyboard.press("ArrowLeft"))
    assert here.state["step"] < step
    here.act(lambda: here.page.keyboard.press("End"))
    assert here.state["step"] is None
    assert here.verdict.startswith("Globally optimal.")
    assert slider.get_attribute("aria-valuetext") == "step 2,000 of 2,000"
    here.act(lambda: here.page.keyboard.press("Home"))
    assert here.state["step"] == 0


def test_a_local_optimum_has_its_own_colour(visit) -> None:
    here = visit("preset=counterexample")
    colour = "getComputedStyle(document.querySelector('.verdict strong')).color"
    assert here.verdict.startswith(
        "Locally optimal. Sequence 2 selects token 2 although token 1 scores higher, because none"
    )
    assert here.page.locator(".tokens .token.lower").count() == 1
    local = here.page.evaluate(colour)
    here.act(lambda: here.page.evaluate("location.hash = location.hash + '&start=%5B0%2C1%5D'"))
    assert here.verdict.startswith("Globally optimal.")
    assert here.page.evaluate(colour) != local
    assert here.page.locator(".tokens .token.lower").count() == 0


def test_the_painted_starts_end_where_their_colour_says(visit) -> None:
    here = visit("preset=counterexample")
    kinds = here.page.evaluate(
        """() => {
            const basins = basinsOf(PRESETS.counterexample.state, 13);
            while (!basins.finished) basins.advance();
            const at = (x, y) => basins.directions[basins.cells[(y + 6) * 13 + x + 6]].selected;
            return [at(4, 0), at(0, 0)];
        }"""
    )
    assert kinds == [[0, 1], [0, 0]]  # tests/unit/theory holds Python to the same two starts
    here.wait("document.querySelectorAll('.basin').length > 13")  # painted finely after the coarse square
    assert "the global optimum" in here.page.inner_text(".legend")
    # The square that is painted while something moves ends trainings early, and none of these starts changes its end.
    hasty, whole = here.page.evaluate(
        """() => [true, false].map((hasty) => {
            const basins = basinsOf(PRESETS.counterexample.state, 7, hasty);
            while (!basins.finished) basins.advance();
            return Array.from(basins.cells, (kind) => basins.directions[kind]?.selected ?? null);
        })"""
    )
    assert hasty == whole


def test_classes_have_a_rough_gap_while_a_point_moves_and_a_small_one_at_rest(visit) -> None:
    moving, rest = visit("preset=classes").page.evaluate(
        "() => [true, false].map((moving) => pictureOf(PRESETS.classes.state, trainings(), moving))"
    )
    assert (moving["verdict"]["word"], moving["verdict"]["tone"]) == (rest["verdict"]["word"], "good")
    for rough, fine in zip(moving["races"], rest["races"], strict=True):
        assert fine["gap"] <= 1e-9
        assert rough["gap"] <= 1e-6
        assert fine["objective"] * (1 - 1e-9) <= rough["objective"] <= fine["objective"] / (1 - rough["gap"])
    assert moving["races"][1]["gap"] > 1e-9 < moving["races"][2]["gap"]


@pytest.mark.parametrize("address", ["preset=classes", "preset=turn&steps=777"])
def test_every_number_of_steps_can_be_read_and_chosen(visit, address: str) -> None:
    here = visit(address)
    assert here.page.locator("select[name=steps]").input_value() == str(here.state["steps"])


@pytest.mark.parametrize(
    ("state", "start"),
    [
        ({"keep": [1, 0]}, "Elsewhere. Training ends on other tokens than those the SVM selects: on token 1 of"),
        ({"steps": 3}, "Under way. After 3 steps sequences 1 and 2 still share attention"),
        ({"v": [0, 0]}, "Under way."),
        ({"numerics": "float32", "steps": 1000}, "Direction lost. Plain float32 ends"),
        (
            {"tokens": [[[1, 0], [0, 0]], [[-1, 0], [0, 0]]], "queries": [[1], [1]], "v": [1, 0], "keep": [0, 0]},
            "Infeasible. No single W selects token 1 of sequence 1 and token 1 of sequence 2: what sequences 1 and 2",
        ),
        (
            {"tokens": [[[-1, -0.5], [1.4, 0.3], [0.4, 1]]], "labels": [-1],
             "queries": [[1]], "v": [1, 1], "head": "relu"},
            "At rest. The output lies where the head is flat",
        ),
    ],
)  # fmt: skip
def test_a_verdict_for_every_outcome(visit, state: dict, start: str) -> None:
    parts = {key: json.dumps(value) for key, value in state.items()}
    here = visit(urllib.parse.urlencode({"preset": "five-tokens", **parts}))
    assert here.verdict.startswith(start)


def test_a_token_dragged_out_of_the_hull_becomes_feasible(visit) -> None:
    here = visit("preset=infeasible")
    assert "token 1 of sequence 1: it lies inside the hull" in here.verdict
    token = here.page.locator('[aria-label^="Sequence 1, token 1"]')
    token.focus()
    here.act(lambda: [here.page.keyboard.press(f"Shift+Arrow{way}") for way in ("Right", "Up") for _ in range(6)])
    assert here.picture["runs"]["W"]["status"] == "OPTIMAL"
    assert not here.verdict.startswith("Infeasible")


def test_a_relu_head_composes_where_a_linear_one_selects(visit) -> None:
    here = visit("preset=composition")
    assert here.verdict.startswith("Composition. Sequence 1 mixes tokens 1 and 2")
    assert here.picture["runs"]["W"]["selected"][0] == [True, True, False]


def test_touch_moves_a_token_on_a_narrow_screen(visit) -> None:
    here = visit(width=400, has_touch=True, is_mobile=True, device_scale_factor=2)
    assert here.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    here.page.locator(".plane").scroll_into_view_if_needed()
    scroll = here.page.evaluate("window.scrollY")
    x, y = here.centre("Sequence 1, token 1")
    session = here.context.new_cdp_session(here.page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        where = [{"x": at[0], "y": at[1]} for at in points]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": where})

    def drag() -> None:
        touch("touchStart", (x, y))
        for step in range(1, 9):
            touch("touchMove", (x - 5 * step, y + 6 * step))
        touch("touchEnd")

    here.act(drag)
    assert here.state["tokens"][0][0][0] < 1.0
    assert here.page.evaluate("window.scrollY") == scroll  # the page did not scroll under the finger


def test_keys_move_keep_and_are_told(visit) -> None:
    here = visit()
    here.page.locator('[aria-label^="Sequence 1, token 2"]').focus()
    here.act(lambda: here.page.keyboard.press("Shift+ArrowRight"))
    assert here.state["tokens"][0][1][0] == pytest.approx(-0.19 + 0.25)
    assert here.page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Sequence 1, token 2")
    here.act(lambda: here.page.keyboard.press("Enter"))
    assert here.state["keep"] == [1, 0]
    assert here.page.evaluate("document.querySelector('.verdict').ariaLive") == "polite"
    assert here.page.locator("select[name=keep]").input_value() == "hand"
    here.page.locator('[aria-label^="Query z₁"]').focus()
    here.act(lambda: here.page.keyboard.press("ArrowUp"))
    assert here.state["queries"][0] == pytest.approx([-0.539, -0.792])


@pytest.mark.parametrize("term", ["Status", "Gap", "Correlation of W"])
def test_a_question_mark_explains_its_number(visit, term: str) -> None:
    here = visit()
    hint = here.page.get_by_role("button", name=f"What is this: {term}")
    tip = here.page.locator(f"#{hint.get_attribute('aria-describedby')}")
    assert not tip.is_visible()
    hint.focus()
    assert tip.is_visible()
    assert len(tip.inner_text()) > 40
    here.page.keyboard.press("Escape")
    assert not tip.is_visible()


@pytest.mark.parametrize("preset", ["infeasible", "classes"])
def test_a_setting_that_is_chosen_leaves_what_was_dragged(visit, preset: str) -> None:
    here = visit(f"preset={preset}")
    here.page.locator('svg [role="button"]').last.focus()
    here.act(lambda: here.page.keyboard.press("Shift+ArrowUp"))
    points = "points" if preset == "classes" else "tokens"
    moved = here.state[points]
    assert moved != PRESETS[preset]["state"][points]
    here.act(lambda: here.page.select_option("select[name=steps]", "500"))
    assert (here.state[points], here.state["steps"]) == (moved, 500)


def test_a_copied_link_restores_the_picture_in_another_folder(visit, tmp_path: Path) -> None:
    here = visit("preset=three-tokens", permissions=["clipboard-read", "clipboard-write"])
    here.act(lambda: here.page.select_option("select[name=norm]", "max"))
    here.act(lambda: here.page.select_option("select[name=sequences]", "3"))
    here.act(lambda: here.page.locator("input[type=range]").fill("200"))
    here.page.get_by_role("button", name="Copy link").click()
    fragment = urllib.parse.urlparse(here.page.evaluate("navigator.clipboard.readText()")).fragment
    site = tmp_path / "any" / "site"
    shutil.copytree(FOLDER, site)
    there = visit(fragment, page=site / "index.html")
    assert there.state == here.state
    assert 0 < there.state["step"] < 2000
    assert (there.picture, there.verdict) == (here.picture, here.verdict)


def test_an_address_that_was_cut_is_told_and_the_way_back_leads_to_the_picture_before(visit) -> None:
    here = visit("preset=three-tokens&tokens=%5B%5B%5B1.0%2C0.")
    assert "perhaps it was cut" in here.page.inner_text(".notice")
    assert here.state == next(iter(PRESETS.values()))["state"]
    here.act(lambda: here.page.select_option("select[name=preset]", "infeasible"))
    assert not here.page.is_visible(".notice")
    here.act(lambda: here.page.select_option("select[name=norm]", "max"))
    here.act(lambda: here.page.select_option("select[name=preset]", "classes"))
    here.page.go_back()
    here.wait("location.hash.includes('infeasible')")
    assert here.state == PRESETS["infeasible"]["state"] | {"norm": "max"}


@pytest.mark.parametrize(
    "fragment",
    [
        "tokens=5", "preset=nobody", "preset=classes&points=%5B1%5D", "scene=%22sea%22", "preset=turn&steps=0",
        "preset=turn&step=1.5", "preset=turn&norm=%22toString%22",
        "preset=turn&queries=%5B%5B0%2C0%5D%2C%5B1%2C0%5D%5D",
        "preset=turn&v=%5B1e400%2C0%5D", "preset=turn&head=%22relu%22&optimizer=%22polyak%22",
    ],
)  # fmt: skip
def test_no_address_leaves_the_page_empty(visit, fragment: str) -> None:
    here = visit(fragment)
    assert here.console_log == []
    assert "perhaps it was cut" in here.page.inner_text(".notice")
    assert here.picture["verdict"]["sentence"] in here.verdict


def test_a_label_keeps_the_focus_and_a_second_copy_the_name_of_its_button(visit) -> None:
    here = visit()
    here.page.locator("[name=label-1]").focus()
    here.act(lambda: here.page.keyboard.press("Enter"))
    assert here.page.evaluate("document.activeElement.name") == "label-1"
    button = here.page.get_by_role("button", name="Copy as Python")
    handle = button.element_handle()
    for _ in range(2):
        handle.click()
    here.page.wait_for_function("one => one.textContent === 'Copy as Python'", arg=handle)


def test_every_preset_is_listed_and_drawn(visit) -> None:
    here = visit("")
    options = here.page.locator("select[name=preset] option").all_inner_texts()
    assert options == [preset["title"] for preset in PRESETS.values()]
    for name, preset in PRESETS.items():
        if preset["title"] != options[0]:
            here.act(lambda name=name: here.page.select_option("select[name=preset]", name))
        assert here.state == preset["state"]
        assert here.page.inner_text(".about") == preset["about"]
        assert here.picture["verdict"]["sentence"] in here.verdict
    assert here.console_log == []


@pytest.mark.parametrize(
    ("preset", "width", "scheme"), [("counterexample", 1280, "light"), ("classes", 400, "dark"), ("turn", 400, "dark")]
)
def test_axe_finds_nothing(visit, preset: str, width: int, scheme: str) -> None:
    import axe_playwright_python

    here = visit(f"preset={preset}", width=width, color_scheme=scheme, bypass_csp=True)
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


def test_a_notebook_and_the_page_share_their_state(visit) -> None:
    """The page under a model like anywidget's: it tells of its state, and follows what Python writes."""
    here = visit()
    values = here.page.evaluate(
        """async () => {
            const listeners = {};
            const values = { start: { name: "turn" }, state: PRESETS.turn.state, certified: {} };
            const model = {
                get: (name) => values[name],
                set: (name, value) => { values[name] = value; },
                save_changes: () => {},
                on: (name, listener) => { listeners[name] = listener; },
                off: () => {},
            };
            const el = document.createElement("div");
            document.body.append(el);
            render({ model, el });
            const before = values.picture.verdict.word;
            values.state = { ...values.state, norm: "max" };
            listeners["change:state"]();
            values.certified = { state: values.state, gap: 1e-12, sentence: "proved" };
            listeners["change:certified"]();
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            const told = JSON.stringify(values.picture.state) === JSON.stringify(values.state);
            return [before, values.picture.runs.W.norm, el.innerText.includes("Certified by solve"), told];
        }"""
    )
    assert values == ["Globally optimal", "max", True, True]
