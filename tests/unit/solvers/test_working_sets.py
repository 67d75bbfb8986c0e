"""Working sets: soft margins and priors of every norm on streamed tokens, in bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, Status, solve
from attsvm.core.reduction import Reduced, reduce
from attsvm.solvers import solving
from attsvm.solvers.working_sets import restriction
from problems import FAMILIES, NAMED

NORMS = ("frobenius", "nuclear", "spectral", "max", 1, 1.5)
TOL = 1e-9


OPTIONS: dict[str, dict[str, Any]] = {
    "small C": {"C": 0.05},
    "C": {"C": 2.0},
    "large C": {"C": 200.0},
    "squared hinge": {"C": 2.0, "loss": "squared_hinge"},
    "prior": {"prior": True},
    "C and prior": {"C": 2.0, "prior": True},
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", OPTIONS)
def test_streamed_soft_margins_and_priors_agree_with_those_in_memory(
    kind: str, norm: str | float, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not separable, but for the hard margin; two selected tokens a query, whose scores tie.
    call_arguments = (
        FAMILIES["several"].draw(8, 8, 6, seed=3)
        if "C" not in OPTIONS[kind] or norm in (1, "spectral")
        else FAMILIES["published"].draw(25, 8, 4, seed=3)
    )
    options = dict(OPTIONS[kind])
    if "prior" in options:
        options["prior"] = 0.3 * np.random.default_rng(1).standard_normal(call_arguments.shape[2:])
    direct = solve(call_arguments, norm, tol=TOL, **options)
    np.save(tmp_path / "tokens.npy", call_arguments.tokens)
    monkeypatch.setattr(solving, "STREAM_BYTES", 1 << 10)
    mapped = SelectionProblem(
        np.load(tmp_path / "tokens.npy", mmap_mode="r"), call_arguments.queries, call_arguments.selected
    )
    streamed = solve(mapped, norm, tol=TOL, **options)
    assert streamed.status is direct.status
    if direct.status is Status.OPTIMAL:
        assert streamed.method.startswith(("working sets", "closed form"))
        # Two certified answers differ by both their gaps at most.
        assert streamed.primal == pytest.approx(direct.primal, rel=2.5 * TOL)
        assert streamed.verify().proven


@pytest.mark.parametrize("norm", ["frobenius", "spectral"])
@pytest.mark.parametrize("C", [0.1, 100.0])
def test_restrictions_stay_small_where_nearly_every_token_has_a_loss(
    C: float, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Random selections on 16 entries of W: nearly all multipliers are at C, and enter as few sums a query.
    rng = np.random.default_rng(0)
    tokens, queries = rng.standard_normal((300, 64, 8)), rng.standard_normal((300, 2))
    problem = SelectionProblem(tokens, queries, rng.integers(64, size=300))
    sizes: list[int] = []

    def measured(*args: Any, **options: Any) -> Reduced:
        reduced = reduce(*args, **options)
        sizes.append(reduced.delta.size)
        return reduced

    monkeypatch.setattr(restriction, "reduce", measured)
    solution = solve(problem, norm, C=C, method="streamed", tol=1e-6)
    assert solution.status is Status.OPTIMAL
    assert np.count_nonzero(solution.dual) > 0.5 * problem.rejected.sum()
    # Six tokens a query at first, four that join in a round, three sums, padded to the longest; most leave again.
    assert max(sizes) <= 0.6 * problem.tokens.size


def test_a_warm_start_is_taken_over() -> None:
    problem = FAMILIES["published"].draw(40, 10, 5, seed=3)
    before = solve(problem, C=1.0, method="streamed")
    solution = solve(problem, C=1.0, method="streamed", warm_start=before)
    assert solution.status is Status.OPTIMAL
    assert solution.iterations < before.iterations


def test_a_warm_start_of_a_hard_margin_begins_at_its_smallest_margins() -> None:
    problem = FAMILIES["planted"].draw(300, 10, 5, seed=3)
    before = solve(problem, method="streamed")
    solution = solve(problem, method="streamed", warm_start=before)
    assert solution.status is Status.OPTIMAL
    assert solution.iterations < before.iterations


@pytest.mark.parametrize("norm", ["nuclear", "spectral", "max", 1])
@pytest.mark.parametrize("C", [1.0, 10.0])
def test_idle_rows_of_a_soft_margin_leave_nothing_undecided(norm: str | float, C: float) -> None:
    problem = NAMED["infeasible_with_idle_rows"]().problem
    streamed, direct = solve(problem, norm, C=C, method="streamed"), solve(problem, norm, C=C)
    assert streamed.status is direct.status is Status.OPTIMAL
    assert streamed.primal == pytest.approx(direct.primal, rel=2.5 * TOL)


@pytest.mark.parametrize(("loss", "slope"), [("hinge", 1.0), ("squared_hinge", 2.0)])
def test_tokens_that_no_w_moves_have_the_multiplier_of_a_shortfall_of_one(loss: Any, slope: float) -> None:
    tokens = FAMILIES["published"].draw(25, 8, 4, seed=3).tokens
    queries = np.random.default_rng(0).standard_normal((25, 4))
    queries[:3] = 0.0
    problem = SelectionProblem(tokens, queries, np.zeros(25, dtype=int))
    solution = solve(problem, C=3.0, loss=loss, method="streamed")
    assert solution.status is Status.OPTIMAL
    # The loss is C s or C s^2 of a shortfall s, and the multiplier is its slope.
    np.testing.assert_allclose(solution.dual[:3][problem.rejected[:3]], 3.0 * slope, rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"C": 1.0}])
def test_lengths_beyond_the_range_of_floats_are_undecided(options: dict[str, Any]) -> None:
    inputs = FAMILIES["planted"].draw(20, 5, 4, seed=3)
    problem = SelectionProblem(1e200 * inputs.tokens, 1e200 * inputs.queries, inputs.reference)
    assert solve(problem, method="streamed", **options).status is Status.UNDECIDED


def test_other_methods_are_refused_with_C() -> None:
    with pytest.raises(
        ValueError, match=r"^method is 'interior_point'; None, 'auto' or 'streamed' was expected with C or prior\.$"
    ):
        solve(FAMILIES["published"].draw(5, 4, 3, seed=3), C=1.0, method="interior_point")
