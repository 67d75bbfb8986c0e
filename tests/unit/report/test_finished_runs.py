"""Experiments with complete rows: what a report says of them, and how they are found on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib import rcParams
from matplotlib.figure import Figure

from attsvm.plots.style import NARROW, WIDE, house_style
from attsvm_paper import registry
from attsvm_paper.engine import runner
from attsvm_paper.engine.experiment import Experiment
from attsvm_paper.judging.joint import JointTest, joint_test
from attsvm_paper.judging.points import Point
from attsvm_paper.judging.readings import Explanation, Reading
from attsvm_paper.judging.verdict import Row
from attsvm_paper.published.ledger import LedgerNumber
from attsvm_paper.report.finished import FinishedRun, finished_in, read_explanation, write_explanation
from tiny_experiment import EXPERIMENT, Config

ROWS: list[Row] = [
    {**vars(Config(d, trials=2)), "trial": trial, "seed": trial, "mean": mean, "positive": mean > 0}
    for d in (2, 3)
    for trial, mean in enumerate((0.5, -0.25))
]


def finished(experiment: Experiment = EXPERIMENT, rows: Sequence[Row] = ROWS, **fields: Any) -> FinishedRun:
    return FinishedRun(**({"effort": "quick", "seed": 0, "overrides": {}, "seconds": 3.0} | fields),
                       experiment=experiment, rows=rows)  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "command"),
    [
        ({}, "attsvm reproduce tiny --quick"),
        ({"effort": "full", "seed": 3}, "attsvm reproduce tiny --full --seed 3"),
        (
            {"overrides": {"d": "2", "log": "a file"}},
            "attsvm reproduce tiny --quick --set d=2 --set 'log=a file'",
        ),
    ],
)
def test_the_command_computes_the_same_rows(fields: dict[str, Any], command: str) -> None:
    assert finished(**fields).command == command


def test_an_own_file_is_named_by_its_path() -> None:
    assert finished(replace(EXPERIMENT, file="./my own.py")).command == "attsvm reproduce './my own.py' --quick"


def test_only_experiments_of_attsvm_with_a_figure_are_published(monkeypatch: pytest.MonkeyPatch) -> None:
    own = finished(replace(EXPERIMENT, file="./own.py"))
    assert finished().published
    assert not own.published
    monkeypatch.setitem(registry.BEYOND, "tiny", EXPERIMENT)
    assert not finished().published
    assert not own.published


def test_a_trial_of_several_rows_counts_once() -> None:
    assert finished().trials == 4
    assert finished(rows=[*ROWS, *ROWS]).trials == 4
    assert finished(rows=[ROWS[0], ROWS[0] | {"d": 5}, ROWS[0] | {"trial": 9}, ROWS[0] | {"mean": 7.0}]).trials == 3


def test_the_time_is_in_words() -> None:
    assert (finished().time, finished(seconds=600.0).time) == ("3 s", "10 min")


def test_the_setting_lists_the_values_of_every_parameter_once() -> None:
    rows = [row | {"scale": scale} for row in ROWS for scale in (0.5, 2000.0)]
    assert finished(rows=rows).setting == [
        ("d", "2, 3"), ("numerics", "exact"), ("scale", "0.5, 2,000"), ("pause", "0"), ("strict", "False"),
        ("log", ""), ("trials", "2"),
    ]  # fmt: skip


def test_of_more_than_twelve_values_three_the_last_and_their_number_are_listed() -> None:
    for count, text in ((12, ", ".join(map(str, range(12)))), (13, "0, 1, 2, …, 12, (13 values)")):
        setting = dict(finished(rows=[ROWS[0] | {"d": d} for d in range(count)]).setting)
        assert setting["d"] == text


def test_the_picture_is_drawn_from_the_rows_in_the_style_of_the_house() -> None:
    calls: list[tuple[Any, ...]] = []

    def figure(rows: Sequence[Row], *, alpha: float = 1.0) -> Figure:
        calls.append((rows, alpha, rcParams["axes.titleweight"]))
        return Figure()

    picture = finished(replace(EXPERIMENT, figure=figure)).picture
    picture.draw(WIDE)
    assert not picture.responsive
    with house_style():
        assert calls == [(ROWS, 1.0, rcParams["axes.titleweight"])]
    assert picture.name == "tiny-figure"
    assert picture.alt == f"Tiny <experiment>. {EXPERIMENT.claim}"
    assert picture.caption == "Fig. 0: Tiny <experiment>."


def test_a_figure_with_a_second_parameter_gets_the_width() -> None:
    def figure(rows: Sequence[Row], width: float = WIDE) -> Figure:
        assert rows is ROWS
        return Figure(figsize=(width, 1.0))

    picture = finished(replace(EXPERIMENT, figure=figure, file="own.py")).picture
    assert picture.responsive
    assert [picture.draw(width).get_figwidth() for width in (WIDE, NARROW)] == [WIDE, NARROW]
    assert picture.caption == "Tiny <experiment>."


def fail(*_: object) -> Any:
    raise IndexError("no such cell")


def none(*_: object) -> list[Any]:
    return []


PARTS: list[dict[str, Callable[..., Any]]] = [
    {"verdicts": fail},
    {"joint": fail, "verdicts": none},
    {"figure": fail, "verdicts": none},
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: next(iter(part)))
def test_only_what_a_caller_changed_may_fail(part: dict[str, Any]) -> None:
    broken = replace(EXPERIMENT, **part)
    with pytest.raises(IndexError):
        finished(broken).check()
    with pytest.raises(ValueError, match=r"^tiny has no verdicts or figure for d=2 scale=3 \(no such cell\); its rows"):
        finished(broken, overrides={"d": "2", "scale": "3"}).check()
    own = replace(broken, file=__file__)
    line = fail.__code__.co_firstlineno + 1
    with pytest.raises(ValueError, match=rf"has no verdicts or figure \(line {line}: IndexError: no such cell\); its"):
        finished(own).check()
    with pytest.raises(ValueError, match=rf"figure for d=2 \(line {line}: IndexError: no such cell\); its rows are"):
        finished(own, overrides={"d": "2"}).check()


def test_what_can_be_shown_passes() -> None:
    finished(replace(EXPERIMENT, verdicts=none, figure=lambda rows: Figure(figsize=(1, 1)))).check()


# Numbers near the values of our trials, whose test is undecided with twelve of them.
POINT = Point(LedgerNumber("tiny: 0", 0.1, 500, 0.0), {k: 0.1 * (k % 3) for k in range(12)}, 0.2)


def joint(rows: Sequence[Row]) -> list[JointTest]:
    tests = [joint_test("tiny", figure, [POINT]) for figure in ("Fig. 0", "Fig. 1")]
    return [test for test in tests if test is not None]


def readings() -> list[Reading]:
    return [Reading("Fig. 0", {"scale": scale}, (Config(),), lambda rows: [POINT]) for scale in "abc"]


def test_an_experiment_without_joint_tests_has_none() -> None:
    assert finished().joint == []


def test_a_joint_test_counts_the_readings_of_its_figure() -> None:
    (plain, _), names = joint(ROWS), ("searched", "agreeing")
    for experiment, searched in ((replace(EXPERIMENT, joint=joint), 1), (_searched(), 3)):
        first, second = finished(experiment).joint
        assert [getattr(first, name) for name in names] == [searched, None]
        assert [getattr(second, name) for name in names] == [1, None]
        assert first == plain.after_search(searched)
        assert first.chance == pytest.approx(searched * plain.chance)


def _searched() -> Experiment:
    return replace(EXPERIMENT, joint=joint, readings=readings)


def test_a_joint_test_counts_the_readings_that_agree() -> None:
    explained = [{"figure": "Fig. 0", "verdict": kind} for kind in ("agrees", "differs", "agrees")]
    explained += [{"figure": "Fig. 2", "verdict": "agrees"}]
    first, second = finished(_searched(), explained=explained).joint
    assert (first.searched, first.agreeing) == (3, 2)
    assert (second.searched, second.agreeing) == (1, None)


def test_an_explanation_is_read_as_it_was_written(tmp_path: Path) -> None:
    test = joint(ROWS)[0]
    explanations = [
        Explanation("Fig. 0", {"filter": "keine Ausreißer"}, 1, 1, test, 0.75),
        Explanation("Fig. 0", {"filter": "alle"}, 0, 1, None, 0.0),
    ]
    place = tmp_path / "a" / "b"
    for _ in range(2):
        assert write_explanation(explanations, place) == place / "explanation.json"
    first, second = read_explanation(place)
    assert first == {
        "figure": "Fig. 0", "factors": {"filter": "keine Ausreißer"}, "points": 1, "asked": 1, "weight": 0.75,
        "p": test.p, "chance": test.chance, "log_likelihood": test.log_likelihood, "verdict": test.verdict,
    }  # fmt: skip
    assert second == {
        "figure": "Fig. 0", "factors": {"filter": "alle"}, "points": 0, "asked": 1, "weight": 0.0,
        "p": None, "chance": None, "log_likelihood": None, "verdict": None,
    }  # fmt: skip
    text = (place / "explanation.json").read_text(encoding="utf-8")
    assert "Ausreißer" in text
    assert text.endswith("]\n")
    assert text.splitlines()[1] == " {"
    assert read_explanation(tmp_path) == []


@pytest.fixture
def own() -> Experiment:
    """An experiment that no list has."""
    return replace(EXPERIMENT, sweep=lambda effort: [Config(trials=2)])


def test_finished_runs_are_found_with_their_rows_and_settings(
    tmp_path: Path, own: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = runner.run(own, "full", tmp_path / "tiny", seed=4, overrides={"scale": 2.0})
    assert finished_in(tmp_path) == []
    monkeypatch.setitem(registry.FIGURES, "tiny", own)
    write_explanation([Explanation("Fig. 0", {"a": "b"}, 0, 1, None, 0.0)], tmp_path / "tiny")
    for found in (finished_in(tmp_path), finished_in(tmp_path, [own])[:1]):
        (one,) = found
        assert (one.experiment, one.rows, one.effort, one.seed) == (own, rows, "full", 4)
        assert one.overrides == {"scale": "2.0"}
        assert one.seconds == json.loads((tmp_path / "tiny" / "manifest.json").read_text())["seconds"]
        assert [entry["factors"] for entry in one.explained] == [{"a": "b"}]


def test_an_own_experiment_is_found_where_its_file_is_given(tmp_path: Path, own: Experiment) -> None:
    runner.run(own, out=tmp_path / "tiny")
    (one,) = finished_in(tmp_path, [own])
    assert one.experiment is own
    assert one.explained == []


@pytest.mark.parametrize("change", ["no manifest", "no rows", "no JSON", "no seed", "other code"])
def test_runs_that_cannot_be_shown_are_left_out(tmp_path: Path, own: Experiment, change: str) -> None:
    runner.run(own, out=tmp_path / "tiny")
    manifest = tmp_path / "tiny" / "manifest.json"
    content = json.loads(manifest.read_text(encoding="utf-8"))
    if change == "no manifest":
        manifest.unlink()
    elif change == "no rows":
        (tmp_path / "tiny" / "rows.parquet").unlink()
    elif change == "no JSON":
        manifest.write_text("{")
    elif change == "no seed":
        manifest.write_text(json.dumps({name: value for name, value in content.items() if name != "seed"}))
    else:
        manifest.write_text(json.dumps(content | {"code": "old"}))
    assert finished_in(tmp_path, [own]) == []
