"""Bounds of working sets and sums of constraints: what is counted, and that roundings are."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from attsvm.core.error_free import UNIT, Pair
from attsvm.core.norms import FROBENIUS, NUCLEAR
from attsvm.proofs.objective import HARD_MARGIN, Regularisation
from attsvm.solvers.working_sets.bounds import Allowance, DualBound, PrimalBound
from attsvm.solvers.working_sets.constraints import BoundSum, ConstraintTable
from attsvm.solvers.working_sets.pricing import Answer
from attsvm.solvers.working_sets.restriction import Restriction


def table_of(count: int, d: int, dz: int, *, ties: int = 0, size: float = 1.0) -> ConstraintTable:
    """Constraints of one query each, the first of them ties."""
    rng = np.random.default_rng([count, d, dz])
    place = np.column_stack([np.zeros(count, dtype=int), np.arange(count), np.ones(count, dtype=int)])
    x, reference = size * rng.standard_normal((2, count, d))
    keys = rng.permutation(count).astype(float)
    tied = np.arange(count) < ties
    return ConstraintTable(place, x, reference, rng.standard_normal((count, dz)), tied, np.zeros(count, bool), keys)


def test_a_tie_is_moved_to_or_its_margin_is_the_residual() -> None:
    table = table_of(5, 4, 3, ties=1)
    restriction = Restriction.of(table, FROBENIUS, HARD_MARGIN)
    W = np.random.default_rng(0).standard_normal((4, 3))
    margin = table.margins(W)[0]
    far, free = Allowance.of(W, restriction), Allowance.of(W, None)
    assert far.move == free.move == free.residual == 0.0
    assert abs(margin) <= far.residual <= abs(margin) * (1 + 1e-12)
    row = np.outer(table.reference[0] - table.x[0], table.z[0])
    on_tie = W - margin / np.vdot(row, row) * row
    near, rounding = Allowance.of(on_tie, restriction), Allowance.of(on_tie, None).whole
    assert near.residual == 0.0
    assert near.whole >= rounding + near.move
    assert near.move >= abs(np.vdot(row, on_tie)) / np.linalg.norm(row)


def test_the_roundings_of_a_margin_are_counted_once() -> None:
    W = np.random.default_rng(0).standard_normal((4, 3))
    # One for each number of a token and a query, and eight more.
    roundings = Allowance.of(W, None).whole / (UNIT * float(np.linalg.norm(W)))
    assert 4 + 3 + 8 - 1e-9 <= roundings < 4 + 3 + 8 + 1


@pytest.mark.parametrize("smallest", [0.0, -0.5])
def test_a_w_without_a_positive_margin_proves_nothing(smallest: float) -> None:
    restriction, W = Restriction.of(table_of(3, 4, 4), FROBENIUS, HARD_MARGIN), np.eye(4)
    answer = Answer(smallest, smallest, 0.0, 0.0, 0.0, 0.0, 3, 0, 0, table_of(0, 4, 4), None)
    bound = PrimalBound.of(W, np.zeros((4, 4)), restriction.terms, Allowance(1e-3, 0.0, 0.25), answer)
    assert bound.norm == bound.objective == bound.upper_bound == math.inf
    # Its ties are of no interest, and take nothing from a lower bound.
    assert bound.tie_residual == 0.0


@pytest.mark.parametrize("smallest", [0.5, 4.0])
def test_the_residual_of_ties_is_that_at_a_margin_of_one(smallest: float) -> None:
    restriction, W = Restriction.of(table_of(3, 4, 4), FROBENIUS, HARD_MARGIN), np.eye(4)
    answer = Answer(smallest, smallest, 0.0, 0.0, 0.0, 0.0, 3, 0, 0, table_of(0, 4, 4), None)
    bound = PrimalBound.of(W, np.zeros((4, 4)), restriction.terms, Allowance(1e-3, 0.0, 0.25), answer)
    assert bound.tie_residual == pytest.approx(0.25 / smallest, rel=1e-12)


@pytest.mark.parametrize("smallest", [0.5, 1.0, 4.0])
def test_an_upper_bound_counts_the_move_as_the_norm_does(smallest: float) -> None:
    """Half the identity has length one, and lengthens the identity by two in the nuclear norm."""
    restriction = Restriction.of(table_of(3, 4, 4), NUCLEAR, HARD_MARGIN)
    none = table_of(0, 4, 4)
    answer = Answer(smallest, smallest, 0.0, 0.0, 0.0, 0.0, 3, 0, 0, none, None)
    W, move = np.eye(4), 1e-3
    bound = PrimalBound.of(W, np.zeros((4, 4)), restriction.terms, Allowance(move, move, 0.0), answer)
    moved = np.linalg.norm(W + move * 0.5 * np.eye(4), "nuc") / smallest
    assert moved * (1 - 1e-15) <= bound.upper_bound <= moved * (1 + 1e-12)
    # What is reported is computed at W itself.
    assert bound.objective == pytest.approx(4.0 / smallest, rel=1e-14)
    np.testing.assert_array_equal(bound.W, W / smallest)


@pytest.mark.parametrize(
    ("regularisation", "loss"),
    [
        (HARD_MARGIN, 0.0),
        (Regularisation(2.0, "hinge", None), 2.0),
        (Regularisation(3.0, "squared_hinge", None), 3.0),
    ],
)
def test_tokens_that_no_w_moves_add_their_loss_to_both_bounds(regularisation: Regularisation, loss: float) -> None:
    restriction = Restriction.of(table_of(6, 4, 3), FROBENIUS, regularisation)
    values = np.full(6, 0.1)
    some, none = (DualBound.of(restriction, values, None, None, empty, 0.0) for empty in (5, 0))
    # Their shortfall is one.
    assert none.bound > 0.0
    assert some.bound == pytest.approx(none.bound + 5 * loss, rel=1e-14)
    # A few roundings of a float are counted.
    assert some.lower_bound == pytest.approx(none.lower_bound + 5 * loss, rel=4e-15, abs=0.0)
    assert some.lower_bound <= some.bound


@pytest.mark.parametrize("factor", [0.1, 7.0])
def test_multipliers_without_a_sum_are_scaled_to_the_bound_that_they_prove(factor: float) -> None:
    table = table_of(6, 4, 3)
    bound = DualBound.of(Restriction.of(table, FROBENIUS, HARD_MARGIN), np.full(6, factor), None, None, 0, 0.0)
    # By weak duality their sum bounds the norm of W if their adjoint has length one.
    adjoint = ((table.reference - table.x) * bound.values[:, None]).T @ table.z
    assert np.linalg.norm(adjoint) == pytest.approx(1.0, rel=1e-13)
    assert bound.values.sum() == pytest.approx(bound.bound, rel=1e-13)


def test_multipliers_beside_a_sum_are_kept_as_they_are() -> None:
    """The sum's multipliers are at C, and are not scaled either."""
    restriction = Restriction.of(table_of(6, 4, 3), FROBENIUS, Regularisation(2.0, "hinge", None))
    total = BoundSum(Pair(np.random.default_rng(1).standard_normal((4, 3)), np.zeros((4, 3))), 3, 1e-14)
    values = np.linspace(0.1, 1.9, 6)
    bound = DualBound.of(restriction, values, total, None, 0, 0.0)
    np.testing.assert_array_equal(bound.values, values)


@pytest.mark.parametrize("room", [0, 3, 6, 7])
def test_ties_and_the_smallest_keys_are_the_most_urgent(room: int) -> None:
    table = table_of(8, 3, 2, ties=2)
    urgent = table.most_urgent(room)
    free = sorted(table.key[2:])[:room]
    np.testing.assert_array_equal(urgent.place, table.place[table.tied | np.isin(table.key, free) & ~table.tied])


@pytest.mark.parametrize("size", [1.0, 1e6])
@pytest.mark.parametrize("error", [0.0, 1e3])
def test_a_sum_without_some_constraints_counts_its_roundings(error: float, size: float) -> None:
    removals = table_of(7, 3, 2, size=size)
    high = 1e6 * np.random.default_rng(1).standard_normal((3, 2))
    rest = BoundSum(Pair(high, np.zeros((3, 2))), 10, error).without(removals)
    assert rest.count == 3
    exact = np.vectorize(Fraction, otypes=[object])
    expected = exact(high) - (exact(removals.reference) - exact(removals.x)).T @ exact(removals.z)
    off = exact(rest.pair.high) + exact(rest.pair.low) - expected
    rounding = math.sqrt(sum(entry * entry for entry in off.ravel()))
    lengths = np.linalg.norm(removals.reference - removals.x, axis=1) * np.linalg.norm(removals.z, axis=1)
    assert rounding > 0.0
    assert error + rounding <= rest.error <= error + 1e-14 * (lengths.sum() + np.linalg.norm(high))


@pytest.mark.parametrize("error", [0.0, 1.0])
def test_added_sums_have_their_errors_and_that_of_the_addition(error: float) -> None:
    rng = np.random.default_rng(2)
    highs, lows = rng.standard_normal((3, 4, 2)), 1e-17 * rng.standard_normal((3, 4, 2))
    total = BoundSum.add([BoundSum(Pair(highs[k], lows[k]), 5, error) for k in range(3)])
    assert total.count == 15
    exact = np.vectorize(Fraction, otypes=[object])
    off = exact(total.pair.high) + exact(total.pair.low) - (exact(highs) + exact(lows)).sum(axis=0)
    rounding = math.sqrt(sum(entry * entry for entry in off.ravel()))
    assert rounding > 0.0
    assert 3 * error + rounding <= total.error <= 3 * error * (1 + 1e-15) + 1e-28
