"""Common singular spaces of the constraints: where they are, and where they are not."""

import numpy as np
import pytest

from attsvm import SelectionProblem
from attsvm.theory import condition_alignment
from attsvm.theory.alignment import off_diagonal, singular_spaces


def test_one_direction_a_sequence_and_orthogonal_queries_are_aligned():
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    tokens = np.array([[[1, 0, 0, 0], [3, 0, 0, 0], [2, 0, 0, 0]], [[0, 1, 1, 0], [0, 1, 5, 0], [0, 1, 2, 0]]]) @ turn
    aligned = SelectionProblem(tokens, np.eye(3)[:2], [1, 0])
    assert condition_alignment(aligned).holds
    # Two queries that are not orthogonal have no bases in common, though each sequence has one direction.
    oblique = SelectionProblem(tokens, np.array([[1.0, 0, 0], [0.6, 0.8, 0]]), [1, 0])
    condition = condition_alignment(oblique)
    assert not condition.holds
    assert "off the diagonal" in str(condition)


def test_what_lies_off_the_diagonal():
    W = np.array([[3.0, 4.0], [0.0, 0.0]])
    assert off_diagonal(W, np.eye(2), np.eye(2)) == pytest.approx(16 / 25)
    assert off_diagonal(np.zeros((2, 2)), np.eye(2), np.eye(2)) == 0


def test_the_worst_constraint_is_a_rejected_token_that_is_not_the_selected_one() -> None:
    """Short tokens, of which one is hidden, one is the selected one again, and two are rejected."""
    rng = np.random.default_rng(0)
    tokens, queries = 0.1 * rng.standard_normal((4, 5, 3)), rng.standard_normal((4, 2))
    tokens[:, 1] = tokens[:, 0]
    mask = np.arange(5) != np.array([[2], [3], [4], [2]])
    problem = SelectionProblem(tokens, queries, np.zeros(4, int), mask=mask)
    U, V = singular_spaces(problem)
    shares = [
        off_diagonal(np.outer(tokens[i, 0] - tokens[i, t], queries[i]), U, V)
        for i in range(4)
        for t in range(2, 5)
        if mask[i, t]
    ]
    assert condition_alignment(problem).value == pytest.approx(max(shares))
    # A hidden token off the common direction breaks no alignment.
    line = np.array([[[2.0, 0.0], [0.0, 0.0], [0.0, 7.0]], [[0.0, 1.0], [0.0, 0.0], [7.0, 0.0]]])
    visible = np.array([[True, True, False]] * 2)
    assert condition_alignment(SelectionProblem(line, np.eye(2), [0, 0], mask=visible)).holds
