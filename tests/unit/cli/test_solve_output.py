"""What `attsvm solve` prints of an answer, for a file and for a folder of shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, solve
from attsvm.cli.solve import solve as solve_command
from attsvm.cli.solve import summary
from attsvm.solvers.working_sets import rounds
from problems import FAMILIES

SHARDS = 4


@pytest.fixture
def problem(monkeypatch: pytest.MonkeyPatch) -> SelectionProblem:
    """A problem of several rounds."""
    monkeypatch.setattr(rounds, "SET_RATIO", 1)
    return FAMILIES["planted"].make(np.random.default_rng(5), 40, 8, 6)


@pytest.fixture
def folder(problem: SelectionProblem, tmp_path: Path) -> Path:
    place = tmp_path / "shards"
    place.mkdir()
    arrays = {"tokens": problem.tokens[problem.sequence], "queries": problem.queries, "selected": problem.selected}
    for k in range(SHARDS):
        part: dict[str, Any] = {name: values[k::SHARDS] for name, values in arrays.items()}
        np.savez(place / f"{k}.npz", **part)
    return place


def test_a_proof_has_the_multipliers_that_are_not_zero() -> None:
    rng = np.random.default_rng(0)
    tokens, queries = rng.standard_normal((4, 3, 5)), rng.standard_normal((4, 5))
    tokens[0, 1] = tokens[0, 0]  # the margin of two equal tokens is zero for every W
    solution = solve(SelectionProblem(tokens, queries, np.array([0, 1, 2, 0])))
    assert "\nproof    1 multiplier, residual " in summary(solution)


@pytest.mark.parametrize("is_json", [False, True])
def test_a_folder_has_one_line_of_json_or_a_table_that_names_the_files(
    folder: Path, is_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    out, checkpoint = folder.with_name("out.npz"), folder.with_name("kept.npz")
    assert solve_command(folder, out=out, checkpoint=checkpoint, max_iter=1, json=is_json) == 4
    assert checkpoint.exists()
    lines = capsys.readouterr().out.splitlines()
    if is_json:
        assert len(lines) == 1
    else:
        assert lines[-2:] == [f"written to {out}", f"the same command continues from {checkpoint}"]
    assert solve_command(folder, out=out, checkpoint=checkpoint, json=is_json) == 0
    assert not checkpoint.exists()
    lines = capsys.readouterr().out.splitlines()
    if is_json:
        assert len(lines) == 1
    else:
        assert lines[-1] == f"written to {out}"  # nothing is left to continue from


def test_json_of_a_folder_has_its_shards_and_its_answer(
    problem: SelectionProblem, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert solve_command(folder, json=True) == 0
    numbers: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (numbers["status"], numbers["shape"]) == ("OPTIMAL", {"n": 40, "T": 8, "d": 6, "dz": 6})
    assert (numbers["shards"], numbers["left_out"], len(numbers["digests"])) == (SHARDS, [], SHARDS)
    assert numbers["objective"] == pytest.approx(solve(problem).objective, rel=1e-6)
    assert numbers["rounds"] > 1


def test_the_bar_of_a_folder_is_never_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share that is done is unknown."""
    shares: list[float] = []

    def call(progress: object, stage: str, share: float) -> bool:
        shares.append(share)
        return False

    monkeypatch.setattr("attsvm.cli.console.Progress.__call__", call)
    assert solve_command(folder) == 0
    assert shares
    assert set(shares) == {0.0}
