"""Settings of methods, as `attsvm.solve` makes them."""

from __future__ import annotations

from attsvm import SelectionProblem
from attsvm.core.norms import FROBENIUS, Norm
from attsvm.core.reduction import reduce
from attsvm.proofs.objective import HARD_MARGIN, Regularisation
from attsvm.solvers.common.setting import Setting


def setting_of(
    problem: SelectionProblem,
    norm: Norm = FROBENIUS,
    regularisation: Regularisation = HARD_MARGIN,
    *,
    rotate: bool = True,
) -> Setting:
    """Write a problem in reduced coordinates."""
    origin = regularisation.origin(problem.shape[2:])
    return Setting.of(reduce(problem, rotate=rotate), regularisation.terms(problem, norm), origin)
