"""The error for a problem that has no optimum."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attsvm.solution.solution import Solution


class UnsolvedError(RuntimeError):
    """Raised by :meth:`Solution.raise_for_status`; carries the solution as ``.solution``.

    Examples
    --------
    >>> from attsvm import SelectionProblem, UnsolvedError, solve
    >>> problem = SelectionProblem([[[0.0], [1.0], [-1.0]]], [[1.0]], [0])
    >>> try:
    ...     solve(problem).raise_for_status()
    ... except UnsolvedError as error:
    ...     print(error.solution.status.name)
    INFEASIBLE
    """

    def __init__(self, solution: Solution) -> None:
        super().__init__(solution.sentence)
        self.solution = solution
