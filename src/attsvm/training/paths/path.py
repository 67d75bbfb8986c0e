r"""The regularisation path: the risk minimised in balls of growing radius.

.. math:: \bar W_R = \arg\min_{\|W\| \le R} L(W), \qquad
          (\bar K_R, \bar Q_R) = \arg\min_{\|K\|_F^2 + \|Q\|_F^2 \le 2R} L(KQ^\top).

As R grows, :math:`\bar W_R / R` tends to the set of SVM solutions in that norm, for every norm, and the factored path
to the nuclear solutions (arXiv 2308.16898, Theorem 2). Restricted to a cone around a locally-optimal direction it tends
to that direction (Theorems 9 and 10). For tokens :math:`\alpha`, let low and high be a sequence's other tokens with
lower scores, and with at least the same score. The cone requires that :math:`\alpha` is selected and a low token stays
ahead of all high ones,

.. math:: \mathrm{cone}_\epsilon(\alpha) = \{W : \max_{t\in\mathrm{low}_i} \min_{\tau\in\mathrm{high}_i}
          (x_{it} - x_{i\tau})^\top W z_i \ge \epsilon \|W\|_F\ \forall i\},

because otherwise a little attention to the high tokens would lower the risk. A sequence with no high tokens imposes no
condition.

W is a function of a free variable (:mod:`attsvm.training.paths.balls`). On separable problems the minimiser lies on the
sphere. For a linear head the minimised function is the logarithm of the excess risk over full attention to the best (or
given) tokens. It is smooth, and its value and gradient are exact at any radius
(:meth:`~attsvm.training.risk.objective.Objective.excess`). For any other head it is the risk itself, whose infimum is
unknown.

L-BFGS with backtracking starts from the previous radius; large steps in R are divided into small ones. The problem is
not convex. A global path of a linear head follows two candidates and takes the better one. One is the previous
minimiser; the other is the minimiser of the convex problem of attending to the best tokens. The stationarity of every
point is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.core.norms import get_norm
from attsvm.core.types import AnyNorm, Array, LossName
from attsvm.data.token_data import TokenData
from attsvm.nn.losses import Loss
from attsvm.platform.interop import is_tensor, to_numpy
from attsvm.training.paths.balls import Ball, ball_of
from attsvm.training.paths.minimize import minimize
from attsvm.training.paths.path_result import RegularizationPath
from attsvm.training.risk.objective import Objective
from attsvm.training.run.initial import initial_parameters

# Ratio of consecutive radii above which radii in between are solved too.
_LARGEST_GROWTH = 2.0
# Stationarity above which a point is stationary for the free variable only, and is released.
_ANGLE = 1e-4
# Largest number of searches per radius, each from a released point.
_ESCAPES = 8


@torch.no_grad()
def regularization_path(
    data: TokenData,
    head: Any,
    radii: Sequence[float] | np.ndarray,
    *,
    norm: AnyNorm = "frobenius",
    rank: int | None = None,
    loss: LossName | Loss | Callable[[Tensor], Tensor] = "logistic",
    tokens: Array | None = None,
    epsilon: float = 1e-3,
    init: Any = None,
    tol: float = 1e-10,
    max_iter: int = 1000,
) -> RegularizationPath:
    """Follow the regularisation path over `radii`.

    Parameters
    ----------
    data : TokenData
    head : array (dv,) or (..., dv), or module
        Vector of the linear head, or any head; the theorems need a head that keeps the order of scores (condition E).
    radii : increasing positive numbers
        For the nuclear path the ball is ||K||_F^2 + ||Q||_F^2 <= 2 R, so that ||W||_* <= R.
    norm : {"frobenius", "nuclear", "spectral", "max"} or p >= 1
        "nuclear" minimises over (K, Q), a number over the entrywise l_p ball.
    rank : int, optional
        Width of K and Q; min(d, dz) by default.
    loss : str or callable
    tokens : integer array, shape (..., n), optional
        Tokens alpha of a local path, which stays in cone_epsilon(alpha).
    epsilon : float
        Parameter of the cone.
    init : array (..., d, dz), optional
        First direction. Default: minus the gradient at 0; for a local path, the minimiser of the convex problem of
        attending to `tokens`. Zeros have no direction and are replaced by ones.
    tol : float
        Largest accepted stationarity.
    max_iter : int
        Largest number of iterations per radius.

    Returns
    -------
    RegularizationPath

    Raises
    ------
    ValueError
        If an argument does not fit, or a local path finds no start inside its cone.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import TokenData, regularization_path
    >>> data = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0]]), np.array([1.0]))
    >>> path = regularization_path(data, np.array([1.0, 0.0]), radii=[1.0, 10.0])
    >>> path.W.shape, bool(path.loss[1] < path.loss[0])
    ((2, 2, 1), True)
    """
    _check(data, {"epsilon": (epsilon, 0), "tol": (tol, 0), "max_iter": (max_iter, 1)})
    objective = Objective.from_data(data, head, loss)
    like, measure = objective.tokens, get_norm(norm)
    if init is None:
        first = -objective.gradient(like.new_zeros((len(like), data.d, data.dz))).W
    else:
        (first,) = initial_parameters(init, "W", None, data.batch_shape, data.d, data.dz, 0, like)
    setup = PathSetup(
        objective=objective,
        ball=ball_of(measure, data.d, data.dz, rank),
        radii=_read_radii(radii),
        targets=None if tokens is None else _read_targets(tokens, data),
        first=first,
        given=init is not None,
        epsilon=epsilon,
        tol=tol,
        max_iter=max_iter,
    )
    paths = [setup.follow(trial) for trial in range(len(like))]

    def in_shape(parts: list[Tensor]) -> Array:
        stacked = torch.stack(parts).reshape(*data.batch_shape, *parts[0].shape)
        return stacked.to(data.tokens.dtype) if is_tensor(data.tokens) else stacked.numpy().astype(data.tokens.dtype)

    W, risk, stationarity = (in_shape(list(parts)) for parts in zip(*paths, strict=True))
    return RegularizationPath(setup.radii, W, risk, stationarity, measure)


@dataclass(frozen=True, eq=False)
class PathSetup:
    """Risk, ball and start of every trial.

    Attributes
    ----------
    targets : Tensor or None
        Tokens of local paths, (B, n).
    first : Tensor, shape (B, d, dz)
        First directions.
    given : bool
        Whether the first directions are arguments.
    epsilon, tol, max_iter
        As for :func:`regularization_path`.
    """

    objective: Objective
    ball: Ball
    radii: np.ndarray
    targets: Tensor | None
    first: Tensor
    given: bool
    epsilon: float
    tol: float
    max_iter: int

    def follow(self, trial: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return W (R, d, dz), risk (R,) and stationarity (R,) of a trial at every radius."""
        alpha = None if self.targets is None else self.targets[trial][None]
        path = _TrialPath(self.objective.trial(trial), self.ball, alpha, self.epsilon, self.tol, self.max_iter)
        return path.follow(path.start(self.first[trial], self.radii[-1], given=self.given), self.radii)


def _check(data: Any, numbers: dict[str, tuple[float, int]]) -> None:
    """Refuse data of another type, and numbers that are not finite or too small."""
    if not isinstance(data, TokenData):
        raise ValueError(f"data has type {type(data).__name__}; attsvm.TokenData was expected.")
    for name, (value, least) in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not least <= value < math.inf:
            raise ValueError(f"{name} is {value!r}; a finite number >= {least} was expected.")


def _read_radii(radii: Sequence[float] | np.ndarray) -> np.ndarray:
    """Read increasing positive numbers."""
    radii = to_numpy("radii", radii)
    numbers = radii.dtype.kind in "fiu" and radii.ndim == 1 and radii.size > 0 and np.isfinite(radii).all()
    if not numbers or radii[0] <= 0 or (np.diff(radii) <= 0).any():
        raise ValueError(f"radii has shape {radii.shape}; a list of increasing positive numbers was expected.")
    return radii.astype(float)


def _read_targets(tokens: Array, data: TokenData) -> Tensor:
    """Read one token per sequence, (B, n)."""
    targets = torch.as_tensor(np.array(to_numpy("tokens", tokens)))
    expected = (*data.batch_shape, data.n)
    if tuple(targets.shape) != expected or targets.is_floating_point() or targets.dtype == torch.bool:
        raise ValueError(f"tokens has shape {tuple(targets.shape)}; integers of shape {expected} were expected.")
    if int(targets.min()) < 0 or int(targets.max()) >= data.T:
        raise ValueError(f"tokens of shape {expected} holds numbers outside 0 to {data.T - 1}; positions expected.")
    return targets.reshape(-1, data.n).long()


class _TrialPath:
    """One trial's path from radius to radius.

    The guide is the convex problem of attending to the best, or given, tokens. A local path starts from its minimiser;
    for a global path its minimiser is a second starting point.
    """

    def __init__(
        self, objective: Objective, ball: Ball, tokens: Tensor | None, epsilon: float, tol: float, max_iter: int
    ) -> None:
        self.objective, self.ball, self.tol, self.max_iter = objective, ball, tol, max_iter
        self.local = tokens is not None
        self.sphere = _Sphere(objective, ball, tokens, epsilon)
        convex = self.local or self.sphere.linear
        self.guide = _Sphere(objective.selecting(tokens), ball, None, 0.0) if convex else None

    def start(self, first: Tensor, largest: float, *, given: bool) -> Tensor:
        """Return the variable of a first direction (d, dz); for a local path it lies in the cone."""
        direction = self.ball.encode(first if bool(first.any()) else torch.ones_like(first))
        if not self.local:
            return direction
        if not given and self.guide is not None:
            for power in range(max(0, math.ceil(math.log2(largest))) + 1):
                direction = self.guide.minimize(direction, 2.0**power, self.tol, self.max_iter)
        if not self.sphere.in_cone(self.ball.decode(direction, 1.0)):
            raise ValueError(
                f"init lies outside cone_epsilon(tokens) for epsilon={self.sphere.epsilon}; one inside was expected."
            )
        return direction

    def follow(self, direction: Tensor, radii: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Return W (R, d, dz), risk (R,) and stationarity (R,) at every radius."""
        guide_direction, minimisers, stationarity = direction, [], []
        last = float(radii[0])
        for radius in map(float, radii):
            between = max(1, math.ceil(math.log(radius / last) / math.log(_LARGEST_GROWTH)))
            for part in range(1, between + 1):
                at = last * (radius / last) ** (part / between)
                direction, guide_direction = self._minimize(direction, guide_direction, at)
            W = self.ball.decode(direction, radius)
            minimisers.append(W)
            stationarity.append(self.ball.stationarity(W, self.objective.gradient(W[None]).W[0]))
            last = radius
        W = torch.stack(minimisers)
        return W, torch.cat([self.objective.value(w[None]) for w in W]), W.new_tensor(stationarity)

    def _minimize(self, direction: Tensor, guide_direction: Tensor, radius: float) -> tuple[Tensor, Tensor]:
        """Return the variable of least risk found at a radius, and the minimiser of the guide."""
        candidates = [self.sphere.minimize(direction, radius, self.tol, self.max_iter)]
        if not self.local and self.guide is not None:
            guide_direction = self.guide.minimize(guide_direction, radius, self.tol, self.max_iter)
            candidates.append(self.sphere.minimize(guide_direction, radius, self.tol, self.max_iter))
        return min(candidates, key=lambda V: self.sphere.rank_of(V, radius)), guide_direction


class _Sphere:
    """One trial's log excess risk, or risk, as a function of the free variable of a ball."""

    def __init__(self, objective: Objective, ball: Ball, tokens: Tensor | None, epsilon: float) -> None:
        self.objective, self.ball, self.tokens, self.epsilon = objective, ball, tokens, epsilon
        self.linear = objective.gamma is not None
        self.reference: float | None = None  # exponent of the excess while it is not positive

    def minimize(self, V: Tensor, radius: float, tol: float, max_iter: int) -> Tensor:
        """Return the variable of least risk found by a search that starts next to V."""
        V = self._inside(self.ball.release(V, self._gradient(V, radius)), V, radius)
        if self.linear:
            excess, scale = self.objective.excess(self.ball.decode(V, radius)[None], self.tokens)
            self.reference = None if float(excess) > 0 else float(scale)
        end = V
        for _ in range(_ESCAPES):
            end = minimize(lambda variable: self.value(variable, radius), V, tol, max_iter)
            gradient = self._gradient(end, radius)
            if self.ball.stationarity(self.ball.decode(end, radius), gradient) <= max(tol, _ANGLE):
                break
            V = self._inside(self.ball.release(end, gradient), end, radius)
            if V is end:
                break
        return end

    def _inside(self, candidate: Tensor, V: Tensor, radius: float) -> Tensor:
        """Return the moved variable unless it leaves the cone."""
        return candidate if self.tokens is None or self.in_cone(self.ball.decode(candidate, radius)) else V

    def _gradient(self, V: Tensor, radius: float) -> Tensor:
        return self.objective.gradient(self.ball.decode(V, radius)[None]).W[0]

    def value(self, V: Tensor, radius: float) -> tuple[float, Tensor, float]:
        """Return log(n (L - L*)) or L, its gradient in V, and half the squared sine of the remaining angle.

        The value is infinite outside the cone. The risk of a local path may begin below L*, while tokens with higher
        scores have attention. The excess itself is then minimised, in units of its size at the start.
        """
        W = self.ball.decode(V, radius)
        if self.tokens is not None and not self.in_cone(W):
            return math.inf, V, math.inf
        gradient = self.objective.gradient(W[None])
        if not self.linear:
            value = self.objective.value(W[None])
            G = gradient.W[0] * (gradient.log_scale.exp() / gradient.n)
        else:
            excess, scale = self.objective.excess(W[None], self.tokens)
            if self.reference is not None:
                value = excess * (scale - self.reference).exp()
                G = gradient.W[0] * (gradient.log_scale - self.reference).exp()
            elif float(excess) > 0:
                value = scale + excess.log()
                G = gradient.W[0] * (gradient.log_scale - scale).exp() / excess
            else:
                return math.inf, V, math.inf
        slope, sine = self.ball.pull_back(V, G, radius)
        return float(value), slope, sine**2 / 2

    def rank_of(self, V: Tensor, radius: float) -> tuple[bool, float]:
        """Return a key that orders variables by risk, also when the excess underflows."""
        W = self.ball.decode(V, radius)[None]
        if not self.linear:
            return False, float(self.objective.value(W))
        excess, scale = self.objective.excess(W, self.tokens)
        return (True, float(scale + excess.log())) if float(excess) > 0 else (False, float(excess))

    def in_cone(self, W: Tensor) -> bool:
        """Tell whether W selects the tokens and keeps a low token ahead of the high tokens."""
        assert self.tokens is not None
        logits, scores = self.objective.logits(W[None])[0], self.objective.token_scores()[0]  # (n, T)
        index = self.tokens[0].unsqueeze(-1)
        selection = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, index, True)
        low = scores < scores.gather(-1, index)
        best_low = logits.masked_fill(~low, -torch.inf).amax(-1)
        best_high = logits.masked_fill(low | selection, -torch.inf).amax(-1)
        selected = logits.gather(-1, index).squeeze(-1) > logits.masked_fill(selection, -torch.inf).amax(-1)
        ahead = (best_high == -torch.inf) | (best_low - best_high >= self.epsilon * W.norm())
        return bool((selected & ahead).all())
