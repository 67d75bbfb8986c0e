"""Which files of a directory belong to an earlier study."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attsvm.study.files import FIGURES, NUMBERS, PAGE, file_in_the_way, listed_files


def test_files_that_a_study_lists_lie_in_its_directory(tmp_path: Path) -> None:
    names = [PAGE, f"{FIGURES}/margins.png", "../other.html", "/etc/passwd", 3]
    (tmp_path / NUMBERS).write_text(json.dumps({"files": names}), encoding="utf-8")
    assert listed_files(tmp_path) == [tmp_path / PAGE, tmp_path / FIGURES / "margins.png"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": 3}', '{"files": "report.html"}'])
def test_a_file_of_numbers_that_lists_nothing_owns_nothing(tmp_path: Path, text: str) -> None:
    assert listed_files(tmp_path) == []
    (tmp_path / NUMBERS).write_text(text, encoding="utf-8")
    assert listed_files(tmp_path) == []


@pytest.mark.parametrize("name", [PAGE, NUMBERS, f"{FIGURES}/margins.pdf"])
def test_a_file_that_a_study_would_replace_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / FIGURES).mkdir()
    (tmp_path / "notes.txt").touch()
    assert file_in_the_way(tmp_path) is None
    (tmp_path / name).touch()
    assert file_in_the_way(tmp_path) == name
