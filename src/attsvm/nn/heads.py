"""Prediction heads h: R^dv -> R that read the output of attention.

The paper proves its theorems for the linear head h(x) = v^T x and asks in Section 6 what other heads do: a ReLU network
selects several tokens. Attention under the concave "lambda-head" v^T x - lambda ||x||^2 tends to sparsemax(gamma / 2
lambda) (Lemma 6). Heads are torch modules that map (..., dv) to (...). A batch of trials may have one head per trial:
parameters then have the trials as leading dimensions.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attsvm.platform.interop import is_tensor


def _tensor(name: str, array: Any) -> Tensor:
    """Return `array` as a floating-point tensor; all but floating-point torch tensors become float64."""
    tensor = array if is_tensor(array) else torch.as_tensor(array, dtype=torch.float64)
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.float64)
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(
            f"{name} of shape {tuple(tensor.shape)} contains NaN or infinity; finite numbers were expected."
        )
    return tensor


class PredictionHead(nn.Module, ABC):
    """A head whose parameters may have leading trial dimensions.

    Attributes
    ----------
    own_dims : dict
        Number of dimensions of each parameter without trial dimensions.

    Examples
    --------
    >>> import torch
    >>> from attsvm.nn.heads import LinearHead, PredictionHead
    >>> head = LinearHead(torch.ones(5, 3))
    >>> isinstance(head, PredictionHead), head.width
    (True, 3)
    >>> head.of_trial(2)(torch.ones(3)).item()
    3.0
    """

    own_dims: ClassVar[dict[str, int]] = {}

    @property
    @abstractmethod
    def width(self) -> int:
        """Dimension dv of the outputs this head reads."""

    def flatten_trials(self, batch: tuple[int, ...], expand: bool = False) -> None:
        """Flatten the trial dimensions `batch` of the parameters to one, in place.

        Parameters
        ----------
        batch : tuple of int
        expand : bool
            Give parameters without trial dimensions a copy for each trial.

        Raises
        ------
        ValueError
            If a parameter has other trial dimensions.

        Examples
        --------
        >>> import torch
        >>> from attsvm.nn.heads import LinearHead
        >>> head = LinearHead(torch.ones(2, 3, 4))
        >>> head.flatten_trials((2, 3))
        >>> head.v.shape
        torch.Size([6, 4])
        """
        trials = math.prod(batch)
        for name, dims in self.own_dims.items():
            parameter = getattr(self, name).detach()
            shape = tuple(parameter.shape[parameter.ndim - dims :])
            leading = tuple(parameter.shape[: parameter.ndim - dims])
            if leading not in ((), batch):
                raise ValueError(
                    f"head {name} has shape {tuple(parameter.shape)}; {shape} or {(*batch, *shape)} was expected."
                )
            if leading or expand:
                flat = parameter.reshape(-1, *shape).expand(trials, *shape).clone()
                setattr(self, name, nn.Parameter(flat))

    def of_trial(self, index: int) -> PredictionHead:
        """Return a copy with the parameters of one trial; parameters without trial dimensions do not change.

        Examples
        --------
        >>> import torch
        >>> from attsvm.nn.heads import LinearHead
        >>> head = LinearHead(torch.ones(3, 4))
        >>> head.of_trial(1).v.shape
        torch.Size([4])
        """
        single = copy.deepcopy(self)
        for name, dims in self.own_dims.items():
            parameter = getattr(self, name).detach()
            if parameter.ndim > dims:
                setattr(single, name, nn.Parameter(parameter[index].clone()))
        return single


class LinearHead(PredictionHead):
    """h(x) = v^T x.

    Parameters
    ----------
    v : array, shape (..., dv)
        One vector, or one for each trial.

    Raises
    ------
    ValueError
        If v is a scalar or not finite.

    Examples
    --------
    >>> import torch
    >>> from attsvm.nn.heads import LinearHead
    >>> LinearHead([1.0, 2.0])(torch.ones(4, 2, dtype=torch.float64)).tolist()
    [3.0, 3.0, 3.0, 3.0]
    """

    own_dims: ClassVar[dict[str, int]] = {"v": 1}

    def __init__(self, v: Any) -> None:
        super().__init__()
        v = _tensor("v", v)
        if v.ndim == 0:
            raise ValueError("v is a scalar; a vector (..., dv) was expected.")
        self.v = nn.Parameter(v.detach().clone())

    @property
    def width(self) -> int:
        """Dimension dv of the outputs this head reads."""
        return self.v.shape[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Return v^T x; x is (..., dv), or (trials..., n, dv) when v has trials."""
        v = self.v if self.v.ndim == 1 else self.v.unsqueeze(-2)
        return (x * v).sum(-1)


class ReLUHead(PredictionHead):
    """h(x) = v^T ReLU(V^T x), the two-layer head of Section 6 (the paper takes v = 1).

    Parameters
    ----------
    V : array, shape (..., dv, width)
        Hidden weights.
    v : array, shape (..., width), optional
        Output weights, all ones by default.

    Raises
    ------
    ValueError
        If shapes disagree or a number is not finite.

    Examples
    --------
    >>> import torch
    >>> from attsvm.nn.heads import ReLUHead
    >>> head = ReLUHead([[1.0, -1.0], [0.0, 0.0]])
    >>> head(torch.tensor([[3.0, 0.0], [-2.0, 0.0]], dtype=torch.float64)).tolist()
    [3.0, 2.0]
    """

    own_dims: ClassVar[dict[str, int]] = {"V": 2, "v": 1}

    def __init__(self, V: Any, v: Any = None) -> None:
        super().__init__()
        V = _tensor("V", V)
        if V.ndim < 2:
            raise ValueError(f"V has shape {tuple(V.shape)}; a matrix (..., dv, width) was expected.")
        v = V.new_ones((*V.shape[:-2], V.shape[-1])) if v is None else _tensor("v", v)
        if v.shape[-1] != V.shape[-1]:
            raise ValueError(f"v has shape {tuple(v.shape)}; (..., {V.shape[-1]}) was expected to match V.")
        self.V = nn.Parameter(V.detach().clone())
        self.v = nn.Parameter(v.detach().clone())

    @property
    def width(self) -> int:
        """Dimension dv of the outputs this head reads."""
        return self.V.shape[-2]

    def forward(self, x: Tensor) -> Tensor:
        """Return v^T ReLU(V^T x) for x of shape (..., n, dv)."""
        hidden = torch.relu(x @ self.V)  # (..., n, width)
        v = self.v if self.v.ndim == 1 else self.v.unsqueeze(-2)
        return (hidden * v).sum(-1)


class LambdaHead(PredictionHead):
    """h(x) = v^T x - lam ||x||^2, concave, so that training selects several tokens (arXiv 2308.16898, Lemma 6).

    Parameters
    ----------
    v : array, shape (..., dv)
    lam : float
        Weight of the quadratic term; 0 gives the linear head.

    Raises
    ------
    ValueError
        If v is a scalar or a number is not finite.

    Examples
    --------
    >>> import torch
    >>> from attsvm.nn.heads import LambdaHead
    >>> LambdaHead([1.0, 0.0], lam=0.5)(torch.tensor([2.0, 0.0], dtype=torch.float64)).item()
    0.0
    """

    lam: Tensor
    own_dims: ClassVar[dict[str, int]] = {"v": 1}

    def __init__(self, v: Any, lam: float) -> None:
        super().__init__()
        v = _tensor("v", v)
        if v.ndim == 0:
            raise ValueError("v is a scalar; a vector (..., dv) was expected.")
        self.v = nn.Parameter(v.detach().clone())
        self.register_buffer("lam", _tensor("lam", lam).to(v.dtype))

    @property
    def width(self) -> int:
        """Dimension dv of the outputs this head reads."""
        return self.v.shape[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Return v^T x - lam ||x||^2 for x of shape (..., n, dv)."""
        v = self.v if self.v.ndim == 1 else self.v.unsqueeze(-2)
        return (x * v).sum(-1) - self.lam * (x * x).sum(-1)


class ValueHead(PredictionHead):
    """h(x) = v^T V^T x: a value matrix V to be trained, and a fixed v.

    Parameters
    ----------
    V : array, shape (..., dv, width)
    v : array, shape (..., width)

    Raises
    ------
    ValueError
        If shapes disagree or a number is not finite.
    """

    own_dims: ClassVar[dict[str, int]] = {"V": 2, "v": 1}

    def __init__(self, V: Any, v: Any) -> None:
        super().__init__()
        V, v = _tensor("V", V), _tensor("v", v)
        if V.ndim < 2 or v.ndim < 1 or v.shape[-1] != V.shape[-1]:
            raise ValueError(
                f"V has shape {tuple(V.shape)} and v {tuple(v.shape)}; (..., dv, width) and (..., width) were expected."
            )
        self.V = nn.Parameter(V.detach().clone())
        self.v = nn.Parameter(v.detach().clone(), requires_grad=False)

    def flatten_trials(self, batch: tuple[int, ...], expand: bool = False) -> None:
        """Flatten the trial dimensions; v stays fixed."""
        super().flatten_trials(batch, expand)
        self.v.requires_grad_(False)

    @property
    def width(self) -> int:
        """Dimension dv of the outputs this head reads."""
        return self.V.shape[-2]

    def forward(self, x: Tensor) -> Tensor:
        """Return v^T V^T x for x of shape (..., n, dv)."""
        v = self.v if self.v.ndim == 1 else self.v.unsqueeze(-2)
        return ((x @ self.V) * v).sum(-1)


def as_head(head: Any) -> Callable[[Tensor], Tensor]:
    """Return a head: an array becomes a :class:`LinearHead`, a module or a callable stays as it is.

    Raises ValueError if `head` is none of these, or an invalid vector.
    """
    if callable(head):
        return head  # pyright: ignore[reportReturnType]
    try:
        return LinearHead(head)
    except (TypeError, RuntimeError):
        raise ValueError(
            f"head has type {type(head).__name__}; a vector v of shape (..., dv) or a module was expected."
        ) from None


def predict(head: Callable[[Tensor], Tensor], outputs: Tensor) -> Tensor:
    """Return one prediction for each attention output: (B, n, dv) to (B, n).

    A last dimension of size 1, as torch.nn.Linear(dv, 1) leaves it, is dropped.

    Raises
    ------
    ValueError
        If the head returns another shape.
    """
    prediction = head(outputs)
    expected = outputs.shape[:-1]
    if prediction.shape == (*expected, 1):
        return prediction.squeeze(-1)
    if prediction.shape != expected:
        raise ValueError(
            f"head returned shape {tuple(prediction.shape)} for outputs of shape {tuple(outputs.shape)}; "
            f"{tuple(expected)} was expected."
        )
    return prediction
