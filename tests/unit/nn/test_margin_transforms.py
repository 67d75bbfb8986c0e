"""max_margin and margin under the compiler and function transforms."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from attsvm import UnsolvedError
from attsvm.functional import margin, max_margin

# torch's own forward-mode differentiation still compiles helpers with the deprecated torch.jit.script.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

GENERATOR = torch.Generator().manual_seed(0)
TOKENS, QUERIES, W, MOVE = (
    torch.randn(shape, generator=GENERATOR, dtype=torch.float64)
    for shape in ((3, 3, 4, 3), (3, 3, 2), (3, 2), (3, 4, 3))
)
SELECTED = torch.einsum("bntd,de,bne->bnt", TOKENS, W, QUERIES).argmax(-1)  # W selects them, so that all are feasible
FUNCTIONS = {
    "largest": max_margin,
    "largest, nuclear": lambda x, z, selected, **options: max_margin(x, z, selected, "nuclear", **options),
    "of W": lambda x, z, selected, **options: margin(x, z, selected, W, **options),
}
functions = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
# One problem is solved alone and in a batch by two methods; gaps of 1e-12 leave multipliers 1e-8 apart at most.
close = {"rtol": 1e-8, "atol": 1e-8}


def by_autograd(function, *places: int) -> tuple[torch.Tensor, ...]:
    """Gradients of a batch in tokens or queries, one problem at a time."""
    rows = []
    for x, z, selected in zip(TOKENS, QUERIES, SELECTED, strict=True):
        inputs = [x.clone().requires_grad_(), z.clone().requires_grad_()]
        rows.append(torch.autograd.grad(function(*inputs, selected), [inputs[place] for place in places]))
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


@functions
def test_values_under_vmap(function) -> None:
    loop = torch.stack([function(*parts) for parts in zip(TOKENS, QUERIES, SELECTED, strict=True)])
    torch.testing.assert_close(vmap(function)(TOKENS, QUERIES, SELECTED), loop, **close)
    moved = vmap(function, in_dims=(1, 2, 0))(TOKENS.movedim(0, 1), QUERIES.movedim(0, 2), SELECTED)
    torch.testing.assert_close(moved, loop, **close)
    torch.testing.assert_close(function(TOKENS, QUERIES, SELECTED), loop, **close)


@functions
def test_vmap_over_one_argument_and_twice(function) -> None:
    units = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    one = function(TOKENS[0], QUERIES[0], SELECTED[0])
    scaled = vmap(lambda unit: function(TOKENS[0], unit * QUERIES[0], SELECTED[0]))(units)
    torch.testing.assert_close(scaled, units * one, **close)
    table = vmap(lambda x, z, s: vmap(lambda unit: function(unit * x, z, s))(units))(TOKENS, QUERIES, SELECTED)
    torch.testing.assert_close(table, function(TOKENS, QUERIES, SELECTED)[:, None] * units, **close)


@functions
def test_masks_under_vmap(function) -> None:
    mask = torch.ones((*SELECTED.shape, 4), dtype=torch.bool)
    mask[:, 1] = torch.nn.functional.one_hot(SELECTED[:, 1], 4).bool()
    choice = torch.nn.functional.one_hot(SELECTED, 4).bool()
    expected = function(TOKENS, QUERIES, SELECTED, mask=mask)
    values = vmap(lambda x, z, s, m: function(x, z, s, mask=m))(TOKENS, QUERIES, choice, mask)
    torch.testing.assert_close(values, expected, **close)


@functions
def test_gradients_under_transforms(function) -> None:
    tokens, queries = by_autograd(function, 0, 1)
    first = grad(function, argnums=(0, 1))(TOKENS[0], QUERIES[0], SELECTED[0])
    torch.testing.assert_close(first, (tokens[0], queries[0]), **close)
    torch.testing.assert_close(
        vmap(grad(function, argnums=(0, 1)))(TOKENS, QUERIES, SELECTED), (tokens, queries), **close
    )
    pull = vjp(lambda x: function(x, QUERIES[0], SELECTED[0]), TOKENS[0])[1]
    torch.testing.assert_close(pull(torch.tensor(2.0, dtype=torch.float64))[0], 2.0 * tokens[0], **close)


@functions
def test_jacobians_of_a_batch(function) -> None:
    (tokens,) = by_autograd(function, 0)
    expected = torch.zeros(3, *TOKENS.shape, dtype=torch.float64)
    expected[range(3), range(3)] = tokens
    torch.testing.assert_close(jacrev(function)(TOKENS, QUERIES, SELECTED), expected, **close)
    torch.testing.assert_close(jacfwd(function)(TOKENS, QUERIES, SELECTED), expected, **close)


@functions
def test_forward_mode_is_the_gradient_along_the_tangent(function) -> None:
    tokens, queries = by_autograd(function, 0, 1)
    inputs, tangents = (TOKENS[0], QUERIES[0]), (MOVE, torch.ones_like(QUERIES[0]))
    value, rate = jvp(lambda x, z: function(x, z, SELECTED[0]), inputs, tangents)
    torch.testing.assert_close(value, function(*inputs, SELECTED[0]), **close)
    torch.testing.assert_close(rate, (tokens[0] * MOVE).sum() + queries[0].sum(), **close)
    _, rate = jvp(lambda x: function(x, QUERIES[0], SELECTED[0]), (TOKENS[0],), (MOVE,))
    torch.testing.assert_close(rate, (tokens[0] * MOVE).sum(), **close)


def test_float32_keeps_its_dtype_under_transforms() -> None:
    tokens, queries = TOKENS.float(), QUERIES.float()
    assert vmap(grad(max_margin))(tokens, queries, SELECTED).dtype == torch.float32
    value, rate = jvp(lambda x: max_margin(x, queries[0], SELECTED[0]), (tokens[0],), (MOVE.float(),))
    assert (value.dtype, rate.dtype) == (torch.float32, torch.float32)


@pytest.mark.parametrize("transform", [hessian, lambda f: jacrev(jacrev(f)), lambda f: jacfwd(jacfwd(f))])
def test_second_derivatives_are_refused(transform) -> None:
    with pytest.raises(ValueError, match="differentiated twice"):
        transform(lambda x: max_margin(x, QUERIES[0], SELECTED[0]))(TOKENS[0])


def test_a_missing_derivative_is_refused_and_that_in_queries_found() -> None:
    """Two copies of a support token share its multiplier; the margin |delta| |z| has a derivative in the query."""
    tokens = torch.tensor([[[3.0, 4.0], [0.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    query, selected = torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([0])
    for derivative in (grad(max_margin), jacrev(max_margin), jacfwd(max_margin)):
        with pytest.raises(ValueError, match="multipliers of the 2 constraints of margin one are not unique"):
            derivative(tokens, query, selected)
    with pytest.raises(UnsolvedError):
        vmap(max_margin)(torch.zeros_like(tokens)[None], query[None], selected[None])
    # One support token and the max norm: W is not unique for the tokens, and is for the query alone.
    tokens = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    for derivative in (jacrev, jacfwd):
        slope = derivative(lambda z: max_margin(tokens, z, selected, "max"))(query)
        assert slope.item() == pytest.approx(1.0, rel=1e-8)
        with pytest.raises(ValueError, match="is not unique where it meets the data"):
            derivative(lambda x: max_margin(x, query, selected, "max"))(tokens)


# Dynamo itself looks at .grad of every tensor that enters a frame.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@functions
@pytest.mark.slow
def test_the_compiler_breaks_its_graph(function) -> None:
    torch.compiler.reset()
    x = TOKENS[0].clone().requires_grad_()

    def loss(x):
        return 3 * function(2 * x, QUERIES[0], SELECTED[0]) + 1

    expected = loss(x)
    compiled = torch.compile(loss, backend="aot_eager")(x)
    torch.testing.assert_close(compiled, expected, rtol=0, atol=0)
    (slope,), (plain,) = torch.autograd.grad(compiled, x), torch.autograd.grad(expected, x)
    torch.testing.assert_close(slope, plain, rtol=0, atol=1e-15)


@pytest.mark.parametrize("bad", [0.0, torch.nan, torch.inf])
def test_the_margin_of_a_matrix_without_direction_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"^W is zero or not finite; a direction was expected\.$"):
        margin(TOKENS, QUERIES, SELECTED, bad * torch.ones_like(W))
    several = torch.stack([W, torch.full_like(W, bad), W])
    for call in (margin, vmap(margin)):
        with pytest.raises(ValueError, match=r"^W is zero or not finite"):
            call(TOKENS, QUERIES, SELECTED, several)
