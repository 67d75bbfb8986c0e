"""What results show of themselves in a terminal and in a notebook."""

from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from attsvm import SelectionProblem, Status, TokenData, diagnose, margin_report, solve, solve_batch, train
from attsvm.platform.summary import (
    BAD,
    GOOD,
    HEIGHT,
    HISTOGRAM_BINS,
    MARKED,
    TEXT_COLOUR,
    WIDTH,
    Listed,
    Summary,
    bars,
    histogram,
    line,
    one_line,
    series,
)
from attsvm.platform.summary import LONGEST_LINE as LONGEST

LONGEST_LINE, LARGEST_CARD = 500, 8000


def _results() -> dict[str, Any]:
    random = np.random.default_rng(0)
    tokens, queries, head = random.normal(size=(6, 5, 8)), random.normal(size=(6, 8)), random.normal(size=8)
    problem = SelectionProblem(tokens, queries, np.zeros(6, int))
    impossible = SelectionProblem(random.normal(size=(30, 5, 3)), random.normal(size=(30, 3)), np.zeros(30, int))
    data = TokenData(tokens, queries, labels=np.ones(6))
    trace = train(data, head=head, steps=50, record_every=[0, 10, 50])
    solution = solve(problem)
    return {
        "problem": problem,
        "optimal": solution,
        "infeasible": solve(impossible),
        "soft": solve(impossible, C=1.0),
        "batch": solve_batch([problem] * 200),
        "proof": solution.verify(),
        "trace": trace,
        "diagnosis": diagnose(data, head, trace, starts=2, samples=20),
        "margins": margin_report(trace.W[-1], problem, ("frobenius", "max")),
    }


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return _results()


NAMES = ("problem", "optimal", "infeasible", "soft", "batch", "proof", "trace", "diagnosis")


@pytest.mark.parametrize("name", NAMES)
def test_a_result_is_one_line_in_a_terminal(results: dict[str, Any], name: str) -> None:
    text = repr(results[name])
    assert "\n" not in text
    assert len(text) < LONGEST_LINE


@pytest.mark.parametrize("name", [*NAMES, "margins"])
def test_a_card_is_well_formed_and_small(results: dict[str, Any], name: str) -> None:
    card = results[name]._repr_html_()
    ElementTree.fromstring(card)
    assert len(card) < LARGEST_CARD
    assert "<script" not in card
    assert "http" not in card


def test_a_card_says_what_matters(results: dict[str, Any]) -> None:
    solution = results["optimal"]
    card = solution._repr_html_()
    assert "OPTIMAL" in card
    assert GOOD in card
    assert f"{solution.objective:.9g}" in card
    assert BAD in results["infeasible"]._repr_html_()
    assert results["margins"].sentence.split()[0] in results["margins"]._repr_html_()
    assert "200 of 200 decided" in results["batch"]._repr_html_()


def test_frames_list_what_there_is(results: dict[str, Any]) -> None:
    solution, trace, margins = results["optimal"], results["trace"], results["margins"]
    constraints = solution.to_frame()
    assert len(constraints) == solution.problem.rejected.sum()
    assert constraints.multiplier.sum() == pytest.approx(np.asarray(solution.dual).sum())
    assert constraints.support.sum() == np.asarray(solution.support).sum()
    assert trace.to_frame().step.tolist() == [0, 10, 50]
    assert margins.to_frame().norm.tolist() == ["frobenius", "max"]
    assert set(results["batch"].to_frame().status) == {"OPTIMAL"}


def test_text_from_outside_is_escaped() -> None:
    card = Summary("<b>", "a & b", facts=[("<i>", "<u>")], notes=["<s>"]).html
    assert "<b>" not in card
    assert "&lt;s&gt;" in card
    ElementTree.fromstring(card)


def test_the_histogram_counts_every_value_once() -> None:
    values = np.array([1.0, 1.0, 1.0, 10.0, np.inf, -1.0])
    picture = ElementTree.fromstring(histogram(values, values == 1.0))
    tall = {(bar.get("x"), bar.get("fill")): float(bar.get("height", 0)) for bar in picture.iter("rect")}
    last = f"{(HISTOGRAM_BINS - 1) * 10:.1f}"
    assert tall["0.0", MARKED] == pytest.approx(HEIGHT - 2)
    assert tall[last, "currentColor"] == pytest.approx((HEIGHT - 2) / 3, abs=0.1)
    assert len(tall) == 3  # the first bin as a whole and its marked part, and the last
    assert {bar.get("opacity") for bar in picture.iter("rect") if bar.get("fill") == MARKED} == {"1"}
    assert all(0 < float(bar.get("opacity", 0)) < 1 for bar in picture.iter("rect") if bar.get("fill") == TEXT_COLOUR)
    assert [text.text for text in picture.iter("text")] == ["1", "10"]


def test_the_ends_of_an_axis_are_named_below_it_and_inside_the_picture() -> None:
    picture = ElementTree.fromstring(line(np.array([1.0, 100.0]), np.array([0.0, 1.0])))
    first, last = picture.iter("text")
    assert (first.text, first.get("x"), last.text, last.get("x")) == ("1", "0", "100", str(WIDTH))
    assert last.get("text-anchor") == "end"
    assert first.get("y") == last.get("y")
    assert HEIGHT < float(last.get("y", 0)) < float(picture.get("viewBox", "").split()[3])


def test_a_curve_fills_its_picture() -> None:
    picture = ElementTree.fromstring(line(np.array([1.0, 10.0, 100.0]), np.array([0.25, 0.75, 0.5])))
    (curve,) = picture.iter("polyline")
    points = [tuple(map(float, point.split(","))) for point in curve.get("points", "").split()]
    # A unit of space on every side; y points down.
    assert points == [(1, HEIGHT - 2), (WIDTH / 2, 2), (WIDTH - 1, HEIGHT / 2)]


def test_a_curve_from_zero_begins_at_one_half() -> None:
    picture = ElementTree.fromstring(line(np.array([0.0, 5.0, 50.0]), np.array([0.0, 1.0, 0.0])))
    (curve,) = picture.iter("polyline")
    across = [float(point.split(",")[0]) for point in curve.get("points", "").split()]
    assert across == [1, WIDTH / 2, WIDTH - 1]
    assert [text.text for text in picture.iter("text")] == ["0", "50"]


def test_parts_that_do_not_fit_into_a_line_are_left_out() -> None:
    first, second = "a  b" + 100 * "c", 90 * "d"
    assert one_line("Title", [first, second]) == f"Title({first}, ...)"
    full = (LONGEST - len(f"Title({first}, , ...)")) * "d"
    assert one_line("Title", [first, full, second]) == f"Title({first}, {full}, ...)"
    assert one_line("Title", [first, full + "d", second]) == f"Title({first}, ...)"
    assert one_line("Title", [first, "d", second]) == f"Title({first}, d, ...)"
    assert len(whole := one_line("Title", [" ".join(60 * ["word"])])) <= LONGEST
    assert whole.startswith("Title(word word ")
    assert whole.endswith("word, ...)")


@pytest.mark.parametrize("values", [np.array([]), np.array([-1.0, np.inf])])
def test_nothing_to_draw_is_no_picture(values: np.ndarray) -> None:
    assert histogram(values, np.zeros(len(values), bool)) == ""
    assert line(np.arange(len(values)), values) == ""


def test_bars_end_at_their_shares() -> None:
    picture = ElementTree.fromstring(bars(["a", "b", "c"], [1.0, 0.5, float("nan")], 0))
    full, half, none = (float(bar.get("width", 0)) for bar in picture.iter("rect"))
    assert half == pytest.approx(full / 2)
    assert none == 0


def test_one_bar_is_marked_and_its_words_stand_beside_it() -> None:
    picture = ElementTree.fromstring(bars(["a", "b", "c"], [0.25, 0.5, 1.0], 1))
    rectangles, texts = list(picture.iter("rect")), list(picture.iter("text"))
    assert [bar.get("fill") for bar in rectangles] == [TEXT_COLOUR, MARKED, TEXT_COLOUR]
    assert rectangles[1].get("opacity") == "1"
    assert [text.text for text in texts] == ["a", "0.250", "b", "0.500", "c", "1.000"]
    for bar, label, share in zip(rectangles, texts[::2], texts[1::2], strict=True):
        x, y, wide, tall = (float(bar.get(name, 0)) for name in ("x", "y", "width", "height"))
        assert y < float(label.get("y", 0)) < y + tall
        assert label.get("y") == share.get("y")
        assert label.get("x") == "0"
        assert float(share.get("x", 0)) == pytest.approx(x + wide + 4, abs=0.11)


@pytest.mark.parametrize(("words", "text"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")])
def test_a_series_of_words_has_commas_and_one_and(words: list[str], text: str) -> None:
    assert series(words) == text


@dataclass(frozen=True, repr=False)
class Fields(Listed):
    """One field of every kind."""

    status: Status
    name: str
    count: int
    share: float
    nothing: None
    matrix: np.ndarray
    pair: tuple[int, ...]
    listed: list[int]
    table: dict[str, int]
    other: object


def test_fields_are_listed_as_numbers_words_shapes_and_sizes() -> None:
    """An object of another kind is left out."""
    fields = Fields(Status.OPTIMAL, "a", 3, 1 / 3, None, np.zeros((2, 3)), (1, 2), [1], {}, object())
    assert repr(fields) == (
        "Fields(status OPTIMAL, name a, count 3, share 0.333333, nothing None, matrix (2, 3), pair 2 entries, "
        "listed 1 entry, table 0 entries)"
    )
