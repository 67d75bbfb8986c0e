"""Write beside, then rename."""

from __future__ import annotations

from pathlib import Path

import pytest

from attsvm.core.files import replacing_file, replacing_files_in


def test_a_file_appears_whole_with_the_usual_permissions(tmp_path: Path) -> None:
    with replacing_file(tmp_path / "a.txt") as beside:
        beside.write_text("new")
        assert not (tmp_path / "a.txt").exists()
    (tmp_path / "b.txt").write_text("made the usual way")
    assert (tmp_path / "a.txt").read_text() == "new"
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "b.txt").stat().st_mode


def test_an_error_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")

    def interruption() -> None:
        with replacing_file(tmp_path / "a.txt") as beside:
            beside.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interruption()
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_a_directory_takes_the_new_files_and_keeps_the_others(tmp_path: Path) -> None:
    target = tmp_path / "out" / "deep"
    target.mkdir(parents=True)
    (target / "notes.txt").write_text("the user's")
    (target / "report.html").write_text("old")
    with replacing_files_in(target) as beside:
        (beside / "figures").mkdir()
        (beside / "figures" / "a.png").write_text("picture")
        (beside / "report.html").write_text("new")
    contents = {str(p.relative_to(target)): p.read_text() for p in target.rglob("*") if p.is_file()}
    assert contents == {"notes.txt": "the user's", "report.html": "new", "figures/a.png": "picture"}


def test_an_error_leaves_the_old_directory(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("old")

    def failing() -> None:
        with replacing_files_in(tmp_path) as beside:
            (beside / "report.html").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "old"


def test_a_directory_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"), replacing_files_in(tmp_path / "file" / "out"):
        pass
