"""Where the largest margin has a derivative: what the gap leaves open about which constraints have margin one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attsvm import Solution, Status, solve
from attsvm.core.norms import FROBENIUS
from attsvm.platform.summary import bars
from attsvm.proofs.certified import certify
from attsvm.proofs.program import Program
from attsvm.solution.influence import INDEPENDENT, _is_unique
from problems import single


@pytest.mark.parametrize(
    ("turn", "excess", "is_active"),
    [
        # The root of the smallest gap that is relied on, 400 EPS, is 2e-7 or 3e-7.
        (0.0, 1e-7, True),
        (0.0, 1e-6, False),
        # A W turned by t has the norm sqrt(1 + t^2), so that the root of the gap is t / sqrt(2).
        (1e-4, 5e-5, True),
        (1e-4, 1e-4, False),
    ],
)
def test_a_token_that_may_have_margin_one_is_one_more_constraint(turn: float, excess: float, is_active: bool) -> None:
    """A second token beyond the support token, at margin one plus the excess: together their multipliers may move."""
    problem = single([[1.0, 0.0], [1.0 + excess, 0.0]])
    found = certify(Program(problem, FROBENIUS), np.array([[1.0], [turn]]), np.array([[0.0, 1.0, 0.0]]))
    solution = Solution(problem, FROBENIUS, Status.OPTIMAL, found, 3, 0.5, "by hand")
    assert solution.gap == pytest.approx(turn**2 / 2, rel=1e-6)
    if is_active:
        with pytest.raises(ValueError, match="multipliers of the 2 constraints of margin one are not unique"):
            solution.influence()
    else:
        table = solution.influence()
        direction = np.array([1.0, turn]) / math.hypot(1.0, turn)
        np.testing.assert_allclose(table.tokens[0], [direction, -direction, np.zeros(2)], rtol=1e-12)


@pytest.mark.parametrize(("share", "unique"), [(0.5, False), (2.0, True)])
def test_constraints_that_nearly_cancel_count_as_dependent(share: float, unique: bool) -> None:
    """Half the sum of the last two rows is as long as the given share of the limit."""
    height = share * INDEPENDENT
    rows = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, height], [0.0, -1.0, height]])
    assert _is_unique(rows, np.array([True, False, False]), smooth=True) is unique


def test_multipliers_that_a_corner_of_the_ball_leaves_open_are_not_unique() -> None:
    """The margin min(w_1, w_2) is one at the corner (1, 1): it falls with either difference and rises with neither."""
    solution = solve(single([[1.0, 0.0], [0.0, 1.0]]), "max")
    with pytest.raises(ValueError, match="multipliers of the 2 constraints of margin one are not unique"):
        solution.influence()


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_a_w_that_may_move_where_it_meets_the_data_is_noticed_for_queries_of_any_length(size: float) -> None:
    """Every w = (1, w_2) with |w_2| <= 1 has the largest margin in the max norm."""
    solution = solve(single([[1.0, 0.0]], (size,)), "max")
    with pytest.raises(ValueError, match=r"max norm is not unique where it meets the data, .* in every token"):
        solution.influence()


def test_influences_are_drawn_beside_the_largest() -> None:
    """|delta||z| = 6: the query moves the margin by |delta| = 3, either token by |z| = 2, and the last by nothing."""
    table = solve(single([[3.0, 0.0], [9.0, 5.0]], (2.0,))).influence()
    summary = table._summary()
    assert summary.facts == [("largest margin", "6 in the frobenius norm"), ("most influential", "query 0")]
    names = ["query 0", "token 0, 0", "token 0, 1", "token 0, 2"]
    assert summary.picture == bars(names, [1.0, 2 / 3, 2 / 3, 0.0], 0)
