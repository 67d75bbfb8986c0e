"""Mini-batches of queries, and label noise: random numbers that depend only on the trial and the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# Keys of a trial's random streams, in addition to the stream of its start.
_BATCHES, _FLIPS = 1, 2
# Number of steps whose draws with replacement share one generator.
_BLOCK = 64


def entropy_of(seed: int | Sequence[int] | np.ndarray, trials: int) -> list[tuple[int, ...]]:
    """Return the entropy of each trial's random numbers: (seed, trial), or the seed given for it.

    Raises ValueError if a seed is not a non-negative integer, or the number of seeds is neither one nor the number of
    trials.
    """
    seeds = np.asarray(seed)
    if seeds.dtype.kind not in "iu" or (seeds < 0).any() or (seeds.ndim > 0 and seeds.size != trials):
        raise ValueError(
            f"seed has shape {seeds.shape}; a non-negative integer or one for each of {trials} trials expected."
        )
    if seeds.ndim == 0:
        return [(int(seeds), trial) for trial in range(trials)]
    return [(int(s),) for s in seeds.reshape(-1)]


def _generator(entropy: tuple[int, ...], *key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=key))


class Batches:
    """The queries that each step reads.

    Parameters
    ----------
    n, size : int
        Queries in a trial and in a batch.
    replacement : bool
        Draw each batch independently, possibly with repeated queries. Otherwise every epoch runs through a new
        permutation of all queries; its last batch may be smaller.
    entropy : list of tuple of int
        One per trial.

    Raises
    ------
    ValueError
        If the size is not from 1 to n.
    """

    def __init__(self, n: int, size: int, replacement: bool, entropy: list[tuple[int, ...]]) -> None:
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or not 1 <= size <= n:
            raise ValueError(f"batch_size is {size!r}; an integer from 1 to n = {n} was expected.")
        self.n, self.size, self.replacement, self.entropy = n, int(size), replacement, entropy
        self._block, self._orders = -1, np.empty(0)

    def at(self, step: int) -> Tensor:
        """Return the queries of a step (from 0), integers of shape (B, batch size)."""
        batches = _BLOCK if self.replacement else -(-self.n // self.size)
        block, place = divmod(step, batches)
        if block != self._block:
            generators = [_generator(entropy, _BATCHES, block) for entropy in self.entropy]
            if self.replacement:
                orders = [rng.integers(self.n, size=_BLOCK * self.size) for rng in generators]
            else:
                orders = [rng.permutation(self.n) for rng in generators]
            self._block, self._orders = block, np.stack(orders)
        return torch.from_numpy(self._orders[:, place * self.size : (place + 1) * self.size])


def flips(n: int, share: float, entropy: list[tuple[int, ...]]) -> np.ndarray:
    """Draw the labels to flip, each with probability ``share``, bool (B, n).

    Raises ValueError if the probability is outside [0, 1].
    """
    if isinstance(share, bool) or not 0 <= share <= 1:
        raise ValueError(f"label_noise is {share!r}; a probability was expected.")
    return np.stack([_generator(one, _FLIPS).random(n) < share for one in entropy])
