r"""Search for multipliers that prove infeasibility.

The normalised multipliers of a diverging dual nearly satisfy lam >= 0 and A^T lam = 0. The smallest relative change e
with :math:`A_J^\top\mathrm{diag}(\lambda_J)(1+e) = 0` makes them exact if no entry of e reaches -1. The result is
corrected to rounding level, and :class:`attsvm.proofs.certificate.FarkasCertificate` decides.
"""

from __future__ import annotations

import numpy as np

from attsvm.core.cholesky import PROXIMAL, factor
from attsvm.core.normal_matrix import NormalMatrix
from attsvm.core.reduction import Reduced
from attsvm.proofs.certificate import existence_ratio
from attsvm.solvers.common.control import Control
from attsvm.solvers.common.relative_change import relative_change
from attsvm.solvers.schedule import BLAS_RATE, DENSE_ENTRIES

# Multiplier, over the largest, up to which it counts as zero, and largest number of corrections.
FARKAS_CUT = 1e-9
FARKAS_CORRECTIONS = 8
CHANGE_TOL = 1e-6  # relative change after which the residual is at rounding level


def correct(reduced: Reduced, dual: np.ndarray, control: Control) -> np.ndarray | None:
    """Correct nearly exact multipliers (n, T); None if they are not near a certificate.

    Corrections alternate between the smallest relative change to A^T lam = 0 and a cut at zero.
    """
    negatives_before = np.inf
    for _ in range(FARKAS_CORRECTIONS):
        if control.is_over():
            return None
        total = float(dual[reduced.rejected].sum())
        if not np.isfinite(total) or total <= 0:
            return None
        dual = dual / total
        weight = np.where(reduced.tied, np.abs(dual).max(), np.where(dual > FARKAS_CUT * dual.max(), dual, 0.0))
        change = _relative_change(reduced, np.where(weight > 0, dual, 0.0), weight)
        candidate = np.where(weight > 0, dual + weight * change, 0.0)
        negatives = int((candidate[reduced.rejected] < 0).sum())
        if negatives >= negatives_before:
            return None
        dual = np.where(reduced.rejected, np.maximum(candidate, 0.0), candidate)
        if negatives:
            negatives_before = negatives
        elif float(np.abs(change).max()) < CHANGE_TOL:
            return dual
    return None


def proves(reduced: Reduced, dual: np.ndarray) -> bool:
    """Tell whether exact multipliers exist near ``dual``."""
    return existence_ratio(reduced, dual) < 1.0


def certificate(reduced: Reduced, dual: np.ndarray, control: Control) -> np.ndarray | None:
    """Multipliers (n, T) near ``dual`` that pass the existence test; None when the search fails or time is up."""
    exact = correct(reduced, dual, control)
    return exact if exact is not None and not control.is_over() and proves(reduced, exact) else None


def work(reduced: Reduced, dual: np.ndarray) -> float:
    """Estimate the work of a failing :func:`certificate`: two decompositions (see :data:`DENSE_ENTRIES`)."""
    support, entries = int(np.count_nonzero(dual)), int(np.prod(reduced.shape))
    smaller = min(support, entries)
    if support * entries <= DENSE_ENTRIES:
        return 8.0 * max(support, entries) * smaller**2 / BLAS_RATE
    return 3.0 * smaller**3 / BLAS_RATE


def _relative_change(reduced: Reduced, dual: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Smallest e with A^T (dual + weight e) = 0, (n, T)."""
    rows, columns = np.nonzero(weight)
    size = int(np.prod(reduced.shape))
    change = np.zeros(dual.shape)
    if len(rows) * size <= DENSE_ENTRIES:
        matrix = reduced.constraint_rows(rows, columns)
        change[rows, columns] = relative_change(matrix, dual[rows, columns], weight[rows, columns], 0.0)
        return change
    if len(rows) < size:
        gram = reduced.gram(rows, columns) * weight[rows, columns] * weight[rows, columns][:, None]
        image = weight * reduced.apply(reduced.adjoint(dual))
        change[rows, columns] = factor(gram, PROXIMAL)(-image[rows, columns])
        return change
    multiplier = factor(NormalMatrix(reduced).form(weight**2), PROXIMAL)(-reduced.adjoint(dual).ravel())
    return weight * reduced.apply(multiplier.reshape(reduced.shape))
