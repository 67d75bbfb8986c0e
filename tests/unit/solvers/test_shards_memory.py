"""Working sets and memory: what a pass and a round take, and the sentence where that does not fit."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attsvm import ShardedProblem, Status, solve
from attsvm.cli import main
from attsvm.core.error_free import UNIT
from attsvm.core.norms import get_norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import reduce
from attsvm.data.shard_pieces import ShardFile
from attsvm.platform.paging import CHUNK_BYTES
from attsvm.proofs.objective import HARD_MARGIN, Regularisation
from attsvm.solvers.common.control import Control
from attsvm.solvers.frobenius import exchanges
from attsvm.solvers.frobenius.constraints import Constraints as ActiveSetConstraints
from attsvm.solvers.working_sets import collection, pool, restriction, rounds, solving
from attsvm.solvers.working_sets.constraints import Anchor, ConstraintTable
from attsvm.solvers.working_sets.pool import Pool
from attsvm.solvers.working_sets.restriction import Restriction

TOL = 1e-9


def folder_of(place: Path, n: int, T: int, d: int, shards: int) -> Path:
    """Write selections by a random matrix, which W can meet."""
    rng = np.random.default_rng([7, n, T, d])
    teacher = rng.standard_normal((d, d))
    place.mkdir()
    for k in range(shards):
        tokens, queries = rng.standard_normal((n // shards, T, d)), rng.standard_normal((n // shards, d))
        selected = np.matmul(tokens, (queries @ teacher.T)[:, :, None])[..., 0].argmax(axis=1)
        np.savez(place / f"{k}.npz", tokens=tokens.astype(np.float32), queries=queries, selected=selected)
    return place


def rounds_of(problem: ShardedProblem) -> rounds.Rounds:
    shards, shape = problem.shards, problem.shape[2:]
    return rounds.Rounds(Pool(shards), len(shards), shape, get_norm("frobenius"), HARD_MARGIN, Control(TOL), no_method)


def no_method(*_: Any) -> Any:
    raise AssertionError


@pytest.mark.slow
def test_the_first_pass_holds_its_working_set_twice_however_many_shards_there_are(tmp_path: Path) -> None:
    problem = ShardedProblem.from_folder(folder_of(tmp_path / "shards", 24_000, 8, 64, 8))
    runs = rounds_of(problem)
    tracemalloc.start()
    state = runs.begin()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = len(state.table) * runs.constraint_bytes
    assert len(state.table) == rounds.SET_RATIO * 64 * 64
    # The tables of the shards and the one they are joined to; a block of tokens, its differences and their products.
    assert peak < 2.2 * size + 3 * CHUNK_BYTES


def test_places_first_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ShardedProblem.from_folder(folder_of(tmp_path / "shards", 600, 6, 5, 3))
    for options in ({}, {"C": 1.0}, {"C": 1.0, "loss": "squared_hinge"}):
        monkeypatch.setattr(collection, "MOST_BYTES", 1 << 24)
        whole = solve(problem, tol=TOL, **options)
        monkeypatch.setattr(collection, "MOST_BYTES", 0)
        bare = solve(problem, tol=TOL, **options)
        assert bare.status is whole.status is Status.OPTIMAL
        np.testing.assert_array_equal(bare.W, whole.W)
        assert bare.rounds[0].working == whole.rounds[0].working


def test_a_pass_without_a_violation_returns_a_table_that_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "MOST_BYTES", 0)
    rng = np.random.default_rng(0)
    tokens, queries = rng.standard_normal((60, 6, 5)), rng.standard_normal((60, 3))
    selected = np.matmul(tokens, (queries @ rng.standard_normal((3, 5)))[:, :, None])[..., 0].argmax(axis=1)
    problem = ShardedProblem.from_arrays(tokens, queries, selected, chunk=20)
    runs, W = rounds_of(problem), solve(problem).W
    table = runs.begin().table
    fresh = runs.ask(10.0 * W, many=True, room=5, below=1.0).fresh
    assert len(fresh) == 0
    assert len(ConstraintTable.concatenate([table, fresh])) == len(table)


def test_constraints_are_read_in_the_order_of_their_places(tmp_path: Path) -> None:
    problem = ShardedProblem.from_folder(folder_of(tmp_path / "shards", 60, 6, 5, 3))
    places = np.array([(2, 0, 1), (0, 3, 2), (1, 19, 5), (0, 3, 1), (2, 7, 0)])
    opened = [shard.open() for shard in problem.shards]
    for wanted in (places, places[np.argsort(places[:, 0], kind="stable")], places[[0, 2, 3]]):
        table = rounds_of(problem).bring(wanted)
        np.testing.assert_array_equal(table.place, wanted)
        tokens = np.array([opened[shard].tokens[query, token] for shard, query, token in wanted])
        np.testing.assert_array_equal(table.x, tokens.reshape(len(wanted), 5))
        np.testing.assert_array_equal(table.z, [opened[shard].queries[query] for shard, query, _ in wanted])


def test_sums_of_a_lower_bound_have_an_error_below_the_rounding_of_a_float(tmp_path: Path) -> None:
    problem = ShardedProblem.from_folder(folder_of(tmp_path / "shards", 60, 6, 5, 3))
    runs, hinge = rounds_of(problem), Regularisation(1.0, "hinge", None)
    runs.regularisation = hinge
    table = runs.bring(np.array([(0, 3, 2), (1, 19, 5), (2, 0, 1)]))
    listed = table.where(~table.tied)  # but for a selected token
    # At zero every constraint falls short by one.
    anchor = Anchor(np.zeros((5, 5)), 0.5)
    bound = runs.bound_below(Restriction.of(listed, runs.norm, hinge), np.full(len(listed), 0.5), anchor, 0, 0.0)
    assert bound.bound_sum is not None
    assert bound.bound_sum.count == 60 * 5 - len(listed)
    assert bound.bound_sum.error < UNIT * np.linalg.norm(bound.bound_sum.adjoint)


def test_the_first_working_set_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    problem = ShardedProblem.from_folder(folder_of(tmp_path / "shards", 400, 6, 6, 2))
    whole = solve(problem, tol=TOL)
    monkeypatch.setattr(rounds, "SET_BYTES", 20 * 8 * 18)  # twenty constraints of 18 numbers
    small = solve(problem, tol=TOL)
    assert small.rounds[0].working == 20 < whole.rounds[0].working
    assert small.status is Status.OPTIMAL
    assert small.verify()
    assert small.objective == pytest.approx(whole.objective, rel=2 * TOL)


def test_a_query_of_many_constraints_does_not_widen_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    query = np.concatenate([np.zeros(64, dtype=int), np.arange(1, 201)])
    count, d = len(query), 3
    token = np.concatenate([np.arange(1, 65), np.ones(200, dtype=int)])
    z, reference = rng.standard_normal((201, d))[query], rng.standard_normal((201, d))[query]
    x = reference - np.abs(rng.standard_normal((count, 1))) * z - 0.1 * rng.standard_normal((count, d))
    tied = np.zeros(count, dtype=bool)
    tied[[5, 70]] = True
    place = np.column_stack([np.zeros(count, dtype=int), query, token])
    table = ConstraintTable(place, x, reference, z, tied, np.zeros(count, dtype=bool), np.zeros(count))
    whole = Restriction.of(table, get_norm("frobenius"), HARD_MARGIN)
    assert whole.problem.tokens.shape[:2] == (201, 65)
    monkeypatch.setattr(restriction, "PADDED_BYTES", 0)
    cut = Restriction.of(table, get_norm("frobenius"), HARD_MARGIN)
    # A row of the best width has one place too many per constraint at most.
    assert cut.problem.tokens[..., 0].size <= 2 * count
    W, values = rng.standard_normal((d, d)), rng.standard_normal(count)
    for one in (whole, cut):
        np.testing.assert_allclose(one.problem.apply(W)[one.row, one.column], table.margins(W), atol=1e-12)
        np.testing.assert_array_equal(one.problem.tied[one.row, one.column], tied)
        assert one.problem.rejected.sum() + one.problem.tied.sum() == count
    np.testing.assert_allclose(
        cut.problem.adjoint(cut.scatter(values)), whole.problem.adjoint(whole.scatter(values)), atol=1e-11
    )


def test_rows_have_the_width_that_takes_the_fewest_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restriction, "PADDED_BYTES", 0)
    rng = np.random.default_rng(0)
    counts = np.array([*(8,) * 20, 64])
    query = np.repeat(np.arange(21), counts)
    token, count = np.concatenate([np.arange(1, one + 1) for one in counts]), len(query)
    place = np.column_stack([np.zeros(count, dtype=int), query, token])
    z, reference, x = rng.standard_normal((21, 3))[query], rng.standard_normal((21, 3))[query], rng.random((count, 3))
    none = np.zeros(count, dtype=bool)
    table = ConstraintTable(place, x, reference, z, none, none, np.zeros(count))
    cut = Restriction.of(table, get_norm("frobenius"), HARD_MARGIN)
    # Every row has a reference as well.
    sizes = {int(np.ceil(counts / width).sum()) * (width + 1) for width in (1, 2, 4, 8, 16, 32, 64)}
    assert cut.problem.tokens[..., 0].size == min(sizes)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_memory_that_ends_is_a_status_with_the_best_so_far(
    norm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = ShardedProblem.from_folder(folder_of(tmp_path / "shards", 400, 6, 6, 2))
    optimum = solve(problem, norm, tol=TOL).objective
    choices = {"left": np.inf}
    monkeypatch.setattr(rounds, "available_bytes", lambda: choices["left"])

    def shrink(state: Any) -> None:
        choices["left"] = 0.0

    file = tmp_path / "run.npz"
    solution = solve(problem, norm, tol=1e-13, callback=shrink, checkpoint=file)
    assert solution.status is Status.MEMORY_LIMIT
    assert solution.sentence == "The next step does not fit into the memory that is left; W is the best found."
    assert solution.lower_bound <= optimum * (1 + TOL)
    assert solution.upper_bound >= optimum * (1 - TOL)
    assert file.exists()
    choices["left"] = np.inf
    assert solve(problem, norm, tol=TOL, checkpoint=file).status is Status.OPTIMAL


def test_the_command_ends_in_a_sentence_where_memory_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "shards", 60, 6, 4, 2)

    def no_memory(*_: Any) -> Any:
        raise MemoryError

    for name, replacement in (("available_bytes", lambda: 0.0), ("frobenius", no_memory)):
        with monkeypatch.context() as patch:
            patch.setattr(rounds, name, replacement)
            assert main(["solve", str(folder), "--json"]) == 4
        answer = json.loads(capsys.readouterr().out)
        assert answer["status"] == "MEMORY_LIMIT"
        assert answer["objective"] is None


@pytest.mark.slow
def test_the_method_of_multipliers_goes_on_where_factors_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = ShardedProblem.from_folder(folder_of(tmp_path / "shards", 3000, 8, 20, 3))
    whole = solve(problem, tol=1e-6)
    monkeypatch.setattr(solving, "FACTOR_BYTES", 0.0)  # whatever memory the machine has
    monkeypatch.setattr(rounds, "DOUBTFUL_ROUNDS", 1)  # the first gaps are infinite: no reason for a factor either
    bounded = solve(problem, tol=1e-6)
    assert bounded.status is Status.OPTIMAL
    assert "multipliers" in bounded.method
    assert "multipliers" not in whole.method
    # Two answers with certified gaps differ by both at most.
    assert bounded.objective == pytest.approx(whole.objective, rel=2e-6)


def test_compressed_tokens_are_unpacked_into_their_place(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shape = (4000, 16, 32)
    np.savez_compressed(
        tmp_path / "a.npz",
        tokens=rng.standard_normal(shape),
        queries=rng.standard_normal((4000, 3)),
        selected=np.zeros(4000, dtype=int),
    )
    (shard,) = ShardedProblem.from_folder(tmp_path).shards
    assert isinstance(shard, ShardFile)
    assert shard.whole_bytes == 8 * np.prod(shape)
    tracemalloc.start()
    shard.load()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.2 * shard.whole_bytes  # the numbers, and pieces of a quarter of a megabyte; 3.9 without pieces


def test_compressed_shards_are_unpacked_once_where_all_of_them_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path / "shards", 400, 6, 6, 2)
    for path in folder.iterdir():
        with np.load(path) as arrays:
            content = dict(arrays)
        np.savez_compressed(path, **content)
    loaded: list[str] = []
    load = ShardFile.load
    monkeypatch.setattr(ShardFile, "load", lambda self: loaded.append(str(self)) or load(self))
    once = solve(ShardedProblem.from_folder(folder), tol=TOL)
    assert len(loaded) == 2
    loaded.clear()
    monkeypatch.setattr(pool, "KEPT_BYTES", 1)
    often = solve(ShardedProblem.from_folder(folder), tol=TOL)
    assert len(loaded) > 2 * len(often.rounds)
    assert once.status is often.status is Status.OPTIMAL
    assert once.digests == often.digests
    np.testing.assert_array_equal(once.W, often.W)


def test_a_factor_of_the_active_constraints_takes_three_matrices() -> None:
    rng = np.random.default_rng(0)
    tokens, queries = rng.standard_normal((600, 3, 40)), rng.standard_normal((600, 40))
    reduced = reduce(SelectionProblem(tokens, queries, np.zeros(600, dtype=int)))
    constraints = ActiveSetConstraints.of_reduced(reduced)
    count = len(constraints.of)
    tracemalloc.start()
    passive, size = exchanges._first_set(reduced, constraints, np.ones(count), 1.0, count, count)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == count > 1000
    # The factor, the matrix that is factored, and one of its two products; five where sums were written out.
    assert peak < 3.3 * passive.factor.nbytes
