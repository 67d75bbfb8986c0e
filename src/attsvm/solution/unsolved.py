"""The error for a problem that has no optimum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attsvm.core.status import Status

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
        hard = solution.status is Status.INFEASIBLE and solution.regularisation.hard
        super().__init__(
            f"{solution.sentence} A soft margin allows shortfalls: give C=1.0." if hard else solution.sentence
        )
        self.solution = solution
