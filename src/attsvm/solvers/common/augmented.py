r"""Newton systems with a few weights so large that adding them to the rest would round it away.

:math:`(K + R^\top\mathrm{diag}(w)R)\,x = r` is one block of

.. math:: \begin{pmatrix} K & R^\top \\ R & -\mathrm{diag}(w)^{-1} \end{pmatrix}
   \begin{pmatrix} x \\ y \end{pmatrix} = \begin{pmatrix} r \\ 0 \end{pmatrix}, \qquad y = \mathrm{diag}(w)Rx,

which keeps K and the weights apart and gives y without the cancellation in :math:`Rx` (Vavasis, SIAM J. Matrix Anal.
Appl. 15, 1994). Rows and columns are scaled to entries of at most one (Ruiz, report RAL-TR-2001-034); infinite weights
are equations. A proximal term at rounding level, on x and on y, keeps the solution short in directions in which the
system is singular to rounding (Friedlander and Orban, Math. Program. Comput. 4, 2012). Refinement removes its effect in
all other directions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import LinAlgError, get_lapack_funcs

from attsvm.core.cholesky import refined
from attsvm.core.error_free import EPS

# Number of scalings of rows and columns.
SCALINGS = 8


def augmented(
    matrix: np.ndarray, rows: np.ndarray, weights: np.ndarray
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Factor K (N, N), R (k, N) and w (k,) > 0; the result maps r (N,) to x (N,) and y (k,).

    Raises scipy.linalg.LinAlgError when the system is singular to rounding or leaves the range of floats.
    """
    size = len(matrix)
    whole = np.block([[matrix, rows.T], [rows, np.diag(-1.0 / weights)]])
    scale = np.ones(len(whole))
    for _ in range(SCALINGS):
        top = (np.abs(whole) * scale).max(axis=1) * scale
        scale /= np.sqrt(np.where(top > 0, top, 1.0))
    getrf, getrs = get_lapack_funcs(("getrf", "getrs"), (whole,))
    scale = np.exp2(np.round(np.log2(scale)))  # multiplies without rounding
    whole = scale[:, None] * whole * scale
    proximal = np.diag(len(whole) * EPS * np.repeat([1.0, -1.0], [size, len(rows)]))
    lower_upper, pivots, singular = getrf(whole + proximal, overwrite_a=True)
    if singular or not np.isfinite(lower_upper).all():
        raise LinAlgError("The augmented system is singular.")

    def solve(rhs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        right = scale * np.append(rhs, np.zeros(len(rows)))
        (both,) = refined(lambda r: getrs(lower_upper, pivots, r)[:1], lambda x: (right - whole @ x,), (right,))
        return scale[:size] * both[:size], scale[size:] * both[size:]

    return solve
