r"""Softmax, attention and cross-entropy whose gradients stay accurate when they saturate.

Every framework evaluates the gradient of softmax, :math:`dA = P \odot (g - \langle P, g\rangle)`, as written. Once one
probability is 1 up to rounding, :math:`g_\top - \langle P, g\rangle` is a difference of equal numbers. The gradient of
the row is noise from margin 36 in float64, from 16 in float32 and from 5 in bfloat16. But the formula does not change
if a constant is subtracted from g. Let :math:`D = g - g_\top`, where :math:`\top` is the current largest entry. Then

.. math:: dA = P \odot (D - \langle P, D\rangle)

has no large terms that cancel. :math:`\langle P, D\rangle = \sum_{t\ne\top} P_t D_t` is a sum of small terms, and the
top entry becomes :math:`-P_\top \sum_{t\ne\top} P_t D_t`, accurate to rounding. The same idea works for cross-entropy,
whose gradient at the label is minus the sum of the others. The remaining limit is the underflow of exp, near margin 745
in float64 and 103 in float32. :mod:`attsvm.training.risk.gradient` goes beyond it with logarithms.

Everything is differentiable twice and works under torch.func transforms and torch.compile; softmax and cross-entropy
are differentiable in forward mode too.

:func:`margin` and :func:`max_margin` need the solvers, so they are defined in :mod:`attsvm.training.margins` and load
on first use.
"""

from __future__ import annotations

from attsvm.platform.extras import extra_for
from attsvm.platform.lazy import lazy_names

with extra_for("attsvm.functional"):
    from attsvm.functional.attention import exact_attention
    from attsvm.functional.cross_entropy import exact_cross_entropy
    from attsvm.functional.softmax import exact_softmax, sparsemax

__all__ = ["exact_attention", "exact_cross_entropy", "exact_softmax", "sparsemax"]
__getattr__ = lazy_names(__name__, {"attsvm.training.margins": ("margin", "max_margin")})[0]
