r"""Running means of gradients whose size leaves the range of floating-point numbers.

The gradient of a trained classifier is :math:`e^{c_k} G_k`, with :math:`c_k` falling without bound. Running means of it
and of its square are stored as a mantissa of size one and an exponent per trial. Quotients such as Adam's
:math:`m/\sqrt v` are therefore exact at every scale, including the contributions of old gradients.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attsvm.training.optimisers.descent import per_trial


class ScaledMean:
    """The mean e^log * mantissa of each trial.

    Parameters
    ----------
    like : tensor, shape (B, ...)
        Gives shape, dtype and device; the mean starts at zero.

    Attributes
    ----------
    mantissa : tensor, shape (B, ...)
        Largest entry between 1/2 and 1, or zero.
    log : tensor, shape (B,)
    """

    def __init__(self, like: Tensor) -> None:
        self.mantissa = torch.zeros_like(like)
        self.log = like.new_full((len(like),), -torch.inf)

    def mixed(self, keep: float, weight: float, value: Tensor, log: Tensor) -> tuple[Tensor, Tensor]:
        """Return keep * mean + weight * e^log * value as mantissa and exponent; the mean is unchanged."""
        top = torch.maximum(self.log, log)
        old, new = (self.log - top).exp() * keep, (log - top).exp() * weight
        return self.mantissa * per_trial(old, value) + value * per_trial(new, value), top

    def update(self, keep: float, weight: float, value: Tensor, log: Tensor) -> None:
        """Replace the mean by keep * mean + weight * e^log * value."""
        mantissa, top = self.mixed(keep, weight, value, log)
        shift = torch.frexp(mantissa.abs().flatten(1).amax(-1)).exponent
        self.mantissa = torch.ldexp(mantissa, per_trial(-shift, mantissa))
        self.log = top + math.log(2) * shift.to(top.dtype)
