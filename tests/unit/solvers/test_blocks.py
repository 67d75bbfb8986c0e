"""Problems that fall apart: blocks are found, solved by themselves, and certified as one."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, Solution, Status, norms, solve
from attsvm.core.blocks import blocks_of
from attsvm.core.norms import FROBENIUS
from attsvm.proofs.objective import HARD_MARGIN
from attsvm.proofs.program import Program
from attsvm.solvers import solving
from attsvm.solvers.common.control import Control
from attsvm.solvers.separable.blocks import solve_blocks

WORD = "independent blocks"
# Exponent by which the norms of blocks that share nothing combine.
EXPONENTS: dict[str, tuple[Any, float]] = {
    "frobenius": ("frobenius", 2.0),
    "nuclear": ("nuclear", 1.0),
    "spectral": ("spectral", np.inf),
    "schatten": (norms.Schatten(3.0), 3.0),
    "l_1": (1.0, 1.0),
    "l_1.5": (1.5, 1.5),
    "max": ("max", np.inf),
    "columns 2, 1": (norms.Mixed(2, 1, axis="columns"), 1.0),
    "rows 1, 3": (norms.Mixed(1, 3, axis="rows"), 3.0),
}
# Bounds of both answers are within this of each other: each has a certified gap of 1e-9.
AGREE = 3e-9


def parts(count: int = 3, seed: int = 0, n: int = 4, T: int = 4, d: int = 3, dz: int = 4) -> list[SelectionProblem]:
    random = np.random.default_rng(seed)
    tokens, queries = random.standard_normal((count, n, T, d)), random.standard_normal((count, n, dz))
    return [SelectionProblem(x, z, random.integers(T, size=n)) for x, z in zip(tokens, queries, strict=True)]


def together(problems: list[SelectionProblem], seed: int = 0) -> SelectionProblem:
    """Put problems into one, each with rows and columns of its own, and shuffle queries, rows and columns."""
    random = np.random.default_rng(seed)
    n, T, d, dz = (sum(sizes) for sizes in zip(*(problem.shape for problem in problems), strict=True))
    T = problems[0].shape[1]
    tokens, queries = np.zeros((n, T, d)), np.zeros((n, dz))
    rows, columns, at = random.permutation(d), random.permutation(dz), np.zeros(3, dtype=int)
    for problem in problems:
        size = np.array(problem.shape)[[0, 2, 3]]
        q, r, c = (slice(a, a + b) for a, b in zip(at, size, strict=True))
        tokens[q, :, rows[r]] = problem.tokens
        queries[q, columns[c]] = problem.queries
        at += size
    order = random.permutation(n)
    selected = np.concatenate([problem.reference for problem in problems])
    # A coordinate that all tokens have in common is in no difference.
    tokens = np.concatenate([tokens, np.ones((n, T, 1))], axis=2)
    return SelectionProblem(tokens[order], queries[order], selected[order])


def undivided(monkeypatch: pytest.MonkeyPatch, problem: SelectionProblem, norm: Any, **options: Any) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(solving, "solve_blocks", lambda *_: None)
        return solve(problem, norm, **options)


@pytest.fixture(autouse=True)
def blocks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solve blocks by themselves, however few tokens they have."""
    monkeypatch.setattr(solving, "FEW_FOR_BLOCKS", 0)


@pytest.fixture
def no_compiled_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep small problems from the one compiled call that is tried first."""
    monkeypatch.setattr(solving, "_small", lambda *_: False)


@pytest.mark.usefixtures("no_compiled_call")
@pytest.mark.parametrize("name", EXPONENTS)
def test_the_norms_of_blocks_combine(name: str) -> None:
    norm, power = EXPONENTS[name]
    problems = parts()
    whole = solve(together(problems), norm)
    each = [solve(problem, norm).objective for problem in problems]
    assert whole.method == f"3 {WORD}"
    assert whole.status is Status.OPTIMAL
    assert whole.verify()
    assert whole.objective == pytest.approx(np.linalg.norm(each, power), rel=AGREE)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", 1.0])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_soft_margins_add_up(norm: Any, loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = together(parts(seed=1))
    whole = solve(problem, norm, C=0.7, loss=loss)
    other = undivided(monkeypatch, problem, norm, C=0.7, loss=loss)
    assert whole.method == f"3 {WORD}"
    assert WORD not in other.method
    assert whole.status is Status.OPTIMAL
    assert whole.primal == pytest.approx(other.primal, rel=AGREE)


def test_every_query_keeps_its_price_and_every_block_its_part_of_the_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = together(parts(seed=2))
    random = np.random.default_rng(2)
    options = {"C": random.uniform(0.1, 2.0, size=problem.shape[0]), "prior": random.normal(size=problem.shape[2:])}
    for chosen in (options, {"prior": options["prior"]}):
        whole, other = solve(problem, **chosen), undivided(monkeypatch, problem, "frobenius", **chosen)
        assert whole.method.endswith(WORD)
        assert whole.status is Status.OPTIMAL
        np.testing.assert_allclose(whole.W, other.W, atol=1e-4)
        assert whole.primal == pytest.approx(other.primal, rel=AGREE)


@pytest.mark.usefixtures("no_compiled_call")
@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "max"])
def test_a_contradiction_in_one_block_is_one_of_the_problem(norm: str) -> None:
    first, *others = parts(seed=3, T=3, d=2)
    hull = SelectionProblem(
        np.array([[[0.0, 0.0], [1.0, 1.0], [-1.0, -1.0]]]).repeat(4, axis=0), first.queries, np.zeros(4, dtype=int)
    )
    solution = solve(together([*others, hull]), norm)
    assert solution.method.endswith(WORD)
    assert solution.status is Status.INFEASIBLE
    assert solution.certificate is not None
    assert solution.certificate.verify()


@pytest.mark.usefixtures("no_compiled_call")
def test_one_hot_contexts_and_tokens_that_all_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each column of W is a problem of its own, but not in the nuclear norm, since columns share rows."""
    random = np.random.default_rng(4)
    tokens, shared = random.standard_normal((1, 5, 6)), np.zeros(4, dtype=int)
    problem = SelectionProblem(tokens, np.eye(4), random.integers(5, size=4), sequence=shared)
    whole = solve(problem)
    assert whole.method == f"4 {WORD}"
    assert whole.objective == pytest.approx(undivided(monkeypatch, problem, "frobenius").objective, rel=AGREE)
    assert WORD not in solve(problem, "nuclear").method
    assert solve(problem, norms.Mixed(1, 2, axis="columns")).method == f"4 {WORD}"
    assert WORD not in solve(problem, norms.Mixed(1, 2, axis="rows")).method


def test_what_hangs_together_is_no_block() -> None:
    problems = parts(seed=5)
    problem = together(problems)
    assert len(blocks_of(problem, "both")) == 3
    queries = problem.queries.copy()
    queries[0] = 1.0  # one query has columns of every block, and rows of one
    tokens = problem.tokens.copy()
    assert len(blocks_of(SelectionProblem(tokens, queries, problem.reference), "both")) == 3
    assert blocks_of(SelectionProblem(tokens, queries, problem.reference), "nothing") == []
    tokens[0] = np.random.default_rng(0).normal(size=tokens[0].shape)
    assert blocks_of(SelectionProblem(tokens, queries, problem.reference), "both") == []
    assert WORD not in solve(problem, norms.KyFan(2)).method
    assert WORD not in solve(problem, "spectral", C=1.0).method


def test_hidden_tokens_connect_nothing() -> None:
    problem = together(parts(seed=6))
    tokens = np.concatenate([problem.tokens, np.full((len(problem.tokens), 1, problem.shape[2]), 3.0)], axis=1)
    mask = np.ones(tokens.shape[:2], dtype=bool)
    mask[:, -1] = False
    padded = SelectionProblem(tokens, problem.queries, problem.reference, mask=mask)
    assert len(blocks_of(padded, "both")) == 3
    assert solve(padded).objective == pytest.approx(solve(problem).objective, rel=AGREE)


def test_a_block_keeps_the_tokens_that_any_of_its_queries_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = together(parts(seed=9))
    mask = np.ones(problem.mask.shape, dtype=bool)
    # Neighbours hide different tokens.
    mask[np.arange(len(mask)), (problem.reference + 1 + np.arange(len(mask)) % 3) % 4] = False
    ragged = SelectionProblem(problem.tokens, problem.queries, problem.reference, mask=mask)
    blocks = blocks_of(ragged, "both")
    assert len(blocks) >= 3
    for block in blocks:
        seen = {t for query in block.queries.tolist() for t in np.flatnonzero(mask[query]).tolist()}
        assert set(block.tokens.tolist()) == seen
    assert solve(ragged).objective == pytest.approx(undivided(monkeypatch, ragged, "frobenius").objective, rel=AGREE)


def test_limits_and_the_callback_are_those_of_the_whole() -> None:
    problem = together(parts(count=20, seed=7, n=12, T=6, d=8, dz=8))
    assert solve(problem, max_iter=1).status is Status.MAX_ITERATIONS
    assert solve(problem, "nuclear", time_limit=1e-3).status is Status.TIME_LIMIT
    states: list[Any] = []
    stopped = solve(problem, "nuclear", callback=lambda state: states.append(state) or len(states) == 3)
    assert stopped.status is Status.CANCELLED
    assert len(states) == 3


@pytest.mark.usefixtures("no_compiled_call")
@pytest.mark.parametrize("is_followed", [False, True])
def test_blocks_ask_the_callback_of_the_whole_and_none_if_there_is_none(is_followed: bool) -> None:
    """A run that is followed takes its steps one at a time."""
    control = Control(1e-9, callback=(lambda state: False) if is_followed else None)
    callbacks: list[Any] = []

    def noted(problem: SelectionProblem, norm: Any, *, callback: Any, **options: Any) -> Solution:
        callbacks.append(callback)
        return solve(problem, norm, callback=callback, **options)

    outcome = solve_blocks(Program(together(parts()), FROBENIUS, HARD_MARGIN), 1e-9, control, noted)
    assert outcome is not None
    assert len(callbacks) == 3
    control.stopped = Status.CANCELLED
    assert [callback is not None and callback(control.state) for callback in callbacks] == [is_followed] * 3


def test_many_blocks_take_the_time_of_their_sum() -> None:
    problems = parts(count=30, seed=8, n=20, T=8, d=12, dz=12)
    problem = together(problems)
    solve(problems[0])
    start = time.process_time()
    each = [solve(one).objective for one in problems]
    alone = time.process_time() - start
    start = time.process_time()
    whole = solve(problem)
    # As one problem it takes a hundred times the sum; finding and certifying take a few times the sum.
    assert time.process_time() - start < 30 * max(alone, 0.01)
    assert whole.objective == pytest.approx(np.linalg.norm(each), rel=AGREE)


def test_few_tokens_are_solved_as_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = together(parts())
    count = int(problem.rejected.sum())
    monkeypatch.setattr(solving, "FEW_FOR_BLOCKS", count)
    assert WORD not in solve(problem, "max").method
    assert WORD in solve(problem, norms.Mixed(2, 1, axis="columns")).method
    monkeypatch.setattr(solving, "FEW_FOR_BLOCKS", count - 1)
    assert WORD in solve(problem, "max").method


def test_two_blocks_are_found() -> None:
    assert len(blocks_of(together(parts(2)), "both")) == 2


def test_blocks_that_share_rows_or_columns_are_told_apart() -> None:
    """Six blocks on a grid: two sets of rows times three sets of columns."""
    rows, columns = np.divmod(np.arange(6), 3)
    tokens = np.zeros((6, 2, 2))
    tokens[np.arange(6), 0, rows] = 1.0
    problem = SelectionProblem(tokens, np.eye(3)[columns], np.zeros(6, dtype=int))
    assert sorted(int(block.queries[0]) for block in blocks_of(problem, "both")) == list(range(6))
    assert len(blocks_of(problem, "rows")) == 3
    assert len(blocks_of(problem, "columns")) == 2


def test_a_constraint_on_no_entry_leaves_the_problem_whole() -> None:
    problem = together(parts(2))
    queries = problem.queries.copy()
    queries[3] = 0.0
    assert blocks_of(SelectionProblem(problem.tokens, queries, problem.reference), "both") == []


def test_a_problem_without_constraints_has_no_blocks() -> None:
    assert blocks_of(SelectionProblem(np.ones((2, 1, 3)), np.ones((2, 2)), [0, 0]), "both") == []
