"""Problems in pieces: the files they come from, every norm and margin, bytes, checkpoints, workers that die."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
from distributed import Client, Future, LocalCluster

from attsvm import SelectionProblem, ShardedProblem, ShardedSolution, Status, solve, solve_batch
from attsvm.cli import main
from attsvm.data import shards as shards_module
from attsvm.data.file_arrays import RawArray
from attsvm.data.shard_pieces import ShardFile
from attsvm.platform import cluster as dask_cluster
from attsvm.platform.cluster import ClusterLost, quiet
from attsvm.solvers.frobenius import portfolio
from attsvm.solvers.working_sets import pool as pool_module
from attsvm.solvers.working_sets import rounds
from attsvm.solvers.working_sets.margins import blocks
from attsvm.solvers.working_sets.pool import OnCluster
from attsvm.solvers.working_sets.pricing import Request, merge, price
from problems import FAMILIES, NAMED

TOL = 1e-9
NORMS = ("frobenius", "nuclear", "spectral", "max", 1, 1.5)


def cut(problem: SelectionProblem, chunk: int) -> ShardedProblem:
    tokens = problem.tokens[problem.sequence]
    return ShardedProblem.from_arrays(tokens, problem.queries, problem.selected, mask=problem.mask, chunk=chunk)


def noisy(n: int, T: int, d: int) -> SelectionProblem:
    """A random matrix selects, but for a fifth of the queries: nothing can meet all of them."""
    rng = np.random.default_rng([1, n, T, d])
    tokens, queries = rng.standard_normal((n, T, d)), rng.standard_normal((n, d))
    selected = np.matmul(tokens, (queries @ rng.standard_normal((d, d)))[:, :, None])[..., 0].argmax(axis=1)
    is_noisy = rng.random(n) < 0.2
    selected[is_noisy] = rng.integers(T, size=int(is_noisy.sum()))
    return SelectionProblem(tokens, queries, selected)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        quiet(),
        LocalCluster(n_workers=4, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


OPTIONS: dict[str, dict[str, Any]] = {
    "hard": {},
    "C": {"C": 2.0},
    "squared hinge": {"C": 2.0, "loss": "squared_hinge"},
    "prior": {"prior": True},
    "C and prior": {"C": 0.5, "prior": True},
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", OPTIONS)
def test_shards_agree_with_the_problem_in_memory(kind: str, norm: str | float) -> None:
    # Three tied tokens a query, and masks, in "several"; "published" cannot be met as a whole.
    problem = (
        FAMILIES["published"].draw(25, 8, 4, seed=3)
        if "C" in OPTIONS[kind]
        else FAMILIES["several"].draw(8, 8, 6, seed=3)
    )
    options = dict(OPTIONS[kind])
    if "prior" in options:
        options["prior"] = 0.3 * np.random.default_rng(1).standard_normal(problem.shape[2:])
    whole, pieces = solve(problem, norm, tol=TOL, **options), solve(cut(problem, 7), norm, tol=TOL, **options)
    assert pieces.status is whole.status is Status.OPTIMAL
    assert pieces.gap <= TOL
    assert pieces.verify()
    # Two certified answers differ by both their gaps at most.
    value = getattr(whole, "primal", whole.objective)
    assert pieces.primal == pytest.approx(value, rel=2.5 * TOL)
    assert pieces.lower_bound <= value * (1 + TOL)
    assert pieces.upper_bound >= value * (1 - TOL)


@pytest.mark.parametrize("name", sorted(NAMED))
def test_named_problems_have_their_answers_in_pieces(name: str) -> None:
    instance = NAMED[name]()
    solution = solve(cut(instance.problem, 1))
    assert solution.verify()
    if not instance.feasible:
        assert solution.status is Status.INFEASIBLE
        assert solution.certificate is not None
        assert solution.certificate.verify()
    elif instance.frobenius is not None:
        assert solution.status is Status.OPTIMAL
        assert solution.objective == pytest.approx(instance.frobenius, rel=2 * TOL)


@pytest.mark.parametrize(("norm", "C"), [("frobenius", 1.0), ("nuclear", 1.0)])
def test_a_hinge_leaves_what_is_clearly_short_where_it_lies(
    norm: str, C: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "LEAST_SAMPLE", 400)
    problem = noisy(800, 32, 4)
    solution = solve(cut(problem, 200), norm, C=C, tol=1e-6)
    whole = solve(problem, norm, C=C, tol=1e-6)
    assert solution.status is Status.OPTIMAL
    assert solution.primal == pytest.approx(whole.primal, rel=2.5e-6)
    assert solution.supports.settled > 0
    assert max(one.working for one in solution.rounds) < 0.75 * problem.rejected.sum()


@pytest.mark.parametrize("norm", ["nuclear", "max", "1", 1.5])
@pytest.mark.slow
def test_the_sum_of_what_falls_short_costs_no_digits(norm: str | float) -> None:
    """Multipliers of 100 on thousands of constraints: summed in floats their rounding alone left the gap at 1e-7."""
    problem = FAMILIES["published"].make(np.random.default_rng(1), 2000, 8, 6)
    solution = solve(cut(problem, 500), norm, C=100.0, tol=TOL)
    assert solution.supports.settled > 5000
    assert solution.status is Status.OPTIMAL
    assert solution.verify()
    whole = solve(problem, norm, C=100.0, tol=TOL).certified
    assert solution.lower_bound <= whole.upper_bound
    assert whole.lower_bound <= solution.upper_bound


def test_a_hinge_keeps_a_narrow_band_once_nothing_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "LEAST_SAMPLE", 200)
    problem = noisy(800, 32, 4)
    solution = solve(cut(problem, 400), C=1.0, tol=TOL)
    assert solution.status is Status.OPTIMAL
    assert solution.verify()
    sizes = [one.working for one in solution.rounds]
    # Of a set that is larger than two first ones an eighth is kept, or a first one; a bin of the band may hold more.
    assert max(sizes) > rounds.CUT_RATIO * 200
    assert sizes[-1] < 0.5 * max(sizes)


@pytest.mark.parametrize("norm", ["max", 1.5])
def test_constraints_far_from_active_leave_though_interior_points_keep_their_multipliers_positive(
    norm: str | float,
) -> None:
    problem = FAMILIES["planted"].draw(300, 24, 8, seed=3)
    solution = solve(cut(problem, 300), norm, tol=TOL)
    assert solution.status is Status.OPTIMAL
    # No more than W has entries are needed, of the eight times as many that join at first.
    assert max(one.working for one in solution.rounds) >= rounds.SET_RATIO * 64
    assert solution.rounds[-1].working <= 2 * 64


def test_bounds_of_a_restriction_hold_for_the_whole() -> None:
    problem = FAMILIES["planted"].draw(60, 8, 5, seed=3)
    optimum = solve(problem)
    cancelled = solve(cut(problem, 9), "frobenius", max_iter=1)
    assert cancelled.lower_bound <= optimum.objective <= cancelled.upper_bound


def test_margins_of_shared_words_agree_with_those_of_copies() -> None:
    rng = np.random.default_rng(0)
    contexts, words = rng.standard_normal((40, 5)), rng.standard_normal((30, 4))
    supports = np.array([rng.permutation(30)[:2] for _ in range(40)])
    choice = np.zeros((40, 30), dtype=bool)
    np.put_along_axis(choice, supports, True, axis=1)
    problem = SelectionProblem.from_contexts(contexts, choice, embeddings=words)
    pieces = ShardedProblem.from_vocabulary(contexts, supports, words, chunk=11)
    W = rng.standard_normal((4, 5))
    margins = np.concatenate([b.margins[0] for s in pieces.shards for b in blocks(s.open(), W[None])])
    lengths = np.concatenate([b.lengths for s in pieces.shards for b in blocks(s.open(), W[None])])
    np.testing.assert_allclose(margins, problem.apply(W), atol=1e-13)
    assert (lengths >= problem.lengths * (1 - 1e-12)).all()
    pulls = sum(b.adjoint(b.rejected) for s in pieces.shards for b in blocks(s.open(), W[None]))
    np.testing.assert_allclose(pulls, problem.adjoint(problem.rejected.astype(float)), atol=1e-11)
    assert solve(pieces, C=1.0).primal == pytest.approx(solve(problem, C=1.0).primal, rel=2.5 * TOL)


def test_next_tokens_take_less_memory_than_their_scores() -> None:
    n, V = 6000, 3000
    rng = np.random.default_rng(4)
    contexts, words = rng.standard_normal((n, 4)), rng.standard_normal((V, 4))
    selected = np.concatenate([(part @ words.T).argmax(axis=1) for part in np.array_split(contexts, 20)])
    pieces = ShardedProblem.from_vocabulary(contexts, selected, words, chunk=1000)
    tracemalloc.start()
    try:
        solution = solve(pieces, callback=lambda state: True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert solution.status is Status.CANCELLED
    # The identity selects, and some multiple of it has margin one.
    assert solution.lower_bound > 0
    assert peak < 8 * n * V


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"W": 2.0}, "the norm is said to be"),
        ({"objective": 0.5}, "the norm is said to be"),
        ({"primal": 0.5}, "the objective at W is said to be"),
        ({"lower_bound": 1.1, "upper_bound": 1.1}, "is said where"),
    ],
)
def test_a_claim_that_is_not_so_is_refuted(change: dict[str, float], sentence: str) -> None:
    solution = solve(cut(FAMILIES["planted"].draw(20, 6, 4, seed=3), 7))
    assert solution.verify()
    scaled = {name: getattr(solution, name) * factor for name, factor in change.items()}
    proof = replace(solution, **scaled).verify()
    assert not proof
    assert sentence in proof.statement


def test_other_claims_that_are_not_so_are_refuted() -> None:
    solution = solve(cut(FAMILIES["planted"].draw(20, 6, 4, seed=3), 7))
    refuted = replace(solution, status=Status.INFEASIBLE).verify()
    assert not refuted
    assert "expected together" in refuted.statement
    loose = replace(solution, supports=replace(solution.supports, multiplier=np.ones(len(solution.supports))))
    assert not loose.verify()
    infeasible = solve(cut(FAMILIES["contradicted"].draw(6, 5, 4, seed=3), 2))
    assert infeasible.status is Status.INFEASIBLE
    assert infeasible.verify()
    # There is no W whose ties or losses could be told.
    assert infeasible.tie_residual == 0.0
    assert infeasible.supports.settled == 0
    places = np.roll(infeasible.supports.token, 1)
    other_places = replace(infeasible, supports=replace(infeasible.supports, token=places))
    assert not other_places.verify()


def test_a_gap_that_no_optimum_has_is_named() -> None:
    solution = solve(cut(FAMILIES["planted"].draw(20, 6, 4, seed=3), 7))
    loose = replace(solution, lower_bound=0.5 * solution.lower_bound)
    proof = loose.verify()
    assert not proof
    assert proof.statement == f"Not proven: the gap is {loose.gap:.3g} where an optimum promises 1e-09."
    # A run that was ended promises no gap.
    assert replace(loose, status=Status.CANCELLED).verify()


def test_a_w_of_negative_margins_is_refuted_by_them() -> None:
    solution = solve(cut(FAMILIES["planted"].draw(20, 6, 4, seed=3), 7))
    proof = replace(solution, W=-solution.W).verify()
    assert not proof
    assert proof.statement == "Not proven: the smallest margin of W is not positive beyond rounding."


@pytest.mark.parametrize("exchanges", [False, True])
def test_the_method_of_multipliers_ends_on_the_answer(exchanges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PROXIMAL_ENTRIES", 1)
    if exchanges:  # from one factor, contradictory and dependent constraints included
        monkeypatch.setattr(portfolio, "FEW_SUPPORTS", 0)
        monkeypatch.setattr(portfolio, "FEW_W_ENTRIES", 0)
        monkeypatch.setattr(portfolio, "NEARLY_SQUARE", 0.0)
    contradiction = solve(cut(FAMILIES["contradicted"].make(np.random.default_rng(1), 40, 8, 4), 10))
    assert contradiction.status is Status.INFEASIBLE
    assert contradiction.verify()
    for name in ("planted", "several"):
        problem = FAMILIES[name].draw(60, 8, 6, seed=3)
        prior = 0.3 * np.random.default_rng(1).standard_normal(problem.shape[2:])
        for options in ({}, {"prior": prior}):
            whole, pieces = solve(problem, **options), solve(cut(problem, 20), **options)
            assert pieces.status is whole.status
            if whole.status is Status.OPTIMAL:
                assert pieces.objective == pytest.approx(whole.objective, rel=2.5 * TOL)
            assert pieces.verify()


@pytest.mark.parametrize("name", ["planted", "several"])
def test_as_many_active_constraints_as_entries_end_by_exchanges(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "NEARLY_SQUARE", 0.5)
    problem = FAMILIES[name].draw(*{"planted": (300, 12, 21), "several": (60, 8, 21)}[name], seed=3)
    solution = solve(cut(problem, 100))
    assert solution.method == "working sets (active set)"
    assert solution.status is Status.OPTIMAL
    assert solution.verify()
    whole = solve(problem, method="interior_point")
    assert solution.objective == pytest.approx(whole.objective, rel=2.5 * TOL)


def test_what_nothing_joins_is_not_solved_again() -> None:
    problem = FAMILIES["planted"].draw(300, 12, 21, seed=3)
    # Below rounding: the gap stays open, and no further round can close it.
    solution = solve(cut(problem, 100), tol=1e-14)
    assert solution.gap < 1e-11
    ending = [one for one in solution.rounds if one.smallest >= 1 - 1e-9]
    assert len(ending) <= 2


# --- files ---


def write(folder: Path, name: str, kind: str, arrays: dict[str, np.ndarray]) -> None:
    folder.mkdir(exist_ok=True)
    if kind == "npz":
        np.savez(folder / f"{name}.npz", allow_pickle=False, **arrays)
    elif kind == "compressed npz":
        np.savez_compressed(folder / f"{name}.npz", allow_pickle=False, **arrays)
    elif kind == "npy":
        (folder / name).mkdir()
        for key, array in arrays.items():
            np.save(folder / name / f"{key}.npy", array)
    elif kind == "safetensors":
        from safetensors.numpy import save_file

        save_file(arrays, folder / f"{name}.safetensors")
    elif kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet

        pa.parquet.write_table(
            pa.table({key: pa.array(array.tolist()) for key, array in arrays.items()}), folder / f"{name}.parquet"
        )
    else:
        import zarr

        group = zarr.open_group(str(folder / f"{name}.zarr"), mode="w")
        for key, array in arrays.items():
            group.create_array(key, data=array)


KINDS = ("npz", "compressed npz", "npy", "safetensors", "parquet", "zarr")


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_answer(kind: str, tmp_path: Path) -> None:
    problem = FAMILIES["planted"].draw(20, 6, 4, seed=3)
    reference = problem.selected.argmax(axis=1)
    for k, rows in enumerate((slice(0, 8), slice(8, 20))):
        arrays = {"tokens": problem.tokens[rows], "queries": problem.queries[rows], "selected": reference[rows]}
        write(tmp_path / "shards", f"part-{k}", kind, arrays)
    solution = solve(tmp_path / "shards")
    assert len(solution.problem.shards) == 2
    assert solution.objective == pytest.approx(solve(problem).objective, rel=2 * TOL)


def test_large_files_are_cut_and_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = FAMILIES["planted"].draw(20, 6, 4, seed=3)
    arrays = {"tokens": problem.tokens, "queries": problem.queries, "selected": problem.reference}
    write(tmp_path, "whole", "npz", arrays)
    assert [str(s) for s in ShardedProblem.from_folder(tmp_path).shards] == [str(tmp_path / "whole.npz")]
    monkeypatch.setattr(shards_module, "PIECE_BYTES", problem.tokens[0].nbytes * 6)
    pieces = ShardedProblem.from_folder(tmp_path)
    assert pieces.current() is pieces
    assert str(pieces.shards[1]) == f"{tmp_path / 'whole.npz'}, rows 6 to 11"
    assert [(s.start, s.stop) for s in pieces.shards] == [(0, 6), (6, 12), (12, 18), (18, 20)]
    shard_arrays = [s.open() for s in pieces.shards]
    assert all(isinstance(s.tokens, RawArray) for s in shard_arrays)
    np.testing.assert_array_equal(np.concatenate([s.tokens[:] for s in shard_arrays]), problem.tokens)


@pytest.mark.parametrize(("kind", "rows"), [("npz", 0), ("compressed npz", 20)])
def test_only_tokens_that_are_read_as_a_whole_take_memory(
    kind: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = FAMILIES["planted"].draw(20, 6, 4, seed=3)
    arrays = {"tokens": problem.tokens, "queries": problem.queries, "selected": problem.reference}
    write(tmp_path, "whole", kind, arrays)
    monkeypatch.setattr(shards_module, "PIECE_BYTES", problem.tokens[0].nbytes * 6)
    shards = ShardedProblem.from_folder(tmp_path).shards
    assert len(shards) == 4
    assert sum(shard.whole_bytes for shard in shards) == problem.tokens[:rows].nbytes


def test_a_piece_of_a_dask_array_has_whole_sequences_and_is_not_computed() -> None:
    tokens = np.random.default_rng(0).standard_normal((6, 4, 3))
    lazy = dask.array.from_array(tokens).rechunk((4, 2, 2))
    pieces = ShardedProblem.from_arrays(lazy, np.ones((6, 2)), np.zeros(6, dtype=int))
    assert not any(isinstance(shard.tokens, np.ndarray) for shard in pieces.shards)
    parts: list[np.ndarray] = [shard.load().tokens for shard in pieces.shards]
    assert [part.shape for part in parts] == [(4, 4, 3), (2, 4, 3)]
    np.testing.assert_array_equal(np.concatenate(parts), tokens)
    listed = ShardedProblem.from_arrays(tokens.tolist(), np.ones((6, 2)), np.zeros(6, dtype=int))
    np.testing.assert_array_equal(listed.shards[0].tokens, tokens)


def test_a_piece_of_contexts_has_so_many_bytes_of_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "PIECE_BYTES", 5 * np.zeros(7).nbytes)
    pieces = ShardedProblem.from_vocabulary(np.ones((12, 2)), np.zeros(12, dtype=int), np.ones((7, 3)))
    assert [len(shard.queries) for shard in pieces.shards] == [5, 5, 2]


def test_a_folder_whose_shards_share_words(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    words, contexts = rng.standard_normal((12, 3)), rng.standard_normal((30, 3))
    selected = (contexts @ rng.standard_normal((3, 3)) @ words.T).argmax(axis=1)
    np.save(tmp_path / "tokens.npy", words)
    for k in range(3):
        rows = slice(10 * k, 10 * k + 10)
        write(tmp_path, f"part-{k}", "npz", {"queries": contexts[rows], "selected": selected[rows]})
    choice = np.eye(12, dtype=bool)[selected]
    expected = solve(SelectionProblem.from_contexts(contexts, choice, embeddings=words))
    assert solve(tmp_path).objective == pytest.approx(expected.objective, rel=2 * TOL)


def test_bad_folders_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no folder; a folder of shards was expected\.$"):
        ShardedProblem.from_folder(tmp_path / "none")
    with pytest.raises(ValueError, match=r"holds no shards; files .* were expected\.$"):
        ShardedProblem.from_folder(tmp_path)
    (tmp_path / "a.npz").write_bytes(b"PK broken")
    with pytest.raises(
        ValueError,
        match=r"a\.npz is damaged or of another format \(File is not a zip file\); a \.npz file was expected\.$",
    ):
        ShardedProblem.from_folder(tmp_path)
    (tmp_path / "a.npz").unlink()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", 1 << 40))
    with pytest.raises(ValueError, match=r"a\.safetensors is damaged"):
        ShardedProblem.from_folder(tmp_path)
    (tmp_path / "a.safetensors").unlink()
    write(tmp_path, "b", "npz", {"tokens": np.zeros((2, 3, 2)), "selected": np.zeros(2, dtype=int)})
    with pytest.raises(ValueError, match=r"b\.npz holds selected, tokens; queries \(n, dz\) were expected\.$"):
        ShardedProblem.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"selected": np.array([0, 9])}, r"^selected of the arrays given has 9 in row 1; indices of 3 tokens"),
        ({"tokens": np.full((2, 3, 2), np.nan)}, r"^tokens of the arrays given has NaN or infinity in row 0;"),
        (
            {"queries": np.array([[np.inf, 1.0], [1.0, 1.0]])},
            r"^queries of the arrays given has NaN or infinity in row 0;",
        ),
        (
            {"mask": np.array([[False, True, True]] * 2)},
            r"^selected of the arrays given has a token hidden by mask in row 0;",
        ),
        (
            {"mask": np.array([[True, True, True], [False, True, True]])},
            r"^selected of the arrays given has a token hidden by mask in row 1;",
        ),
    ],
)
def test_bad_shards_are_one_sentence(change: dict[str, np.ndarray], sentence: str) -> None:
    arrays = {"tokens": np.ones((2, 3, 2)), "queries": np.ones((2, 2)), "selected": np.zeros(2, dtype=int)} | change
    with pytest.raises(ValueError, match=sentence):
        solve(ShardedProblem.from_arrays(**arrays))


# --- clusters ---


def solved_on(problem: ShardedProblem, client: Client, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    monkeypatch.setattr(
        "attsvm.solvers.sharded.pool_of", lambda *arguments: FakePool(OnCluster(client, arguments[0].shards))
    )
    return solve(problem, **options)


class FakePool:
    def __init__(self, pool: OnCluster) -> None:
        self.pool = pool

    def __enter__(self) -> OnCluster:
        return self.pool

    def __exit__(self, *error: Any) -> None:
        return None


def test_dask_arrays_and_workers_give_the_same(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = FAMILIES["planted"].draw(60, 8, 5, seed=3)
    answer = solve(cut(problem, 10))
    array = dask.array.from_array(problem.tokens, chunks=(10, 8, 5))
    blocks = ShardedProblem.from_arrays(array, problem.queries, problem.reference)
    assert len(blocks.shards) == 6
    for pieces in (cut(problem, 10), blocks):
        solution = solved_on(pieces, client, monkeypatch)
        assert solution.objective == pytest.approx(answer.objective, rel=1e-9)
        assert len(solution.rounds) == len(answer.rounds)


def test_a_round_exchanges_w_and_the_new_constraints(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    d, frame = 5, 4000  # pickled objects, dtypes and names of what is sent and received
    for n in (60, 480):
        solution = solved_on(cut(FAMILIES["planted"].draw(n, 8, d, seed=3), n // 6), client, monkeypatch)
        for one in solution.rounds:
            # W out, and two numbers for each constraint that is here; back, the numbers of the new ones: a token, its
            # place (three), its key, its owner and two marks, and a query (with its place and reference) each at most.
            assert one.sent <= 8 * (d * d + 2 * one.working) + frame
            assert one.received <= 8 * one.new * (d + 6 + 2 * d + 3) + frame
    request = Request(np.zeros((d, d)), hinge=False, hard=True, room=100)
    one, none = cut(FAMILIES["planted"].draw(480, 8, d, seed=3), 80).shards[0], np.zeros((0, 2), dtype=np.int64)
    answer = price(one, 0, none, request)
    assert len(pickle.dumps(merge([answer] * 6, 10))) < len(pickle.dumps(answer))


def test_tokens_are_sent_to_a_cluster_once(client: Client) -> None:
    problem = FAMILIES["planted"].draw(20, 6, 4, seed=3)
    lazy: Any = dask.array.from_array(problem.tokens).rechunk((10, 6, 4))
    for pieces in (cut(problem, 10), ShardedProblem.from_arrays(lazy, problem.queries, problem.reference)):
        pool = OnCluster(client, pieces.shards)
        assert all(isinstance(tokens, Future) for tokens in pool._tokens)
        sent: Any = client.gather(pool._tokens)
        np.testing.assert_array_equal(np.concatenate(sent), problem.tokens)


def test_files_are_read_on_a_cluster(client: Client, tmp_path: Path) -> None:
    problem = FAMILIES["planted"].draw(20, 6, 4, seed=3)
    for k, rows in enumerate((slice(0, 8), slice(8, 20))):
        arrays = {"tokens": problem.tokens[rows], "queries": problem.queries[rows], "selected": problem.reference[rows]}
        write(tmp_path / "shards", f"part-{k}", "npz", arrays)
    pieces = ShardedProblem.from_folder(tmp_path / "shards")
    request = Request(np.eye(4), hinge=False, hard=True, room=10)
    answer = OnCluster(client, pieces.shards).collect(price, merged_all, (request,), _places(pieces))
    assert answer.rejected == 20 * 5
    assert answer.smallest == pytest.approx(problem.apply(np.eye(4))[problem.rejected].min(), rel=1e-12)


@pytest.mark.parametrize("shards", [1, 2, 8, 9])
def test_one_answer_arrives_from_a_cluster(shards: int, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = cut(FAMILIES["planted"].draw(4 * shards, 6, 4, seed=3), 4)
    counts: list[int] = []

    def noted(client: Client, wanted: Any, tasks: Any) -> Any:
        counts.append(len(wanted))
        return dask_cluster.gathered(client, wanted, tasks)

    monkeypatch.setattr(pool_module, "gathered", noted)
    request = Request(np.zeros((4, 4)), hinge=False, hard=True, room=10)
    answer = OnCluster(client, pieces.shards).collect(price, merged_all, (request,), _places(pieces))
    assert answer.rejected == 4 * shards * 5
    assert counts == [1]


def test_a_batch_on_a_cluster_is_the_batch(client: Client) -> None:
    problems = [FAMILIES["planted"].draw(6, 5, 4, seed=3) for _ in range(3)] + [
        FAMILIES["contradicted"].draw(6, 5, 4, seed=3)
    ]
    here = solve_batch(problems)
    there = solve_batch(problems, scheduler=client.scheduler.address)
    assert [status.name for status in there.status] == [status.name for status in here.status]
    np.testing.assert_allclose(there.W, here.W, rtol=1e-7)
    assert all(solution.verify() for solution in there)


def test_no_worker_left_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "ALONE_SECONDS", 0.5)
    with (
        quiet(),
        LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        pieces = cut(FAMILIES["planted"].draw(20, 6, 4, seed=3), 5)
        pool = OnCluster(client, pieces.shards)
        with pytest.raises(ClusterLost, match=r"^no worker of the dask cluster has been there for"):
            pool.collect(
                price,
                merged_all,
                (Request(np.zeros((4, 4)), hinge=False, hard=True, room=10),),
                _places(pieces),
            )


def merged_all(parts: Any) -> Any:
    return merge(parts, 10)


def _places(pieces: ShardedProblem) -> list[tuple[int, np.ndarray]]:
    return [(k, np.zeros((0, 2), dtype=np.int64)) for k in range(len(pieces.shards))]


# --- checkpoints ---


@pytest.mark.parametrize("options", [{}, {"C": 1.0}], ids=["hard", "hinge"])
def test_a_run_goes_on_from_its_checkpoint(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "LEAST_SAMPLE", 100)
    monkeypatch.setattr(rounds, "SET_RATIO", 1)
    problem = cut(noisy(200, 8, 4) if options else FAMILIES["planted"].draw(200, 8, 6, seed=3), 50)
    whole = solve(problem, **options)
    file, after = tmp_path / "run.npz", len(whole.rounds) - 2
    assert after > 0
    round_numbers: list[int] = []

    def stop(state: Any) -> bool:
        round_numbers.append(state.iteration)
        return len(round_numbers) == after

    first = solve(problem, checkpoint=file, callback=stop, **options)
    assert first.status is Status.CANCELLED
    # Places and multipliers, and a few matrices: no tokens.
    assert file.stat().st_size < 50 * len(first.supports) + 20_000
    second = solve(problem, checkpoint=file, **options)
    assert second.status is Status.OPTIMAL
    assert second.primal == pytest.approx(whole.primal, rel=2 * TOL)
    assert len(second.rounds) <= len(whole.rounds) - after + 1
    assert not file.exists()


def test_a_checkpoint_of_another_problem_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.npz"
    monkeypatch.setattr(rounds, "SET_RATIO", 1)
    problem = cut(FAMILIES["planted"].draw(60, 8, 5, seed=3), 10)
    solve(problem, checkpoint=file, callback=lambda state: True)
    with pytest.raises(ValueError, match=r"is the checkpoint of another problem, norm, C, loss or prior"):
        solve(problem, "nuclear", checkpoint=file)
    with pytest.raises(ValueError, match=r"is the checkpoint of another problem, norm, C, loss or prior"):
        solve(problem, prior=0.1 * np.eye(5), checkpoint=file)
    other_prior = tmp_path / "prior.npz"
    solve(problem, prior=0.1 * np.eye(5), checkpoint=other_prior, callback=lambda state: True)
    with pytest.raises(ValueError, match=r"is the checkpoint of another problem, norm, C, loss or prior"):
        solve(problem, prior=0.2 * np.eye(5), checkpoint=other_prior)
    other = cut(FAMILIES["planted"].draw(60, 8, 5, seed=3), 10)
    shifted_shards = [type(s)(s.tokens + 1e-3, s.queries, s.selected, s.mask) for s in other.shards]
    with pytest.raises(ValueError, match=r"was written for other data in the same places"):
        solve(ShardedProblem(shifted_shards, other.shape), checkpoint=file)
    file.write_bytes(b"no")
    with pytest.raises(ValueError, match=r"is damaged or no checkpoint; another name was expected\.$"):
        solve(problem, checkpoint=file)


# --- the command, and a worker that is killed ---


def test_the_command_on_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = FAMILIES["planted"].draw(20, 6, 4, seed=3)
    arrays = {"tokens": problem.tokens, "queries": problem.queries, "selected": problem.reference}
    write(tmp_path / "shards", "whole", "npz", arrays)
    out = tmp_path / "out.npz"
    assert main(["solve", str(tmp_path / "shards"), "--out", str(out)]) == 0
    assert "1 shard" in capsys.readouterr().out
    with np.load(out) as archive:
        assert float(archive["objective"]) == pytest.approx(solve(problem).objective, rel=2 * TOL)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out.npz", "shards"]
    assert main(["solve", str(tmp_path / "shards"), "--max-iter", "1", "--tol", "1e-12"]) in (0, 4)
    assert main(["solve", str(out), "--workers", "2"]) == 2
    assert "a folder of shards was expected" in capsys.readouterr().err


class _Deadly(ShardFile):
    """A shard whose first reader is killed."""

    def open(self) -> Any:
        mark = Path(self.path).with_suffix(".killed")
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().open()


@pytest.mark.slow
def test_a_killed_worker_costs_its_pass(tmp_path: Path) -> None:
    problem = FAMILIES["planted"].draw(60, 8, 5, seed=3)
    for k in range(6):
        rows = slice(10 * k, 10 * k + 10)
        arrays = {"tokens": problem.tokens[rows], "queries": problem.queries[rows], "selected": problem.reference[rows]}
        write(tmp_path / "shards", f"part-{k}", "npz", arrays)
    pieces = ShardedProblem.from_folder(tmp_path / "shards")
    answer = solve(pieces)
    first, *rest = pieces.shards
    deadly = ShardedProblem([_Deadly(first.path, first.start, first.stop, first.arrays), *rest], pieces.shape)
    solution = solve(deadly, workers=2)
    assert isinstance(solution, ShardedSolution)
    assert Path(first.path).with_suffix(".killed").exists()
    assert solution.objective == pytest.approx(answer.objective, rel=1e-9)
    assert len(solution.rounds) == len(answer.rounds)
