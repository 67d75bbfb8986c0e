"""Losses of the margin u = Y h(x), with the logarithm of their slope.

The training risk of arXiv 2308.16898 is 1/n sum_i l(Y_i h(X_i^T s_i)) with a decreasing l (Assumption A). Its gradient
needs l'(u), and far beyond saturation only log|l'(u)| is representable. So every loss here gives l and log|l'|:

    logistic      l = log(1 + e^-u)     log|l'| = log sigmoid(-u)
    exponential   l = e^-u              log|l'| = -u
    correlation   l = -u                log|l'| = 0
    log           l = -log u            log|l'| = -log u

"log" is for margins in (0, 1], such as the probability of the correct next token.
A callable l(u) is wrapped by :class:`CallableLoss`; its slope comes from autograd and may have either sign.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus


class Loss(Protocol):
    """A loss of the margin.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from attsvm import TokenData, train
    >>> class SquaredHinge:
    ...     name = "squared hinge"
    ...     def value(self, margin):
    ...         return torch.relu(1 - margin) ** 2
    ...     def log_slope(self, margin):
    ...         return torch.log(2 * torch.relu(1 - margin)), None
    >>> data = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0]]), np.array([1.0]))
    >>> trace = train(data, np.array([1.0, 0.0]), loss=SquaredHinge(), steps=10)
    >>> bool(trace.loss[-1] < trace.loss[0])
    True
    """

    name: str

    def value(self, margin: Tensor) -> Tensor:
        """Return l(u), elementwise."""
        ...

    def log_slope(self, margin: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return log|l'(u)| and the sign of l'(u); None stands for -1 everywhere (a decreasing loss)."""
        ...


class Logistic:
    """l(u) = log(1 + e^-u): M0 = 1/4 (Lipschitz constant of l'), M1 = 1 (bound of l')."""

    name = "logistic"

    def value(self, margin: Tensor) -> Tensor:
        """Return l(u), elementwise."""
        return softplus(-margin)

    def log_slope(self, margin: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return log|l'(u)| = log sigmoid(-u) and None (l' < 0)."""
        return logsigmoid(-margin), None


class Exponential:
    """l(u) = e^-u: M0 = M1 = e^B on |u| <= B."""

    name = "exponential"

    def value(self, margin: Tensor) -> Tensor:
        """Return l(u), elementwise."""
        return torch.exp(-margin)

    def log_slope(self, margin: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return log|l'(u)| = -u and None (l' < 0)."""
        return -margin, None


class Correlation:
    """l(u) = -u: M0 = 0, M1 = 1."""

    name = "correlation"

    def value(self, margin: Tensor) -> Tensor:
        """Return l(u), elementwise."""
        return -margin

    def log_slope(self, margin: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return log|l'(u)| = 0 and None (l' < 0)."""
        return torch.zeros_like(margin), None


class NegativeLog:
    """l(u) = -log u for u > 0: the cross-entropy when u is a probability (arXiv 2403.08081, Section 2)."""

    name = "log"

    def value(self, margin: Tensor) -> Tensor:
        """Return l(u), elementwise."""
        return -margin.log()

    def log_slope(self, margin: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return log|l'(u)| = -log u and None (l' < 0)."""
        return -margin.log(), None


class CallableLoss:
    """Any differentiable elementwise l(u); its slope is exact unless l'(u) itself underflows.

    The function maps a tensor of margins to a tensor of losses of the same shape.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def value(self, margin: Tensor) -> Tensor:
        """Return l(u), elementwise."""
        return self.function(margin)

    def log_slope(self, margin: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return log|l'(u)| and the sign of l'(u), from autograd."""
        with torch.enable_grad():
            margin = margin.detach().requires_grad_()
            loss = self.function(margin)
            if loss.shape != margin.shape:
                raise ValueError(
                    f"loss returned shape {tuple(loss.shape)} for margins of shape {tuple(margin.shape)}; "
                    "an elementwise function was expected."
                )
            (slope,) = torch.autograd.grad(loss.sum(), margin)
        return slope.abs().log(), slope.sign()


_BY_NAME: dict[str, Callable[[], Loss]] = {
    "logistic": Logistic,
    "exponential": Exponential,
    "correlation": Correlation,
    "log": NegativeLog,
}


def as_loss(loss: str | Loss | Callable[[Tensor], Tensor]) -> Loss:
    """Return the loss called `loss`, a :class:`Loss` unchanged, or a wrapped callable.

    Raises ValueError if the name is unknown or the object is none of these.
    """
    if isinstance(loss, str):
        if loss not in _BY_NAME:
            raise ValueError(f"loss is {loss!r}; one of {', '.join(map(repr, _BY_NAME))} or a callable was expected.")
        return _BY_NAME[loss]()
    if hasattr(loss, "value") and hasattr(loss, "log_slope"):
        return loss  # pyright: ignore[reportReturnType]
    if callable(loss):
        return CallableLoss(loss)
    raise ValueError(f"loss has type {type(loss).__name__}; a name or a callable of the margin was expected.")
