# pyright: reportUnnecessaryTypeIgnoreComment=true
"""What type checkers see of the public signatures; CI's pyright checks this file, nothing runs it."""

from typing import Any, assert_type

import numpy as np

from attsvm import (
    BatchSolution,
    ProblemBatch,
    SelectionProblem,
    Solution,
    TokenData,
    Trace,
    norms,
    solve,
    solve_batch,
    train,
)
from attsvm.proofs import Proof

problem = SelectionProblem(np.ones((2, 3, 4)), np.ones((2, 4)), [0, 0])
solution = solve(problem, "nuclear")
assert_type(solution, Solution)
assert_type(solution.W, np.ndarray | Any)
assert_type(solution.margins, np.ndarray | Any)
assert_type(solution.factors(2), tuple[np.ndarray | Any, np.ndarray | Any])
assert_type(solution.objective, float)
assert_type(solution.verify(), Proof)
assert_type(solve_batch(ProblemBatch(np.ones((1, 2, 3, 4)), np.ones((1, 2, 4)), [[0, 0]])), BatchSolution)
solve(problem, 1.5)
solve(problem, norms.Schatten(1.5))

data = TokenData(np.ones((2, 3, 4)), np.ones((2, 4)), np.ones(2))
trace = train(data, np.ones(4), optimizer="muon", parameterization="KQ", loss="exponential", schedule="sqrt")
assert_type(trace, Trace)
assert_type(trace.W, np.ndarray | Any)
assert_type(trace.loss, np.ndarray | Any)

# Words that are none are refused: pyright reports each of these lines, and reports the comment where it does not.
solve(problem, "frobenious")  # pyright: ignore[reportCallIssue, reportArgumentType]
solve(problem, C=1.0, loss="square")  # pyright: ignore[reportCallIssue, reportArgumentType]
solve(problem, method="simplex")  # pyright: ignore[reportArgumentType]
train(data, np.ones(4), optimizer="adagrad")  # pyright: ignore[reportArgumentType]
train(data, np.ones(4), parameterization="QK")  # pyright: ignore[reportArgumentType]
train(data, np.ones(4), numerics="precise")  # pyright: ignore[reportArgumentType]
solution.W.no_such_attribute  # noqa: B018 # pyright: ignore[reportAttributeAccessIssue]
