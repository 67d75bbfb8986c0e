"""The playground without a browser: states checked, verdicts on cases of every kind, and the two hosts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from attsvm import SelectionProblem, solve
from attsvm.playground.picture import answer
from attsvm.playground.plane import DRAFT_STEPS, PageMemory, Supersession
from attsvm.playground.presets import PRESETS, plane_state
from attsvm.playground.state import read_state

FIVE = PRESETS["five-tokens"]["state"]
COUNTEREXAMPLE = PRESETS["counterexample"]["state"]
CLASSES = PRESETS["classes"]["state"]


def picture_of(state: dict, **options) -> dict:
    picture = answer({"seq": 7, "state": state, **options}, PageMemory())
    assert picture["seq"] == 7
    assert "error" not in picture, picture
    json.dumps(picture, allow_nan=False)  # the page's parser knows no NaN
    return picture


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokens": [[[1, 2]]]}, "tokens has shape (1, 1, 2); one to 3 sequences of two to 8 tokens"),
        ({"tokens": [[[1, 2, 3]]]}, "tokens has shape (1, 1, 3); (any, any, 2) was expected."),
        ({"tokens": [[["a", 2]]]}, "tokens is no array of numbers; shape (any, any, 2) was expected."),
        ({"tokens": [[[1e9, 0], [0, 0]]] * 2}, "tokens of shape (2, 2, 2) leaves the plane; numbers up to 1000"),
        ({"queries": [[0, 0], [1, 0]]}, "queries has shape (2, 2); nonzero rows of 1 to 8 were expected."),
        ({"labels": [1, 0]}, "labels is [1.0, 0.0]; -1 and +1 were expected."),
        ({"v": None}, "v has shape (); (2) was expected."),
        (
            {"optimizer": "separately_normalized_gd"},
            "optimizer is 'separately_normalized_gd'; one of 'normalized_gd', ",
        ),
        ({"norm": True}, "norm is True; one of 'frobenius', "),
        ({"steps": 10**6}, "steps is 1000000; a whole number from 1 to 5000 was expected."),
        ({"keep": [0, 5]}, "keep is [0, 5]; 'trained', 'best' or 2 tokens from 0 to 4 were expected."),
        ({"start": [1]}, "start has shape (1,); (2) was expected."),
        ({"scene": "cube"}, "scene is 'cube'; one of 'plane', 'classes' was expected."),
        ({"head": "relu", "optimizer": "polyak"}, "optimizer 'polyak' has a head that is not linear"),
    ],
)
def test_a_state_that_does_not_fit_gets_a_sentence(change: dict, sentence: str) -> None:
    picture = answer({"seq": 3, "state": {**FIVE, **change}}, PageMemory())
    assert picture["seq"] == 3
    assert picture["error"].startswith(sentence)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"points": [[1, 2, 3]]}, "points has shape (1, 3)"),
        ({"classes": [4] * 18}, "classes is [4.0, "),
    ],
)
def test_classes_that_do_not_fit_get_a_sentence(change: dict, sentence: str) -> None:
    assert answer({"state": {**CLASSES, **change}}, PageMemory())["error"].startswith(sentence)


def test_the_best_tokens_are_a_global_optimum() -> None:
    verdict = picture_of(FIVE)["verdict"]
    assert (verdict["tone"], verdict["word"]) == ("good", "Globally optimal")


def test_a_local_optimum_says_which_token_is_kept_and_why() -> None:
    picture = picture_of(COUNTEREXAMPLE)
    assert picture["verdict"]["word"] == "Locally optimal"
    assert "Sequence 2 keeps token 2 although token 1 scores higher, because none" in picture["verdict"]["sentence"]
    # The proof on the counterexample's page: W turns into (1, 0), where the second margin is two.
    np.testing.assert_allclose(np.array(picture["runs"]["W"]["W"])[:, 0], [1.0, 0.0], atol=1e-9)
    assert picture["runs"]["W"]["margins"][1][0] == pytest.approx(2.0)


def test_the_basins_of_the_counterexample_have_a_border_between_its_two_starts() -> None:
    memory = PageMemory()
    basins = answer({"state": COUNTEREXAMPLE}, memory)["basins"]
    cells = np.array(basins["cells"]).reshape(basins["side"], basins["side"])
    side = np.linspace(-basins["reach"], basins["reach"], basins["side"])
    to_local, to_best = (basins["directions"].index(tokens) for tokens in ([0, 1], [0, 0]))
    row = np.abs(side).argmin()
    assert cells[row, np.abs(side - 4).argmin()] == to_local
    assert cells[row, row] == to_best
    other_start = answer({"state": {**COUNTEREXAMPLE, "start": [0.0, 1.0]}}, memory)
    assert other_start["basins"] is basins  # a start moves within the same basins
    assert other_start["verdict"]["word"] == "Globally optimal"


@pytest.mark.parametrize("name", [name for name, one in PRESETS.items() if one["state"]["scene"] == "plane"])
def test_the_score_direction_can_be_taken_hold_of(name: str) -> None:
    """Tokens lie above it, each under a finger of radius 17, on a plane that is 350 wide on a telephone."""
    state = PRESETS[name]["state"]
    tokens, v = np.reshape(state["tokens"], (-1, 2)), np.array(state["v"])
    reach = max(1.2, 1.25 * np.abs([*tokens, v, state["start"] or v]).max())
    assert np.linalg.norm(tokens - v, axis=1).min() / reach * 175 > 17


def test_a_token_inside_the_hull_is_infeasible_and_outside_it_is_not() -> None:
    inside = PRESETS["infeasible"]["state"]
    picture = picture_of(inside)
    assert picture["verdict"]["word"] == "Infeasible"
    assert "token 1 of sequence 1: it lies inside the hull" in picture["verdict"]["sentence"]
    assert picture["runs"]["W"]["objective"] is None
    outside = {**inside, "tokens": [[[1.5, 1.5], *inside["tokens"][0][1:]], inside["tokens"][1]]}
    assert picture_of(outside)["runs"]["W"]["status"] == "OPTIMAL"


def test_sequences_that_contradict_each_other_are_named() -> None:
    # One query for both: the first asks for w_1 >= 1, the second for w_1 <= -1.
    state = plane_state([[[1, 0], [0, 0]], [[-1, 0], [0, 0]]], [[1.0], [1.0]], [1.0, 0.0], keep=[0, 0])
    picture = picture_of(state)
    assert picture["verdict"]["sentence"].startswith(
        "No single W keeps token 1 of sequence 1 and token 1 of sequence 2"
    )


def test_unfinished_training_is_under_way() -> None:
    verdict = picture_of({**FIVE, "steps": 3})["verdict"]
    assert (verdict["tone"], verdict["word"]) == ("unsure", "Under way")
    assert "After 3 steps sequences 1 and 2 still share attention" in verdict["sentence"]


def test_scores_that_are_all_equal_move_nothing() -> None:
    picture = picture_of({**FIVE, "v": [0.0, 0.0]})
    assert picture["verdict"]["word"] == "Under way"
    assert not np.any(picture["runs"]["W"]["path"])


def test_other_tokens_than_those_asked_for_are_told() -> None:
    verdict = picture_of({**FIVE, "keep": [1, 0]})["verdict"]
    assert verdict["word"] == "Elsewhere"
    assert "on token 1 of sequence 1 and token 1 of sequence 2" in verdict["sentence"]


@pytest.mark.slow
def test_float32_loses_the_direction_and_a_short_run_does_not() -> None:
    assert picture_of({**FIVE, "numerics": "float32", "steps": 100})["verdict"]["sentence"].endswith("lost yet.")
    picture = picture_of({**FIVE, "numerics": "float32", "steps": 1000})
    assert picture["verdict"]["word"] == "Direction lost"
    assert picture["runs"]["exact"]["correlation"][-1] > picture["runs"]["W"]["correlation"][-1] + 1e-3


@pytest.mark.slow
def test_a_relu_head_composes_where_a_linear_one_selects() -> None:
    state = PRESETS["composition"]["state"]
    picture = picture_of(state)
    assert picture["verdict"]["word"] == "Composition"
    assert picture["runs"]["W"]["selected"][0] == [True, True, False]
    assert picture_of({**state, "head": "linear"})["verdict"]["word"] != "Composition"
    # Token 1 draws the output into the quadrant where h(x) = x_1^+ + x_2^+ is flat, and there it stays.
    flat = plane_state([[[-1, -0.5], [1.4, 0.3], [0.4, 1]]], [[1.0]], [1, 1], labels=[-1], head="relu", steps=200)
    rest = picture_of(flat)
    assert rest["verdict"]["word"] == "At rest"
    assert rest["runs"]["W"]["path"][0][-1] == picture_of({**flat, "steps": 400})["runs"]["W"]["path"][0][-1]


def test_each_optimiser_of_classes_is_nearest_to_its_own_norm() -> None:
    for race in picture_of(CLASSES)["races"]:
        assert max(race["shares"], key=race["shares"].get) == race["norm"]
    stray = {**CLASSES, "points": [CLASSES["points"][7], *CLASSES["points"][1:]]}
    assert picture_of(stray)["verdict"]["word"] == "Infeasible"


@pytest.mark.parametrize("norm", ["nuclear", "spectral", "max", 1, 3])
def test_a_draft_says_what_the_full_answer_says(norm) -> None:
    memory = PageMemory()
    for shift in (0.0, 0.05):
        state = {**FIVE, "norm": norm, "tokens": np.add(FIVE["tokens"], [[[shift, 0]], [[0, shift]]]).tolist()}
        draft = answer({"draft": True, "state": state}, memory)["runs"]
    full = picture_of(state)["runs"]
    for name in ("W", "KQ"):
        assert draft[name]["objective"] == pytest.approx(full[name]["objective"], rel=2e-9)  # both gaps below 1e-9
        assert draft[name]["path"][0][-1] == full[name]["path"][0][-1]


def test_a_draft_of_slow_training_is_short() -> None:
    draft = answer({"draft": True, "state": {**FIVE, "optimizer": "muon"}}, PageMemory())["runs"]
    assert draft["W"]["steps"][-1] == DRAFT_STEPS
    assert "KQ" not in draft


def test_a_newer_state_ends_a_training_but_no_draft() -> None:
    with pytest.raises(Supersession):
        answer({"state": FIVE}, PageMemory(), lambda: True)
    assert "runs" in answer({"draft": True, "state": FIVE}, PageMemory(), lambda: True)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_states(name: str) -> None:
    read_state(PRESETS[name]["state"])


def test_presets_of_the_figure_are_its_instances() -> None:
    from attsvm_paper.figures.gd_paths import instance

    for name, T in (("three-tokens", 3), ("five-tokens", 5)):
        data, v = instance(T)
        for key, values in (("tokens", data.tokens), ("queries", data.queries), ("v", v)):
            np.testing.assert_allclose(PRESETS[name]["state"][key], values, atol=5.01e-4)


def test_the_notebook_shows_the_module_that_the_server_sends() -> None:
    anywidget = pytest.importorskip("anywidget", reason="the extra playground is not installed")
    from attsvm import Playground
    from attsvm.playground.frontend import module, style

    assert issubclass(Playground, anywidget.AnyWidget)
    page = Playground()
    assert (page._esm, page._css) == (module(), style())
    assert module().count("export default") == 1
    assert "import " not in module().split("const PRESETS", 1)[1]  # a notebook could not resolve it


def test_a_problem_becomes_a_page_that_answers() -> None:
    pytest.importorskip("anywidget", reason="the extra playground is not installed")
    from attsvm import Playground

    tokens = np.array([[[1.0, 0.4], [0.0, 0.2], [-0.8, 0.7]], [[0.3, 1.0], [0.1, 0.0], [0.4, -0.5]]])
    problem = SelectionProblem(tokens, [[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]], [0, 0])
    page = Playground(problem)
    assert page.picture["runs"]["W"]["objective"] == solve(problem).objective
    assert page.picture["verdict"]["word"] == "Globally optimal"
    page.request = {"seq": 1, "draft": False, "state": {**page.state, "norm": "max"}}
    assert page.answer["seq"] == 1
    assert page.picture["runs"]["W"]["objective"] == pytest.approx(solve(problem, "max").objective, rel=2e-9)
    inner = SelectionProblem(np.array([[[0.1, 0.0], [1, 0], [-1, 1], [-1, -1.0]]]), [[1.0]], [0])
    assert Playground(inner).picture["verdict"]["word"] == "Infeasible"


def test_a_problem_that_the_page_cannot_show_is_refused() -> None:
    pytest.importorskip("anywidget", reason="the extra playground is not installed")
    from attsvm import Playground

    with pytest.raises(ValueError, match=r"problem has tokens \(n, T, d\) = \(1, 2, 3\); one to 3 queries"):
        Playground(SelectionProblem(np.eye(3)[None, :2], [[1.0]], [0]))
    with pytest.raises(ValueError, match="problem hides tokens or ties several"):
        Playground(SelectionProblem(np.eye(2)[None], [[1.0]], [[True, True]]))
    with pytest.raises(ValueError, match="problem has type str"):
        Playground("five-tokens")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="preset is 'six'; one of 'five-tokens'"):
        Playground(preset="six")


@pytest.mark.parametrize("number", [10**400, -(10**400), float("nan"), float("inf")])
def test_numbers_without_a_float_get_a_sentence(number: float) -> None:
    tokens = [[[number, 0], [0, 1]]] * len(FIVE["tokens"])
    assert answer({"seq": 3, "state": FIVE | {"tokens": tokens}}, PageMemory())["error"].startswith("tokens ")
    assert "steps is" in answer({"seq": 3, "state": FIVE | {"steps": number}}, PageMemory())["error"]
    reply = answer({"seq": number, "state": FIVE}, PageMemory())
    assert reply["error"].startswith("seq is no number of a message; up to 9007199254740991 was expected")
    assert reply["seq"] is None


@pytest.mark.parametrize("seq", ["7", [7], True, {"a": 1}])
def test_a_seq_that_is_no_number_gets_a_sentence(seq: object) -> None:
    assert answer({"seq": seq, "state": FIVE}, PageMemory())["error"].startswith("seq is no number")
