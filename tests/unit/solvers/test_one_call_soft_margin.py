"""Small soft margins in one compiled call: how close it comes, the interpreter, and when it is called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, solve
from attsvm.core.error_free import EPS
from attsvm.platform import kernels
from attsvm.proofs.objective import Regularisation
from attsvm.solvers.common.regularisation import LOSSES
from attsvm.solvers.common.setting import Setting
from attsvm.solvers.compiled.soft_margin import PATH_END, central_path, solve_on_path, step_operations, suits_path
from attsvm.solvers.frobenius.constraints import Constraints
from attsvm.solvers.schedule import INTERIOR_STEPS
from problems import FAMILIES, published, several
from settings import setting_of

METHOD = "one-call interior point"
# Multiplier over the largest above which a constraint counts as a support.
SUPPORT = 1e-9


def soft(problem: SelectionProblem, C: float, loss: str, prior: np.ndarray | None = None) -> Setting:
    return setting_of(problem, regularisation=Regularisation(C, loss, prior))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("C", [1e-3, 0.1, 1.0, 1e2, 1e5])
@pytest.mark.parametrize("family", ["published", "planted", "correlated"])
def test_the_path_ends_at_the_optimum(family: str, C: float, loss: str) -> None:
    """Objective and bound differ by the products that are left, and by the rounding of margins times their slopes.

    The slope of a hinge is C on one side of the margin of a support.
    """
    setting = soft(FAMILIES[family].draw(12, 6, 4), C, loss)
    terms, reduced = setting.terms, setting.reduced
    with kernels.compiled_first():
        V, dual, _ = solve_on_path(setting)
    assert (dual[terms.rejected] >= 0).all()
    assert (dual <= terms.upper * (1.0 + EPS)).all()
    value = terms.size(V) + terms.loss(terms.cost - reduced.apply(V))
    bound = terms.bound(dual, reduced.adjoint(dual))[1]
    slope = np.where(dual > SUPPORT * dual.max(), terms.upper, dual) if loss == "hinge" else dual
    rounding = sum(V.shape) * EPS * float(np.linalg.norm(V)) * float((slope * reduced.lengths).sum())
    assert value - bound <= PATH_END * value + 2.0 * rounding


@pytest.mark.parametrize("loss", LOSSES)
def test_machine_code_and_interpreter_agree(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = soft(published(np.random.default_rng(0), 5, 3, 3), 0.5, loss, np.full((3, 3), 0.1))
    with kernels.compiled_first():
        compiled = solve_on_path(setting)
    monkeypatch.setattr(kernels, "at_hand", lambda function: False)
    monkeypatch.setitem(kernels._WITHOUT, central_path, 0.0)
    plain = solve_on_path(setting)
    lost = INTERIOR_STEPS * step_operations(setting) / kernels.RATE
    assert kernels._WITHOUT[central_path] == pytest.approx(lost, rel=1e-12)
    assert compiled[2] == plain[2]
    for one, other in zip(compiled[:2], plain[:2], strict=True):
        # Strong convexity: V is within the root of twice the products left.
        np.testing.assert_allclose(one, other, rtol=0, atol=np.sqrt(2.0 * PATH_END) * float(np.abs(other).max()))


def test_small_soft_margins_without_ties_take_it() -> None:
    problem = published(np.random.default_rng(0), 20, 5, 4)
    with kernels.compiled_first():
        assert solve(problem, C=1.0).method == METHOD
        assert suits_path(soft(problem, 1.0, "hinge"))
        assert not suits_path(soft(several(np.random.default_rng(0), 20, 5, 4), 1.0, "hinge"))
        assert not suits_path(setting_of(problem))
        assert not suits_path(soft(published(np.random.default_rng(0), 40, 10, 24), 1.0, "hinge"))


def test_the_interpreter_does_not_take_it_until_that_has_cost_what_compiling_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setting = soft(published(np.random.default_rng(0), 20, 5, 4), 1.0, "hinge")
    monkeypatch.setattr(kernels, "at_hand", lambda function: False)
    for lost, suits in ((0.0, False), (kernels.KERNELS[central_path].seconds, True)):
        monkeypatch.setitem(kernels._WITHOUT, central_path, lost)
        assert suits_path(setting) == suits


@pytest.mark.parametrize(("n", "count"), [(1, 10_000**3 / 6), (10**6, 10**6 * (100 * 101 / 2) ** 2)])
def test_the_work_of_a_step_is_that_of_its_matrix(n: int, count: float) -> None:
    """Of its Cholesky factor where queries are few, and of one triangle's sums over queries where they are many."""
    terms, reduced = SimpleNamespace(cost=np.broadcast_to(0.0, (n, 1))), SimpleNamespace(shape=(100, 100))
    setting: Any = SimpleNamespace(terms=terms, reduced=reduced)
    assert step_operations(setting) == pytest.approx(count, rel=0.05)


def ragged(T: int) -> SelectionProblem:
    """Two queries with T tokens and one with two."""
    rng = np.random.default_rng(T)
    mask = np.ones((3, T), dtype=bool)
    mask[1, 2:] = False
    return SelectionProblem(rng.standard_normal((3, T, 4)), rng.standard_normal((3, 4)), np.zeros(3, int), mask=mask)


@pytest.mark.parametrize("loss", LOSSES)
def test_tokens_that_are_not_there_have_no_multiplier(loss: str) -> None:
    setting = soft(ragged(4), 1.0, loss)
    with kernels.compiled_first():
        _, dual, _ = solve_on_path(setting)
    assert not setting.terms.rejected.all()
    np.testing.assert_array_equal(dual > 0, setting.terms.rejected)


@pytest.mark.parametrize("T", [2, 4])
def test_constraints_are_listed_query_by_query(T: int) -> None:
    """T - 1 entries a query, of which one may be alone."""
    reduced = soft(ragged(T), 1.0, "hinge").reduced
    constraints = Constraints.of_reduced(reduced)
    assert constraints.gram.shape == (0, 0)
    assert len(constraints.first) == len(reduced.queries) + 1
    assert constraints.first[-1] == len(constraints.of) == 3 * (T - 1)
    for i, (first, end) in enumerate(zip(constraints.first, constraints.first[1:], strict=False)):
        assert (constraints.of[first:end] == i).all()
        np.testing.assert_array_equal(constraints.delta[first:end], reduced.delta[i])
        np.testing.assert_array_equal(constraints.rejected[first:end], reduced.rejected[i])
