"""Mutations of claims: whatever is said that W, multipliers and data do not bear out, verify() refuses."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from attsvm import ProblemBatch, SelectionProblem, Solution, Status, solve, solve_batch
from attsvm.core.types import AnyNorm
from attsvm.platform.kernels import compiled_first
from attsvm.proofs.certificate import FarkasCertificate
from problems import FAMILIES, NAMED

NORMS = ("frobenius", "nuclear", "spectral", "max", 1, 1.5)


def planted(*size: int, seed: int = 0) -> SelectionProblem:
    return FAMILIES["planted"].draw(*size, seed=seed)


def with_pair(solution: Solution, **changes: Any) -> Solution:
    return replace(solution, certified=replace(solution.certified, **changes))


def scaled(solution: Solution, factor: float) -> Solution:
    """Everything said of W, and W, times a factor."""
    pair = solution.certified
    return with_pair(
        solution, W=factor * pair.W, objective=factor * pair.objective, upper_bound=factor * pair.upper_bound
    )


MUTATIONS = {
    "W scaled": lambda s: with_pair(s, W=2.48 * s.certified.W),
    "W and what is said of it scaled": lambda s: scaled(s, 2.48),
    "W and what is said of it shrunk": lambda s: scaled(s, 0.5),
    "W perturbed": lambda s: with_pair(s, W=s.certified.W + 0.5 * np.abs(s.certified.W).max() * np.eye(*s.W.shape)),
    "objective halved": lambda s: with_pair(s, objective=0.5 * s.certified.objective),
    "objective and bounds halved": lambda s: with_pair(
        s,
        objective=0.5 * s.certified.objective,
        lower_bound=0.5 * s.certified.lower_bound,
        upper_bound=0.5 * s.certified.upper_bound,
    ),
    "bound raised": lambda s: with_pair(s, lower_bound=1.001 * s.certified.lower_bound),
    "infeasible without a certificate": lambda s: replace(s, status=Status.INFEASIBLE),
    "infeasible with its own multipliers": lambda s: replace(
        s,
        status=Status.INFEASIBLE,
        certificate=FarkasCertificate(s.problem, s.certified.dual / s.certified.dual[s.problem.rejected].sum()),
    ),
    "a certificate beside an optimum": lambda s: replace(s, certificate=FarkasCertificate(s.problem, s.certified.dual)),
    "multipliers of another problem": lambda s: with_pair(s, dual=s.certified.dual[::-1]),
    "multipliers scaled": lambda s: with_pair(s, dual=0.5 * s.certified.dual),
    "margins of another W": lambda s: with_pair(s, margins=1.5 * s.certified.margins),
    "a gap it does not have": lambda s: replace(s, tol=1e-18),
    "another problem": lambda s: replace(s, problem=planted(5, 4, 6, seed=1)),
}  # fmt: skip


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutated_claim_is_refused(mutation: str, norm: str | float) -> None:
    solution = solve(planted(5, 4, 6), norm)
    assert solution.status is Status.OPTIMAL
    assert solution.verify(), solution.verify().statement
    proof = MUTATIONS[mutation](solution).verify()
    assert not proof
    assert proof.statement.startswith("Not proven: ")


@pytest.mark.parametrize("mutation", [m for m in MUTATIONS if "gap" not in m])
def test_exact_proofs_refuse_the_same(mutation: str) -> None:
    solution = solve(planted(5, 4, 6))
    assert solution.verify(exact=True)
    assert not MUTATIONS[mutation](solution).verify(exact=True)


@pytest.mark.parametrize("options", [{"C": 1.0}, {"C": 3.0, "norm": "nuclear"}, {"prior": np.eye(4)}])
def test_soft_margins_and_priors_are_held_to_their_claims(options: dict[str, Any]) -> None:
    solution = solve(planted(6, 5, 4), **options)
    assert solution.status is Status.OPTIMAL
    assert solution.verify(), solution.verify().statement
    for changes in (
        {"W": 1.1 * solution.certified.W},
        {"objective": 0.5 * solution.certified.objective},
        {"lower_bound": 1.01 * solution.certified.lower_bound},
        {"dual": solution.certified.dual * np.linspace(0.5, 1.0, solution.certified.dual.shape[1])},
    ):
        assert not with_pair(solution, **changes).verify()
    assert not replace(solution, status=Status.INFEASIBLE).verify()
    assert not replace(solution, tol=1e-18).verify()


EXACT_OPTIONS: dict[str, dict[str, Any]] = {
    "hinge": {"C": 1.0},
    "small C": {"C": 1e-3},
    "large C": {"C": 1e8},
    "squared hinge": {"C": 2.0, "loss": "squared_hinge"},
    "prior": {"prior": 0.3 * np.eye(4)},
    "C and prior": {"C": 1.0, "prior": 0.3 * np.eye(4)},
}


@pytest.mark.parametrize("norm", ["frobenius", 1, "max", "nuclear", "spectral", 1.5])
@pytest.mark.parametrize("kind", EXACT_OPTIONS)
@pytest.mark.parametrize("ties", [False, True])
def test_soft_margins_and_priors_are_proven_exactly(ties: bool, kind: str, norm: str | float) -> None:
    problem = FAMILIES["several" if ties else "planted"].make(np.random.default_rng(4), 5, 5, 4)
    solution = solve(problem, norm, **EXACT_OPTIONS[kind])
    assert solution.status is Status.OPTIMAL
    assert solution.verify(), solution.verify().statement
    proof = solution.verify(exact=True)
    assert proof, proof.statement
    assert solution.lower_bound <= proof.high
    assert proof.low <= solution.certified.upper_bound
    changes: list[dict[str, Any]] = [
        {"W": 1.1 * solution.certified.W},
        {"primal": 0.5 * solution.primal},
        {"primal": 0.5 * solution.primal, "rounding": 1e9},
        {"objective": 1.01 * solution.certified.objective},
        {"lower_bound": 1.01 * solution.certified.lower_bound},
        {"dual": solution.certified.dual * np.linspace(0.5, 1.0, problem.shape[1])},
    ]
    for change in changes:
        if any(np.any(value != getattr(solution.certified, name)) for name, value in change.items()):
            assert not with_pair(solution, **change).verify(exact=True), change


def test_an_empty_claim_is_zero() -> None:
    solution = solve(NAMED["everything_selected"]().problem)
    assert solution.verify()
    assert not with_pair(solution, objective=1.0).verify()
    assert not replace(solution, status=Status.INFEASIBLE).verify()


def test_an_unsolved_claim_is_its_interval() -> None:
    solution = solve(planted(20, 8, 8), "nuclear", max_iter=1)
    assert solution.status is Status.MAX_ITERATIONS
    assert solution.verify()
    assert not with_pair(solution, lower_bound=solution.objective).verify()
    assert f"{solution.lower_bound:.6g}" in solution.sentence


# --- what a claim rests on ---


def test_tokens_are_copied() -> None:
    tokens = planted(6, 5, 4).tokens.copy()
    source = planted(6, 5, 4)
    problem = SelectionProblem(tokens, source.queries, source.reference)
    solution = solve(problem)
    tokens *= 2.0
    assert solution.verify(), solution.verify().statement
    assert not problem.tokens.flags.writeable
    shared = torch.tensor(source.tokens)
    problem = SelectionProblem(shared, torch.tensor(source.queries), source.reference)
    shared *= 2.0
    np.testing.assert_array_equal(problem.tokens, source.tokens)


def test_frozen_tokens_are_used_in_place() -> None:
    source = planted(6, 5, 4)
    copy = SelectionProblem(source.tokens, source.queries, source.reference)
    assert np.shares_memory(copy.tokens, source.tokens)


def test_memory_maps_are_used_in_place_and_left_as_they_were(tmp_path) -> None:
    source = planted(6, 5, 4)
    np.save(tmp_path / "tokens.npy", source.tokens)
    mapped = np.load(tmp_path / "tokens.npy", mmap_mode="r+")
    problem = SelectionProblem(mapped, source.queries, source.reference)
    assert np.shares_memory(problem.tokens, mapped)
    assert mapped.flags.writeable


@pytest.mark.parametrize("options", [{}, {"norm": "nuclear"}, {"C": 1.0}])
def test_arrays_of_a_solution_are_not_its_own(options: dict[str, Any]) -> None:
    solution = solve(planted(6, 5, 4), **options)
    for array in (solution.W, solution.dual, solution.margins):
        array *= 3.0
    assert solution.verify(), solution.verify().statement
    assert not solution.certified.W.flags.writeable


def test_masked_arrays() -> None:
    tokens = np.ones((2, 3, 4))
    hidden = np.ma.masked_array(tokens, mask=np.arange(24).reshape(2, 3, 4) > 20)
    for arguments in ((hidden, np.eye(2), [0, 0]), (tokens, np.eye(2), np.ma.masked_array([0, 1], mask=[False, True]))):
        with pytest.raises(ValueError, match="masked entries"):
            SelectionProblem(*arguments)
    unmasked = np.ma.masked_array(tokens, mask=False)
    assert type(SelectionProblem(unmasked, np.eye(2), [0, 0]).tokens) is np.ndarray


# --- dtypes and scales ---


def test_half_precision_comes_back_in_single() -> None:
    """Entries of W near 1e5 are infinite in float16."""
    source = planted(3, 4, 3)
    small = (source.tokens * 1e-5).astype(np.float16)
    solution = solve(SelectionProblem(small, source.queries.astype(np.float16), source.reference))
    assert solution.status is Status.OPTIMAL
    assert solution.W.dtype == np.float32
    assert np.abs(solution.W).max() > 65504
    assert np.isfinite(solution.W).all()
    for dtype in (torch.float16, torch.bfloat16):
        tokens, queries = torch.tensor(source.tokens, dtype=dtype), torch.tensor(source.queries, dtype=dtype)
        solution = solve(SelectionProblem(tokens, queries, source.reference))
        assert solution.W.dtype == torch.float32
        ragged = solve(SelectionProblem(list(tokens), queries, source.reference))
        assert ragged.objective == pytest.approx(solution.objective, rel=1e-12)


def test_what_single_precision_cannot_hold_stays_double() -> None:
    source = planted(3, 4, 3)
    tiny = SelectionProblem((1e-30 * source.tokens).astype(np.float32), 1e-30 * source.queries, source.reference)
    solution = solve(tiny)
    assert solution.W.dtype == np.float64
    assert np.isfinite(solution.W).all()


@pytest.mark.parametrize(
    "options",
    [{}, {"norm": "nuclear"}, {"norm": "max"}, {"C": 1.0}, {"prior": np.eye(3)}, {"norm": "nuclear", "C": 1e200}],
)
@pytest.mark.parametrize("scales", [(1e300, 1.0), (1e-300, 1.0), (1e160, 1e160), (1e-300, 1e-300)])
def test_the_ends_of_the_range(
    scales: tuple[float, float], options: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """No exception, no warning, nothing that LAPACK prints, no claim that does not hold."""
    source = planted(3, 4, 3)
    problem = SelectionProblem(scales[0] * source.tokens, scales[1] * source.queries, source.reference)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = solve(problem, **options)
        assert solution.status is not Status.INFEASIBLE
        proofs = solution.verify(), solution.verify(exact=True)
        assert all(str(proof) for proof in proofs)
        if not options.keys() & {"C", "prior"}:
            within = 1e-308 < scales[0] * scales[1] < 1e308
            assert (solution.status is Status.OPTIMAL) == within
            assert all(proofs) == within, [proof.statement for proof in proofs]
            assert ("beyond the range of floats" in solution.sentence) != within
        assert solution.rank >= 0
        assert not np.isnan(solution.objective)
    assert not capfd.readouterr().err


@pytest.mark.parametrize("norm", ["frobenius", "max"])
@pytest.mark.parametrize("scale", [1e20, 1e140])
def test_a_prior_far_larger_than_w(norm: str, scale: float) -> None:
    """The nearest W is zero to rounding, where margins of one are rounding of the prior."""
    source = planted(6, 5, 4)
    problem = SelectionProblem(scale * source.tokens, source.queries, source.reference)
    solution = solve(problem, norm, prior=np.ones((4, 4)))
    assert solution.status is Status.OPTIMAL
    assert solution.verify(), solution.verify().statement
    assert solution.verify(exact=True)


# --- reports ---


@pytest.mark.parametrize("options", [{"norm": "nuclear"}, {"C": 1.0}, {"norm": "spectral"}])
def test_a_limit_is_named_only_where_one_was_set(options: dict[str, Any]) -> None:
    problem = planted(20, 8, 8)
    solution = solve(problem, max_iter=1, **options)
    assert solution.status in (Status.MAX_ITERATIONS, Status.OPTIMAL)
    if np.isfinite(solution.objective) and solution.objective > 0:
        assert solution.rank > 0
    # 1e-15 is below what rounding leaves.
    beyond = solve(problem, tol=1e-15, **options)
    assert beyond.status in (Status.UNDECIDED, Status.OPTIMAL)


def test_the_gap_of_a_batch_counts_rounding() -> None:
    problems = [planted(6, 8, 10, seed=seed) for seed in range(4)]
    for norm in ("frobenius", "nuclear"):
        batch = solve_batch(problems, norm)
        for b, solution in enumerate(batch):
            assert batch.gap[b] >= solution.gap
            assert solution.verify()


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize(("n", "T", "d"), [(1, 3, 1), (1, 30, 2), (10, 4, 2), (2, 60, 2)])
def test_the_gap_of_a_batch_counts_rounding_where_all_constraints_are_alike(
    norm: AnyNorm, n: int, T: int, d: int
) -> None:
    """Rejected tokens near the selected one's negative: no constraint is longer than the mean of all."""
    rng = np.random.default_rng([n, T, d])
    tokens = -np.eye(1, d) + 1e-3 * rng.standard_normal((6, n, T, d))
    tokens[:, :, 0] = np.eye(1, d)
    with compiled_first():
        batch = solve_batch(ProblemBatch(tokens, np.ones((6, n, 1)), np.zeros((6, n), dtype=int)), norm)
    for b, solution in enumerate(batch):
        assert solution.method.startswith("batched")
        assert batch.gap[b] >= solution.gap
