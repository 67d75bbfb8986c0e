r"""Newton systems with a few weights so large that adding them to the rest would round it away.

:math:`(K + R^\top\mathrm{diag}(w)R)\,x = r` is one block of

.. math:: \begin{pmatrix} K & R^\top \\ R & -\mathrm{diag}(w)^{-1} \end{pmatrix}
   \begin{pmatrix} x \\ y \end{pmatrix} = \begin{pmatrix} r \\ 0 \end{pmatrix}, \qquad y = \mathrm{diag}(w)Rx,

which holds K and the weights apart and gives y without the cancellation in :math:`Rx` (Vavasis, SIAM J. Matrix Anal.
Appl. 15, 1994). Rows and columns are scaled to entries of at most one (Ruiz, report RAL-TR-2001-034); infinite weights
are equations. A proximal term at rounding level, on x and on y, keeps directions short in which the system is singular
to rounding (Friedlander and Orban, Math. Program. Comput. 4, 2012); refinement takes its effect off all others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import LinAlgError, get_lapack_funcs

SCALINGS, REFINEMENTS = 8, 4
EPS = float(np.finfo(float).eps)


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
    scaled = scale[:, None] * whole * scale
    scaled[np.diag_indices(len(whole))] += len(whole) * EPS * np.repeat([1.0, -1.0], [size, len(rows)])
    lower_upper, pivots, singular = getrf(scaled, overwrite_a=True)
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
