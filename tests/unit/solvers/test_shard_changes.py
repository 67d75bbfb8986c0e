"""Shards that change: the answer is about the data that is there, and says which data that was."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import LocalCluster

from attsvm import SelectionProblem, ShardedProblem, Status, solve
from attsvm.data import checksums
from attsvm.data import shards as shards_module
from attsvm.data.checksums import joined, record_of
from attsvm.platform.cluster import quiet
from attsvm.solvers.working_sets import pricing

TOL = 1e-9
Arrays = dict[str, np.ndarray]


def make(seed: int, n: int = 12, T: int = 5, d: int = 4) -> Arrays:
    """One random matrix selects, whatever the seed, so that a W exists for any of them together."""
    rng, W = np.random.default_rng([28, seed]), np.random.default_rng(d).standard_normal((d, d))
    tokens, queries = rng.standard_normal((n, T, d)), rng.standard_normal((n, d))
    selected = np.matmul(tokens, (queries @ W.T)[:, :, None])[..., 0].argmax(axis=1)
    return {"tokens": tokens, "queries": queries, "selected": selected}


def in_memory(*parts: Arrays) -> float:
    """Objective of the same data, solved without files."""
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    solution = solve(SelectionProblem(**arrays), tol=TOL)
    assert solution.status is Status.OPTIMAL
    return solution.objective


def rewrite(path: Path, arrays: Arrays) -> None:
    """Write over a file in place."""
    with path.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def rename(path: Path, arrays: Arrays) -> None:
    """Write a file and give it the name of another one, with that one's time."""
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    rewrite(path.with_suffix(".new"), arrays)
    os.utime(path.with_suffix(".new"), ns=times)
    path.with_suffix(".new").replace(path)


def delete(path: Path, arrays: Arrays) -> None:
    path.unlink()
    rewrite(path, arrays)


@pytest.mark.parametrize("replace", [rewrite, rename, delete])
def test_a_replaced_shard_is_solved_as_it_is(replace: Callable[[Path, Arrays], None], tmp_path: Path) -> None:
    one, first, second = make(0), make(1), make(2)
    rewrite(tmp_path / "a.npz", one)
    rewrite(tmp_path / "b.npz", first)
    before = solve(tmp_path, tol=TOL)
    assert before.objective == pytest.approx(in_memory(one, first), rel=2.5 * TOL)
    described = ShardedProblem.from_folder(tmp_path)
    replace(tmp_path / "b.npz", second)
    for problem in (tmp_path, described):
        after = solve(problem, tol=TOL)
        assert after.objective == pytest.approx(in_memory(one, second), rel=2.5 * TOL)
        assert after.verify()
    assert before.digests[0] == after.digests[0]
    assert before.digests[1] != after.digests[1]
    proof = before.verify()
    assert not proof
    assert str(tmp_path / "b.npz") in proof.statement
    assert str(tmp_path / "a.npz") not in proof.statement
    replace(tmp_path / "b.npz", first)  # the data that the answer is about are back
    assert before.verify()


def test_a_shard_is_refused_while_it_is_bad_and_accepted_once_it_is_mended(tmp_path: Path) -> None:
    one, other = make(0), make(1)
    bad = {**other, "tokens": other["tokens"].copy()}
    bad["tokens"][7, 2, 1] = np.nan
    rewrite(tmp_path / "a.npz", one)
    rewrite(tmp_path / "b.npz", other)
    expected = in_memory(one, other)
    solution = solve(tmp_path, tol=TOL)
    for _ in range(2):
        rewrite(tmp_path / "b.npz", bad)
        with pytest.raises(ValueError, match=r"^tokens of .*b\.npz has NaN or infinity in row 7;"):
            solve(tmp_path)
        proof = solution.verify()
        assert not proof
        assert "b.npz" in proof.statement
        rewrite(tmp_path / "b.npz", other)
        assert solve(tmp_path, tol=TOL).objective == pytest.approx(expected, rel=2.5 * TOL)
        assert solution.verify()


def test_a_shard_that_shrinks_in_place_is_one_sentence(tmp_path: Path) -> None:
    one, other = make(0, n=200), make(1, n=200)
    rewrite(tmp_path / "a.npz", one)
    rewrite(tmp_path / "b.npz", other)
    solution = solve(tmp_path)
    whole = (tmp_path / "b.npz").read_bytes()

    def cut(state: object) -> bool:
        os.truncate(tmp_path / "b.npz", 4096)
        return False

    with pytest.raises(ValueError, match=r"b\.npz was changed while it was in use; a file that stays as it is"):
        solve(tmp_path, callback=cut, tol=1e-12)
    proof = solution.verify()
    assert not proof
    assert "b.npz" in proof.statement
    with pytest.raises(ValueError, match=r"b\.npz is damaged or of another format"):
        solve(tmp_path)
    (tmp_path / "b.npz").write_bytes(whole)
    assert solution.verify()
    os.truncate(tmp_path / "b.npz", 4096)
    with pytest.raises(ValueError, match=r"b\.npz was changed"):
        solution.problem.shards[1].open()


@pytest.mark.parametrize("when", ["between rounds", "after the last pass"])
def test_a_shard_that_changes_during_a_run_is_refused(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So many constraints that a working set takes several rounds.
    rewrite(tmp_path / "a.npz", make(0, n=200))
    rewrite(tmp_path / "b.npz", make(1, n=200))
    sentence = r"b\.npz was changed while it was in use"
    if when == "between rounds":

        def once(state: object) -> None:
            if not replaced:
                replaced.append(True)
                rename(tmp_path / "b.npz", make(3, n=200))

        replaced: list[bool] = []
        with pytest.raises(ValueError, match=sentence):
            solve(tmp_path, callback=once, tol=1e-12)
        return
    inspect = shards_module.ShardedProblem.check_unchanged

    def late(problem: ShardedProblem) -> None:
        rename(tmp_path / "b.npz", make(3, n=200))
        inspect(problem)

    monkeypatch.setattr(shards_module.ShardedProblem, "check_unchanged", late)
    with pytest.raises(ValueError, match=sentence):
        solve(tmp_path)


def test_a_described_file_of_other_sizes_or_none_is_one_sentence(tmp_path: Path) -> None:
    rewrite(tmp_path / "a.npz", make(0))
    solution = solve(tmp_path)
    rewrite(tmp_path / "a.npz", make(0, n=13))
    with pytest.raises(ValueError, match=r"a\.npz has other sizes than when it was described"):
        solve(solution.problem)
    assert "a.npz has other sizes" in solution.verify().statement
    (tmp_path / "a.npz").unlink()
    with pytest.raises(ValueError, match=r"a\.npz is gone; the file that was described was expected\.$"):
        solve(solution.problem)
    assert "a.npz is gone" in solution.verify().statement


def test_arrays_that_were_written_to_are_named_as_well() -> None:
    arrays = make(0)
    pieces = ShardedProblem.from_arrays(**arrays, chunk=5)
    solution = solve(pieces)
    pieces.shards[1].tokens[3, 2, 1] += 1e-3
    proof = solution.verify()
    assert not proof
    assert "the arrays given, rows 5 to 9." in proof.statement


def test_nothing_of_a_file_stays_mapped_or_open(tmp_path: Path) -> None:
    rewrite(tmp_path / "a.npz", make(0))
    pieces = ShardedProblem.from_folder(tmp_path)
    shard = pieces.shards[0].open()
    solve(pieces)
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system does not list the maps of a process")
    assert str(tmp_path) not in maps.read_text(encoding="utf-8")
    links = [
        os.readlink(f"/proc/self/fd/{entry}")
        for entry in os.listdir("/proc/self/fd")
        if entry.isdigit() and os.path.exists(f"/proc/self/fd/{entry}")
    ]
    assert not [link for link in links if str(tmp_path) in link]
    assert shard.tokens.shape == (12, 5, 4)
    assert not hasattr(pricing, "_kept_open")


# One client process: solve the folder, and print objective and status; or the sentence.
CLIENT = """
import sys
from attsvm import solve
try:
    solution = solve(sys.argv[1], tol=1e-9, scheduler=sys.argv[2])
except ValueError as error:
    print("refused", error)
else:
    print(solution.status.name, repr(float(solution.objective)), bool(solution.verify(scheduler=sys.argv[2])))
"""


def client(folder: Path, scheduler: str) -> str:
    command = [sys.executable, "-c", CLIENT, str(folder), scheduler]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_two_client_processes_on_one_scheduler_see_the_files_that_are_there(tmp_path: Path) -> None:
    folder, one, first, second = tmp_path / "shards", make(0), make(1), make(2)
    bad = {**second, "tokens": np.full_like(second["tokens"], np.nan)}
    folder.mkdir()
    rewrite(folder / "a.npz", one)
    with quiet(), LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        for replace, arrays in ((rewrite, first), (rename, second), (delete, bad), (rewrite, first)):
            (folder / "b.npz").touch()
            replace(folder / "b.npz", arrays)
            words = client(folder, cluster.scheduler_address).split(maxsplit=2)
            if arrays is bad:
                assert words[0] == "refused"
                assert "b.npz has NaN or infinity in row 0;" in words[2]
                continue
            assert words[0] == Status.OPTIMAL.name
            assert float(words[1]) == pytest.approx(in_memory(one, arrays), rel=2.5 * TOL)
            assert words[2].strip() == "True"


@pytest.mark.parametrize(("first", "second"), [(b"", b"abc"), (b"abc", b""), (b"a" * 999, bytes(range(256)) * 33)])
def test_checksums_of_pieces_join_to_that_of_the_whole(first: bytes, second: bytes) -> None:
    assert joined(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


@pytest.mark.parametrize("most", [40, 8])
def test_a_checksum_reads_so_many_bytes_at_a_time_or_one_row(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Watched:
        shape, dtype = (10, 2), np.dtype(float)

        def __len__(self) -> int:
            return len(numbers)

        def __getitem__(self, rows: Any) -> np.ndarray:
            read.append(numbers[rows].nbytes)
            return numbers[rows]

    numbers, read = np.random.default_rng(0).standard_normal((10, 2)), []
    monkeypatch.setattr(checksums, "READ_BYTES", most)
    assert record_of({"tokens": Watched()}).parts == {"tokens": (numbers.nbytes, zlib.crc32(numbers.tobytes()))}
    assert sum(read) == numbers.nbytes
    assert max(read) <= max(most, numbers[0].nbytes)
