"""A pass over shards: blocks, sums and the constraints that return; and what a round chooses from it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, ShardedProblem, Status, solve
from attsvm.core.error_free import UNIT
from attsvm.core.norms import get_norm
from attsvm.data.shard_pieces import ShardArrays
from attsvm.platform import paging
from attsvm.platform.kernels import KERNELS
from attsvm.proofs.objective import HARD_MARGIN, Regularisation
from attsvm.solvers.common.control import Control
from attsvm.solvers.schedule import CHEAP_STEP, CLOSE_GAP, FIRST_PENALTY, SURPLUS
from attsvm.solvers.working_sets import margins as margins_module
from attsvm.solvers.working_sets import pool as pool_module
from attsvm.solvers.working_sets import rounds
from attsvm.solvers.working_sets.constraints import Anchor, ConstraintTable
from attsvm.solvers.working_sets.margins import blocks
from attsvm.solvers.working_sets.pool import Pool, pool_of
from attsvm.solvers.working_sets.pricing import Request, fetch, merge, price
from attsvm.solvers.working_sets.restriction import Restriction
from attsvm.solvers.working_sets.state import check_outside
from problems import FAMILIES

NONE = np.zeros((0, 2), dtype=np.int64)
HINGE = Regularisation(1.0, "hinge", None)


def noisy(n: int, T: int, d: int, *, ties: int = 0) -> SelectionProblem:
    """A random matrix selects, but for a fifth of the queries; the first ``ties`` select the fourth token as well."""
    rng = np.random.default_rng([1, n, T, d])
    tokens, queries = rng.standard_normal((n, T, d)), rng.standard_normal((n, d))
    scores = np.matmul(tokens, (queries @ rng.standard_normal((d, d)))[:, :, None])[..., 0]
    order = np.argsort(-scores, axis=1)
    selected = np.zeros((n, T), dtype=bool)
    selected[np.arange(n), np.where(rng.random(n) < 0.2, rng.integers(T, size=n), order[:, 0])] = True
    selected[np.arange(ties), order[:ties, 3]] = True
    return SelectionProblem(tokens, queries, selected)


def pieces_of(problem: SelectionProblem, chunk: int | None = None) -> ShardedProblem:
    return ShardedProblem.from_arrays(problem.tokens, problem.queries, problem.selected, chunk=chunk)


def whole(problem: SelectionProblem) -> ShardArrays:
    return ShardArrays(problem.tokens, problem.queries, problem.selected)


def rounds_of(problem: SelectionProblem, kind: Regularisation) -> rounds.Rounds:
    shards, norm = pieces_of(problem, 50).shards, get_norm("frobenius")
    return rounds.Rounds(Pool(shards), len(shards), problem.shape[2:], norm, kind, Control(1e-9), solve_nothing)


def solve_nothing(*_: Any) -> Any:
    raise AssertionError


def test_a_shard_read_in_blocks_has_the_margins_and_sums_of_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, rng = noisy(40, 6, 4), np.random.default_rng(0)
    W = rng.standard_normal((4, 4))
    members = np.argwhere(problem.rejected)[rng.permutation(200)[:90]]
    monkeypatch.setattr(paging, "CHUNK_BYTES", 7 * 6 * 64)  # seven queries of six tokens
    parts = list(blocks(whole(problem).open(), W[None]))
    assert [len(part.queries) for part in parts] == [7, 7, 7, 7, 7, 5]
    np.testing.assert_allclose(np.concatenate([part.margins[0] for part in parts]), problem.apply(W), atol=1e-12)
    sums = np.sum([part.adjoint(part.rejected) for part in parts], axis=0)
    np.testing.assert_allclose(sums, problem.adjoint(problem.rejected.astype(float)), atol=1e-11)
    request = Request(W, hinge=False, hard=True, room=200, below=np.inf)
    returned = price(whole(problem), 0, members, request).fresh.place[:, 1:]
    outside = problem.rejected.copy()
    outside[*members.T] = False
    np.testing.assert_array_equal(returned[np.lexsort(returned.T[::-1])], np.argwhere(outside))


def test_a_block_of_wide_tokens_has_no_more_bytes_than_are_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = noisy(10, 4, 32)
    monkeypatch.setattr(paging, "CHUNK_BYTES", 4 * problem.tokens[0].nbytes)
    parts = list(blocks(whole(problem).open(), np.zeros((1, 32, 32))))
    assert [len(part.queries) for part in parts] == [4, 4, 2]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_margins_in_the_interpreter_are_those_of_machine_code(
    dtype: type[np.floating], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = noisy(12, 5, 4)
    shard = ShardArrays(problem.tokens.astype(dtype), problem.queries, problem.selected).open()
    matrices = np.random.default_rng(0).standard_normal((2, 4, 4))
    (compiled,) = blocks(shard, matrices)

    def interpret(function: Any, _: float, *arguments: Any) -> None:
        plain = KERNELS[function].plain
        assert plain is not None
        plain(*arguments)

    monkeypatch.setattr(margins_module, "call", interpret)
    (plain,) = blocks(shard, matrices)
    np.testing.assert_allclose(plain.margins, compiled.margins, atol=1e-13)
    np.testing.assert_allclose(plain.lengths, compiled.lengths, rtol=1e-14)


@pytest.mark.parametrize(("n", "T", "each"), [(40, 40, 1), (40, 40, 4), (40, 40, 39), (40, 40, 50), (300, 600, 200)])
def test_each_query_returns_its_most_urgent_constraints(n: int, T: int, each: int) -> None:
    problem, W = noisy(n, T, 2), np.random.default_rng(0).standard_normal((2, 2))
    lengths = np.where(problem.rejected, problem.lengths, 1.0)
    urgency = np.where(problem.rejected, (problem.apply(W) - 1.0) / lengths, np.inf)
    request = Request(W, hinge=False, hard=True, room=n * T, below=np.inf, each=each)
    returned = price(whole(problem), 0, NONE, request).fresh.place[:, 1:]
    first = np.sort(np.argsort(urgency, axis=1)[:, : min(each, T - 1)], axis=1)
    expected = np.column_stack([np.repeat(np.arange(n), first.shape[1]), first.ravel()])
    np.testing.assert_array_equal(returned[np.lexsort(returned.T[::-1])], expected)


@pytest.mark.parametrize("left", [0, 1, 2, 40])
def test_constraints_that_return_are_those_of_smallest_slack_over_length(left: int) -> None:
    problem = noisy(40, 6, 4)
    W = np.random.default_rng(0).standard_normal((4, 4))
    margins = problem.apply(W)
    urgency = np.where(problem.rejected & (margins < 1.0), (margins - 1.0) / problem.lengths, np.inf)
    room = int(np.isfinite(urgency).sum()) - left
    assert room > 20
    request = Request(W, hinge=False, hard=True, room=room)
    returned = price(whole(problem), 0, NONE, request).fresh.place[:, 1:]
    first = np.unravel_index(np.argsort(urgency, axis=None)[:room], urgency.shape)
    assert set(map(tuple, returned)) == set(zip(*first, strict=True))


def test_constraints_of_a_hinge_return_by_their_distance_from_margin_one() -> None:
    problem, rng = noisy(200, 6, 4), np.random.default_rng(0)
    W = rng.standard_normal((4, 4))
    anchor = Anchor(W + 0.5 * rng.standard_normal((4, 4)), 0.5)
    margins, before = problem.apply(W), problem.apply(anchor.W)
    # On the wrong side: in the sum though they are met, or left out of it though they fall short.
    joining = problem.rejected & np.where(before < 1.0 - anchor.band, margins > 1.0, margins < 1.0)
    distance = np.where(joining, np.abs(margins - 1.0), np.inf)
    assert (joining & (margins > 1.0)).sum() > 20
    room = int(joining.sum()) // 2
    request = Request(W, hinge=True, hard=False, room=room, anchor=anchor)
    returned = price(whole(problem), 0, NONE, request).fresh.place[:, 1:]
    first = np.unravel_index(np.argsort(distance, axis=None)[:room], distance.shape)
    assert set(map(tuple, returned)) == set(zip(*first, strict=True))


def test_a_sample_is_drawn_from_the_band_and_its_ends() -> None:
    """Margins of whole numbers lie on both ends."""
    rng = np.random.default_rng(0)
    tokens, queries = rng.integers(-2, 3, (40, 6, 4)).astype(float), rng.integers(1, 3, (40, 4)).astype(float)
    problem = SelectionProblem(tokens, queries, np.zeros(40, dtype=int))
    W = rng.integers(-1, 2, (4, 4)).astype(float)
    margins, differ = problem.apply(W), (tokens != tokens[:, :1]).any(axis=2)
    band = differ & problem.rejected & (np.abs(margins - 1.0) <= 2.0)
    assert {-1.0, 3.0} <= set(margins[band])
    anchor = Anchor(W, 2.0)
    request = Request(W, hinge=True, hard=False, room=1000, anchor=anchor, sample=0)
    answer = price(whole(problem), 0, NONE, request)
    returned = answer.fresh.place[:, 1:]
    np.testing.assert_array_equal(returned[np.lexsort(returned.T[::-1])], np.argwhere(band))
    assert answer.candidate_count == band.sum()


def test_a_sharp_sum_of_constraints_at_their_bound_is_the_exact_one() -> None:
    problem, rng = noisy(12, 5, 3), np.random.default_rng(0)
    anchor = Anchor(rng.standard_normal((3, 3)), 0.5)
    request = Request(anchor.W, hinge=True, hard=False, room=100, anchor=anchor, sums=True, sharp=True)
    found = price(whole(problem), 0, NONE, request).bound_sum
    short = np.argwhere(problem.rejected & (problem.apply(anchor.W) < 0.5))
    assert found is not None
    assert 0 < found.count == len(short) < problem.rejected.sum()
    exact = [[Fraction(0)] * 3 for _ in range(3)]
    for i, t in short.tolist():
        best = problem.tokens[i, problem.reference[i]]
        for a in range(3):
            for b in range(3):
                exact[a][b] += (Fraction(best[a]) - Fraction(problem.tokens[i, t, a])) * Fraction(problem.queries[i, b])
    errors = [
        exact[a][b] - Fraction(found.pair.high[a, b]) - Fraction(found.pair.low[a, b])
        for a in range(3)
        for b in range(3)
    ]
    assert sum(error * error for error in errors) <= Fraction(found.error) ** 2
    assert found.error < 1e-25 * len(short)


def test_pages_of_a_mapped_shard_are_let_go_as_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = noisy(8, 4, 2)
    np.save(tmp_path / "tokens.npy", problem.tokens)
    mapped = np.load(tmp_path / "tokens.npy", mmap_mode="r")
    shard = ShardArrays(mapped, problem.queries, problem.selected).open()
    monkeypatch.setattr(paging, "LET_GO", 1 << 20)  # no advice that the system knows
    with pytest.raises(OSError, match="Invalid argument"):
        list(blocks(shard, np.zeros((1, 2, 2))))


@pytest.mark.parametrize("name", ["shortfall_above", "square_above"])
def test_losses_of_any_number_of_shards_are_bounded_from_above(name: str) -> None:
    """Each of the added losses is lost in a rounded sum."""
    request = Request(np.zeros((4, 4)), hinge=True, hard=False)
    part = replace(price(whole(noisy(4, 4, 4)), 0, NONE, request), **{name: 0.99 * UNIT})
    total = replace(part, **{name: 1.0})
    for _ in range(1000):
        total = merge([total, part], 1)
    exact = 1 + 1000 * Fraction(getattr(part, name))
    assert exact <= Fraction(getattr(total, name)) < exact + Fraction(1, 10**12)


# --- the pool ---


def test_a_part_of_the_shards_may_be_read_first(tmp_path: Path) -> None:
    problem = noisy(10, 4, 3)
    for k, rows in enumerate((slice(0, 4), slice(4, 10))):
        selected = problem.reference[rows]
        np.savez(tmp_path / f"{k}.npz", tokens=problem.tokens[rows], queries=problem.queries[rows], selected=selected)
    pool = Pool(ShardedProblem.from_folder(tmp_path).shards)
    table = pool.collect(fetch, ConstraintTable.concatenate, (), [(1, np.array([[2, 0]]))])
    np.testing.assert_array_equal(table.x, problem.tokens[6, :1])
    assert list(pool.records) == [1]
    assert len(pool.inspect()) == 2
    # One process sends nothing.
    assert pool.sent == pool.received == 0


@pytest.mark.parametrize("name", ["scheduler", "workers"])
def test_a_scheduler_and_workers_exclude_each_other(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    for kind in ("remote_client", "local_client"):
        monkeypatch.setattr(pool_module, kind, lambda place: opened.append(place) or nullcontext(None))
    monkeypatch.setattr(pool_module, "OnCluster", lambda *_: None)
    problem = pieces_of(noisy(4, 4, 2))
    with (
        pytest.raises(ValueError, match=r"^workers is 2 and scheduler 'tcp://a:1'; one of the two was expected\.$"),
        pool_of(problem, "tcp://a:1", 2),
    ):
        pass
    assert not opened
    with pool_of(problem, "tcp://a:1" if name == "scheduler" else None, 2 if name == "workers" else None):
        assert opened == ["tcp://a:1" if name == "scheduler" else 2]


# --- rounds ---


@pytest.mark.parametrize(("kind", "room"), [(HARD_MARGIN, 5), (HINGE, 100)])
def test_bytes_bound_what_joins_in_a_round_of_a_hard_margin(
    kind: Regularisation, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "LEAST_SAMPLE", 100)
    monkeypatch.setattr(rounds, "SET_RATIO", 3)
    runs = rounds_of(noisy(40, 6, 4), kind)
    monkeypatch.setattr(rounds, "ROUND_BYTES", 5 * runs.constraint_bytes)
    assert runs.begin().room == room


@pytest.mark.parametrize(("entries", "weight"), [(12, FIRST_PENALTY), (13, 0.0)])
def test_a_large_w_begins_by_the_method_of_multipliers(
    entries: int, weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "PROXIMAL_ENTRIES", entries)
    rng = np.random.default_rng(0)
    problem = SelectionProblem(rng.standard_normal((20, 4, 6)), rng.standard_normal((20, 2)), np.zeros(20, dtype=int))
    assert rounds_of(problem, HARD_MARGIN).begin().penalty == weight


def test_a_sum_changes_only_where_its_constraints_join() -> None:
    problem, rng = noisy(200, 6, 4), np.random.default_rng(0)
    runs = rounds_of(problem, HINGE)
    state = runs.begin()
    runs._anchor(state, Anchor(rng.standard_normal((4, 4)), 0.5))
    before, anchor = state.bound_sum, state.anchor
    assert before is not None
    assert anchor is not None
    for W, is_changed in ((anchor.W, False), (-anchor.W, True)):
        answer = runs.ask(W, state.table, room=50, anchor=anchor)
        assert answer.fresh.at_bound.any() == is_changed
        runs._join(state, Restriction.of(state.table, runs.norm, HINGE), answer)
        assert state.bound_sum is not None
        assert state.bound_sum.count == before.count - answer.fresh.at_bound.sum()
        # A difference has roundings of its own.
        assert (state.bound_sum.error > before.error) == is_changed


def test_each_constraint_of_a_sample_stands_for_as_many_as_it_was_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = noisy(200, 6, 3)
    monkeypatch.setattr(rounds, "LEAST_SAMPLE", 100)
    state = rounds_of(problem, HINGE).begin()
    assert len(state.table) == 100
    assert state.count == problem.rejected.sum() == 1000
    assert state.target == rounds.FIRST_GAP
    # Those listed completely stand for themselves, and are solved to the end at once.
    monkeypatch.setattr(rounds, "LEAST_SAMPLE", 1000)
    state = rounds_of(problem, HINGE).begin()
    assert state.count == len(state.table) == 1000
    assert state.target < 1e-9


def test_a_restriction_is_solved_no_finer_than_the_gap_of_the_whole_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SET_RATIO", 1)
    targets: list[float] = []
    gaps: list[float] = []
    inner = Control.inner

    def noted(self: Control, tol: float, *options: Any) -> Control:
        targets.append(tol)
        gaps.append(self.state.gap)
        return inner(self, tol, *options)

    monkeypatch.setattr(Control, "inner", noted)
    problem = FAMILIES["planted"].draw(300, 12, 6, seed=3)
    assert solve(pieces_of(problem)).status is Status.OPTIMAL
    pairs = [(gap, one) for gap, one in zip(gaps, targets, strict=True) if CLOSE_GAP < gap < np.inf]
    assert pairs
    for gap, target in pairs:
        assert min(rounds.FIRST_GAP, 0.1 * rounds.NEXT_GAP * gap) <= target <= max(rounds.FIRST_GAP, gap)


def test_the_loss_of_a_sum_is_linear_only_near_w_once_its_band_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "LEAST_SAMPLE", 100)
    reaches: list[tuple[float, float]] = []
    setting = Restriction.setting

    def noted(self: Restriction, bound_sum: Any, centre: np.ndarray, reach: float, weight: float) -> Any:
        reaches.append((weight, reach / float(np.linalg.norm(centre)) if centre.any() else np.inf))
        return setting(self, bound_sum, centre, reach, weight)

    monkeypatch.setattr(Restriction, "setting", noted)
    problem = noisy(200, 6, 3)
    assert solve(pieces_of(problem), C=1.0).status is Status.OPTIMAL
    samples = [reach for weight, reach in reaches if weight > 1.0]
    listed = [reach for weight, reach in reaches if weight == 1.0]
    # Where the anchor is W itself, the radius is a share of the length of W.
    assert min(samples) == pytest.approx(rounds.TRUST)
    assert min(listed) == pytest.approx(rounds.NEAR_TRUST)


@pytest.mark.parametrize("surplus", [0, 1])
def test_the_weight_of_a_step_grows_where_more_constraints_are_active_than_w_has_entries(
    surplus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = noisy(40, 6, 4)
    runs = rounds_of(problem, HARD_MARGIN)
    state = runs.begin()
    restriction = Restriction.of(state.table, runs.norm, HARD_MARGIN)
    setting, _ = restriction.setting(None, runs.prior, 1.0, 1.0)
    active = int(SURPLUS * 16) + surplus
    dual = np.zeros(200)
    dual[:active] = 1.0
    monkeypatch.setattr(rounds, "proximal_step", lambda setting, V, *_: (V, dual, CHEAP_STEP))
    state.penalty = 100.0
    for _ in runs._proximal(state, restriction, setting):
        pass
    assert state.penalty == (1000.0 if surplus else 100.0)


def test_multipliers_of_ties_may_exceed_those_of_rejected_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rejected tokens at C pull one of two selected tokens, whose tie passes half of the pull to the other."""
    monkeypatch.setattr(rounds, "LEAST_SAMPLE", 100)
    problem = noisy(200, 16, 3, ties=3)
    solution = solve(pieces_of(problem), "max", C=1.0, time_limit=10.0)
    assert solution.supports.settled > 0
    assert np.abs(solution.supports.multiplier).max() > 2.0
    assert solution.status is Status.OPTIMAL
    assert solution.verify()
    in_memory = solve(problem, "max", C=1.0).certified
    assert in_memory.lower_bound <= solution.upper_bound
    assert solution.lower_bound <= in_memory.upper_bound


@pytest.mark.parametrize("sizes", [(200, 16, 3), (400, 32, 4)])
def test_ties_take_part_where_few_multipliers_are_between_their_bounds(sizes: tuple[int, int, int]) -> None:
    """A vertex has as many such multipliers as W has entries, at most, and fewer correct no adjoint."""
    problem = noisy(*sizes, ties=3)
    solution = solve(pieces_of(problem), "max", C=1.0)
    assert solution.status is Status.OPTIMAL
    in_memory = solve(problem, "max", C=1.0).certified
    assert in_memory.lower_bound <= solution.upper_bound
    assert solution.lower_bound <= in_memory.upper_bound


def test_what_no_w_moves_has_the_same_loss_in_every_check() -> None:
    tokens, queries = np.random.default_rng(0).standard_normal((4, 3, 2)), np.zeros((4, 2))
    solution = solve(ShardedProblem.from_arrays(tokens, queries, np.zeros(4, dtype=int), chunk=2), C=0.75)
    assert solution.status is Status.OPTIMAL
    # Two rejected tokens of four queries fall short by one.
    assert solution.primal == 6.0
    assert solution.verify()
    supports = solution.supports
    assert [len(column) for column in (supports.shard, supports.query, supports.token, supports.multiplier)] == [0] * 4


def test_a_checkpoint_lies_beside_a_directory_of_arrays_but_not_among_shards(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "shards" / name).mkdir(parents=True)
        for key, array in {"tokens": np.ones((2, 3, 2)), "queries": np.ones((2, 2)), "selected": [0, 1]}.items():
            np.save(tmp_path / "shards" / name / f"{key}.npy", array)
    beside = tmp_path / "shards" / "run.npz"
    check_outside(beside, "checkpoint", ShardedProblem.from_folder(tmp_path / "shards" / "one"))
    several = ShardedProblem.from_folder(tmp_path / "shards")
    (tmp_path / "single").mkdir()
    np.savez(tmp_path / "single" / "a.npz", tokens=np.ones((2, 3, 2)), queries=np.ones((2, 2)), selected=[0, 1])
    file = ShardedProblem.from_folder(tmp_path / "single")
    one = ShardedProblem.from_folder(tmp_path / "shards" / "one")
    inside = tmp_path / "shards" / "one" / "run.npz"
    for problem, target in ((several, beside), (file, tmp_path / "single" / "run.npz"), (one, inside)):
        with pytest.raises(ValueError, match=r"lies in a folder that is read; another folder was expected\.$"):
            check_outside(target, "checkpoint", problem)


def test_the_facts_of_a_solution_are_its_norm_and_its_gap() -> None:
    problem = FAMILIES["planted"].draw(20, 6, 4, seed=3)
    solution = solve(pieces_of(problem, 7))
    facts = str(solution)
    assert f"{solution.objective:.9g}" in facts
    assert f"{solution.gap:.1e}" in facts
    assert "3 shards" in facts
