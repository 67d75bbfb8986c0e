"""A batch is a loop: same verdicts, same optimum, same certificates."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import problems as named
from attsvm import ProblemBatch, SelectionProblem, Status, solve, solve_batch
from attsvm.core.norms import FROBENIUS, NUCLEAR, Norm
from attsvm.solvers import batching
from attsvm.solvers.batching import BatchSetup, CompiledCall


def stack(count: int, n: int, T: int, d: int, seed: int = 0) -> ProblemBatch:
    random = np.random.default_rng(seed)
    tokens = random.normal(size=(count, n, T, d))
    queries = random.normal(size=(count, n, d))
    mask = random.random((count, n, T)) < 0.9
    mask[..., 0] = True
    selected = np.zeros((count, n), dtype=int)
    return ProblemBatch(tokens, queries, selected, mask)


def agree(batch, loop) -> None:
    for b, single in enumerate(loop):
        together = batch[b]
        assert batch.status[b] is single.status is together.status
        if single.status is not Status.OPTIMAL:
            assert np.isnan(batch.W[b]).all()
            continue
        # Strong convexity: W with gaps g1, g2 differ by at most sqrt(2 g1) + sqrt(2 g2) of their norm; 4 eps floors g.
        reach = sum(np.sqrt(2 * max(s.gap, 4 * np.finfo(float).eps)) for s in (single, together)) * single.objective
        if single.norm.name == "frobenius":
            assert np.linalg.norm(batch.W[b] - single.W) <= reach
        assert batch.objective[b] == pytest.approx(single.objective, rel=2e-9)
        assert together.gap <= 1e-9


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize(("n", "T", "d"), [(4, 5, 6), (5, 5, 2), (1, 3, 2), (3, 1, 2)])
def test_batch_equals_loop(norm: str, n: int, T: int, d: int) -> None:
    batch = stack(20, n, T, d)
    agree(solve_batch(batch, norm), [solve(problem, norm) for problem in batch])


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_every_family_of_one_shape_agrees(norm: str) -> None:
    for name, family in named.FAMILIES.items():
        same: dict[tuple, list[SelectionProblem]] = {}
        for _, problem in family.instances():
            same.setdefault(problem.shape, []).append(problem)
        group = max(same.values(), key=len)[:8]
        agree(solve_batch(group, norm), [solve(problem, norm) for problem in group])
        assert group, name


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_infeasible_instances_keep_their_certificates(norm: str) -> None:
    batch = stack(30, 6, 6, 2)
    solutions = solve_batch(batch, norm)
    infeasible = [solution for solution in solutions if solution.status is Status.INFEASIBLE]
    assert infeasible
    assert all(solution.certificate is not None and solution.certificate.verify() for solution in infeasible)


def test_torch_in_torch_out() -> None:
    batch = stack(3, 3, 4, 5)
    solutions = solve_batch(ProblemBatch(torch.tensor(batch.tokens), torch.tensor(batch.queries), [[0, 0, 0]] * 3))
    assert isinstance(solutions.W, torch.Tensor)
    assert solutions.W.shape == (3, 5, 5)
    assert isinstance(solutions[1].W, torch.Tensor)


def test_a_list_of_torch_problems_is_answered_in_torch() -> None:
    tokens, queries = np.random.default_rng(0).normal(size=(3, 4, 5)), np.ones((3, 5))
    problems = [SelectionProblem(torch.tensor(tokens), torch.tensor(queries), [0, 0, 0]) for _ in range(2)]
    assert isinstance(solve_batch(problems).W, torch.Tensor)


@pytest.mark.parametrize("norm", [FROBENIUS, NUCLEAR])
@pytest.mark.parametrize("tol", [1e-3, 1e-9])
def test_a_compiled_call_aims_at_a_gap_below_the_tolerance(norm: Norm, tol: float) -> None:
    call = CompiledCall.of(norm, tol, (4, 5, 6, 6))
    assert call is not None
    assert 0.0 < call.options[0] < tol


def test_hidden_tokens_round_nothing() -> None:
    """Rounding counts them as it counts copies of the selected token, which are at length zero."""
    batch = stack(6, 4, 5, 6)
    assert not batch.mask.all()
    tokens = 2.0**-40 * np.where(batch.mask[..., None], batch.tokens, batch.tokens[:, :, :1])
    copies = ProblemBatch(tokens, batch.queries, batch.selected)
    hidden = ProblemBatch(tokens, batch.queries, batch.selected, batch.mask)
    W, dual = np.ones((6, 6, 6)), np.ones((6, 4, 5))
    one, other = (batching._rounding(part, FROBENIUS, W, dual, np.ones(6)) for part in (hidden, copies))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": np.zeros((2, 3, 4))}, r"tokens has shape .*\(B, n, T, d\)"),
        ({"queries": np.zeros((2, 4, 5))}, r"queries has shape .*\(2, 3, dz\)"),
        ({"selected": np.zeros((2, 4), dtype=int)}, r"selected has shape"),
        ({"mask": np.ones((2, 3, 5), dtype=bool)}, r"mask has shape"),
        ({"tokens": np.full((2, 3, 4, 5), np.nan)}, "tokens .* has NaN"),
    ],
)
def test_bad_stacks_get_one_sentence(change: dict, words: str) -> None:
    good = {"tokens": np.ones((2, 3, 4, 5)), "queries": np.ones((2, 3, 5)), "selected": np.zeros((2, 3), dtype=int)}
    with pytest.raises(ValueError, match=words):
        ProblemBatch(**(good | change))


def test_bad_batches_get_one_sentence() -> None:
    with pytest.raises(ValueError, match="at least one problem"):
        solve_batch([])
    with pytest.raises(ValueError, match="one shape"):
        solve_batch([stack(1, 2, 3, 4)[0], stack(1, 2, 3, 5)[0]])
    with pytest.raises(ValueError, match="tol"):
        solve_batch(stack(1, 2, 3, 4), tol=0.0)


@pytest.mark.parametrize("tol", [0.0, 1.0, float("nan")])
def test_a_tolerance_is_refused_before_any_instance_is_solved(tol: float) -> None:
    with pytest.raises(ValueError, match=r"^tol is .*; a number between 0 and 1 was expected\.$"):
        BatchSetup(stack(1, 2, 3, 4), "frobenius", tol)


@pytest.mark.parametrize("cores", [1, 2])
def test_pieces_of_a_batch_run_side_by_side_on_several_cores(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "get_num_threads", lambda: cores)
    meeting = threading.Barrier(cores, timeout=10.0)
    numbers, squares, sizes = np.arange(3.0), np.full(3, np.nan), []

    def square(given: np.ndarray, power: float, answer: np.ndarray) -> None:
        sizes.append(len(given))
        if len(sizes) > 1:
            meeting.wait()  # until as many pieces as cores run at once
        answer[:] = given**power

    batching._on_all_cores(square, (numbers,), (2.0,), (squares,))
    np.testing.assert_array_equal(squares, [0.0, 1.0, 4.0])
    assert sizes == ([1, 1, 1] if cores == 2 else [1, 2])
