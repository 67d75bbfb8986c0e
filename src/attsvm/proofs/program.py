r"""One statement of a problem: the constraints of a selection, a norm, losses and a prior.

It is the convex program of :mod:`attsvm.proofs.objective`, in the coordinates of the given tokens and queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attsvm.core.norms import Norm
from attsvm.core.problem import SelectionProblem
from attsvm.proofs.objective import HARD_MARGIN, Regularisation, Terms


@dataclass(frozen=True, eq=False)
class Program:
    """A convex program: the objective is minimised subject to the constraints of a problem.

    Attributes
    ----------
    problem : SelectionProblem
    norm : Norm
    regularisation : Regularisation
        Losses or a prior in addition to the norm; none by default.
    """

    problem: SelectionProblem
    norm: Norm
    regularisation: Regularisation = HARD_MARGIN

    @cached_property
    def terms(self) -> Terms:
        """Terms of the objective, computed once."""
        return self.regularisation.terms(self.problem, self.norm)

    @property
    def prior(self) -> np.ndarray | None:
        """The matrix (d, dz) that W stays near; None for zero."""
        return self.regularisation.prior

    @property
    def plain(self) -> bool:
        """Whether the norm alone is minimised."""
        return self.regularisation.plain

    @property
    def origin(self) -> np.ndarray:
        """The prior, or zero, of shape (d, dz)."""
        return self.regularisation.origin(self.problem.shape[2:])

    def distance(self, W: np.ndarray) -> float:
        """Compute the norm of W - prior."""
        return self.norm.value(W if self.prior is None else W - self.prior)
