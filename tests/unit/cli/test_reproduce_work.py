"""The work of `attsvm reproduce`, with and without a search of readings: what is told, and exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attsvm.cli.console import BadInput, Exit
from attsvm_paper import registry
from attsvm_paper.cli import work
from attsvm_paper.engine.experiment import Experiment
from attsvm_paper.judging.readings import Explanation
from tiny_experiment import EXPERIMENT, readings


def reading(weight: float, p: float | None, points: int, verdict: str | None, **factors: str) -> dict[str, Any]:
    return {
        "figure": "Fig. 0", "weight": weight, "p": p, "points": points, "asked": 12, "verdict": verdict,
        "factors": factors,
    }  # fmt: skip


def test_readings_are_a_table_under_their_conclusion() -> None:
    explanation = [
        reading(0.75, 0.5, 12, "agrees", gap="0.1", filter="without outliers"),
        reading(0.25, 0.0001, 9, "differs", gap="0"),
        reading(0.0, None, 0, None, gap="0.25", filter="none"),
    ]
    other = [reading(1.0, 0.5, 1, "agrees", end="late") | {"figure": "Fig. 1"}]
    lines = work._lines([*explanation, *other], Path("there"))
    assert lines[0].startswith("Fig. 0, 3 readings of its protocol. Reconstructed: the likeliest of 3 readings, of wh")
    assert lines[1:6] == [
        "  likelihood  p       numbers   verdict    gap   filter",
        "  0.75        0.5     12 of 12  agrees     0.1   without outliers",
        "  0.25        0.0001  9 of 12   differs    0",
        "  < 1e−300    -       0 of 12   no trials  0.25  none",
        "",
    ]
    assert lines[6].startswith("Fig. 1, 1 readings of its protocol. ")
    assert lines[7:] == [
        "  likelihood  p    numbers  verdict  end",
        "  1           0.5  1 of 12  agrees   late",
    ]


@pytest.mark.parametrize(
    ("count", "last"),
    [
        (7, None), (8, None), (9, "  1 less likely ones are in there."), (10, "  2 less likely ones are in there."),
    ],
)  # fmt: skip
def test_the_eight_likeliest_readings_are_listed(count: int, last: str | None) -> None:
    explanation = [reading(1 / count, 0.5, 12, "agrees", gap=f"gap {k}") for k in range(count)]
    lines = work._lines(explanation, Path("there"))
    rows = [line for line in lines[2:] if " gap " in line]
    assert len(rows) == min(count, 8)
    assert lines[-1] == (last or rows[-1])


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What computation and report give; a test changes it."""
    outcome: dict[str, Any] = {"pending": [], "report": (Path("there"), []), "calls": []}

    def begin(runs: list[Any], *arguments: Any) -> list[Any]:
        outcome["calls"].append(("work", [run.experiment.name for run in runs], runs, arguments[:2]))
        return [run for run in runs if run.experiment.name in outcome["pending"]]

    def end(out: Path, missing: list[str], command: str, progress: Any, experiments: list[Experiment]) -> Any:
        outcome["calls"].append(("report", out, missing, command, [one.name for one in experiments]))
        return outcome["report"]

    monkeypatch.setattr(work, "_work", begin)
    monkeypatch.setattr(work, "_report", end)
    monkeypatch.setattr(registry, "FIGURES", {"tiny": EXPERIMENT, "again": replace(EXPERIMENT, name="again")})
    monkeypatch.setattr(registry, "BEYOND", {"other": replace(EXPERIMENT, name="other", readings=readings)})
    monkeypatch.setattr("sys.argv", ["/bin/attsvm", "reproduce", "a b"])
    return outcome


def reproduce(out: Path, names: Sequence[str] = (), settings: list[str] | None = None, fresh: bool = False) -> int:
    return work.reproduce(names, "full", out, 3, settings or [], fresh, 2, None)


@pytest.mark.parametrize("names", [(), ("other", "tiny")])
def test_every_experiment_is_prepared_in_its_folder_before_any_is_run(
    tmp_path: Path, outcome: dict[str, Any], capsys: pytest.CaptureFixture[str], names: tuple[str, ...]
) -> None:
    assert reproduce(tmp_path / "new", names, ["d=2"]) == Exit.DONE
    (_, order, runs, crew), reported = outcome["calls"]
    expected = list(names) or ["tiny", "again", "other"]
    assert order == expected
    assert crew == (2, None)
    assert [run.store.directory for run in runs] == [tmp_path / "new" / name for name in expected]
    assert {(run.effort, run.seed, run.overrides["d"]) for run in runs} == {("full", 3, "2")}
    assert (tmp_path / "new").is_dir()
    assert reported == ("report", tmp_path / "new", [], "attsvm reproduce 'a b'", expected)
    streams = capsys.readouterr()
    assert (streams.out, streams.err) == ("Report: there\n", "")


def test_what_is_not_finished_is_named(
    tmp_path: Path, outcome: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome |= {"pending": ["tiny", "other"], "report": (None, [])}
    assert reproduce(tmp_path) == Exit.INTERRUPTED
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err == "Not finished: tiny, other; the same command continues from there.\n"
    assert outcome["calls"][1][2] == ["tiny", "other"]


def test_what_cannot_be_shown_is_refused_after_the_report(
    tmp_path: Path, outcome: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome["report"] = (Path("there"), ["One.", "Two."])
    assert reproduce(tmp_path) == Exit.BAD_INPUT
    streams = capsys.readouterr()
    assert (streams.out, streams.err) == ("Report: there\n", "attsvm: One. Two.\n")


def test_an_output_that_is_no_folder_is_refused_before_the_work(tmp_path: Path, outcome: dict[str, Any]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="--out"):
        reproduce(tmp_path / "file")
    with pytest.raises(BadInput, match="--out"):
        work.explain(("other",), tmp_path / "file", 0)
    with pytest.raises(BadInput, match="FIELD=VALUE"):
        reproduce(tmp_path, ["tiny"], ["d"])
    assert outcome["calls"] == []


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Names and seeds of the experiments whose readings were searched."""
    noted: list[tuple[str, int]] = []

    def search(experiment: Experiment, seed: int, progress: Any) -> list[Explanation]:
        noted.append((experiment.name, seed))
        return [Explanation("Fig. 0", {"scale": "1"}, 0, 2, None, 0.0)]

    monkeypatch.setattr(work, "search", search)
    return noted


@pytest.mark.parametrize("names", [(), ("other",)])
def test_the_readings_of_every_protocol_that_has_some_are_searched(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcome: dict[str, Any],
    searched: list[tuple[str, int]],
    capsys: pytest.CaptureFixture[str],
    names: tuple[str, ...],
) -> None:
    """Without names they are those of the published figures."""
    figure = replace(EXPERIMENT, name="figure", readings=readings)
    monkeypatch.setitem(registry.FIGURES, "figure", figure)
    assert work.explain(names, tmp_path, 5) == Exit.DONE
    (name,) = names or ("figure",)
    assert searched == [(name, 5)]
    lines = capsys.readouterr().out.splitlines()
    path = tmp_path / name / "explanation.json"
    assert path.is_file()
    assert lines[0] == "Fig. 0, 1 readings of its protocol. No reading gives numbers for this figure."
    assert lines[-2:] == [f"Written: {path}", "Report: there"]
    experiments = list(names) or ["tiny", "again", "figure"]
    assert outcome["calls"] == [("report", tmp_path, [], "attsvm reproduce 'a b'", experiments)]


def test_a_fixed_protocol_has_nothing_to_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: dict[str, Any], searched: list[tuple[str, int]]
) -> None:
    for name in ("open", "wide"):
        monkeypatch.setitem(registry.FIGURES, name, replace(EXPERIMENT, name=name, readings=readings))
    sentence = r"^again has no readings to search; one of open, wide was expected with --explain\.$"
    with pytest.raises(BadInput, match=sentence):
        work.explain(("other", "again"), tmp_path, 0)
    assert outcome["calls"] == searched == []


def test_an_explanation_without_a_report_is_done_or_refused(
    tmp_path: Path, outcome: dict[str, Any], searched: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome["report"] = (None, [])
    assert work.explain(("other",), tmp_path, 0) == Exit.DONE
    assert "Report" not in capsys.readouterr().out
    outcome["report"] = (None, ["Bad."])
    assert work.explain(("other",), tmp_path, 0) == Exit.BAD_INPUT
    assert capsys.readouterr().err == "attsvm: Bad.\n"
    assert searched == [("other", 0)] * 2
