"""The answer to :func:`attsvm.solve`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attsvm.core.extras import drawing, frame
from attsvm.core.norms import Norm, entrywise, frobenius
from attsvm.core.problem import SelectionProblem
from attsvm.core.rounding import EPS
from attsvm.core.status import Status
from attsvm.core.summary import Summarised, Summary, counted, one_line
from attsvm.core.types import Array
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import Certified
from attsvm.proofs.claim import Claim
from attsvm.proofs.objective import PLAIN, Regularisation
from attsvm.proofs.proof import Proof
from attsvm.proofs.prove import prove
from attsvm.proofs.recheck import recheck
from attsvm.solution.certificate_file import certificate_content, write_certificate
from attsvm.solution.influence import Influence, influence
from attsvm.solution.reading import constraint_lengths, constraint_table, solution_summary, status_sentence
from attsvm.solution.saved import load_solution
from attsvm.solution.unsolved import UnsolvedError


@dataclass(frozen=True, eq=False)
class Solution(Summarised):
    """The answer to :func:`attsvm.solve`, with its proof.

    Everything but the status and the run's statistics is recomputed from W and the multipliers.

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
        The relative gap that was asked for.
    note : str
        What else is known, a sentence; empty for nothing.
    regularisation : Regularisation
        The C, the loss and the prior that were asked for.

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

    problem: SelectionProblem
    norm: Norm
    status: Status
    certified: Certified
    iterations: int
    seconds: float
    method: str
    certificate: FarkasCertificate | None = None
    tol: float = 1e-9
    note: str = ""
    regularisation: Regularisation = PLAIN

    @property
    def sentence(self) -> str:
        """What the status means for this answer, in words: with the data, the ties or the interval it holds for."""
        return status_sentence(self)

    @property
    def W(self) -> Array:
        """The attention matrix, (d, dz), smallest margin one unless the margin is soft; NaN when none was found."""
        matrix = self.certified.W
        return self.problem.kind.restore(matrix if np.isfinite(self.objective) else np.full_like(matrix, np.nan))

    @property
    def dual(self) -> Array:
        """Multipliers, (n, T): W (less the prior) is A^T dual for the Frobenius norm; dual norm one for the others."""
        return self.problem.kind.restore(self.certified.dual)

    @property
    def margins(self) -> Array:
        """Margin of the selected token over each token, (n, T); +inf where the mask hides the token."""
        return self.problem.kind.restore(np.where(self.problem.mask, self.certified.margins, np.inf))

    @property
    def objective(self) -> float:
        """The norm of W, less the prior where there is one; infinite when no feasible W was found."""
        return self.certified.objective

    @property
    def lower_bound(self) -> float:
        """The proven bound: every feasible W has at least this norm (infinite when there is none)."""
        return np.inf if self.status is Status.INFEASIBLE else self.certified.lower_bound

    @property
    def gap(self) -> float:
        """Certified relative gap between the norm of W and the bound, every rounding counted against it."""
        return self.certified.gap

    @cached_property
    def margin_tolerance(self) -> np.ndarray:
        r"""How far each margin may be from that of the exact solution, (n, T).

        W lies within the norm's ``distance_bound`` of the solution in some l_p, and by Hoelder's inequality
        a margin moves by at most that times the dual length of :math:`x_{i\alpha}-x_{it}` and of :math:`z_i`. Norms
        with several solutions (nuclear, spectral, l_1, largest entry) have no such bound; theirs is an estimate.
        """
        if not np.isfinite(self.gap):
            return np.zeros(self.problem.mask.shape)
        # A gap below rounding says no more than rounding does: 4 eps is what the gap itself is computed to.
        distance, p = self.norm.distance_bound(max(self.gap, 4 * EPS))
        q = min(p / (p - 1.0), 8.0)  # a smaller exponent is a longer length, and its powers do not underflow
        return constraint_lengths(self.problem, q) * (distance * entrywise(self.certified.W, p))

    @property
    def support(self) -> Array:
        """SVM-neighbours: rejected tokens whose margin is one to within :attr:`margin_tolerance`, bool (n, T)."""
        close = self.certified.margins <= 1.0 + self.margin_tolerance
        mask = close & self.problem.rejected & bool(np.isfinite(self.objective))
        return self.problem.kind.restore(mask)

    @property
    def rank(self) -> int:
        """Number of singular values of W that the certified gap tells from zero (see :attr:`margin_tolerance`).

        Without an optimum no gap tells any: what counts is then above rounding, in the W that there is.
        """
        if not np.isfinite(self.objective):
            return 0
        sigma = np.linalg.svd(self.certified.W, compute_uv=False)
        rounding = max(self.certified.W.shape) * EPS * float(sigma[0])
        reach = max(self._distance, 4 * EPS * float(sigma[0])) if self.status is Status.OPTIMAL else rounding
        return int(np.count_nonzero(sigma > reach))

    @property
    def _distance(self) -> float:
        """How far W is from the solution, in the Frobenius norm, as the gap has it."""
        return float(np.sqrt(2 * max(self.gap, 4 * EPS))) * frobenius(self.certified.W)

    def factors(self, rank: int | None = None) -> tuple[Array, Array]:
        r"""Split W into K Q^T with balanced factors, :math:`K = U\sqrt{S}` and :math:`Q = V\sqrt{S}`.

        Of all factorisations these have the smallest :math:`\|K\|_F^2 + \|Q\|_F^2`, twice the nuclear norm of W.

        Parameters
        ----------
        rank : int, optional
            Columns to keep. Default: :attr:`rank`.

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
            The gradient, and a table of its lengths: how much the margin changes at most for each unit that a token or
            query moves. See :mod:`attsvm.solution.influence` for the derivation.

        Raises
        ------
        UnsolvedError
            If there is no optimum.
        ValueError
            If the margin has no derivative there: multipliers (or W, where it meets the data) are not unique.

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
        return influence(self)

    def verify(self, *, exact: bool = False) -> Proof:
        """Check the claim again against :attr:`problem`: status, objective, margins, bounds, gap and :attr:`tol`.

        Parameters
        ----------
        exact : bool
            Prove it in exact rational and interval arithmetic, which takes milliseconds to seconds, instead of floats
            with every rounding counted.

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

        The file holds the data, W, the multipliers and what they prove in exact arithmetic; its checker is one file
        that needs nothing but Python. Every bit comes back, tensors as arrays of their dtype.

        Parameters
        ----------
        path : path

        Raises
        ------
        ValueError
            If the norm is none of :mod:`attsvm.norms`, exact arithmetic does not prove what the solution claims, or
            the path ends in .npz, which would be taken for arrays.
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
        if os.fspath(path).endswith(".npz"):
            raise ValueError(f"path is {os.fspath(path)}; a certificate is JSON, a name such as c.json was expected.")
        run = {
            "method": self.method,
            "iterations": int(self.iterations),
            "seconds": float(self.seconds),
            "note": self.note,
        }
        write_certificate(path, certificate_content(self._claim, run))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Solution:
        """Read a solution that :meth:`save` wrote; it verifies as the one that was saved.

        Parameters
        ----------
        path : path

        Raises
        ------
        OSError
            If the file cannot be read.
        ValueError
            If it is no certificate, was changed, or says of an optimum what its W and multipliers do not show.

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
        return load_solution(path, KINDS)

    def raise_for_status(self) -> Solution:
        """Return self when optimal.

        Raises
        ------
        UnsolvedError
            With the status' sentence, otherwise.

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
        """List the constraints, one a rejected token.

        Returns
        -------
        pandas.DataFrame
            With columns query, token, selected (the token it is held against), margin, multiplier and support.

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


# By whether the norm alone is minimised, the class of the answer; a class of another module adds itself.
KINDS: dict[bool, type[Solution]] = {True: Solution}
