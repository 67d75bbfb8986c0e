"""The possible outcomes of a solve."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """Outcome of a solve; each member's value is its sentence.

    Examples
    --------
    >>> from attsvm import SelectionProblem, solve
    >>> problem = SelectionProblem([[[0.0], [1.0], [-1.0]]], [[1.0]], [0])
    >>> status = solve(problem).status
    >>> status.name
    'INFEASIBLE'
    >>> print(status.sentence)
    No W satisfies the constraints; the certificate holds multipliers that prove it.
    """

    OPTIMAL = "W is optimal: its objective and the dual bound agree to the requested gap."
    INFEASIBLE = "No W satisfies the constraints; the certificate holds multipliers that prove it."
    UNDECIDED = (
        "The solver ended without a proof: W, if one was found, has a gap above tol, and no certificate says that none "
        "exists; lower_bound holds the norm every W must reach."
    )
    MAX_ITERATIONS = "The iteration limit was reached before the requested gap; W is the best found."
    TIME_LIMIT = "The time limit was reached before the requested gap; W is the best found."
    MEMORY_LIMIT = "The next step does not fit into the memory that is left; W is the best found."
    CANCELLED = "The callback stopped the run; W is the best found."

    @property
    def sentence(self) -> str:
        """The meaning of the status, in one sentence."""
        return self.value
