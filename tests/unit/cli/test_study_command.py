"""The directories and the recorded command of `attsvm study` and `attsvm compare`."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from attsvm.cli.compare import compare
from attsvm.cli.study import DEFAULT, _locked_directory, study
from attsvm.report import comparison as comparison_page
from attsvm.report import study as study_page
from attsvm.study import run, verdict
from attsvm.study.files import NUMBERS

ARGUMENTS = ["one", "two", "--out", "a b"]


@pytest.fixture
def no_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that read and compute nothing."""
    record = SimpleNamespace(name="a", content={"headline": "A headline."})
    comparison = SimpleNamespace(first=record, second=record, cautions=[], settings=[], tables={}, claims=[])
    monkeypatch.setattr("attsvm.cli.compare.read_record", lambda path: record)
    monkeypatch.setattr("attsvm.cli.compare.compared", lambda first, second: comparison)
    monkeypatch.setattr("attsvm.cli.study._read_data", lambda *arguments: None)
    monkeypatch.setattr("attsvm.cli.study._say", lambda *arguments: None)
    monkeypatch.setattr("attsvm.cli.study.one_thread", nullcontext)
    monkeypatch.setattr(run, "prepare", lambda *arguments: None)
    monkeypatch.setattr(run, "run", lambda *arguments: None)
    monkeypatch.setattr(verdict, "claims", lambda result: [])


@pytest.mark.parametrize("name", ["compare", "study"])
def test_a_page_has_the_command_with_all_its_arguments(
    no_study: None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []

    def write(*arguments: object) -> Path:
        commands.append(str(arguments[-1]))
        return tmp_path

    monkeypatch.setattr(comparison_page, "write_comparison", write)
    monkeypatch.setattr(study_page, "write_study", write)
    monkeypatch.setattr("sys.argv", ["/usr/bin/attsvm", name, *ARGUMENTS])
    if name == "compare":
        assert compare(Path("one"), Path("two"), out=tmp_path / "out") == 0
    else:
        assert study("one", out=tmp_path / "out") == 0
    assert [shlex.split(command) for command in commands] == [["attsvm", name, *ARGUMENTS]]


def test_a_wrong_value_in_a_page_of_two_studies_is_a_bug_and_no_refusal(
    no_study: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*arguments: object) -> Path:
        raise ValueError("a bug")

    monkeypatch.setattr(comparison_page, "write_comparison", write)
    with pytest.raises(ValueError, match="a bug"):
        compare(Path("one"), Path("two"), out=tmp_path / "out")


def test_studies_without_a_directory_are_numbered_from_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attsvm.cli.study.count", lambda start: range(start, start + 3))  # a repeated name has an end
    for expected in (DEFAULT, Path(f"{DEFAULT}-2"), Path(f"{DEFAULT}-3")):
        with _locked_directory(None, overwrite=False) as directory:
            assert directory == expected
            (directory / NUMBERS).touch()
    assert len(list(tmp_path.iterdir())) == 3
