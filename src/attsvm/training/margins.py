r"""The margin of W, and the largest there is, as torch functions of tokens and queries.

:func:`max_margin` solves the attention SVM in the forward pass; its backward pass is the envelope theorem
(:mod:`attsvm.solution.influence`): multipliers times W z, with no derivative of the solver.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from attsvm.core.norms import (
    FROBENIUS,
    NUCLEAR,
    Norm,
    get_norm,
)
from attsvm.core.status import Status
from attsvm.core.types import AnyNorm
from attsvm.solution.influence import margin_gradient
from attsvm.solution.solution import Solution
from attsvm.solvers.batching import solve_batch
from attsvm.solvers.problem_batch import ProblemBatch
from attsvm.solvers.solving import solve

# The multipliers of a gap this small are known to some eight digits where they are unique.
TOL = 1e-12
# Methods that approach an optimum from inside, instead of solving for it on its face, go as far as rounding allows: the
# gradient in the spectral norm was off by 4e-8 at a gap of 2e-13 and by 3e-9 at 1e-14.
FINEST = 1e-14
# Below this gap W says which faces it and the multipliers are on.
NEAR = 1e-6
# Where the faces of a sum of norms, or of the larger of two, meet in few points the minimisation behind their dual norm
# ends so many times its usual error early, and the solver with it.
EARLY = 100.0


def max_margin(
    tokens: Tensor,
    queries: Tensor,
    selected: Any,
    norm: AnyNorm = "frobenius",
    *,
    mask: Any = None,
    tol: float = TOL,
) -> Tensor:
    r"""Find the largest margin by which a W of norm one selects the given tokens, differentiable in tokens and queries.

    :math:`\max_{\|W\|\le1}\min_{it}(x_{i\alpha_i}-x_{it})^\top W z_i = 1/\|W^\star\|` with the :math:`W^\star` of
    :func:`attsvm.solve`, computed in float64 whatever the dtype given. The gradient is that of the envelope theorem
    (Milgrom and Segal, Econometrica 70, 2002); :meth:`attsvm.Solution.influence` shows it as a table.

    Parameters
    ----------
    tokens : tensor, shape (..., n, T, d)
        Leading dimensions are a batch of problems.
    queries : tensor, shape (..., n, dz)
    selected : integer (..., n) or boolean (..., n, T)
        The token to select, or several tokens that must score alike.
    norm : str, float or Norm
        As for :func:`attsvm.solve`. There is a derivative in every one of :mod:`attsvm.norms`.
    mask : boolean (..., n, T), optional
        True where the query sees the token.
    tol : float
        Certified relative gap; with a ``Sum`` or ``Largest`` 1e-9 at least.

    Returns
    -------
    tensor, shape (...)
        Of the dtype and device of `tokens`.

    Raises
    ------
    UnsolvedError
        If no W selects the tokens, or none was found to that gap.
    ValueError
        If shapes do not fit or no token is rejected. In the backward pass: if the margin has no derivative, since
        multipliers (or W, where it meets the data) are not unique, or if it is differentiated twice.

    Examples
    --------
    >>> import torch
    >>> from attsvm.functional import max_margin
    >>> tokens = torch.tensor([[[3.0, 4.0], [0.0, 0.0]]], requires_grad=True)
    >>> margin = max_margin(tokens, torch.tensor([[2.0]]), torch.tensor([0]))
    >>> margin.backward()
    >>> margin.item(), tokens.grad[0, 0].tolist()
    (10.0, [1.2000000476837158, 1.600000023841858])
    """
    _check_tensors(tokens, queries)
    return _MaxMargin.apply(tokens, queries, selected, mask, get_norm(norm), tol)  # pyright: ignore[reportReturnType]


class _MaxMargin(Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, queries: Tensor, selected: Any, mask: Any, norm: Norm, tol: float) -> Tensor:
        solutions = _solve(tokens, queries, selected, mask, norm, tol)
        ctx.solutions = solutions
        ctx.save_for_backward(tokens, queries)
        margins = torch.tensor([1.0 / solution.objective for solution in solutions], dtype=torch.float64)
        return margins.reshape(tokens.shape[:-3]).to(device=tokens.device, dtype=tokens.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tokens, queries = ctx.saved_tensors
        wants = {"for_tokens": ctx.needs_input_grad[0], "for_queries": ctx.needs_input_grad[1]}
        pairs = [margin_gradient(solution, **wants) for solution in ctx.solutions]
        inputs = (tokens, queries)
        outputs: list[Tensor | None] = []
        for wants_gradient, like, parts in zip(wants.values(), inputs, zip(*pairs, strict=True), strict=True):
            if not wants_gradient:
                outputs.append(None)
                continue
            gradient = torch.from_numpy(np.stack(parts)).reshape(like.shape).to(like.device)
            weight = grads[0].to(torch.float64).reshape(*grads[0].shape, *(1,) * (like.ndim - grads[0].ndim))
            outputs.append(_OnceOnly.apply((gradient * weight).to(like.dtype), *inputs))  # pyright: ignore
        return (*outputs, None, None, None, None)


class _OnceOnly(Function):
    """A gradient that depends on the inputs and is not differentiated in them."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *inputs: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raise ValueError(
            "max_margin was differentiated twice; one derivative was expected: the second depends on how the solution "
            "moves and does not exist where the set of support tokens changes."
        )


def margin(
    tokens: Tensor,
    queries: Tensor,
    selected: Any,
    W: Tensor,
    norm: AnyNorm = "frobenius",
    *,
    mask: Any = None,
) -> Tensor:
    r"""Evaluate the margin of W over its norm, :math:`\min_{it}(x_{i\alpha_i}-x_{it})^\top W z_i / \|W\|`.

    Differentiable in tokens, queries and W by plain autograd, away from W = 0: several smallest margins share the
    gradient equally, which is one of the subgradients. At most :func:`max_margin`, and equal to it at the solution of
    :func:`attsvm.solve`. Of several selected tokens the lowest-scoring one counts.

    Parameters
    ----------
    tokens : tensor, shape (..., n, T, d)
    queries : tensor, shape (..., n, dz)
    selected : integer (..., n) or boolean (..., n, T)
    W : tensor, shape (..., d, dz)
    norm : str, float or Norm
        As for :func:`attsvm.solve`; any of :mod:`attsvm.norms`.
    mask : boolean (..., n, T), optional

    Returns
    -------
    tensor, shape (...)

    Raises
    ------
    ValueError
        If shapes do not fit, no token is rejected, or the norm is one of your own.

    Examples
    --------
    >>> import torch
    >>> from attsvm.functional import margin
    >>> tokens = torch.tensor([[[3.0, 4.0], [0.0, 0.0]]])
    >>> margin(tokens, torch.tensor([[2.0]]), torch.tensor([0]), torch.tensor([[1.0], [0.0]])).item()
    6.0
    """
    _check_tensors(tokens, queries)
    shape = (tokens.shape[-1], queries.shape[-1])
    if not isinstance(W, Tensor) or W.shape[-2:] != shape or W.ndim < 2:
        raise ValueError(f"W has {_kind(W)}; a tensor (..., {shape[0]}, {shape[1]}) was expected.")
    selection, visible = _read_selected(tokens, selected, mask)
    rejected = visible & ~selection
    scores = (tokens @ (queries @ W.mT).unsqueeze(-1)).squeeze(-1)  # (..., n, T)
    lowest = scores.masked_fill(~selection, math.inf).amin(-1, keepdim=True)
    gaps = (lowest - scores).masked_fill(~rejected, math.inf)
    return gaps.amin((-2, -1)) / _norm(W, get_norm(norm))


def _norm(W: Tensor, norm: Norm) -> Tensor:
    mismatch = norm.mismatch((W.shape[-2], W.shape[-1]))
    if mismatch is not None:
        raise ValueError(mismatch)
    return norm.of_tensor(W)


def _check_tensors(tokens: Tensor, queries: Tensor) -> None:
    """Compare shapes of tokens and queries.

    Raises
    ------
    ValueError
        If they do not fit.
    """
    for name, value, least in (("tokens", tokens, 3), ("queries", queries, 2)):
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.ndim < least:
            expected = "(..., n, T, d)" if least == 3 else "(..., n, dz)"
            raise ValueError(f"{name} has {_kind(value)}; a floating-point tensor {expected} was expected.")
    if queries.shape[:-1] != tokens.shape[:-2]:
        raise ValueError(
            f"queries has shape {tuple(queries.shape)}; {(*tokens.shape[:-2], 'dz')} was expected to match tokens "
            f"{tuple(tokens.shape)}."
        )


def _kind(value: object) -> str:
    return (
        f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
    )


def _read_selected(tokens: Tensor, selected: Any, mask: Any) -> tuple[Tensor, Tensor]:
    """Read selected and visible tokens as booleans (..., n, T)."""
    rows = tokens.shape[:-1]
    selection = torch.as_tensor(selected, device=tokens.device)
    if selection.dtype == torch.bool:
        fits = selection.shape == rows
    else:
        fits = selection.shape == rows[:-1] and not selection.is_floating_point()
        fits = fits and bool(((selection >= 0) & (selection < rows[-1])).all())
        selection = torch.nn.functional.one_hot(selection.long(), rows[-1]).bool() if fits else selection
    visible = torch.ones(rows, dtype=torch.bool, device=tokens.device)
    if mask is not None:
        visible = torch.as_tensor(mask, device=tokens.device)
    if not fits or visible.shape != rows or visible.dtype != torch.bool:
        raise ValueError(
            f"selected has shape {tuple(selection.shape)} and mask {tuple(visible.shape)}; integers {tuple(rows[:-1])} "
            f"below {rows[-1]} or booleans {tuple(rows)}, and booleans {tuple(rows)}, were expected."
        )
    if not (visible & ~selection).flatten(-2).any(-1).all():
        raise ValueError(
            f"selected of shape {tuple(rows)} leaves no visible token; at least one to reject was expected."
        )
    return selection, visible


def _solve(tokens: Tensor, queries: Tensor, selected: Any, mask: Any, norm: Norm, tol: float) -> list[Solution]:
    """Solve every problem of the batch, in float64."""
    selection, visible = _read_selected(tokens, selected, mask)
    arrays = [value.detach().cpu().double().numpy() for value in (tokens, queries)]
    marks = [value.cpu().numpy() for value in (selection, visible)]
    n, T, d = tokens.shape[-3:]
    X, Z = arrays[0].reshape(-1, n, T, d), arrays[1].reshape(-1, n, queries.shape[-1])
    batch = ProblemBatch(X, Z, *(mark.reshape(-1, n, T) for mark in marks))
    if norm in (FROBENIUS, NUCLEAR):
        solutions = list(solve_batch(batch, norm, tol=tol))
    else:
        solutions = [_check_accuracy(solve(problem, norm, tol=FINEST), tol) for problem in batch]
    return [solution.raise_for_status() for solution in solutions]


def _check_accuracy(solution: Solution, tol: float) -> Solution:
    """Take an answer whose gap is at most tol for the optimum that was asked for."""
    if solution.status is not Status.UNDECIDED:
        return solution
    resolution = solution.norm.dual_resolution
    if resolution > 0 and tol < solution.gap < NEAR:
        solution = _split_at_optimum(solution, math.sqrt(tol))
    reach = max(tol, EARLY * resolution)
    return replace(solution, status=Status.OPTIMAL, tol=reach) if solution.gap <= reach else solution


def _split_at_optimum(solution: Solution, tolerance: float) -> Solution:
    """Bound the dual norm of a sum or of the larger of two by the split that W shows.

    That of the minimisation may be 1e-9 worse.
    """
    certified, problem = solution.certified, solution.problem
    length = solution.norm.dual_on_face(problem.adjoint(certified.dual), certified.W, tolerance)
    low = float(certified.dual[problem.rejected].sum()) / length * (1.0 - certified.rounding)
    return replace(solution, certified=replace(certified, lower_bound=max(low, certified.lower_bound)))
