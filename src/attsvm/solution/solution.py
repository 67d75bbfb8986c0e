"""The answer to :func:`attsvm.solve`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.core.status import Status
from attsvm.core.types import Array
from attsvm.platform.extras import drawing, frame
from attsvm.platform.summary import Summary, counted, one_line
from attsvm.proofs.claim import Claim
from attsvm.proofs.proof import Proof
from attsvm.proofs.prove import prove
from attsvm.proofs.recheck import recheck
from attsvm.solution.influence import Influence, influence
from attsvm.solution.numbers import SolutionNumbers
from attsvm.solution.reading import constraint_table, solution_summary, status_sentence
from attsvm.solution.saved import load_solution, save_solution


@dataclass(frozen=True, eq=False, repr=False)
class Solution(SolutionNumbers):
    """The answer to :func:`attsvm.solve`, with its proof.

    Only the status and the run's statistics are taken from the solver; everything else is recomputed from W and the
    multipliers.

    Attributes
    ----------
    problem : SelectionProblem
    norm : Norm
    status : Status
    certificate : FarkasCertificate or None
        The proof when the problem is infeasible.
    iterations : int
    seconds : float
    method : str
        The method (or chain of methods) that gave the answer.
    tol : float
        The requested relative gap.
    note : str
        A sentence with further information, or the empty string.
    regularisation : Regularisation
        The requested C, loss and prior.

    Examples
    --------
    >>> from attsvm import SelectionProblem, solve
    >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])
    >>> solution = solve(problem)
    >>> solution.status.name, solution.rank, round(solution.objective, 9)
    ('OPTIMAL', 1, 0.1)
    >>> solution.W.round(9)
    array([[0.06],
           [0.08]])
    >>> solution.support
    array([[False,  True]])
    >>> solution.gap < 1e-12
    True
    """

    @property
    def sentence(self) -> str:
        """The status explained in a sentence, with the data, the ties or the interval for which it holds."""
        return status_sentence(self)

    def factors(self, rank: int | None = None) -> tuple[Array, Array]:
        r"""Split W into K Q^T with balanced factors, :math:`K = U\sqrt{S}` and :math:`Q = V\sqrt{S}`.

        They have the smallest :math:`\|K\|_F^2 + \|Q\|_F^2` of all factorisations, twice the nuclear norm of W.

        Parameters
        ----------
        rank : int, optional
            Number of columns. Default: :attr:`rank`.

        Returns
        -------
        K : array, shape (d, rank)
        Q : array, shape (dz, rank)

        Raises
        ------
        UnsolvedError
            If there is no W.
        ValueError
            If ``rank`` is not between 0 and min(d, dz).

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import SelectionProblem, solve
        >>> solution = solve(SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0]))
        >>> K, Q = solution.factors()
        >>> K.shape, Q.shape
        ((2, 1), (1, 1))
        >>> np.allclose(K @ Q.T, solution.W)
        True
        """
        if not np.isfinite(self.objective):
            raise UnsolvedError(self)
        U, sigma, Vt = np.linalg.svd(self.certified.W, full_matrices=False)
        keep = self.rank if rank is None else rank
        if not 0 <= keep <= len(sigma):
            raise ValueError(f"rank is {rank}; a number from 0 to {len(sigma)} was expected.")
        root = np.sqrt(sigma[:keep])
        restore = self.problem.kind.restore
        return restore(U[:, :keep] * root), restore(Vt[:keep].T * root)

    def influence(self) -> Influence:
        """Differentiate the largest margin, one over the smallest norm, in every token and query.

        Returns
        -------
        Influence
            The gradient, and a table of its lengths: the largest change of the margin per unit that a token or query
            moves. See :mod:`attsvm.solution.influence` for the derivation.

        Raises
        ------
        UnsolvedError
            If there is no optimum.
        ValueError
            If the margin has no derivative, because the multipliers (or W on the data) are not unique.

        Examples
        --------
        >>> from attsvm import SelectionProblem, solve
        >>> problem = SelectionProblem([[[3.0, 0.0], [0.0, 0.0], [-3.0, 5.0]]], [[1.0]], [0])
        >>> print(solve(problem).influence())
        Influence: largest margin 3 in the frobenius norm
          kind   place     influence  multiplier
          query  0                 3           1
          token  0, 0              1           0
          token  0, 1              1           1
          token  0, 2              0           0
        """
        return influence(self.raise_for_status())

    def verify(self, *, exact: bool = False) -> Proof:
        """Check the claim again against :attr:`problem`: status, objective, margins, bounds, gap and :attr:`tol`.

        Parameters
        ----------
        exact : bool
            Use exact rational and interval arithmetic, which takes milliseconds to seconds. Otherwise use floats with
            every rounding counted.

        Returns
        -------
        attsvm.proofs.Proof
            True in a boolean context when the claim holds; a failed proof is not an exception.

        Examples
        --------
        >>> from attsvm import SelectionProblem, solve
        >>> solution = solve(SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0]))
        >>> bool(solution.verify())
        True
        >>> print(solution.verify(exact=True))
        Proof(proven, low 0.1, high 0.1, method exact integers and correctly rounded roots)
        """
        return prove(self._claim) if exact else recheck(self._claim)

    @property
    def _claim(self) -> Claim:
        said = (self.status, self.certified, self.certificate, self.tol)
        return Claim(self.problem, self.norm, *said, self.regularisation)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the solution as a certificate: a JSON file of rational numbers that ``attsvm check`` proves or rejects.

        The file holds the data, W, the multipliers and the claims that they prove in exact arithmetic. Its checker is
        one file that needs only Python. :meth:`load` restores every bit, and tensors as arrays of their dtype.

        Parameters
        ----------
        path : path

        Raises
        ------
        ValueError
            If the norm is not in :mod:`attsvm.norms`, exact arithmetic does not prove the solution's claims, or the
            path ends in .npz, the suffix of arrays.
        OSError
            If the file cannot be written.

        Examples
        --------
        >>> import os, tempfile
        >>> from attsvm import SelectionProblem, Solution, solve
        >>> path = os.path.join(tempfile.mkdtemp(), "solution.json")
        >>> solve(SelectionProblem([[[1.0, 0.0], [0.0, 0.0]]], [[1.0]], [0]), "nuclear").save(path)
        >>> copy = Solution.load(path)
        >>> copy.status.name, bool(copy.verify())
        ('OPTIMAL', True)
        """
        save_solution(path, self._claim, self.method, self.iterations, self.seconds, self.note)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Solution:
        """Read a solution that :meth:`save` wrote; it verifies as the saved one does.

        Parameters
        ----------
        path : path

        Raises
        ------
        OSError
            If the file cannot be read.
        ValueError
            If it is no certificate, was changed, or claims an optimum that its W and multipliers do not show.

        Examples
        --------
        >>> import os, tempfile
        >>> from attsvm import SelectionProblem, Solution, solve
        >>> solution = solve(SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0]))
        >>> path = os.path.join(tempfile.mkdtemp(), "solution.json")
        >>> solution.save(path)
        >>> Solution.load(path).objective == solution.objective
        True
        """
        return load_solution(path, SOLUTION_CLASSES)

    def raise_for_status(self) -> Solution:
        """Return self when optimal.

        Raises
        ------
        UnsolvedError
            If the status is not optimal; the message is the sentence of the status.

        Examples
        --------
        >>> from attsvm import SelectionProblem, solve
        >>> solution = solve(SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0]))
        >>> round(solution.raise_for_status().objective, 9)
        0.1
        """
        if self.status is not Status.OPTIMAL:
            raise UnsolvedError(self)
        return self

    def to_frame(self) -> Any:
        """List the constraints, one per rejected token.

        Returns
        -------
        pandas.DataFrame
            With columns query, token, selected (the token it is compared with), margin, multiplier and support.

        Raises
        ------
        ImportError
            Without pandas.

        Examples
        --------
        >>> from attsvm import SelectionProblem, solve
        >>> solution = solve(SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0]))
        >>> solution.to_frame()[["query", "token", "selected", "support"]]
           query  token  selected  support
        0      0      1         0     True
        """
        return frame("Solution.to_frame", constraint_table(self))

    def plot(self, ax: Any = None) -> Any:
        """Draw the distribution of margins; see :func:`attsvm.plots.margins`.

        Parameters
        ----------
        ax : matplotlib Axes, optional

        Returns
        -------
        Axes

        Raises
        ------
        ValueError
            If there is no W.
        ImportError
            Without matplotlib.

        Examples
        --------
        >>> from attsvm import SelectionProblem, solve
        >>> solution = solve(SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0]))
        >>> solution.plot().get_xlabel()
        'margin'
        """
        return drawing("Solution.plot").margins(self, ax)

    def _summary(self) -> Summary:
        return solution_summary(self)

    def __repr__(self) -> str:
        value, work = f"{self.norm.name} norm {self.objective:.6g}", counted(self.iterations, "iteration")
        parts = (self.status.name, value, f"gap {self.gap:.1e}", self.method, work, f"{self.seconds:.3g} s")
        return one_line("Solution", parts)


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


# Class of the answer by whether only the norm is minimised; the class of another module registers itself.
SOLUTION_CLASSES: dict[bool, type[Solution]] = {True: Solution}
