r"""Heads with re-drawn weights, with which a trained head is compared on the same tokens.

A head's W determines its attention, so any W, trained or not, points towards the SVM of its selection. A permuted
selection is therefore no null. The null here is a *head* with the same tokens, mask and additive bias, re-drawn weights
and its *own* selection. Two kinds of draws alternate. The trained head is judged by the first kind, which keeps the
spectrum. The second kind is reported separately, since its numbers may be very different.

* **rotated**: :math:`K \to U K,\; Q \to V Q` with U and V Haar-distributed. K, Q and W keep their spectra and norms
  (under rotary positions, W at every distance); the directions are random.
* **permuted**: the entries of K are permuted, and the entries of Q. K and Q keep their norms and the distribution of
  their entries; the spectrum is random.

The bias of a query or key map is the last row of its factor. It becomes a random direction of the same length, or is
permuted by itself. After a query/key norm the factors are diagonal gains: a draw rotates the normalised vectors or
permutes the gains, and the projection before the norm stays trained. The weights of an untrained model are themselves
draws of the null, up to the distribution of their entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtr

from attsvm.platform.summary import Listed
from attsvm_pretrained.heads.head import AttentionHead

# Number of standard deviations by which an outstanding number exceeds the mean of the rotated draws.
OUTSTANDING = 3.0


@dataclass(frozen=True, eq=False, repr=False)
class Standing(Listed):
    """A number of the trained head, and of heads with re-drawn weights.

    Attributes
    ----------
    trained : float
    rotated, permuted : ndarray
        Numbers of the draws of each kind; nan if a draw has none.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> head = pretrained.example_head()
    >>> score = next(iter(pretrained.head_types(head, draws=2).scores.values()))
    >>> score.standing.rotated.shape
    (1,)
    """

    trained: float
    rotated: np.ndarray
    permuted: np.ndarray

    @property
    def draws(self) -> np.ndarray:
        """Numbers of the rotated draws, by which the head is judged, without nan."""
        return self.rotated[np.isfinite(self.rotated)]

    @property
    def median(self) -> float:
        """Median of the rotated draws; nan without any."""
        return float(np.median(self.draws)) if len(self.draws) else float("nan")

    @property
    def permuted_median(self) -> float:
        """Median of the permuted draws; nan without any."""
        finite = self.permuted[np.isfinite(self.permuted)]
        return float(np.median(finite)) if len(finite) else float("nan")

    @property
    def added(self) -> float:
        """Difference of the trained number and the median of the rotated draws."""
        return self.trained - self.median

    @property
    def share_below(self) -> float:
        """Share of the rotated draws that lie below the trained number; nan without any."""
        return float((self.draws < self.trained).mean()) if len(self.draws) else float("nan")

    @property
    def outstanding(self) -> bool:
        """Whether the trained number exceeds all rotated draws, and their mean by three standard deviations."""
        draws = self.draws
        if len(draws) < 2:
            return False
        return bool(self.trained > max(draws.max(), draws.mean() + OUTSTANDING * draws.std(ddof=1)))

    @property
    def chance(self) -> float:
        """Probability that an untrained head reaches the trained number, if draws are normal; 1 with fewer than two.

        Under any distribution, it is at least the share of the draws that reach the number.
        """
        draws = self.draws
        n = len(draws)
        if n < 2:
            return 1.0
        reached, spread = float((draws >= self.trained).mean()), float(draws.std(ddof=1))
        distance = (self.trained - draws.mean()) / math.sqrt(1.0 + 1.0 / n)
        return max(reached, float(stdtr(n - 1, -distance / spread)) if spread else 0.0)

    @property
    def level(self) -> float:
        """Probability that an untrained head is outstanding by chance; 0 if it cannot be.

        If the n draws are normal, (trained - mean) / sd is sqrt(1 + 1/n) times a number of Student's t distribution
        with n - 1 degrees of freedom. Under any distribution, the probability to exceed all draws is 1 / (n + 1).
        """
        n = len(self.draws)
        if n < 2:
            return 0.0
        return min(1.0 / (n + 1), float(stdtr(n - 1, -OUTSTANDING / math.sqrt(1.0 + 1.0 / n))))


def redrawn(head: AttentionHead, count: int, rng: np.random.Generator) -> Iterator[tuple[str, AttentionHead]]:
    """Draw heads with new weights on the same tokens.

    Parameters
    ----------
    count : int
        Kinds of draws alternate: "rotated", "permuted", "rotated", ...

    Yields
    ------
    kind : str
    head : AttentionHead
        A head with its own attention, and hence its own selection.
    """
    for number in range(count):
        kind, draw = ("permuted", _permuted) if number % 2 else ("rotated", _rotated)
        biases = _bias_rows(head)
        K, Q = (draw(factor, bias, rng) for factor, bias in zip((head.K, head.Q), biases, strict=True))
        fresh = replace(head, K=K, Q=Q)
        yield kind, replace(fresh, probabilities=fresh.attention())


def _bias_rows(head: AttentionHead) -> tuple[bool, bool]:
    """Tell which factors end in the row of a bias: the last coordinate of their vectors is always 1."""
    tokens = head.tokens[:, 0 if head.sink is None else 1 :]  # a null token is zero in every coordinate
    return bool((tokens[..., -1] == 1).all()), bool((head.queries[:, -1] == 1).all())


def _rotated(factor: np.ndarray, bias: bool, rng: np.random.Generator) -> np.ndarray:
    weights, last = (factor[:-1], factor[-1:]) if bias else (factor, factor[:0])
    d, width = weights.shape
    if d <= width:
        rotation, triangle = np.linalg.qr(rng.standard_normal((d, d)))
        image = (rotation * np.sign(np.diag(triangle))) @ weights
    else:  # a Haar frame times the triangle of the weights is their image under a Haar rotation, which is not formed
        frame, triangle = np.linalg.qr(rng.standard_normal((d, width)))
        image = (frame * np.sign(np.diag(triangle))) @ np.linalg.qr(weights, mode="r")
    if len(last):
        direction = rng.standard_normal(last.shape)
        last = direction * (np.linalg.norm(last) / np.linalg.norm(direction))
    return np.concatenate([image, last])


def _permuted(factor: np.ndarray, bias: bool, rng: np.random.Generator) -> np.ndarray:
    weights, last = (factor[:-1], factor[-1:]) if bias else (factor, factor[:0])
    if weights.shape[0] == weights.shape[1] and np.count_nonzero(weights - np.diag(np.diag(weights))) == 0:
        image = np.diag(rng.permutation(np.diag(weights)))  # the gain of a norm has no other entries
    else:
        image = rng.permutation(weights.ravel()).reshape(weights.shape)
    return np.concatenate([image, rng.permutation(last, axis=1)])
