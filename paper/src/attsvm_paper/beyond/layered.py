r"""Self-attention in layers with one head each, for many trials at once, and the tasks that they learn.

A layer maps the states X (T, d) of a sequence to X + g(A X) with :math:`A = \mathrm{softmax}(X W^\top X^\top)`; row q
is the attention of query q. The map g is the identity (*residual*), a matrix (*linear*), or a matrix, ReLU and a matrix
(*mlp*). A linear readout of the first state, or of the mean state, predicts the label.

*chain*: each token has a key, a pointer to another token's key, and a value. The label is the value reached from the
first token by two pointers, which one layer cannot compute. *digits*: patches of images of 3 and 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from attsvm.data.digits import digits
from attsvm.functional import exact_softmax
from attsvm_paper.published.instances import start_seeds

Between = Literal["residual", "linear", "mlp"]
Task = Literal["chain", "digits"]

# Size of the initial weights, relative to the size that preserves the length of a state.
START = 0.5
HIDDEN = 2


@dataclass(frozen=True, eq=False)
class Split:
    """Sequences of a trial: tokens (n, T, d) and labels (n,); `chain`: the tokens on the path, (n, hops)."""

    tokens: np.ndarray
    labels: np.ndarray
    chain: np.ndarray | None = None


def chain_task(rng: np.random.Generator, n: int, T: int, hops: int = 2) -> Split:
    """Draw chains: keys are a random order, values are coin flips; pointers follow a path, and are random off it.

    Tokens have 2 T + 1 coordinates: one-hot key, one-hot pointer, value. The first token has no value.
    """
    row = np.arange(n)[:, None]
    keys = rng.permuted(np.tile(np.arange(T), (n, 1)), axis=1)
    follower = rng.integers(T, size=(n, T))
    path = 1 + rng.permuted(np.tile(np.arange(T - 1), (n, 1)), axis=1)[:, :hops]  # (n, hops)
    follower[row, np.concatenate([np.zeros((n, 1), dtype=int), path[:, :-1]], axis=1)] = path
    values = rng.choice(np.array([-1.0, 1.0]), (n, T))
    values[:, 0] = 0.0
    eye = np.eye(T)
    tokens = np.concatenate([eye[keys], eye[keys[row, follower]], values[..., None]], axis=-1)
    return Split(tokens, values[row[:, 0], path[:, -1]], path)


def digits_task(rng: np.random.Generator, n: int) -> tuple[Split, Split]:
    """Split the threes and eights into n training images and the others; tokens are pixels and position."""
    train, test = digits("3-8", positions="append").split(n, rng)
    assert test is not None
    return Split(train.tokens.tokens, train.tokens.labels), Split(test.tokens.tokens, test.tokens.labels)


class Layers:
    """Parameters of B independent networks.

    Parameters
    ----------
    seeds : int array, shape (B,)
        Seeds of the random start.
    d, layers : int
    between : {"residual", "linear", "mlp"}
    first : bool
        Read the first state; otherwise the mean.
    """

    def __init__(self, seeds: np.ndarray, d: int, layers: int, between: Between, first: bool) -> None:
        generators = [np.random.default_rng(int(seed)) for seed in start_seeds(seeds)]

        def draw(*shape: int) -> Tensor:
            scale = START / np.sqrt(shape[0])
            array = np.stack([scale * rng.standard_normal(shape) for rng in generators])
            return torch.as_tensor(array).requires_grad_()

        sizes = {"residual": [], "linear": [(d, d)], "mlp": [(d, HIDDEN * d), (HIDDEN * d, d)]}[between]
        self.W = [draw(d, d) for _ in range(layers)]
        self.maps = [[draw(*size) for size in sizes] for _ in range(layers)]
        self.v = draw(d, 1)
        self.first = first

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters."""
        return [*self.W, *(matrix for maps in self.maps for matrix in maps), self.v]

    def states(self, tokens: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the states before each layer and after the last, (B, n, T, d), and the attention (B, n, T, T)."""
        states, attention = [tokens], []

        def times(x: Tensor, matrix: Tensor) -> Tensor:
            return (x.flatten(1, 2) @ matrix).unflatten(1, x.shape[1:3])  # one product per trial

        for W, maps in zip(self.W, self.maps, strict=True):
            x = states[-1]
            weights = exact_softmax(times(x, W.mT) @ x.mT)  # row q: x_t^T W x_q over t
            message = weights @ x
            for place, matrix in enumerate(maps):
                message = times(message.relu() if place else message, matrix)
            attention.append(weights)
            states.append(x + message)
        return states, attention

    def predict(self, tokens: Tensor) -> Tensor:
        """Return the outputs (B, n)."""
        last = self.states(tokens)[0][-1]
        return ((last[:, :, 0] if self.first else last.mean(2)) @ self.v).squeeze(-1)


def fit(model: Layers, tokens: Tensor, labels: Tensor, steps: int, lr: float) -> None:
    """Train all parameters by Adam on the logistic loss; trials stay independent, because Adam works entry by entry."""
    optimizer = torch.optim.Adam(model.parameters, lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        risk = torch.nn.functional.softplus(-labels * model.predict(tokens)).mean(-1).sum()
        risk.backward()
        optimizer.step()
