"""The ledger holds what was read from the paper, and nothing else can be called published."""

from __future__ import annotations

import ast
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attsvm_paper
from attsvm_paper import registry
from attsvm_paper.judging.comparison import COMPARISONS
from attsvm_paper.published.ledger import LedgerNumber, PrintedCurve, curve, ledger, of_ledger

ROOT = Path(__file__).parents[3]
PACKAGE = Path(attsvm_paper.__file__).parent
COPY = ROOT / "tests" / "data" / "v1-figures.json"
ORIGINAL = ROOT.parent / "shared" / "published" / "v1-figures.json"


def readings(path: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    curves = json.loads(path.read_text(encoding="utf-8"))["curves"]
    return {(row["figure"], row["panel"], row["curve"]): row for row in curves}


def by_curve() -> dict[tuple[str, str, str], Any]:
    return {(one.figure, one.panel, one.curve): one for one in ledger()}


def test_every_reading_of_the_paper_is_in_the_ledger() -> None:
    ours = by_curve()
    for name, row in readings(COPY).items():
        if row["figure"] == "9" and row["panel"] == "b":
            # Read at the end of training: the last point of two curves of the ledger.
            for word, value in zip(row["x"], row["y"], strict=True):
                last = ours["9", "b", f"{name[2]}, {word}"]
                assert (last.y[-1], last.x[-1], last.page, last.trials) == (value, 5000, row["page"], row["trials"])
            continue
        one = ours[name]
        assert (list(one.x), list(one.y)) == (row["x"], row["y"]), name
        assert (one.page, one.trials) == (row["page"], row["trials"]), name
        if "sd" in row:
            assert list(one.sd) == row["sd"]


def test_the_copy_is_the_original_where_that_is_at_hand() -> None:
    # The readings were handed over beside the checkout; elsewhere the copy stands for them.
    original = readings(ORIGINAL) if ORIGINAL.is_file() else readings(COPY)
    copy = readings(COPY)
    assert copy.keys() == original.keys()
    for name, row in copy.items():
        assert row.items() <= original[name].items()


def test_shares_are_multiples_of_one_over_the_trials_within_the_reading_error() -> None:
    """At 0.001 of the axis, the error of the readings, no share of Figs 5 and 6 says that trials were left out."""
    for one in ledger():
        if one.figure in ("5", "6") and one.trials is not None:
            for y in one.y:
                assert abs(round(y * one.trials) / one.trials - y) <= 0.001 + 1e-9, (one.key, y)
        assert "multiple of 1/500 leaves" not in one.setting
    first, rest = curve("Fig. 5a: W, not local").at(5), curve("Fig. 5a: W, local, global included").at(5)
    assert first is not None
    assert rest is not None
    assert first.value == 0.002
    # What is local and what is not are all trials there.
    assert first.value + rest.value == pytest.approx(1, abs=1e-9)
    row = curve("Fig. 6b: W, T=10").at(5)
    assert row is not None
    assert round(500 * row.value) == 298


def test_nothing_is_said_of_independent_readings() -> None:
    text = (PACKAGE / "published" / "ledger.json").read_text(encoding="utf-8")
    assert "independent" not in text


def test_every_number_tells_where_and_how_well_it_was_read() -> None:
    assert "v1" in ledger().version
    assert "vector data" in ledger().how
    for one in ledger():
        assert one.page in range(1, 55)
        assert one.setting
        assert len(one.x) == len(one.y) == len(set(one.x))
        assert (one.absolute > 0) != (one.relative > 0)
        assert all(map(math.isfinite, one.y))
        assert one.same_as is None or curve(one.same_as).same_as is None


def test_the_page_of_experiments_counts_as_the_ledger_does() -> None:
    page = " ".join((ROOT / "docs" / "paper.md").read_text(encoding="utf-8").split())
    assert f"{len(ledger().curves)} curves, {len(ledger().numbers)} distinct numbers" in page
    assert f"0.05/{COMPARISONS}, for the ledger has {len(ledger().numbers)} numbers" in page
    assert len(ledger().numbers) <= COMPARISONS < len(ledger().numbers) + 10


def test_panels_that_show_the_same_numbers_agree_and_count_once() -> None:
    total = 0
    for one in ledger():
        total += 0 if one.same_as else len(one.x)
        if one.same_as:
            for x, number in one.points.items():
                other = curve(one.same_as).at(x)
                assert other is not None
                assert number.key == other.key
                # Two panels, two readings.
                assert number.value == pytest.approx(other.value, abs=number.error + other.error)
    assert len(ledger().numbers) == total


def test_lines_pass_through_the_numbers() -> None:
    for one in ledger():
        if one.line is not None:
            line = dict(zip(one.line["x"], one.line["y"], strict=True))
            for x, y in zip(one.x, one.y, strict=True):
                if x in line:
                    assert line[x] == pytest.approx(y, abs=one.absolute + 1e-4, rel=one.relative), (one.key, x)


def test_a_whole_curve_is_its_line_where_more_points_were_read() -> None:
    line = {"x": [1.0, 2.0, 4.0], "y": [0.1, 0.2, 0.3], "sd": [0.01, 0.02, 0.03]}
    few = PrintedCurve("key", "5", "a", "W", 8, "d", "share", (1.0, 4.0), (0.1, 0.3), 500, "setting", (0.5, 0.6))
    whole, bare = replace(few, line=line), replace(few, line={"x": line["x"], "y": line["y"]})
    assert (few.line_points, few.band) == (((1.0, 4.0), (0.1, 0.3)), (0.5, 0.6))
    assert (whole.line_points, whole.band) == ((line["x"], line["y"]), line["sd"])
    assert (bare.line_points, bare.band) == (whole.line_points, None)


def test_a_number_has_the_reading_error_and_the_key_of_its_curve() -> None:
    one = PrintedCurve(
        "mine", "5", "a", "W", 8, "d", "share", (5, "all"), (-2.0, 4.0), 7, "setting", (0.5, 0.6), 0.1, 0.25
    )
    assert one.at(5) == LedgerNumber("mine @ 5", -2.0, 7, 0.1 + 0.25 * 2.0, 0.5)
    assert one.at("all") == LedgerNumber("mine @ all", 4.0, 7, 0.1 + 0.25 * 4.0, 0.6)
    assert one.at(6) is None
    shown_again = replace(one, same_as="other", sd=None, trials=None).at(5)
    assert shown_again == LedgerNumber("other @ 5", -2.0, None, 0.1 + 0.25 * 2.0)


def test_the_scatter_gives_its_own_shares_and_the_means_of_another_figure() -> None:
    """Read from other marks of the PDF, Fig. 11b and the end of Fig. 8 are means over points of the scatter."""
    for d in (4, 6, 8, 10):
        lower, means = curve(f"Fig. 8 lower: d={d}"), curve(f"Fig. 11b: d={d}")
        assert lower.scatter is not None
        points = [(x, 10**y) for x, y in zip(lower.scatter["x"], lower.scatter["y"], strict=True)]
        assert len(points) == lower.trials
        for threshold, share in lower.points.items():
            assert sum(x < threshold for x, _ in points) == round(500 * share.value)
        for threshold, mean in means.points.items():
            below = [y for x, y in points if x < threshold]
            assert sum(below) / len(below) == pytest.approx(mean.value, abs=mean.error)
        ends = [y for _, y in points]
        end = curve(f"Fig. 8 upper: d={d}, W^SVMeq").at(2000)
        assert end is not None
        assert sum(ends) / len(ends) == pytest.approx(end.value, abs=end.error)


@pytest.mark.parametrize("number", [0.5, 1, "Fig. 6a: W, n=5 @ 10", (0.5, 500)])
def test_untagged_numbers_are_refused(number: Any) -> None:
    with pytest.raises(ValueError, match="of the ledger"):
        of_ledger(number)
    assert of_ledger(None) is None
    with pytest.raises(ValueError, match="finite"):
        of_ledger(LedgerNumber("somewhere", math.nan, None, 0.0))


def test_a_curve_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"'Fig\. 13'; a curve of the ledger"):
        curve("Fig. 13")


def test_no_experiment_makes_a_published_number_itself() -> None:
    """Only the ledger's module may construct one; a literal cannot be passed for one, and is not."""
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                assert name != "LedgerNumber" or path.name == "ledger.py", path
                for keyword in node.keywords:
                    if keyword.arg == "published" and isinstance(keyword.value, ast.Constant):
                        assert keyword.value.value is None, (path, node.lineno)


def test_every_figure_of_the_ledger_belongs_to_an_experiment() -> None:
    sources = " ".join(registry.get(name).source for name in registry.FIGURES)
    assert {one.figure for one in ledger()} <= {part.strip(",") for part in sources.replace("Figs", "").split()}
