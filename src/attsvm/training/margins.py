r"""The margin of W, and the largest margin, as torch functions of tokens and queries.

:func:`max_margin` solves the attention SVM in the forward pass; its backward pass is the envelope theorem
(:mod:`attsvm.solution.influence`): multipliers times W z, with no derivative of the solver.
"""

from __future__ import annotations

import math
from collections import UserList
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from attsvm.core.norms import FROBENIUS, NUCLEAR, Norm, get_norm
from attsvm.core.status import Status
from attsvm.core.types import AnyNorm
from attsvm.solution.influence import margin_gradient
from attsvm.solution.problem_batch import ProblemBatch
from attsvm.solution.solution import Solution
from attsvm.solvers.batching import solve_batch
from attsvm.solvers.solving import solve

# Relative gap at which multipliers are accurate to about eight digits if they are unique.
MULTIPLIER_GAP = 1e-12
# Relative gap, as small as rounding allows, that is requested from methods that approach the optimum from inside.
FINEST = 1e-14
# Relative gap below which W identifies its face and the face of the multipliers.
NEAR = 1e-6
# Multiple of the dual norm's resolution up to which a gap is accepted, for sums and maxima of norms.
EARLY = 100.0


def max_margin(
    tokens: Tensor,
    queries: Tensor,
    selected: Any,
    norm: AnyNorm = "frobenius",
    *,
    mask: Any = None,
    tol: float = MULTIPLIER_GAP,
) -> Tensor:
    r"""Find the largest margin by which a W of norm one selects the given tokens, differentiable in tokens and queries.

    The result is :math:`\max_{\|W\|\le1}\min_{it}(x_{i\alpha_i}-x_{it})^\top W z_i = 1/\|W^\star\|` with the
    :math:`W^\star` of :func:`attsvm.solve`, computed in float64 for every dtype. The gradient follows from the envelope
    theorem (Milgrom and Segal, Econometrica 70, 2002); :meth:`attsvm.Solution.influence` shows it as a table.

    The transforms of torch.func (vmap, grad, jacrev, jvp and their combinations) work in both modes of differentiation.
    torch.compile breaks its graph here and therefore refuses ``fullgraph=True``.

    Parameters
    ----------
    tokens : tensor, shape (..., n, T, d)
        Leading dimensions are a batch of problems.
    queries : tensor, shape (..., n, dz)
    selected : integer (..., n) or boolean (..., n, T)
        The token to select, or several tokens that must get equal scores.
    norm : str, float or Norm
        See :func:`attsvm.solve`. Every norm of :mod:`attsvm.norms` has a derivative.
    mask : boolean (..., n, T), optional
        True where the query sees the token.
    tol : float
        Certified relative gap; at least 1e-9 for ``Sum`` and ``Largest``.

    Returns
    -------
    tensor, shape (...)
        Has the dtype and device of `tokens`.

    Raises
    ------
    UnsolvedError
        If no W selects the tokens, or none was found to that gap.
    ValueError
        If shapes do not fit or no token is rejected. In the backward pass: if the margin has no derivative because the
        multipliers (or W, where the data enter) are not unique, or if it is differentiated twice.

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
    selected, mask = _tensors_of(tokens, selected, mask)
    # Function transforms copy lists and dictionaries, but not this type.
    solutions: UserList[Solution] = UserList()
    return _uncompiled(_MaxMargin.apply)(tokens, queries, selected, mask, get_norm(norm), tol, solutions)[0]


class _MaxMargin(Function):
    """Largest margins and, in the same shape, the indices of their solutions in the caller's list.

    Indices are a tensor, so that function transforms carry them along with the data.
    """

    @staticmethod
    def forward(
        tokens: Tensor,
        queries: Tensor,
        selected: Tensor,
        mask: Tensor | None,
        norm: Norm,
        tol: float,
        solutions: UserList[Solution],
    ) -> tuple[Tensor, Tensor]:
        first = len(solutions)
        solutions += _solve(tokens, queries, selected, mask, norm, tol)
        margins = torch.tensor([1.0 / solution.objective for solution in solutions[first:]], dtype=torch.float64)
        index = torch.arange(first, len(solutions), device=tokens.device)
        batch = tokens.shape[:-3]
        return margins.to(device=tokens.device, dtype=tokens.dtype).reshape(batch), index.reshape(batch)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        tokens, queries, *_, ctx.solutions = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(tokens, queries, output[1])
        ctx.save_for_forward(tokens, queries, output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        nothing = (None,) * 7
        if grads[0] is None:
            return nothing
        tokens, queries, index = ctx.saved_tensors
        wants = ctx.needs_input_grad[:2]
        slopes = _Slopes.apply(tokens, queries, index, ctx.solutions, wants)
        weight = grads[0].to(torch.float64)
        outputs = [
            (slope * weight.reshape(*weight.shape, *(1,) * (slope.ndim - weight.ndim))).to(like.dtype)
            if wanted
            else None
            for slope, like, wanted in zip(slopes, (tokens, queries), wants, strict=True)  # pyright: ignore
        ]
        return (*outputs, *nothing[2:])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, None]:
        tokens, queries, index = ctx.saved_tensors
        wants = tuple(tangent is not None for tangent in tangents[:2])
        slopes = _Slopes.apply(tokens, queries, index, ctx.solutions, wants)
        rates = [
            (slope * tangent).flatten(index.ndim).sum(-1)
            for slope, tangent in zip(slopes, tangents[:2], strict=True)  # pyright: ignore
            if tangent is not None
        ]
        return sum(rates, torch.zeros_like(index, dtype=torch.float64)).to(tokens.dtype), None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
        return _MaxMargin.apply(*_batched(info, in_dims, inputs)), (0, 0)


class _Slopes(Function):
    """Derivatives (..., n, T, d) and (..., n, dz) of the margins of solutions; not differentiable themselves."""

    @staticmethod
    def forward(
        tokens: Tensor, queries: Tensor, index: Tensor, solutions: UserList[Solution], wants: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor]:
        pairs = [
            margin_gradient(solutions[one].raise_for_status(), for_tokens=wants[0], for_queries=wants[1])
            for one in index.flatten().tolist()
        ]
        first, second = (
            torch.from_numpy(np.stack(parts)).reshape(like.shape).to(like.device)
            for parts, like in zip(zip(*pairs, strict=True), (tokens, queries), strict=True)
        )
        return first, second

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        raise ValueError(
            "max_margin was differentiated twice; one derivative was expected: the second depends on how the solution "
            "moves and does not exist where the set of support tokens changes."
        )

    jvp = backward

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
        return _Slopes.apply(*_batched(info, in_dims, inputs)), (0, 0)


def _batched(info: Any, in_dims: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """Move the dimension that vmap maps over to the front of every tensor."""
    return [
        value if not isinstance(value, Tensor)
        else value.expand(info.batch_size, *value.shape) if dim is None
        else value.movedim(dim, 0)
        for value, dim in zip(inputs, in_dims, strict=True)
    ]  # fmt: skip


def _uncompiled(function: Any) -> Any:
    """Exclude from torch.compile a function that leaves torch; the compiler is loaded only while it compiles."""
    return torch.compiler.disable(function) if torch.compiler.is_compiling() else function


def margin(
    tokens: Tensor, queries: Tensor, selected: Any, W: Tensor, norm: AnyNorm = "frobenius", *, mask: Any = None
) -> Tensor:
    r"""Evaluate the normalised margin of W, :math:`\min_{it}(x_{i\alpha_i}-x_{it})^\top W z_i / \|W\|`.

    It is differentiable in tokens, queries and W by autograd. Several smallest margins share the gradient equally,
    which gives one of the subgradients. The value is at most :func:`max_margin`, with equality at the solution of
    :func:`attsvm.solve`. If several tokens are selected, the lowest-scoring one counts.

    Parameters
    ----------
    tokens : tensor, shape (..., n, T, d)
    queries : tensor, shape (..., n, dz)
    selected : integer (..., n) or boolean (..., n, T)
    W : tensor, shape (..., d, dz)
    norm : str, float or Norm
        See :func:`attsvm.solve`; any norm of :mod:`attsvm.norms`.
    mask : boolean (..., n, T), optional

    Returns
    -------
    tensor, shape (...)

    Raises
    ------
    ValueError
        If shapes do not fit, no token is rejected, W is zero or not finite, or the norm is user-defined.

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
    selection, visible = _uncompiled(_Selection.apply)(tokens, *_tensors_of(tokens, selected, mask), W)
    rejected = visible & ~selection
    scores = (tokens @ (queries @ W.mT).unsqueeze(-1)).squeeze(-1)  # (..., n, T)
    lowest = scores.masked_fill(~selection, math.inf).amin(-1, keepdim=True)
    gaps = (lowest - scores).masked_fill(~rejected, math.inf)
    return gaps.amin((-2, -1)) / _norm(W, get_norm(norm))


class _Selection(Function):
    """Selected and visible tokens of :func:`margin`, read inside all transforms, where tensors have values."""

    @staticmethod
    def forward(tokens: Tensor, selected: Tensor, mask: Tensor | None, W: Tensor) -> tuple[Tensor, Tensor]:
        if not W.isfinite().all() or not (W != 0).flatten(-2).any(-1).all():
            raise ValueError("W is zero or not finite; a direction was expected.")
        return _read_selected(tokens, selected, mask)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, ...]:
        return (None,) * 4

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[None, None]:
        return None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
        return _Selection.apply(*_batched(info, in_dims, inputs)), (0, 0)


def _norm(W: Tensor, norm: Norm) -> Tensor:
    mismatch = norm.mismatch((W.shape[-2], W.shape[-1]))
    if mismatch is not None:
        raise ValueError(mismatch)
    return norm.of_tensor(W)


def _check_tensors(tokens: Tensor, queries: Tensor) -> None:
    """Check the shapes of tokens and queries; raise ValueError if they do not fit."""
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


def _tensors_of(tokens: Tensor, selected: Any, mask: Any) -> tuple[Tensor, Tensor | None]:
    return tuple(None if one is None else torch.as_tensor(one, device=tokens.device) for one in (selected, mask))  # pyright: ignore


def _read_selected(tokens: Tensor, selection: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Read selected and visible tokens as booleans (..., n, T)."""
    rows = tokens.shape[:-1]
    if selection.dtype == torch.bool:
        fits = selection.shape == rows
    else:
        fits = selection.shape == rows[:-1] and not selection.is_floating_point()
        fits = fits and bool(((selection >= 0) & (selection < rows[-1])).all())
        selection = torch.nn.functional.one_hot(selection.long(), rows[-1]).bool() if fits else selection
    visible = torch.ones(rows, dtype=torch.bool, device=tokens.device) if mask is None else mask
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


def _solve(
    tokens: Tensor, queries: Tensor, selected: Tensor, mask: Tensor | None, norm: Norm, tol: float
) -> list[Solution]:
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
    """Give a solution the status OPTIMAL if its gap is at most tol; other solutions do not change."""
    if solution.status is not Status.UNDECIDED:
        return solution
    resolution = solution.norm.dual_resolution
    if resolution > 0 and tol < solution.gap < NEAR:
        solution = _split_at_optimum(solution, math.sqrt(tol))
    limit = max(tol, EARLY * resolution)
    return replace(solution, status=Status.OPTIMAL, tol=limit) if solution.gap <= limit else solution


def _split_at_optimum(solution: Solution, tolerance: float) -> Solution:
    """Bound the dual norm of a sum or maximum of norms by the split that W determines.

    The bound of a minimisation over splits may be worse by 1e-9.
    """
    certified, problem = solution.certified, solution.problem
    length = solution.norm.dual_on_face(problem.adjoint(certified.dual), certified.W, tolerance)
    low = float(certified.dual[problem.rejected].sum()) / length * (1.0 - certified.rounding)
    return replace(solution, certified=replace(certified, lower_bound=max(low, certified.lower_bound)))
