r"""The regularisation path: the risk minimised in balls of growing radius.

.. math:: \bar W_R = \arg\min_{\|W\| \le R} L(W), \qquad
          (\bar K_R, \bar Q_R) = \arg\min_{\|K\|_F^2 + \|Q\|_F^2 \le 2R} L(KQ^\top).

As R grows, :math:`\bar W_R / R` tends to the direction of the SVM solution in that norm, the factored path to the
nuclear one (arXiv 2308.16898, Theorem 2). Restricted to a cone around a locally-optimal direction it tends to that
direction (Theorems 9 and 10). For tokens :math:`\alpha` let low and high be the other tokens of a sequence that score
less and at least as much. The cone asks that :math:`\alpha` is selected and a low token stays ahead of all high ones,

.. math:: \mathrm{cone}_\epsilon(\alpha) = \{W : \max_{t\in\mathrm{low}_i} \min_{\tau\in\mathrm{high}_i}
          (x_{it} - x_{i\tau})^\top W z_i \ge \epsilon \|W\|\ \forall i\},

for otherwise it would pay to give the high tokens a little attention.

On separable problems the minimiser lies on the sphere, where W = R V / ||V|| with V free. What is minimised is the
logarithm of the excess risk over full attention to the best (or given) tokens, a smooth function whose value and
gradient are exact at any radius (:meth:`~attsvm.training.objective.Objective.excess`), by L-BFGS with backtracking from
the previous radius; large steps in R are taken in several small ones. The problem is not convex. A global path follows
two candidates, the previous minimiser and the minimiser of the convex problem of attending to the best tokens, which
leads wherever those can be selected, and takes the better; the stationarity of every point is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.interop import is_tensor
from attsvm.losses import Loss
from attsvm.token_data import TokenData
from attsvm.training.initial import initial_parameters
from attsvm.training.minimize import minimize
from attsvm.training.objective import Objective

Array = Any

# The minimiser at radius R is a good start for 2 R: its logits are then off by a few units only.
_LARGEST_GROWTH = 2.0
# Stationarity above which factors count as caught at a saddle point. The measure is of first order in the error of the
# singular subspaces, whose square is what L-BFGS brings below tol.
_SADDLE = 1e-4


@dataclass(frozen=True, eq=False)
class RegularizationPath:
    """Minimisers of the risk in balls of growing radius.

    Attributes
    ----------
    radius : array, shape (radii,)
    W : array, shape (..., radii, d, dz)
        Minimisers; K Q^T for the factored path.
    loss : array, shape (..., radii)
    stationarity : array, shape (..., radii)
        1 - cos of the angle between the negative gradient and the outward normal of the ball (nuclear: to the closest
        normal, see the source); 0 at a stationary point.
    norm : {"frobenius", "nuclear"} or float
    """

    radius: np.ndarray
    W: Array
    loss: Array
    stationarity: Array
    norm: str | float

    def distance(self, solution: Array) -> Array:
        """Frobenius distance of each W / ||W|| to `solution` / ||solution||, both in the norm of the path.

        Parameters
        ----------
        solution : array, shape (..., d, dz)
            An SVM solution W_mm, one a trial.

        Returns
        -------
        array, shape (..., radii)
        """
        W, target = (torch.as_tensor(a) for a in (self.W, solution))
        target = target.unsqueeze(-3).to(W)
        unit, goal = (M / _norm(M, self.norm)[..., None, None] for M in (W, target))
        result = torch.linalg.matrix_norm(unit - goal)
        return result if is_tensor(self.W) else result.numpy()


def _norm(W: Tensor, norm: str | float) -> Tensor:
    if norm == "nuclear":
        return torch.linalg.matrix_norm(W, "nuc")
    return torch.linalg.vector_norm(W.flatten(-2), ord=2 if norm == "frobenius" else float(norm), dim=-1)


def regularization_path(
    data: TokenData,
    head: Any,
    radii: Sequence[float] | np.ndarray,
    *,
    norm: str | float = "frobenius",
    rank: int | None = None,
    loss: str | Loss | Callable[[Tensor], Tensor] = "logistic",
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
    head : array (dv,) or (..., dv)
        Vector of the linear head.
    radii : increasing positive numbers
        For the nuclear path the ball is ||K||_F^2 + ||Q||_F^2 <= 2 R, so that ||W||_* <= R.
    norm : {"frobenius", "nuclear"} or p > 1
        "nuclear" minimises over (K, Q), a number over the entrywise l_p ball.
    rank : int, optional
        Width of K and Q; min(d, dz) by default.
    loss : str or callable
    tokens : integer array, shape (..., n), optional
        Tokens alpha of a local path, which stays in cone_epsilon(alpha).
    epsilon : float
        Of the cone.
    init : array (..., d, dz), optional
        First direction. By default minus the gradient at 0; for a local path, the minimiser of the convex problem of
        attending to `tokens`.
    tol : float
        Stationarity to reach.
    max_iter : int
        Iterations at each radius.

    Returns
    -------
    RegularizationPath

    Raises
    ------
    ValueError
        If an argument does not fit, or a local path finds no start inside its cone.
    """
    radii = np.asarray(radii, dtype=float)
    if (
        radii.ndim != 1
        or radii.size == 0
        or not np.isfinite(radii).all()
        or radii[0] <= 0
        or (np.diff(radii) <= 0).any()
    ):
        raise ValueError(f"radii has shape {radii.shape}; a list of increasing positive numbers was expected.")
    if norm not in ("frobenius", "nuclear") and not (isinstance(norm, (int, float)) and 1 < norm < math.inf):
        raise ValueError(f"norm is {norm!r}; 'frobenius', 'nuclear' or a finite p > 1 was expected.")
    objective = Objective.from_data(data, head, loss)
    if objective.gamma is None:
        raise ValueError("head is not linear; the regularisation path needs a vector v, whose best risk is known.")
    targets = None
    if tokens is not None:
        targets = torch.as_tensor(tokens)
        expected = (*data.batch_shape, data.n)
        if tuple(targets.shape) != expected or targets.is_floating_point():
            raise ValueError(f"tokens has shape {tuple(targets.shape)}; integers of shape {expected} were expected.")
        targets = targets.reshape(-1, data.n).long()
    like = objective.tokens
    zero = like.new_zeros((len(like), data.d, data.dz))
    first = -objective.gradient(zero).W
    if init is not None:
        (first,) = initial_parameters(init, "W", None, data.batch_shape, data.d, data.dz, 0, like)
    paths = []
    for trial in range(len(like)):
        single = objective.trial(trial)
        alpha = None if targets is None else targets[trial][None]
        ball = _Ball(single, norm, rank, alpha, epsilon)
        guide = _Ball(single.selecting(alpha), norm, rank, None, 0.0)
        direction = guided = ball.encode(first[trial])
        if alpha is not None and init is None:
            for power in range(max(0, math.ceil(math.log2(radii[-1]))) + 1):
                direction = guide.minimize(direction, 2.0**power, tol, max_iter)
        if alpha is not None and not ball.in_cone(ball.decode(direction, 1.0), 1.0):
            raise ValueError(f"init lies outside cone_epsilon(tokens) for epsilon={epsilon}; one inside was expected.")
        found = []
        last = float(radii[0])
        for radius in map(float, radii):
            between = max(1, math.ceil(math.log(radius / last) / math.log(_LARGEST_GROWTH)))
            for part in range(1, between + 1):
                at = last * (radius / last) ** (part / between)
                candidates = [ball.minimize(direction, at, tol, max_iter)]
                if alpha is None:
                    guided = guide.minimize(guided, at, tol, max_iter)
                    candidates.append(ball.minimize(guided, at, tol, max_iter))
                direction = min(candidates, key=lambda V, R=at, ball=ball: ball.rank_of(V, R))
            found.append((ball.decode(direction, radius), ball.stationarity(direction, radius)))
            last = radius
        W = torch.stack([W for W, _ in found])
        risk = torch.cat([single.value(w[None]) for w in W])
        paths.append((W, risk, like.new_tensor([s for _, s in found])))

    def shaped(parts: list[Tensor]) -> Array:
        stacked = torch.stack(parts).reshape(*data.batch_shape, *parts[0].shape)
        return stacked.to(data.tokens.dtype) if is_tensor(data.tokens) else stacked.numpy().astype(data.tokens.dtype)

    W, risk, stationarity = (shaped(list(parts)) for parts in zip(*paths, strict=True))
    return RegularizationPath(radii, W, risk, stationarity, norm)


class _Ball:
    """One trial's log excess risk on the sphere of a norm, as a function of an unnormalised direction V."""

    def __init__(
        self, objective: Objective, norm: str | float, rank: int | None, tokens: Tensor | None, epsilon: float
    ) -> None:
        self.objective, self.norm, self.tokens, self.epsilon = objective, norm, tokens, epsilon
        self.d, self.dz = objective.tokens.shape[-1], objective.queries.shape[-1]
        self.width = min(self.d, self.dz) if rank is None else rank
        self.reference: float | None = None  # exponent of the excess while it is not positive

    def encode(self, W: Tensor) -> Tensor:
        """Return the direction that stands for W: itself, or its balanced factors stacked."""
        if self.norm != "nuclear":
            return W
        U, S, Vh = torch.linalg.svd(W, full_matrices=False)
        roots = S.sqrt()[: self.width]
        factors = torch.cat([U[:, : self.width] * roots, Vh[: self.width].mT * roots])
        return torch.nn.functional.pad(factors, (0, self.width - factors.shape[1]))

    def decode(self, V: Tensor, radius: float) -> Tensor:
        """Return W on the sphere of that radius."""
        if self.norm != "nuclear":
            return V * (radius / _norm(V, self.norm))
        V = V * (math.sqrt(2 * radius) / V.norm())
        return V[: self.d] @ V[self.d :].mT

    def _pull_back(self, G: Tensor, V: Tensor, radius: float) -> tuple[Tensor, Tensor, float]:
        """Return the gradient with respect to the scaled direction, the outward normal, and the scale."""
        if self.norm == "nuclear":
            scale = math.sqrt(2 * radius) / float(V.norm())
            K, Q = V[: self.d] * scale, V[self.d :] * scale
            return torch.cat([G @ Q, G.mT @ K]), V, scale
        p = 2.0 if self.norm == "frobenius" else float(self.norm)
        return G, V.sign() * (V.abs() / V.abs().max()).pow(p - 1), radius / float(_norm(V, self.norm))

    def minimize(self, V: Tensor, radius: float, tol: float, max_iter: int) -> Tensor:
        """Return the unit direction of least risk found from V."""
        W = self.decode(V, radius)
        excess, scale = self.objective.excess(W[None], self.tokens)
        self.reference = None if float(excess) > 0 else float(scale)
        end = minimize(lambda direction: self.value(direction, radius), V, tol, max_iter)
        for _ in range(self.width if self.norm == "nuclear" else 0):
            if self.stationarity(end, radius) <= max(tol, _SADDLE):
                break
            end = minimize(
                lambda direction: self.value(direction, radius), self._off_saddle(end, radius), tol, max_iter
            )
        return end / end.norm()

    def _off_saddle(self, V: Tensor, radius: float) -> Tensor:
        """Put the steepest rank-one direction into the shortest columns of the factors.

        Factors of too low a rank are stationary whatever the gradient does outside their span.
        """
        V = V / V.norm()
        U, _, Vh = torch.linalg.svd(self.objective.gradient(self.decode(V, radius)[None]).W[0])
        shortest = int(V.square().sum(0).argmin())
        moved = V.clone()
        moved[:, shortest] += 0.1 * torch.cat([-U[:, 0], Vh[0]])
        return moved

    def value(self, V: Tensor, radius: float) -> tuple[float, Tensor, float]:
        """Return log(n (L - L*)), its gradient in V and half the squared sine of the angle that is left to turn.

        Infinite outside the cone. A local path may begin below L*, where tokens of higher score that are no neighbours
        still count; from there the excess itself is minimised, in units of its size at the start.
        """
        W = self.decode(V, radius)
        if self.tokens is not None and not self.in_cone(W, radius):
            return math.inf, V, math.inf
        excess, scale = self.objective.excess(W[None], self.tokens)
        gradient = self.objective.gradient(W[None])
        if self.reference is not None:
            value = excess * (scale - self.reference).exp()
            G = gradient.W[0] * (gradient.log_scale - self.reference).exp()
        elif float(excess) > 0:
            value = scale + excess.log()
            G = gradient.W[0] * (gradient.log_scale - scale).exp() / excess
        else:
            return math.inf, V, math.inf
        slope, normal, factor = self._pull_back(G, V, radius)
        tangent = slope - normal * ((slope * V).sum() / (normal * V).sum())
        sine = float(tangent.norm() / slope.norm()) if float(slope.norm()) > 0 else 0.0
        return float(value), tangent * factor, sine**2 / 2

    def stationarity(self, V: Tensor, radius: float) -> float:
        """Return how far the negative gradient is from the outward normals of the ball; 0 at a stationary point.

        1 - cos of the angle between them. The nuclear ball has many normals at a matrix of low rank; there it is
        1 - <-G, W> / (||G||_op ||W||_*), which also tells saddle points of the factors from minimisers.
        """
        W = self.decode(V, radius)
        G = self.objective.gradient(W[None]).W[0]
        if self.norm == "nuclear":
            size = float(torch.linalg.matrix_norm(G, 2) * torch.linalg.matrix_norm(W, "nuc"))
            return 1 + float((G * W).sum()) / size if size > 0 else 0.0
        slope, normal, _ = self._pull_back(G, V, radius)
        size = float(slope.norm() * normal.norm())
        return 1 + float((slope * normal).sum()) / size if size > 0 else 0.0

    def rank_of(self, V: Tensor, radius: float) -> tuple[bool, float]:
        """Return a key that orders directions by risk, whatever its exponent."""
        excess, scale = self.objective.excess(self.decode(V, radius)[None], self.tokens)
        return (True, float(scale + excess.log())) if float(excess) > 0 else (False, float(excess))

    def in_cone(self, W: Tensor, radius: float) -> bool:
        """Whether W, on the sphere of that radius, selects the tokens and keeps a low token ahead of the high ones."""
        assert self.tokens is not None
        gamma = self.objective.gamma
        assert gamma is not None
        logits, scores = self.objective.logits(W[None])[0], gamma[0]  # (n, T)
        index = self.tokens[0].unsqueeze(-1)
        chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, index, True)
        low = scores < scores.gather(-1, index)
        best_low = logits.masked_fill(~low, -torch.inf).amax(-1)
        best_high = logits.masked_fill(low | chosen, -torch.inf).amax(-1)
        selected = logits.gather(-1, index).squeeze(-1) > logits.masked_fill(chosen, -torch.inf).amax(-1)
        ahead = (best_high == -torch.inf) | (best_low - best_high >= self.epsilon * radius)
        return bool((selected & ahead).all())
