r"""Newton systems with a few weights so large that adding them to the rest would round it away.

:math:`(K + R^\top\mathrm{diag}(w)R)\,x = r` is one block of

.. math:: \begin{pmatrix} K & R^\top \\ R & -\mathrm{diag}(w)^{-1} \end{pmatrix}
   \begin{pmatrix} x \\ y \end{pmatrix} = \begin{pmatrix} r \\ 0 \end{pmatrix}, \qquad y = \mathrm{diag}(w)Rx,

which holds K and the weights apart and gives y without the cancellation in :math:`Rx` (Vavasis, SIAM J. Matrix Anal.
Appl. 15, 1994). Rows and columns are scaled to entries of at most one (Ruiz, report RAL-TR-2001-034); infinite weights
are equations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import LinAlgError, get_lapack_funcs

SCALINGS, REFINEMENTS = 8, 4


def augmented(
    matrix: np.ndarray, rows: np.ndarray, weights: np.ndarray
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Factor K (N, N), R (k, N) and w (k,) > 0; the result maps r (N,) to x (N,) and y (k,).

    Raises
    ------
    scipy.linalg.LinAlgError
        When the system is singular to rounding or leaves the range of floats.
    """
    size = len(matrix)
    whole = np.block([[matrix, rows.T], [rows, np.diag(-1.0 / weights)]])
    scale = np.ones(len(whole))
    for _ in range(SCALINGS):
        top = (np.abs(whole) * scale).max(axis=1) * scale
        scale /= np.sqrt(np.where(top > 0, top, 1.0))
    getrf, getrs = get_lapack_funcs(("getrf", "getrs"), (whole,))
    lower_upper, pivots, singular = getrf(scale[:, None] * whole * scale, overwrite_a=True)
    if singular or not np.isfinite(lower_upper).all():
        raise LinAlgError("The augmented system is singular.")

    def once(right: np.ndarray) -> np.ndarray:
        return scale * getrs(lower_upper, pivots, scale * right)[0]

    def solve(rhs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        right = np.append(rhs, np.zeros(len(rows)))
        both, error = np.zeros(len(whole)), np.inf
        for _ in range(REFINEMENTS):
            residual = right - whole @ both
            before, error = error, float(np.abs(scale * residual).max())
            if not error < 0.5 * before:
                break
            both = both + once(residual)
        return both[:size], both[size:]

    return solve
