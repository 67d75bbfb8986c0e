"""Which problems separate into columns: the tokens that all queries see have to be orthogonal, and of one length."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import SelectionProblem
from attsvm.core.columns import Columns

TURN = np.array([[0.6, 0.8], [-0.8, 0.6]])


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize(
    ("tokens", "length"),
    [
        (np.diag([2.0, -2.0]), 2.0),
        (2.0 * TURN, 2.0),
        (np.diag([1.0, 2.0]), None),
        (np.array([[1.0, 0.0], [-1.0, 0.0]]), None),
        (np.diag([1.0, 2.0]) @ TURN, None),
    ],
)
def test_tokens_are_orthogonal_and_of_one_length(tokens: np.ndarray, length: float | None, copies: int) -> None:
    """Whether every query has its own copy of the tokens or all share one."""
    problem = SelectionProblem(np.array([tokens] * copies), np.eye(3), [0, 1, 0], sequence=np.arange(3) % copies)
    columns = Columns.of(problem)
    if length is None:
        assert columns is None
    else:
        assert columns is not None
        np.testing.assert_allclose(columns.length, [length] * 3, rtol=1e-15)
        W = np.arange(6.0).reshape(2, 3)
        np.testing.assert_allclose(columns.lift(columns.lower(W)), W, rtol=1e-14, atol=1e-14)
        np.testing.assert_allclose(columns.margins(columns.lower(W)), problem.margins(W), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("other", [TURN, np.diag([1.0, -1.0])])
def test_tokens_are_those_of_every_query(other: np.ndarray) -> None:
    problem = SelectionProblem(np.array([np.eye(2), other]), np.eye(2), [0, 1])
    assert Columns.of(problem) is None


@pytest.mark.parametrize("tokens", [np.eye(2), TURN])
@pytest.mark.parametrize("queries", [np.eye(2), TURN])
def test_entries_of_scores_are_entries_of_w_if_tokens_and_queries_are_one_hot(
    tokens: np.ndarray, queries: np.ndarray
) -> None:
    columns = Columns.of(SelectionProblem(tokens[None], queries, [0, 1], sequence=[0, 0]))
    assert columns is not None
    S = np.array([[1.0, 2.0], [0.0, -3.0]])
    same = np.allclose(np.sort(np.abs(columns.lift(S)), axis=None), np.sort(np.abs(S), axis=None))
    assert columns.is_one_hot == same


def test_multipliers_of_one_preferred_token_have_the_adjoint_they_were_split_from() -> None:
    """Whatever its signs; only several preferred tokens need a share each."""
    problem = SelectionProblem(2.0 * np.eye(3)[None], np.diag([1.0, 3.0]), [0, 2], sequence=[0, 0])
    columns = Columns.of(problem)
    assert columns is not None
    change = np.array([[3.0, 1.0], [-1.0, 2.0], [-2.0, -3.0]])
    np.testing.assert_allclose(columns.lower(problem.adjoint(columns.multipliers(change))), change, rtol=1e-14)
