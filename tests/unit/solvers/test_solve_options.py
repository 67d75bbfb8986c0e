"""Options of solve: forced methods, warm starts, callbacks, limits, the table, streamed tokens, float32."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, Status, norms, solve
from attsvm.core.norms import FROBENIUS
from attsvm.core.norms.splitting import evaluations_within
from attsvm.core.types import AnyNorm
from attsvm.platform.kernels import compiled_first
from attsvm.solvers import options, solving
from attsvm.solvers.common.control import Control
from attsvm.solvers.schedule import finish
from problems import single
from settings import setting_of


def planted(n: int, T: int, d: int, seed: int = 0, drift: float = 0.0) -> SelectionProblem:
    """Tokens whose selection a random W makes, hence feasible; ``drift`` moves them a little."""
    random = np.random.default_rng(seed)
    tokens, queries = random.normal(size=(n, T, d)), random.normal(size=(n, d))
    selected = np.einsum("ntd,de,ne->nt", tokens, random.normal(size=(d, d)), queries).argmax(1)
    return SelectionProblem(tokens + drift * np.random.default_rng(1).normal(size=tokens.shape), queries, selected)


@pytest.fixture
def compiled_at_once() -> Iterator[None]:
    """No kernel is left out for want of machine code."""
    with compiled_first():
        yield


@pytest.mark.parametrize("method", ["active_set", "coordinate_newton", "interior_point", "streamed"])
def test_every_method_reaches_the_same_optimum(method: str) -> None:
    problem = planted(8, 6, 5)
    automatic, solution = solve(problem), solve(problem, method=method)
    assert solution.status is Status.OPTIMAL
    assert solution.gap <= 1e-9
    assert solution.objective == pytest.approx(automatic.objective, rel=2e-9)
    assert method.split("_")[0] in solution.method.replace("working sets", "streamed")


@pytest.mark.parametrize("scale", [1e-150, 1e-60, 1.0, 1e60, 1e150])
def test_small_problems_take_one_compiled_call_unless_watched_or_at_the_ends_of_the_range(
    scale: float, compiled_at_once: None
) -> None:
    problem = planted(8, 6, 5)
    scaled = SelectionProblem(scale * problem.tokens, problem.queries, problem.selected)
    solution, answer = solve(scaled), solve(scaled, callback=lambda state: False)
    assert (solution.method == "one-call active set") == (1e-100 < scale**2 < 1e100)
    assert answer.method != "one-call active set"
    assert solution.status is answer.status is Status.OPTIMAL
    assert solution.objective == pytest.approx(answer.objective, rel=2e-9)


@pytest.mark.parametrize("method", ["active_set", "coordinate_newton", "interior_point", "streamed"])
def test_every_method_proves_infeasibility(method: str) -> None:
    random = np.random.default_rng(3)
    problem = SelectionProblem(random.normal(size=(12, 6, 2)), random.normal(size=(12, 2)), random.integers(0, 6, 12))
    solution = solve(problem, method=method)
    assert solution.status is Status.INFEASIBLE
    assert solution.certificate is not None
    assert solution.certificate.verify()


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "spectral", "max", 1, 1.5, 3])
@pytest.mark.parametrize(("n", "T", "d"), [(6, 8, 10), (30, 15, 6)])
def test_refit_from_the_answer_ends_within_two_iterations(norm: str | float, n: int, T: int, d: int) -> None:
    problem = planted(n, T, d)
    first = solve(problem, norm)
    solution = solve(problem, norm, warm_start=first)
    assert solution.status is Status.OPTIMAL
    assert solution.iterations <= 2


@pytest.mark.parametrize(("norm", "n", "T", "d"), [("frobenius", 100, 32, 24), ("nuclear", 60, 20, 16)])
def test_warm_start_saves_iterations_on_a_path(norm: str, n: int, T: int, d: int, compiled_at_once: None) -> None:
    first = solve(planted(n, T, d), norm)
    sequence = planted(n, T, d, drift=1e-5)
    warm, cold = solve(sequence, norm, warm_start=first), solve(sequence, norm)
    assert warm.objective == pytest.approx(cold.objective, rel=2e-9)
    assert 3 * warm.iterations <= cold.iterations


def test_callback_sees_the_run_and_stops_it() -> None:
    states = []

    def watch(state) -> bool:
        states.append(state)
        return len(states) == 3

    solution = solve(planted(60, 20, 16), "nuclear", callback=watch)
    assert solution.status is Status.CANCELLED
    assert len(states) == 3
    assert states[-1].seconds >= states[0].seconds >= 0
    assert np.isfinite(solution.objective)  # the best iterate is kept
    assert solution.gap > 1e-9


def test_limits_are_kept() -> None:
    problem = planted(60, 20, 16)
    assert solve(problem, "nuclear", max_iter=4).status is Status.MAX_ITERATIONS
    assert solve(problem, "nuclear", time_limit=1e-6).status is Status.TIME_LIMIT


@pytest.mark.parametrize(("norm", "is_composed"), [(norms.Sum(1, "max"), True), ("nuclear", False)])
def test_evaluations_of_composed_norms_end_with_the_solve(
    norm: Any, is_composed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have a dual norm in closed form."""
    ends: list[Callable[[], bool]] = []

    @contextmanager
    def noted(is_over: Callable[[], bool]) -> Iterator[None]:
        ends.append(is_over)
        with evaluations_within(is_over):
            yield

    monkeypatch.setattr(solving, "evaluations_within", noted)
    solution = solve(planted(3, 3, 2), norm, C=1.0, tol=1e-3, time_limit=60.0)
    assert solution.status is Status.OPTIMAL
    assert [is_over() for is_over in ends] == [False] * is_composed


@pytest.mark.parametrize("tol", [0.0, 1.0, 1.5])
def test_a_tolerance_is_between_zero_and_one(tol: float) -> None:
    with pytest.raises(ValueError, match=r"^tol is .*; a number between 0 and 1 was expected\.$"):
        solve(planted(3, 3, 2), tol=tol)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_a_small_problem_that_was_solved_needs_no_exact_decision(norm: AnyNorm) -> None:
    solution = solve(single([[1.0, 2.0]]), norm)
    assert solution.status is Status.OPTIMAL
    assert solution.note == ""


def test_a_time_limit_is_a_positive_number() -> None:
    shape = (6, 8, 10, 10)
    assert options.read_limits(shape, FROBENIUS, 1e-9, None, 0.5, None, verbose=False).time_limit == 0.5
    with pytest.raises(ValueError, match=r"^time_limit is 0; a positive number was expected\.$"):
        options.read_limits(shape, FROBENIUS, 1e-9, None, 0, None, verbose=False)


@pytest.mark.parametrize(("size", "smaller"), [((4, 3, 5), 8), ((20, 6, 2), 4)])
def test_a_problem_with_few_constraints_or_few_entries_keeps_to_one_thread(
    size: tuple[int, int, int], smaller: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight constraints beside 20 entries of W, where four queries span four dimensions, or four entries."""
    limits = []
    monkeypatch.setattr(options, "blas_on_one_thread", lambda: limits.append(None) or nullcontext())
    setting = setting_of(planted(*size))
    for most, is_limited in ((smaller, True), (smaller - 1, False)):
        monkeypatch.setattr(options, "ONE_THREAD", most)
        limits.clear()
        control = Control(1e-9)
        finish(options.method_of(FROBENIUS)(setting, control, None))
        assert control.solved
        assert bool(limits) == is_limited


def test_verbose_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    solution = solve(planted(60, 20, 16), verbose=True)
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["iteration", "objective", "lower", "bound", "gap", "seconds", "method"]
    assert float(rows[-1].split()[1]) == pytest.approx(solution.objective, rel=1e-6)


def test_unknown_method_gets_one_sentence() -> None:
    with pytest.raises(ValueError, match="one of 'auto', 'active_set'"):
        solve(planted(3, 3, 3), method="simplex")


def test_streamed_tokens_give_the_same_answer(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = planted(300, 24, 8)
    np.save(tmp_path / "tokens.npy", problem.tokens)
    mapped = np.load(tmp_path / "tokens.npy", mmap_mode="r")
    direct = solve(problem)
    monkeypatch.setattr(solving, "STREAM_BYTES", 1 << 10)
    streamed = solve(SelectionProblem(mapped, problem.queries, problem.selected))
    assert streamed.method.startswith("working sets")
    assert streamed.gap <= 1e-9
    assert streamed.objective == pytest.approx(direct.objective, rel=2e-9)


@pytest.mark.parametrize("tol", [1e-6, 1e-12])
def test_many_queries_of_low_dimension_on_working_sets(tol: float) -> None:
    problem = planted(2000, 10, 8)
    streamed, direct = solve(problem, method="streamed", tol=tol), solve(problem)
    assert streamed.method.startswith("working sets (")
    assert streamed.status is Status.OPTIMAL
    assert streamed.gap <= tol
    assert streamed.objective == pytest.approx(direct.objective, rel=tol + 1e-9)


def test_float32_input_is_solved_in_float64() -> None:
    problem = planted(8, 6, 5)
    single = SelectionProblem(problem.tokens.astype("f4"), problem.queries.astype("f4"), problem.selected)
    solution = solve(single)
    assert solution.gap <= 1e-9
    assert solution.W.dtype == np.float32
    assert solution.objective == pytest.approx(solve(problem).objective, rel=1e-4)  # the data moved by 6e-8


@pytest.mark.parametrize("d", [256, 512])
def test_wide_tokens_with_few_queries_work_through_the_reduction(d: int) -> None:
    solution = solve(planted(6, 8, d), "nuclear")
    assert solution.status is Status.OPTIMAL
    assert solution.W.shape == (d, d)


def test_tighter_tolerance_is_reachable() -> None:
    for norm in ("frobenius", "nuclear"):
        assert solve(planted(15, 15, 20), norm, tol=1e-13).status is Status.OPTIMAL


def test_factors_multiply_to_w_and_nuclear_ranks_are_clean() -> None:
    for n, T, d in [(6, 8, 10), (15, 15, 20), (15, 5, 15)]:
        solution = solve(planted(n, T, d), "nuclear")
        K, Q = solution.factors()
        assert K.shape == Q.shape == (d, solution.rank)
        sigma = np.linalg.svd(solution.W, compute_uv=False)
        assert solution.rank < min(n, d)
        # The face gives W as a product of `rank` columns, so what is left is rounding.
        assert sigma[solution.rank] <= 1e-12 * sigma[0]
        np.testing.assert_allclose(K @ Q.T, solution.W, atol=1e-12 * sigma[0])
        assert (K**2).sum() + (Q**2).sum() == pytest.approx(2 * solution.objective, rel=1e-9)
    with pytest.raises(ValueError, match="a number from 0 to 15"):
        solution.factors(16)


def test_streaming_never_copies_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    # Held beside the tokens: the working set, some (n, T) arrays, each 1/d of the data, and (d dz)^2 matrices.
    problem = planted(1500, 64, 16)
    monkeypatch.setattr(solving, "STREAM_BYTES", 1 << 10)
    monkeypatch.setattr("attsvm.platform.paging.CHUNK_BYTES", 1 << 18)
    solve(planted(20, 6, 16))  # what is imported and compiled on first use is no memory of the solver's
    tracemalloc.start()
    solution = solve(problem, tol=1e-2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert solution.status is Status.OPTIMAL
    assert peak < problem.tokens.nbytes
