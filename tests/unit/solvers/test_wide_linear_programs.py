"""Linear programs with fewer constraints than entries of W: the answer of a solver that sees all entries."""

import numpy as np
import pytest
from scipy.optimize import linprog

from attsvm import SelectionProblem, Status, solve
from attsvm.core.norms import MAX, Entrywise, Norm
from attsvm.proofs.objective import Regularisation
from attsvm.solvers.common.control import Control
from attsvm.solvers.interior_point.alignment import Active, _pivot, vertex
from attsvm.solvers.interior_point.engine import InteriorPoint
from attsvm.solvers.interior_point.general import restart
from attsvm.solvers.interior_point.terms import LinearTerm
from oracle import dense
from problems import FAMILIES, single
from settings import setting_of

TOL = 1e-9
PRIOR = 0.2 * np.random.default_rng(5).standard_normal((12, 12))
OPTIONS = {
    "hard": Regularisation(None, "hinge", None),
    "hinge": Regularisation(3.0, "hinge", None),
    "prior": Regularisation(None, "hinge", PRIOR),
    "hinge and prior": Regularisation(20.0, "hinge", PRIOR),
}


def highs(problem: SelectionProblem, norm: Norm, options: Regularisation) -> float:
    """Optimal value by HiGHS, with every entry of W - W0 = P - N and every loss written out."""
    full = dense(problem)
    prior = np.zeros(problem.shape[2:]) if options.prior is None else options.prior
    demand = np.where(full.tied, 0.0, 1.0) - full.rows @ prior.ravel()
    size, losses = full.rows.shape[1], np.eye(len(demand))[:, ~full.tied]
    if options.C is None:
        losses = losses[:, :0]
    if norm == MAX:
        price, top = np.zeros(2 * size), np.hstack([np.eye(size), np.eye(size)])
    else:
        price, top = np.ones(2 * size), np.zeros((0, 2 * size))
    k, more = losses.shape[1], 1 if norm == MAX else 0
    rows = np.hstack([full.rows, -full.rows, losses, np.zeros((len(demand), more))])
    bound = np.hstack([top, np.zeros((len(top), k)), -np.ones((len(top), more))])
    answer = linprog(
        np.concatenate([price, np.full(k, options.C or 0.0), np.ones(more)]),
        A_ub=np.vstack([-rows[~full.tied], bound]),
        b_ub=np.append(-demand[~full.tied], np.zeros(len(top))),
        A_eq=rows[full.tied] if full.tied.any() else None,
        b_eq=demand[full.tied] if full.tied.any() else None,
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert answer.status == 0, answer.message
    return float(answer.fun)


@pytest.mark.parametrize("norm", [Entrywise(1), MAX], ids=["l_1", "max"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize(("family", "seed"), [("planted", 1), ("several", 2), ("self_attention", 3)])
def test_a_rough_answer_ends_as_the_whole_linear_program(family, seed, options, norm) -> None:
    problem = FAMILIES[family].draw(6, 4, 12, seed=seed)
    setting, control = setting_of(problem, norm, options, rotate=False), Control(TOL)
    control.unit = setting.value_unit
    rough = solve(problem, norm, C=options.C, prior=options.prior, tol=1e-2)
    V = setting.reduced.lower(rough.W) - setting.prior
    # Multipliers as :func:`attsvm.solvers.in_memory.solve_in_memory` takes those of a start.
    unit = 1.0 if setting.plain else setting.unit
    assert not setting.report(V, setting.reduced.gather(rough.dual) * unit, control)
    list(restart(setting, control, V))
    assert control.state.gap <= TOL
    # HiGHS meets each constraint to 1e-10, for which multipliers pay; they sum to the objective or so.
    assert control.state.objective == pytest.approx(highs(problem, norm, options), rel=1e-8)


def test_a_face_along_which_the_objective_hardly_falls_is_left() -> None:
    # 60 entries and 59 constraints at an end that the interior point takes for the solution, 9e-9 above it.
    problem = FAMILIES["self_attention"].make(np.random.default_rng(22), 20, 6, 40)
    prior = 0.3 * np.random.default_rng(7).standard_normal((40, 40))
    assert solve(problem, 1, prior=prior).status is Status.OPTIMAL


@pytest.mark.parametrize(
    ("fall", "end", "is_bound"), [((-2.0, -1.0), (0.0, 1.5), True), ((-2.0, -2.0), (0.5, 0.5), False)]
)
def test_a_pivot_ends_at_the_first_bound_or_constraint(
    fall: tuple[float, float], end: tuple[float, float], is_bound: bool
) -> None:
    """From (3, 3) under x + y >= 1: x = 0 at 3/2 and the constraint at 5/3, or x = y = 0 at 3/2 and it at 5/4."""
    setting = setting_of(single([[1.0, 1.0]]), Entrywise(1), rotate=False)
    shape, V, free = setting.reduced.rejected.shape, np.full((2, 1), 3.0), np.ones((2, 1), dtype=bool)
    active = Active(setting.ties, np.zeros(shape), np.ones(shape), np.zeros(0))
    assert _pivot(setting, V, np.array(fall)[:, None], active, free, False)
    np.testing.assert_allclose(V[:, 0], end, rtol=1e-15)
    assert free[:, 0].tolist() == [not is_bound, True]
    assert len(active.rows) == (not is_bound)
    # The multiplier that joins is still zero.
    np.testing.assert_array_equal(active.scatter(), np.zeros(shape))


def test_a_pivot_in_the_largest_entry_ends_where_a_free_entry_has_grown_to_it() -> None:
    """From (3, 1) the largest entry falls to 5/3 at 4/3, where the other one has risen to it."""
    setting = setting_of(single([[1.0, 1.0]]), MAX, rotate=False)
    shape, V, free = setting.reduced.rejected.shape, np.array([[3.0], [1.0]]), np.array([[False], [True]])
    active = Active(setting.ties, np.zeros(shape), np.ones(shape), np.zeros(0))
    assert _pivot(setting, V, np.array([[-1.0], [0.5]]), active, free, True)
    np.testing.assert_allclose(V[:, 0], 5.0 / 3.0, rtol=1e-15)
    assert not free.any()


@pytest.mark.parametrize("norm", [Entrywise(1), MAX], ids=["l_1", "max"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize(("family", "seed"), [("planted", 1), ("several", 2)])
def test_the_vertex_near_an_iterate_solves_the_linear_program(family, seed, options, norm) -> None:
    """No V has a smaller objective than the bound that the multipliers prove."""
    setting = setting_of(FAMILIES[family].draw(6, 4, 12, seed=seed), norm, options, rotate=False)
    method = InteriorPoint(setting, LinearTerm(setting), np.zeros(setting.reduced.shape))
    while method.distance() > 1e-8:
        assert method.step()
    V, dual = vertex(setting, method, norm == MAX)
    W, reduced = V + setting.prior, setting.reduced
    margins = reduced.apply(W)
    # Tokens and queries of length one.
    np.testing.assert_allclose(margins[reduced.tied], 0.0, atol=1e-12)
    short = np.where(reduced.rejected, np.maximum(1.0 - margins, 0.0), 0.0)
    if options.C is None:
        assert short.max() <= 1e-12
    value = norm.value(V) + setting.terms.loss(short)
    clipped = setting.terms.clip(dual)
    assert setting.terms.bound(clipped, reduced.adjoint(clipped))[1] == pytest.approx(value, rel=1e-12)
    # An entry is at the bound, or zero, except for as many as constraints hold.
    at_end = np.abs(V) == (np.abs(V).max() if norm == MAX else 0.0)
    assert (~at_end).sum() <= np.count_nonzero(dual) < V.size


@pytest.mark.parametrize("norm", [Entrywise(1), MAX], ids=["l_1", "max"])
@pytest.mark.parametrize("size", [(1, 3, 1), (3, 4, 16), (20, 6, 3)])
def test_a_second_run_solves_the_other_systems(size: tuple[int, int, int], norm: Norm) -> None:
    """One entry, fewer constraints than entries, and more of them."""
    setting = setting_of(FAMILIES["planted"].make(np.random.default_rng(0), *size), norm, rotate=False)
    first, second = LinearTerm(setting), LinearTerm(setting, is_second=True)
    assert first._system.few != second._system.few


@pytest.mark.parametrize("norm", [1, "max"])
@pytest.mark.parametrize("separation", [1e-7, 1e-9])
def test_nearly_equal_coordinates(norm: float | str, separation: float) -> None:
    """Two axes that differ by little: l_1 takes the longer one, the largest entry both."""
    delta = np.array([1.0, 1.0 - separation, 0.5])
    problem = SelectionProblem([[delta, 0 * delta]], [[1.0]], [0])
    solution = solve(problem, norm, tol=1e-11)
    assert solution.status is Status.OPTIMAL
    assert solution.objective == pytest.approx(1.0 if norm == 1 else 1.0 / delta.sum(), rel=2e-11)


# Seeds at which the steps on a system over the constraints ended at gaps of 1e-5 and 5e-9.
@pytest.mark.slow
@pytest.mark.parametrize(("family", "seed", "norm"), [("planted", 1, 1), ("correlated", 2, "max")])
def test_few_constraints_and_a_quarter_of_a_million_entries(family: str, seed: int, norm: float | str) -> None:
    problem = FAMILIES[family].make(np.random.default_rng(seed), 20, 8, 512)
    assert solve(problem, norm).status is Status.OPTIMAL
