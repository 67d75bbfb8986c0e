"""What `attsvm solve FOLDER` writes never takes the place of its input, nor lies where it would count as a shard."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from attsvm import ShardedProblem, Status, solve
from attsvm.cli import main


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two shards, one of them a directory of arrays, names that lead to them, and a prior."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "shards"
    (folder / "b").mkdir(parents=True)
    for k in range(2):
        arrays = {
            "tokens": rng.standard_normal((4, 3, 5)),
            "queries": rng.standard_normal((4, 5)),
            "selected": rng.integers(3, size=4),
        }
        if k:
            for name, values in arrays.items():
                np.save(folder / "b" / f"{name}.npy", values)
        else:
            np.savez(folder / "a.npz", **arrays)
    np.savez(tmp_path / "prior.npz", W=np.zeros((5, 5)))
    (tmp_path / "link.npz").symlink_to(folder / "a.npz")
    (tmp_path / "hard.npz").hardlink_to(folder / "a.npz")
    (tmp_path / "way").symlink_to(folder)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(place: Path) -> dict[str, str]:
    files = sorted(path for path in place.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


TARGETS = [
    "shards/a.npz",
    "shards/new.npz",
    "elsewhere/../shards/new.npz",
    "shards/b/new.npz",
    "link.npz",
    "hard.npz",
    "way/new.npz",
    "way/b/new.npz",
    "prior.npz",
]


@pytest.mark.parametrize("option", ["--out", "--checkpoint"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_target_among_the_input_is_refused_before_any_work(
    place: Path, option: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(place)
    assert main(["solve", "shards", "--prior", "prior.npz", option, target]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"attsvm: {option} {target} ")
    assert said.err.endswith("was expected.\n")
    assert said.err.count("\n") == 1
    assert "remove" not in said.err
    assert contents(place) == before
    assert ShardedProblem.from_folder("shards").shape == (8, 3, 5, 5)


@pytest.mark.parametrize(
    ("out", "more"),
    [
        ("x.npz", ["--checkpoint", "x.npz"]),
        ("x.npz", ["--checkpoint", "./elsewhere/../x.npz"]),
        ("x.npz", ["--checkpoint", "X.npz"]),
        ("shards.checkpoint.npz", []),
    ],
)
def test_output_and_checkpoint_are_two_files(
    place: Path, out: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(place)
    assert main(["solve", "shards", "--out", out, *more]) == 2
    assert "is a file that is read or written; another name was expected." in capsys.readouterr().err
    assert contents(place) == before


def test_a_folder_of_arrays_has_its_checkpoint_beside_it(place: Path) -> None:
    """The neighbours of one directory of arrays are no shards; files in a further folder are none either."""
    (place / "shards" / "results").mkdir()
    assert main(["solve", "shards/b", "--out", "shards/w.npz", "--checkpoint", "elsewhere/c.npz"]) == 0
    os.remove("shards/w.npz")
    assert main(["solve", "shards", "--out", "shards/results/w.npz"]) == 0
    assert (place / "shards" / "results" / "w.npz").exists()


@pytest.mark.parametrize("target", [*TARGETS[:-1], str(Path("shards", "b", "tokens.npy"))])
def test_a_checkpoint_in_python_is_held_to_the_same(place: Path, target: str) -> None:
    before = contents(place)
    with pytest.raises(ValueError, match=r"^checkpoint .* was expected\.$"):
        solve("shards", checkpoint=target)
    assert contents(place) == before


@pytest.mark.parametrize("name", ["prior.npz", "notes.txt"])
def test_a_file_that_is_no_checkpoint_is_not_advised_to_be_removed(place: Path, name: str) -> None:
    (place / "notes.txt").write_text("mine")
    before = contents(place)
    with pytest.raises(ValueError, match=rf"^{name} is .*no checkpoint; another name was expected\.$"):
        solve("shards", checkpoint=name)
    assert contents(place) == before


def test_a_checkpoint_elsewhere_is_written_and_removed(place: Path) -> None:
    stopped = solve("shards", checkpoint="c.npz", max_iter=1, tol=1e-14)
    assert Path("c.npz").exists() == (stopped.status is not Status.OPTIMAL)
    assert solve("shards", checkpoint="c.npz").status is Status.OPTIMAL
    assert not Path("c.npz").exists()
