"""Working sets: soft margins and priors of every norm on streamed tokens, in bounded memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, Status, solve
from attsvm.core.norms import FROBENIUS
from attsvm.core.reduction import Reduced, reduce
from attsvm.solvers import solving, working_set
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.setting import Setting, Terms
from problems import FAMILIES

NORMS = ("frobenius", "nuclear", "spectral", "max", 1, 1.5)
TOL = 1e-9


def make(name: str, *sizes: int) -> SelectionProblem:
    return FAMILIES[name].make(np.random.default_rng([3, *sizes]), *sizes)


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
    made = (
        make("several", 8, 8, 6) if "C" not in OPTIONS[kind] or norm in (1, "spectral") else make("published", 25, 8, 4)
    )
    options = dict(OPTIONS[kind])
    if "prior" in options:
        options["prior"] = 0.3 * np.random.default_rng(1).standard_normal(made.shape[2:])
    direct = solve(made, norm, tol=TOL, **options)
    np.save(tmp_path / "tokens.npy", made.tokens)
    monkeypatch.setattr(solving, "STREAM_BYTES", 1 << 10)
    mapped = SelectionProblem(np.load(tmp_path / "tokens.npy", mmap_mode="r"), made.queries, made.selected)
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

    monkeypatch.setattr(working_set, "reduce", measured)
    solution = solve(problem, norm, C=C, method="streamed", tol=1e-6)
    assert solution.status is Status.OPTIMAL
    assert np.count_nonzero(solution.dual) > 0.5 * problem.rejected.sum()
    # Six tokens a query at first, four that join in a round, three sums, padded to the longest; most leave again.
    assert max(sizes) <= 0.6 * problem.tokens.size


def test_a_warm_start_is_taken_over() -> None:
    problem = make("published", 40, 10, 5)
    before = solve(problem, C=1.0, method="streamed")
    again = solve(problem, C=1.0, method="streamed", warm_start=before)
    assert again.status is Status.OPTIMAL
    assert again.iterations < before.iterations


def test_other_methods_are_refused_with_C() -> None:
    with pytest.raises(
        ValueError, match=r"^method is 'interior_point'; None, 'auto' or 'streamed' was expected with C or prior\.$"
    ):
        solve(make("published", 5, 4, 3), C=1.0, method="interior_point")


def test_a_group_is_the_sum_of_its_constraints_with_one_multiplier() -> None:
    problem = make("several", 6, 8, 5)
    rng = np.random.default_rng(0)
    groups = np.where(problem.rejected, rng.integers(3, size=problem.mask.shape), 0)
    reduced = reduce(problem, working=problem.constrained & (groups == 0), groups=groups)
    W = rng.standard_normal(reduced.shape)
    dual = rng.random(reduced.rejected.shape) * reduced.rejected
    lifted = reduced.lift_dual(dual)
    for i, row in enumerate(groups):
        assert all(len(np.unique(lifted[i, row == number])) <= 1 for number in (1, 2))
    # <A(W), lam> = <W, A^T lam> in both coordinates.
    np.testing.assert_allclose(
        (reduced.apply(W) * dual).sum(), (problem.apply(reduced.lift(W)) * lifted).sum(), rtol=1e-12
    )
    terms = replace(Terms.hard_margin(FROBENIUS, problem), squared=True, upper=3.0)
    setting = Setting.of(reduced, terms, np.zeros(problem.shape[2:]))
    # A bound of the restriction is one of the whole problem.
    low = setting.terms.bound(setting.terms.clip(dual), reduced.adjoint(setting.terms.clip(dual)))[1]
    whole = solve(problem, C=3.0)
    assert low / setting.value_unit <= whole.primal
    control = Control(1e-6)
    setting.report(W, dual, control)
    assert control.state.lower_bound / setting.value_unit <= whole.primal
