"""Write beside, then rename."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from attsvm.platform import files
from attsvm.platform.files import locked, replacing_file, replacing_files_in, take_up

# Ends itself by kill -9 in the middle of writing: before the files are complete, or between their moves into place.
KILLED = """
import os, signal, sys
from pathlib import Path
from attsvm.platform import files
target, moment = Path(sys.argv[1]), sys.argv[2]
end = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if moment == "file":
    with files.replacing_file(target / "a.txt") as beside:
        beside.write_text("half")
        end()
replace, moved = os.replace, []
def replace_one(source, place):
    if moved:
        end()
    moved.append(replace(source, place))
with files.replacing_files_in(target) as beside:
    (beside / "a.txt").write_text("new")
    if moment == "writing":
        end()
    (beside / "b.txt").write_text("new")
    os.replace = replace_one
"""


def killed(target: Path, moment: str) -> set[str]:
    """Let a process be killed at a moment of its writing, and return the names that it leaves."""
    subprocess.run([sys.executable, "-c", KILLED, str(target), moment], check=False, timeout=60)
    return {path.name for path in target.iterdir()}


def test_what_a_killed_run_leaves_is_taken_up_or_removed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / ".mine.7.partial").write_text("the user's")
    (tmp_path / ".files.partial").mkdir()
    others = {"a.txt", ".mine.7.partial", ".files.partial"}
    assert len(killed(tmp_path, "writing") - others) == 1
    with replacing_files_in(tmp_path) as beside:
        (beside / "a.txt").write_text("next")
    assert {path.name for path in tmp_path.iterdir()} == others
    assert (tmp_path / "a.txt").read_text() == "next"
    assert len(killed(tmp_path, "moving") - others) == 1  # the folder that still holds b.txt
    take_up(tmp_path, "files")
    assert {path.name for path in tmp_path.iterdir()} == others | {"b.txt"}
    assert {(tmp_path / name).read_text() for name in ("a.txt", "b.txt")} == {"new"}
    assert len(killed(tmp_path, "file") - others) == 2
    with replacing_file(tmp_path / "a.txt") as beside:
        beside.write_text("last")
    assert {path.name for path in tmp_path.iterdir()} == others | {"b.txt"}


def test_what_a_living_run_writes_is_left_alone(tmp_path: Path) -> None:
    with replacing_files_in(tmp_path) as beside, replacing_file(tmp_path / "b.txt") as file:
        (beside / "a.txt").write_text("new")
        file.write_text("new")
        take_up(tmp_path, "*")
        assert beside.is_dir()
        assert file.read_text() == "new"


def test_only_listed_files_of_an_earlier_run_are_removed(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("old")
    with replacing_files_in(tmp_path, [tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "gone.txt"]) as beside:
        (beside / "a.txt").write_text("new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "new", "c.txt": "old"}


def test_a_directory_is_for_one_run_at_a_time_and_a_killed_one_keeps_no_lock(tmp_path: Path) -> None:
    out = tmp_path / "out"
    holding = (
        f"from attsvm.platform.files import locked\nwith locked({str(out)!r}):\n    print(flush=True)\n    input()"
    )
    with subprocess.Popen([sys.executable, "-c", holding], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(OSError, match="in use by another run"), locked(out):
            pass
        other.kill()
    with locked(out):
        assert os.listdir(out) == []


def test_a_file_appears_whole_with_the_usual_permissions(tmp_path: Path) -> None:
    with replacing_file(tmp_path / "a.txt") as beside:
        beside.write_text("new")
        assert not (tmp_path / "a.txt").exists()
    (tmp_path / "b.txt").write_text("made the usual way")
    assert (tmp_path / "a.txt").read_text() == "new"
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "b.txt").stat().st_mode


@pytest.mark.parametrize("target", ["a.txt", "."])
def test_an_error_leaves_what_was_there_and_nothing_beside_it(target: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    writing = replacing_file if target == "a.txt" else replacing_files_in

    def interruption() -> None:
        with writing(tmp_path / target) as beside:
            (beside if target == "a.txt" else beside / "a.txt").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interruption()
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


@pytest.mark.parametrize("named", [None, "other.txt"])
@pytest.mark.parametrize("writing", [replacing_file, replacing_files_in])
def test_an_error_names_its_file_or_else_the_target(
    writing: Callable[[Path], AbstractContextManager[Path]], named: str | None, tmp_path: Path
) -> None:
    """A full disk does not name the file."""
    target = tmp_path / "target"
    with pytest.raises(OSError, match="No space left") as caught, writing(target):
        raise OSError(errno.ENOSPC, "No space left on device", named)
    assert caught.value.filename == (named or str(target))


def test_a_folder_that_another_run_removes_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = files._lock
    removed: list[Path] = []

    def lock_late(handle: int, *, wait: bool = False) -> bool | None:
        if not removed:
            (partial,) = tmp_path.glob(".files.*")
            removed.append(partial)
            partial.rmdir()
        return lock(handle, wait=wait)

    monkeypatch.setattr(files, "_lock", lock_late)
    with replacing_files_in(tmp_path) as beside:
        assert removed == [beside]
        (beside / "a.txt").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_directory_takes_the_new_files_and_keeps_the_others(tmp_path: Path) -> None:
    target = tmp_path / "out" / "deep"
    target.mkdir(parents=True)
    (target / "notes.txt").write_text("the user's")
    (target / "report.html").write_text("old")
    with replacing_files_in(target) as beside:
        (beside / "figures" / "small").mkdir(parents=True)
        (beside / "figures" / "small" / "a.png").write_text("picture")
        (beside / "report.html").write_text("new")
    contents = {str(p.relative_to(target)): p.read_text() for p in target.rglob("*") if p.is_file()}
    assert contents == {"notes.txt": "the user's", "report.html": "new", "figures/small/a.png": "picture"}


def test_a_directory_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"), replacing_files_in(tmp_path / "file" / "out"):
        pass
