r"""One statement of a problem: the constraints of a selection, a norm, losses and a prior.

It is the convex program of :mod:`attsvm.proofs.objective`, in the coordinates of the given tokens and queries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from attsvm.core.norms import Norm
from attsvm.core.problem import SelectionProblem
from attsvm.proofs.objective import HARD_MARGIN, Regularisation, Terms


@dataclass(eq=False)
class Program:
    """A convex program: the objective is minimised subject to the constraints of a problem.

    Attributes
    ----------
    regularisation : Regularisation
        Losses or a prior in addition to the norm; none by default.
    prior : ndarray, shape (d, dz), or None
        The matrix that W stays near; None for zero.
    plain : bool
        Whether the norm alone is minimised.
    terms : Terms
        Terms of the objective in the coordinates of the problem.
    """

    problem: SelectionProblem
    norm: Norm
    regularisation: Regularisation = HARD_MARGIN
    prior: np.ndarray | None = field(init=False)
    plain: bool = field(init=False)
    terms: Terms = field(init=False)

    def __post_init__(self) -> None:
        self.prior, self.plain = self.regularisation.prior, self.regularisation.plain
        self.terms = self.regularisation.terms(self.problem, self.norm)

    @property
    def origin(self) -> np.ndarray:
        """The prior, or zero, of shape (d, dz)."""
        return self.regularisation.origin(self.problem.shape[2:])

    def distance(self, W: np.ndarray) -> float:
        """Compute the norm of W - prior."""
        return self.norm.value(W if self.prior is None else W - self.prior)
