"""The attention layer of the paper as a torch module, with one matrix W or two factors K and Q.

output_i = V_i^T softmax(X_i W z_i), W = K Q^T (arXiv 2308.16898, Section 2). Gradients are exact under saturation:
the softmax is :func:`attsvm.functional.exact_softmax`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attsvm.functional import exact_softmax


class Attention(nn.Module):
    """Single-head attention with logits x_it^T W z_i.

    Parameters
    ----------
    d : int
        Token dimension.
    dz : int, optional
        Query dimension; d by default.
    rank : int, optional
        A rank m gives the parameters K (d, m) and Q (dz, m). The default is one parameter W (d, dz).
    dtype, device : optional
        As for torch modules; torch's default dtype if None. Use torch.float64 for limits of training;
        :func:`attsvm.train` computes in float64 by itself.

    Attributes
    ----------
    W : Parameter (d, dz), or the product K Q^T
    K, Q : Parameters, with a rank only

    Raises
    ------
    ValueError
        If a size is not positive.

    Examples
    --------
    >>> import torch
    >>> from attsvm import Attention
    >>> layer = Attention(8, rank=2)
    >>> tokens, queries = torch.zeros(3, 5, 8), torch.zeros(3, 8)
    >>> layer(tokens, queries).shape, layer.probabilities(tokens, queries).shape, layer.W.shape
    (torch.Size([3, 8]), torch.Size([3, 5]), torch.Size([8, 8]))
    """

    def __init__(
        self,
        d: int,
        dz: int | None = None,
        *,
        rank: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        dz = d if dz is None else dz
        for name, size in (("d", d), ("dz", dz), ("rank", 1 if rank is None else rank)):
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} is {size}; a positive integer was expected.")
        self.d, self.dz, self.rank = d, dz, rank
        if rank is None:
            self.weight = nn.Parameter(torch.empty(d, dz, dtype=dtype, device=device))
        else:
            self.K = nn.Parameter(torch.empty(d, rank, dtype=dtype, device=device))
            self.Q = nn.Parameter(torch.empty(dz, rank, dtype=dtype, device=device))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the parameters uniformly on +-1/sqrt(fan-in), the default of torch's Linear.

        Examples
        --------
        >>> import torch
        >>> from attsvm import Attention
        >>> layer = Attention(4)
        >>> layer.reset_parameters()
        >>> bool(layer.weight.abs().max() <= 0.5)
        True
        """
        fans = {"weight": self.dz, "K": self.d, "Q": self.dz}
        for name, parameter in self.named_parameters():
            parameter.uniform_(-1, 1).div_(math.sqrt(fans[name]))

    @property
    def W(self) -> Tensor:
        """The matrix of the logits, shape (d, dz)."""
        return self.weight if self.rank is None else self.K @ self.Q.mT

    def probabilities(self, tokens: Tensor, queries: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return softmax(X_i W z_i).

        Parameters
        ----------
        tokens : tensor, shape (..., n, T, d)
        queries : tensor, shape (..., n, dz)
        mask : boolean tensor, shape (..., n, T), optional
            True = visible.

        Returns
        -------
        tensor, shape (..., n, T)

        Raises
        ------
        ValueError
            If the shapes or dtypes do not fit the layer or each other.

        Examples
        --------
        >>> import torch
        >>> from attsvm import Attention
        >>> layer = Attention(2)
        >>> layer.probabilities(torch.ones(1, 3, 2), torch.ones(1, 2)).shape
        torch.Size([1, 3])
        """
        for name, tensor in (("tokens", tokens), ("queries", queries)):
            if not isinstance(tensor, Tensor):
                raise ValueError(f"{name} has type {type(tensor).__name__}; a torch tensor was expected.")
        if tokens.shape[-1] != self.d or queries.shape[-1] != self.dz or tokens.shape[:-2] != queries.shape[:-1]:
            raise ValueError(
                f"tokens {tuple(tokens.shape)} and queries {tuple(queries.shape)} do not fit; "
                f"(..., n, T, {self.d}) and (..., n, {self.dz}) were expected."
            )
        dtype = self.Q.dtype if self.rank is not None else self.weight.dtype
        for name, tensor in (("tokens", tokens), ("queries", queries)):
            if tensor.dtype != dtype and not torch.is_autocast_enabled(tensor.device.type):
                raise ValueError(f"{name} has dtype {tensor.dtype}; {dtype}, that of the layer, was expected.")
        rotated = queries @ self.weight.mT if self.rank is None else (queries @ self.Q) @ self.K.mT  # (..., n, d)
        logits = (tokens @ rotated.unsqueeze(-1)).squeeze(-1)  # (..., n, T)
        if mask is not None:
            if mask.shape != logits.shape or mask.dtype != torch.bool:
                raise ValueError(
                    f"mask is {mask.dtype} of shape {tuple(mask.shape)}; "
                    f"booleans of shape {tuple(logits.shape)} were expected."
                )
            logits = logits.masked_fill(~mask, -torch.inf)
        return exact_softmax(logits)

    def forward(
        self, tokens: Tensor, queries: Tensor, mask: Tensor | None = None, values: Tensor | None = None
    ) -> Tensor:
        """Return V_i^T softmax(X_i W z_i), shape (..., n, dv); values are the tokens unless given.

        Parameters
        ----------
        tokens : tensor, shape (..., n, T, d)
        queries : tensor, shape (..., n, dz)
        mask : boolean tensor, shape (..., n, T), optional
        values : tensor, shape (..., n, T, dv), optional

        Examples
        --------
        >>> import torch
        >>> from attsvm import Attention
        >>> layer = Attention(2)
        >>> layer(torch.ones(1, 3, 2), torch.ones(1, 2)).shape
        torch.Size([1, 2])
        """
        probabilities = self.probabilities(tokens, queries, mask)
        return (probabilities.unsqueeze(-2) @ (tokens if values is None else values)).squeeze(-2)

    def extra_repr(self) -> str:
        """Describe the layer in print."""
        return f"d={self.d}, dz={self.dz}, rank={self.rank}"
