r"""Norms beyond the named ones, for ``attsvm.solve(problem, norm=...)``.

>>> import numpy as np
>>> from attsvm import SelectionProblem, norms, solve
>>> tokens = np.array([[[3.0, 4.0], [0.0, 0.0]]])
>>> solution = solve(SelectionProblem(tokens, [[0.0, 2.0]], [0]), norms.Mixed(2, 1))
>>> solution.status.name, round(solution.objective, 9)
('OPTIMAL', 0.125)

Schatten-p and Ky Fan norms measure singular values, mixed norms rows or columns, and weighted norms single entries. The
Mahalanobis norm measures W in other coordinates. ``Sum`` and ``Largest`` combine two norms. A subclass of :class:`Norm`
defines a further norm.
"""

from attsvm.core.norms.composite import Largest, Sum
from attsvm.core.norms.entrywise import Entrywise, Weighted
from attsvm.core.norms.ky_fan import KyFan
from attsvm.core.norms.mahalanobis import Mahalanobis
from attsvm.core.norms.mixed import Mixed
from attsvm.core.norms.norm import Norm
from attsvm.core.norms.schatten import Schatten
from attsvm.core.norms.smoothing import Smooth

__all__ = ["Entrywise", "KyFan", "Largest", "Mahalanobis", "Mixed", "Norm", "Schatten", "Smooth", "Sum", "Weighted"]
