r"""Train the token embeddings together with attention, at a separate rate (the setting of arXiv 2505.17282).

Tokens are rows of a table E. Let :math:`g_{it}` be the logit gradient of :mod:`attsvm.training.risk.gradient`. The
gradient of n L is the sum, over all positions of a row, of

.. math:: \partial x_{it} = g_{it}\, W z_i + l'(u_i)\, s_{it} Y_i \nabla h(o_i), \qquad
          \partial z_i = W^\top \sum_t g_{it}\, x_{it}.

The second term of :math:`\partial x_{it}` applies if attention averages the tokens themselves. Both terms have one
common exponent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.data.token_data import TokenData
from attsvm.nn.heads import predict
from attsvm.platform.interop import is_tensor, to_numpy
from attsvm.platform.summary import Listed
from attsvm.training.risk.objective import Objective

Array = Any


@dataclass(frozen=True, eq=False, repr=False)
class Vocabulary(Listed):
    """A table of embeddings, and the row of every token and query.

    Parameters
    ----------
    table : array, shape (words, d) or (..., words, d)
    tokens : int array, shape (n, T) or (..., n, T)
    queries : int array, shape (n,) or (..., n), optional
        None: queries are not rows of the table and stay fixed.

    Raises
    ------
    ValueError
        If a shape does not fit or an index is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import train
    >>> from attsvm.training import Vocabulary
    >>> words = Vocabulary(np.eye(3), tokens=np.array([[0, 1], [1, 2]]), queries=np.array([2, 2]))
    >>> data = words.data(np.array([1.0, 1.0]))
    >>> trace = train(data, np.array([1.0, 0.5, 0.0]), vocabulary=words, embedding_lr=0.1, steps=20)
    >>> trace.embeddings.shape
    (2, 3, 3)
    """

    table: Array
    tokens: Array
    queries: Array | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.table.shape)
        if len(shape) < 2:
            raise ValueError(f"table has shape {shape}; (..., words, d) was expected.")
        for name, array, dims in (("tokens", self.tokens, 2), ("queries", self.queries, 1)):
            if array is not None:
                index = to_numpy(name, array)
                if index.dtype.kind not in "iu" or index.ndim < dims or index.min() < 0 or index.max() >= shape[-2]:
                    raise ValueError(
                        f"{name} has {index.dtype} of shape {index.shape}; rows of the table, 0 to {shape[-2] - 1}, "
                        "were expected."
                    )

    def data(self, labels: Array, queries: Array | None = None, mask: Array | None = None) -> TokenData:
        """Look up tokens and queries in the table.

        Parameters
        ----------
        labels : array, shape (n,) or (..., n)
        queries : array, shape (..., n, dz), optional
            Given if they are not rows of the table.
        mask : bool array, optional

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm.training import Vocabulary
        >>> words = Vocabulary(np.eye(3), tokens=np.array([[0, 1], [1, 2]]), queries=np.array([2, 2]))
        >>> words.data(np.array([1.0, 1.0])).tokens.shape
        (2, 2, 3)
        """
        tokens = _looked_up(self.table, self.tokens)
        query_vectors = queries if self.queries is None else _looked_up(self.table, self.queries)
        return TokenData(tokens, query_vectors, labels, mask)


def _looked_up(table: Array, index: Array) -> Array:
    """Return the rows of a table (..., words, d), for indices that may have trial dimensions."""
    if table.ndim == 2:
        return table[index]
    if is_tensor(table):
        flat = torch.as_tensor(index).reshape(*table.shape[:-2], -1, 1)
        return torch.take_along_dim(table, flat, -2).reshape(*index.shape, table.shape[-1])
    flat = np.asarray(index).reshape(*table.shape[:-2], -1, 1)
    return np.take_along_axis(table, flat, -2).reshape(*index.shape, table.shape[-1])


class EmbeddingTraining:
    """Descent on the table of embeddings.

    Parameters
    ----------
    objective : Objective
        Its tokens and queries are replaced as the table changes.
    batch : tuple of int
        Trial dimensions of the data.
    normalized : bool
        Divide each trial's gradient by its norm; otherwise take plain gradient steps.

    Raises
    ------
    ValueError
        If the objective's tokens or queries are not rows of the table, or it has several attention heads.
    """

    def __init__(
        self, objective: Objective, vocabulary: Vocabulary, batch: tuple[int, ...], lr: float, normalized: bool
    ) -> None:
        if not 0 < lr < math.inf:
            raise ValueError(f"embedding_lr is {lr!r}; a positive number was expected.")
        if objective.tokens.ndim == 5:
            raise ValueError("heads is above 1; one attention head was expected with embedding_lr.")
        trials = math.prod(batch)

        def with_trials(array: Array, dims: int) -> Tensor:
            tensor = torch.as_tensor(array).to(objective.tokens.device)
            shape = tuple(tensor.shape[tensor.ndim - dims :])
            if tuple(tensor.shape[:-dims]) not in ((), batch):
                raise ValueError(f"vocabulary has shape {tuple(tensor.shape)}; trials {batch} or none were expected.")
            return tensor.reshape(-1, *shape).expand(trials, *shape).clone()

        self.objective, self.lr, self.normalized = objective, lr, normalized
        self.table = with_trials(vocabulary.table, 2).to(objective.tokens)
        self.tokens = with_trials(vocabulary.tokens, 2).long()
        self.queries = None if vocabulary.queries is None else with_trials(vocabulary.queries, 1).long()
        self.averaged = objective.values is objective.tokens
        inputs = [objective.tokens] if self.queries is None else [objective.tokens, objective.queries]
        replicas = (
            [self._rows(self.tokens)] if self.queries is None else [self._rows(self.tokens), self._rows(self.queries)]
        )
        if any(one.shape != two.shape or not torch.equal(one, two) for one, two in zip(inputs, replicas, strict=True)):
            raise ValueError(
                "vocabulary gives other tokens or queries than data; data = vocabulary.data(labels) was expected."
            )

    def _rows(self, index: Tensor) -> Tensor:
        flat = index.flatten(1).unsqueeze(-1).expand(-1, -1, self.table.shape[-1])
        return self.table.gather(1, flat).view(*index.shape, -1)

    def parameters(self) -> dict[str, Tensor]:
        """Return the table (B, words, d) by its name in a record."""
        return {"embeddings": self.table}

    def refresh(self) -> None:
        """Give the objective the current tokens and queries of the table."""
        queries = self.objective.queries if self.queries is None else self._rows(self.queries)
        self.objective.replace_tokens(self._rows(self.tokens), queries, self.averaged)

    def steps(self, objective: Objective, params: list[Tensor]) -> list[Tensor]:
        """Return the change to subtract from the table, from the gradient at [W] or [K, Q]."""
        W = params[0] if len(params) == 1 else params[0] @ params[1].mT
        logit = objective.logit_gradient(W)
        scale = logit.log_scale
        token_parts = logit.weights.unsqueeze(-1) * (objective.queries @ W.mT).unsqueeze(-2)  # (B, n, T, d)
        query_parts = (logit.weights.unsqueeze(-2) @ objective.tokens).squeeze(-2) @ W  # (B, n, dz)
        if self.averaged:
            slopes, log = self._slopes(objective, W)
            top = torch.maximum(scale, log)
            keep, add = ((one - top).exp().view(-1, 1, 1, 1) for one in (scale, log))
            token_parts = keep * token_parts + add * objective.attention(W).unsqueeze(-1) * slopes.unsqueeze(-2)
            query_parts, scale = keep.squeeze(-1) * query_parts, top
        gradient = torch.zeros_like(self.table)
        width = self.table.shape[-1]
        for index, parts in ((self.tokens, token_parts), (self.queries, query_parts)):
            if index is not None:
                flat = index.flatten(1).unsqueeze(-1).expand(-1, -1, width)
                gradient.scatter_add_(1, flat, parts.reshape(len(parts), -1, width))
        if self.normalized:
            norm = torch.linalg.matrix_norm(gradient, keepdim=True)
            return [self.lr * gradient / torch.where(norm > 0, norm, 1.0)]
        return [self.lr * (scale - math.log(objective.n)).exp().view(-1, 1, 1) * gradient]

    def _slopes(self, objective: Objective, W: Tensor) -> tuple[Tensor, Tensor]:
        """Return w_i l'(u_i) Y_i h'(o_i), (B, n, d), over e^c, and the largest exponent c of each trial, (B,)."""
        with torch.enable_grad():
            outputs = objective.output(W).requires_grad_()
            prediction = predict(objective.head, outputs)
            (slope,) = torch.autograd.grad(prediction.sum(), outputs)
        log, sign = objective.loss.log_slope(objective.labels * prediction.detach())
        if objective.weights is not None:
            log = log + objective.weights.log()
        top = log.amax(-1)
        weights = (log - top.unsqueeze(-1)).exp() * objective.labels
        weights = -weights if sign is None else weights * sign
        return weights.unsqueeze(-1) * slope, top

    def apply(self, steps: list[Tensor]) -> None:
        """Update the table."""
        self.table -= steps[0]
        self.refresh()
