"""What is asked for beside the norm: a price of losses, and a matrix to stay near."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.core.interop import to_numpy
from attsvm.core.norms import Norm
from attsvm.core.problem import SelectionProblem
from attsvm.proofs.certified import LENIENT
from attsvm.solvers.common.setting import Terms

LOSSES = ("hinge", "squared_hinge")


@dataclass(frozen=True)
class Regularisation:
    """What is asked for beside the norm.

    Attributes
    ----------
    C : float or None
        Price of a unit of loss; None for the hard margin.
    loss : str
        One of :data:`LOSSES`.
    prior : ndarray, shape (d, dz), or None
        The W0 to stay near; None for zero.
    """

    C: float | None
    loss: str
    prior: np.ndarray | None

    @property
    def hard(self) -> bool:
        """Whether no margin may fall short."""
        return self.C is None

    @property
    def hinge(self) -> bool:
        """Whether multipliers have an upper bound."""
        return self.C is not None and self.loss == "hinge"

    def origin(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return the prior, or zero, of shape (d, dz)."""
        return np.zeros(shape) if self.prior is None else self.prior

    def terms(self, problem: SelectionProblem, norm: Norm) -> Terms:
        """Write the objective in the original coordinates."""
        cost = np.where(problem.rejected, 1.0, 0.0)
        if self.prior is not None:
            with np.errstate(**LENIENT):
                cost = cost - problem.apply(self.prior)
        return Terms(
            norm=norm,
            squared=norm.euclidean and not self.hard,
            rejected=problem.rejected,
            tied=problem.tied,
            cost=cost,
            upper=self.C if self.C is not None and self.hinge else np.inf,
            shift=0.0 if self.C is None or self.hinge else 0.5 / self.C,
        )


# Nothing beside the norm: the plain hard margin.
PLAIN = Regularisation(None, "hinge", None)


def read_regularisation(shape: tuple[int, int, int, int], C: Any, loss: Any, prior: Any) -> Regularisation | None:
    """Check the arguments of :func:`attsvm.solve` that this module serves.

    Returns
    -------
    Regularisation or None
        None when neither C nor a prior is given: the plain hard margin.

    Raises
    ------
    ValueError
        One sentence that names the argument and what was expected.
    """
    if loss not in LOSSES:
        raise ValueError(f"loss is {loss!r}; one of {', '.join(map(repr, LOSSES))} was expected.")
    if C is None and prior is None:
        return None
    if C is not None:
        number = isinstance(C, (int, float, np.integer, np.floating)) and not isinstance(C, bool)
        if not number or not 0 < C < math.inf:
            raise ValueError(f"C is {C!r}; a positive, finite number, or None for the hard margin, was expected.")
        C = float(C)
    if prior is not None:
        _, _, d, dz = shape
        matrix = to_numpy("prior", prior).astype(np.float64)
        if matrix.shape != (d, dz):
            raise ValueError(f"prior has shape {matrix.shape}; (d, dz) = {(d, dz)} was expected.")
        if not np.isfinite(matrix).all():
            raise ValueError(f"prior of shape {matrix.shape} has NaN or infinity; finite numbers were expected.")
        matrix.setflags(write=False)
        prior = matrix
    return Regularisation(C, loss, prior)
