r"""Matrix norms and their duals.

A lower bound on the smallest norm needs the dual norm of A^T lam. For lam >= 0 on the inequalities, ``sum(lam) /
dual(A^T lam) <= ||W||`` for every feasible W (arXiv 2308.16898, section 5.3; general norms: appendix D). One module
holds one norm or family; a new norm is a subclass of :class:`Norm`.
"""

from attsvm.core.norms.composite import Largest, Sum
from attsvm.core.norms.entrywise import MAX, Entrywise, Weighted, entrywise, entrywise_norm
from attsvm.core.norms.frobenius import FROBENIUS, frobenius
from attsvm.core.norms.ky_fan import KyFan
from attsvm.core.norms.lookup import BY_NAME, get_norm
from attsvm.core.norms.mahalanobis import Mahalanobis
from attsvm.core.norms.mixed import Mixed
from attsvm.core.norms.norm import Norm
from attsvm.core.norms.schatten import NUCLEAR, SPECTRAL, Schatten, nuclear, spectral
from attsvm.core.norms.smoothing import Smooth

__all__ = [
    "BY_NAME",
    "FROBENIUS",
    "MAX",
    "NUCLEAR",
    "SPECTRAL",
    "Entrywise",
    "KyFan",
    "Largest",
    "Mahalanobis",
    "Mixed",
    "Norm",
    "Schatten",
    "Smooth",
    "Sum",
    "Weighted",
    "entrywise",
    "entrywise_norm",
    "frobenius",
    "get_norm",
    "nuclear",
    "spectral",
]
