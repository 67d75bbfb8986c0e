r"""Ky Fan norms: the sum of the k largest singular values.

The dual norm is :math:`\max(\sigma_1, \tfrac1k\sum\sigma_i)` (Bhatia, *Matrix Analysis*, section IV.2).
"""

from __future__ import annotations

from attsvm.core.norms.entrywise import LargestEntries
from attsvm.core.norms.norm import Norm
from attsvm.core.norms.schatten import SPECTRAL, SingularValueNorm


class KyFan(SingularValueNorm):
    """The sum of the k largest singular values.

    Parameters
    ----------
    k : int
        1 is the spectral norm; min(d, dz) or more the nuclear norm.

    Raises
    ------
    ValueError
        If k is not a positive integer.

    Examples
    --------
    >>> from attsvm import SelectionProblem, norms, solve
    >>> problem = SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[1.0, 0.0]], [0])
    >>> round(solve(problem, norms.KyFan(2)).objective, 6)
    0.2
    """

    def __init__(self, k: int) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(f"k is {k!r}; a positive integer was expected.")
        self.k = k
        super().__init__(f"ky-fan-{k}", LargestEntries(k))

    @property
    def canonical(self) -> Norm:
        """The spectral norm for k = 1."""
        return SPECTRAL if self.k == 1 else self
