"""The largest margin as a function of tokens and queries: values, derivatives, and where it has none."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from attsvm import SelectionProblem, Status, UnsolvedError, norms, solve
from attsvm.core.norms import get_norm
from attsvm.core.norms.entrywise import LargestEntries
from attsvm.functional import margin, max_margin
from attsvm.training.margins import _check_accuracy

WEIGHTS = np.random.default_rng(2).uniform(0.5, 2.0, (3, 3))
A = np.diag([1.0, 2.0, 0.5]) + 0.2
CUT_DIAMOND = norms.Largest(1, norms.Weighted([[1.5], [1.5]], np.inf))
NORMS = [
    "frobenius",
    "nuclear",
    "spectral",
    "max",
    1.0,
    1.5,
    3.0,
    norms.Schatten(1.5),
    norms.Schatten(4),
    norms.Mixed(3, 2),
    norms.Mixed(2, 1),
    norms.Mixed(1, 2, "columns"),
    norms.Mixed(2, np.inf),
    norms.Mixed(np.inf, 1, "columns"),
    norms.KyFan(2),
    norms.Weighted(WEIGHTS, 1),
    norms.Weighted(WEIGHTS, 3),
    norms.Weighted(WEIGHTS, np.inf),
    norms.Mahalanobis(A),
    norms.Mahalanobis(A, base="nuclear"),
    norms.Mahalanobis(A, A, base=1),
    norms.Sum("frobenius", "nuclear"),
    norms.Sum(1, 3),
    norms.Largest("frobenius", 4),
    norms.Largest(1.5, norms.Schatten(3)),
    norms.Sum("nuclear", 1),
    norms.Sum("nuclear", "spectral"),
    norms.Sum("max", 1),
    norms.Largest("spectral", norms.Weighted(np.full((3, 3), 1.3), np.inf)),
    norms.Largest(norms.Mahalanobis(4 * np.eye(3), base="nuclear"), 1),
    norms.Mahalanobis(A, base=norms.Sum(norms.KyFan(2), 1)),
]
# Norms whose gradient takes more than two processor seconds to compare.
SLOW = [norm for norm in NORMS if isinstance(norm, norms.Sum | norms.Largest) and not norm.smooth]
SLOW += [norms.KyFan(2), NORMS[-1]]


def planted(shape: tuple[int, ...], seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, queries and the tokens that a random W selects, which makes the problem feasible."""
    *batch, n, T, d, dz = shape
    rng = np.random.default_rng(seed)
    tokens, queries = rng.standard_normal((*batch, n, T, d)), rng.standard_normal((*batch, n, dz))
    selected = np.einsum("...td,de,...e->...t", tokens, rng.standard_normal((d, dz)), queries).argmax(-1)
    return torch.tensor(tokens), torch.tensor(queries), torch.tensor(selected)


def single(
    deltas: list[list[float]], query: tuple[float, ...] = (1.0,)
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One query that selects the origin among tokens at minus the differences."""
    tokens = torch.cat([torch.zeros(1, len(deltas[0])), -torch.tensor(deltas)]).double()
    return tokens[None].requires_grad_(), torch.tensor([query]).double(), torch.tensor([0])


def difference(function, h: float = 5e-5) -> float:
    """Central difference of order four."""
    return float(8 * (function(h) - function(-h)) - (function(2 * h) - function(-2 * h))) / (12 * h)


@pytest.mark.parametrize(
    "norm", [pytest.param(norm, marks=pytest.mark.slow) if norm in SLOW else norm for norm in NORMS], ids=str
)
def test_the_gradient_is_that_of_finite_differences(norm) -> None:
    tokens, queries, selected = planted((3, 4, 3, 3), 1)
    tokens.requires_grad_()
    queries.requires_grad_()
    max_margin(tokens, queries, selected, norm).backward()
    generator = torch.Generator().manual_seed(0)
    moves = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in (tokens, queries)]
    slope = sum(float((x.grad * move).sum()) for x, move in zip((tokens, queries), moves, strict=True))

    def along(step: float) -> torch.Tensor:
        with torch.no_grad():
            return max_margin(tokens + step * moves[0], queries + step * moves[1], selected, norm)

    # Margins known to 1e-14 of some units over h = 5e-5 leave 1e-9 at most; truncation is up to 3e8 h^4 (in the
    # last norm, with a fourth sequence, -2.7e-4 at h = 1e-3), 2e-9. Multipliers of a gap of 1e-14 are known to its
    # root, 1e-7, times some units: 24 draws in the spectral norm were off by 2e-12 to 1.5e-7.
    assert slope == pytest.approx(difference(along), abs=3e-7 * max(1.0, abs(slope)))


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_gradcheck_of_a_batch(norm: str) -> None:
    tokens, queries, selected = planted((2, 2, 3, 3, 2), 3)
    tokens.requires_grad_()
    queries.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, z: max_margin(x, z, selected, norm), (tokens, queries), fast_mode=True)


@pytest.mark.parametrize("norm", ["frobenius", "max"])
def test_a_batch_is_a_loop(norm: str) -> None:
    tokens, queries, selected = planted((2, 3, 4, 3, 5, 4), 4)
    mask = torch.ones(tokens.shape[:-1], dtype=torch.bool)
    mask[..., 2] = selected == 2
    tokens.requires_grad_()
    values = max_margin(tokens, queries, selected, norm, mask=mask)
    values.sum().backward()
    assert values.shape == (2, 3)
    for index in np.ndindex(2, 3):
        part = tokens.detach()[index].requires_grad_()
        one = max_margin(part, queries[index], selected[index], norm, mask=mask[index])
        one.backward()
        # Both are certified to 1e-12; their multipliers come from different methods and agree to 1e-8.
        torch.testing.assert_close(values[index], one, rtol=2e-12, atol=0)
        torch.testing.assert_close(tokens.grad[index], part.grad, rtol=1e-7, atol=1e-8)
        assert not tokens.grad[index][~mask[index]].any()


def test_ties_have_multipliers_of_either_sign() -> None:
    tokens, queries, _ = planted((2, 4, 4, 3), 5)
    choice = torch.tensor([[True, True, False, False], [False, False, False, True]])
    tokens.requires_grad_()
    max_margin(tokens, queries, choice).backward()
    move = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        slope = difference(lambda step: max_margin(tokens + step * move, queries, choice))
    # As in the first test; the Frobenius solution is one of linear equations.
    assert float((tokens.grad * move).sum()) == pytest.approx(slope, rel=1e-8)


def test_one_rejected_token_in_closed_form() -> None:
    tokens, queries, selected = single([[3.0, 4.0]], (0.0, 2.0))
    queries.requires_grad_()
    value = max_margin(tokens, queries, selected)
    value.backward()
    # The margin is |delta| |z| = 10; its derivatives are |z| times the unit difference, |delta| times the unit query.
    assert value.item() == pytest.approx(10, rel=1e-14)
    torch.testing.assert_close(tokens.grad[0], torch.tensor([[1.2, 1.6], [-1.2, -1.6]]).double())
    torch.testing.assert_close(queries.grad, torch.tensor([[0.0, 5.0]]).double())


def test_computed_in_double_precision_returned_as_given() -> None:
    tokens, queries, selected = planted((3, 4, 5, 4), 6)
    narrow = tokens.float().requires_grad_()
    value = max_margin(narrow, queries.float(), selected, "nuclear")
    value.backward()
    wide = max_margin(tokens.float().double(), queries.float().double(), selected, "nuclear")
    assert (value.dtype, narrow.grad.dtype) == (torch.float32, torch.float32)
    assert value == wide.float()


def test_no_second_derivative() -> None:
    tokens, queries, selected = planted((2, 3, 3, 2), 7)
    tokens.requires_grad_()
    (gradient,) = torch.autograd.grad(max_margin(tokens, queries, selected), tokens, create_graph=True)
    with pytest.raises(ValueError, match="differentiated twice"):
        gradient.square().sum().backward()


def test_copies_of_a_support_token_share_its_multiplier() -> None:
    tokens, queries, selected = single([[3.0, 4.0], [3.0, 4.0]])
    value = max_margin(tokens, queries, selected)
    assert value.item() == pytest.approx(5)
    with pytest.raises(ValueError, match="multipliers of the 2 constraints of margin one are not unique"):
        value.backward()
    separate, queries, selected = single([[3.0, 4.0], [30.0, 40.0], [30.0, 40.0]])
    max_margin(separate, queries, selected).backward()
    assert separate.grad[0, 0].tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("norm", [norms.Sum("nuclear", 1), norms.Largest("spectral", 1)], ids=str)
def test_copies_are_refused_in_two_norms_together(norm) -> None:
    tokens, queries, selected = single([[3.0, 4.0], [3.0, 4.0]])
    with pytest.raises(ValueError, match="multipliers of the 2 constraints of margin one are not unique"):
        max_margin(tokens, queries, selected, norm).backward()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("norm", [norms.Sum("max", 1), norms.Largest("spectral", 1)], ids=str)
def test_a_derivative_is_right_or_refused(norm, seed: int) -> None:
    """On data of few different numbers, where optima are seldom unique, against both one-sided slopes."""
    rng = np.random.default_rng(seed)
    tokens, queries = (torch.tensor(rng.integers(-1, 2, shape) + 0.5) for shape in ((2, 3, 2), (2, 2)))
    selected = torch.einsum("ntd,de,ne->nt", tokens, torch.tensor(rng.standard_normal((2, 2))), queries).argmax(-1)
    move = torch.tensor(rng.standard_normal(tokens.shape))
    tokens.requires_grad_()
    try:
        value = max_margin(tokens, queries, selected, norm)
    except UnsolvedError:
        return
    try:
        value.backward()
    except ValueError as error:
        assert "no derivative" in str(error)  # noqa: PT017
        return
    with torch.no_grad():
        sides = [(max_margin(tokens + h * move, queries, selected, norm) - value) / h for h in (1e-6, -1e-6)]
    # Margins known to 1e-11 over 1e-6 leave 1e-5.
    assert float((tokens.grad * move).sum()) == pytest.approx(float(sides[0]), abs=1e-4)
    assert float((tokens.grad * move).sum()) == pytest.approx(float(sides[1]), abs=1e-4)


@pytest.mark.parametrize("norm", [norms.Sum(1, "max"), norms.Largest("spectral", 1)], ids=str)
def test_the_split_that_W_determines_bounds_what_a_worse_split_leaves_open(norm: norms.Norm) -> None:
    """The bound is that of any multiple of the multipliers; a gap of 1e-3 is too far from the optimum."""
    solution = solve(SelectionProblem([[[0.0, 0.0], [-2.0, -0.5]]], [[3.0]], [0]), norm, tol=1e-12)
    certified = solution.certified
    best = 1 / (3 * norm.dual(np.array([[2.0], [0.5]])))
    for missing, status in ((1e-7, Status.OPTIMAL), (1e-3, Status.UNDECIDED)):
        worse = replace(certified, dual=2 * certified.dual, lower_bound=(1 - missing) * best)
        checked = _check_accuracy(replace(solution, status=Status.UNDECIDED, certified=worse), 1e-9)
        assert checked.status is status
        lower = best if status is Status.OPTIMAL else worse.lower_bound
        assert checked.certified.lower_bound == pytest.approx(lower, rel=2e-9)  # a split of dual norms


def test_dependent_constraints_without_multipliers() -> None:
    # w = (1, 0) has margin one on all three, and 2 (1, 0) = (1, 1) + (1, -1) has other multipliers too.
    tokens, queries, selected = single([[1.0, 0.0], [1.0, 1.0], [1.0, -1.0]])
    with pytest.raises(ValueError, match="multipliers of the 3 constraints"):
        max_margin(tokens, queries, selected).backward()
    # No nonnegative combination of (1, 1) and (1, 2) is a multiple of (1, 0): only the first has a multiplier, one.
    tokens, queries, selected = single([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    max_margin(tokens, queries, selected).backward()
    assert tokens.grad[0].tolist() == [[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("norm", "delta", "slope"),
    [
        # The largest margin of a difference is its dual norm, times |z|: differentiable where that norm is.
        ("max", [1.0, 0.0], None),
        ("max", [1.0, 0.5], [1.0, 1.0]),
        (1.0, [1.0, 1.0], None),
        (1.0, [1.0, 0.5], [1.0, 0.0]),
        (1.5, [1.0, 0.0], [1.0, 0.0]),
        # The dual ball of the sum is the octagon of the square and the diamond, so that the dual norm of (x, y) is the
        # largest of x/2, y/2 and (x + y)/3.
        (norms.Sum(1, "max"), [2.0, 1.0], None),
        (norms.Sum(1, "max"), [2.0, 0.5], [0.5, 0.0]),
        (norms.Sum(1, "max"), [2.0, 0.0], [0.5, 0.0]),
        (norms.Sum(1, "max"), [1.0, 1.0], [1 / 3, 1 / 3]),
        # The square cuts the corners of the diamond off, and leaves those at (2/3, 1/3): (2x + y)/3 for x > y > 0.
        (CUT_DIAMOND, [1.0, 0.5], [2 / 3, 1 / 3]),
        (CUT_DIAMOND, [1.0, 1.0], None),
        (CUT_DIAMOND, [1.0, 0.0], None),
    ],
)
def test_norms_with_corners(norm, delta: list[float], slope: list[float] | None) -> None:
    tokens, queries, selected = single([delta])
    value = max_margin(tokens, queries, selected, norm)
    if slope is None:
        with pytest.raises(ValueError, match="is not unique where it meets the data"):
            value.backward()
    else:
        value.backward()
        # Entries of the multipliers' dual direction are known to 1e-8 (see FINEST).
        assert tokens.grad[0, 0].tolist() == pytest.approx(slope, abs=1e-8)
    # In the query alone it is |delta|_* |z|, which has a derivative at every delta.
    queries.requires_grad_()
    max_margin(tokens.detach(), queries, selected, norm).backward()
    assert queries.grad.item() == pytest.approx(float(get_norm(norm).dual(np.array([delta]).T)), rel=1e-8)


def test_spectral_and_nuclear_corners() -> None:
    # Two orthogonal differences, a = 2 and b = 3 long, asked for by orthogonal queries. Nuclear: [[1/2, h], [h, 1/3]]
    # has the norm of h = 0 as long as it is positive semidefinite. Spectral: only the shorter one counts.
    tokens = torch.zeros(2, 2, 2).double()
    tokens[0, 1, 0], tokens[1, 1, 1] = -2.0, -3.0
    tokens.requires_grad_()
    queries, selected = torch.eye(2).double(), torch.tensor([0, 0])
    value = max_margin(tokens, queries, selected, "nuclear")
    assert value.item() == pytest.approx(1.2, rel=1e-12)  # 1 / (1/a + 1/b)
    with pytest.raises(ValueError, match="is not unique where it meets the data"):
        value.backward()
    value = max_margin(tokens, queries, selected, "spectral")
    value.backward()
    assert value.item() == pytest.approx(2.0, rel=1e-12)
    assert tokens.grad[0, 1].tolist() == pytest.approx([-1.0, 0.0], abs=1e-8)
    assert not tokens.grad[1].abs().max() > 1e-8


def test_unsolvable_and_other_norms_are_refused() -> None:
    tokens, queries, selected = single([[0.0, 0.0]])
    with pytest.raises(UnsolvedError):
        max_margin(tokens, queries, selected)
    tokens, queries, selected = single([[1.0, 2.0]])
    with pytest.raises(ValueError, match=r"one of attsvm\.norms was expected"):
        max_margin(tokens, queries, selected, LargestEntries(2)).backward()
    soft = solve(SelectionProblem(tokens.detach().numpy(), queries.numpy(), [0]), C=1.0)
    with pytest.raises(ValueError, match="hard margin"):
        soft.influence()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": torch.zeros(2, 3)}, "^tokens has torch.float32"),
        ({"tokens": np.zeros((1, 2, 3))}, "^tokens has type ndarray"),
        ({"queries": torch.zeros(3, 2)}, "^queries has shape"),
        ({"selected": torch.tensor([5, 0])}, "^selected has shape"),
        ({"selected": torch.tensor([0.0, 1.0])}, "^selected has shape"),
        ({"selected": torch.ones(2, 3, dtype=torch.bool)}, "leaves no visible token"),
        ({"mask": torch.ones(2, 3)}, "booleans"),
    ],
)
def test_bad_input_is_named(change: dict, message: str) -> None:
    inputs = {"tokens": torch.ones(2, 3, 4), "queries": torch.ones(2, 5), "selected": torch.tensor([0, 1])} | change
    with pytest.raises(ValueError, match=message):
        max_margin(**inputs)
    with pytest.raises(ValueError, match=message):
        margin(**inputs, W=torch.ones(4, 5))


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "spectral", "max", 1.5])
def test_margin_of_a_given_matrix(norm) -> None:
    tokens, queries, selected = planted((2, 3, 4, 3, 2), 8)
    W = torch.randn(2, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    tokens.requires_grad_()
    values = margin(tokens, queries, selected, W, norm)
    for index, value in enumerate(values):
        problem = SelectionProblem(tokens.detach()[index], queries[index], selected[index])
        gaps = problem.apply(W.detach()[index].numpy())
        expected = gaps[problem.rejected].min() / get_norm(norm).value(W.detach()[index].numpy())
        assert value.item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda x, w: margin(x, queries, selected, w, norm), (tokens, W))
    best = max_margin(tokens, queries, selected, norm)
    assert (values < best).all()
    solutions = [
        solve(SelectionProblem(x, z, s), norm) for x, z, s in zip(tokens.detach(), queries, selected, strict=True)
    ]
    margins = margin(tokens, queries, selected, torch.stack([solution.W for solution in solutions]), norm)
    torch.testing.assert_close(margins, best, rtol=1e-9, atol=0)  # solve's gap


@pytest.mark.parametrize("norm", [*NORMS, norms.Sum("nuclear", 1), norms.Largest("max", norms.KyFan(2))], ids=str)
def test_margin_of_a_given_matrix_in_every_norm(norm) -> None:
    tokens, queries, selected = planted((3, 4, 3, 3), 8)
    W = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    value = margin(tokens, queries, selected, W, norm).item()
    frobenius = margin(tokens, queries, selected, W).item()
    lengths = [get_norm(norm).value(W.detach().numpy()), get_norm("frobenius").value(W.detach().numpy())]
    assert value == pytest.approx(frobenius * lengths[1] / lengths[0], rel=1e-12)
    assert torch.autograd.gradcheck(lambda w: margin(tokens, queries, selected, w, norm), W)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_the_norms_of_a_stack_are_those_of_its_matrices(norm) -> None:
    norm, stack = get_norm(norm), np.random.default_rng(3).standard_normal((4, 3, 3))
    values = norm.of_tensor(torch.tensor(stack))
    assert values.tolist() == pytest.approx([norm.value(W) for W in stack], rel=1e-12)


class DoubleNorm(norms.Norm):
    """Twice the Frobenius norm: a norm of one's own, in one class."""

    name, smooth = "doubled", True

    def value(self, M: np.ndarray) -> float:
        return 2.0 * float(np.linalg.norm(M))

    def dual(self, M: np.ndarray) -> float:
        return 0.5 * float(np.linalg.norm(M))

    def smoothing(self, V: np.ndarray, mu: float) -> norms.Smooth:
        smooth = get_norm("frobenius").smoothing(V, mu)
        return norms.Smooth(2.0 * smooth.value, 2.0 * smooth.gradient, 2.0 * smooth.hessian)

    def of_tensor(self, W: torch.Tensor) -> torch.Tensor:
        return 2.0 * W.square().sum((-2, -1)).sqrt()


def test_a_norm_of_ones_own_brings_its_form_in_torch() -> None:
    tokens, queries, selected = planted((3, 4, 3, 3), 8)
    W = torch.ones(3, 3, dtype=torch.float64)
    half = margin(tokens, queries, selected, W, DoubleNorm()).item()
    assert half == pytest.approx(0.5 * margin(tokens, queries, selected, W).item(), rel=1e-12)
    best, plain = (max_margin(tokens, queries, selected, norm) for norm in (DoubleNorm(), "frobenius"))
    assert best.item() == pytest.approx(0.5 * plain.item(), rel=1e-8)  # both gaps


def test_margin_counts_the_lowest_of_several_selected_tokens() -> None:
    tokens = torch.tensor([[[4.0], [3.0], [1.0]]])
    choice = torch.tensor([[True, True, False]])
    assert margin(tokens, torch.ones(1, 1), choice, torch.tensor([[2.0]])).item() == 2.0


def test_influence_is_a_table_of_the_gradient() -> None:
    tokens, queries, selected = planted((3, 4, 5, 4), 9)
    tokens.requires_grad_()
    queries.requires_grad_()
    max_margin(tokens, queries, selected, "nuclear").backward()
    solution = solve(SelectionProblem(tokens.detach(), queries.detach(), selected), "nuclear", tol=1e-12)
    table = solution.influence()
    torch.testing.assert_close(table.tokens, tokens.grad, rtol=1e-7, atol=1e-9)  # two solves
    assert len(table) == len(table.rows) == 3 * 4 + 3
    for row in table:
        gradient = queries.grad[row.sequence] if row.position is None else tokens.grad[row.sequence, row.position]
        assert row.influence == pytest.approx(float(gradient.norm()), rel=1e-7, abs=1e-9)
    assert sum(row.multiplier for row in table if row.kind == "token") == pytest.approx(1)
    assert [row.influence for row in table] == sorted((row.influence for row in table), reverse=True)
    lines = str(table).splitlines()
    assert lines[0] == f"Influence: largest margin {1 / solution.objective:.6g} in the nuclear norm"
    assert lines[-1] == "  ... 3 more"


def test_tokens_that_queries_share_add_up() -> None:
    X = np.random.default_rng(0).standard_normal((6, 3))
    problem = SelectionProblem.from_classes(X, [0, 1, 2, 0, 1, 2])
    solution = solve(problem, tol=1e-12)
    if not np.isfinite(solution.objective):
        pytest.fail("the problem was meant to be separable")
    gradient = solution.influence().tokens
    move = np.random.default_rng(1).standard_normal((1, 3, 3))

    def along(step: float) -> float:
        shift = SelectionProblem(np.eye(3) + step * move, X, problem.selected, sequence=np.zeros(6, dtype=int))
        return 1.0 / solve(shift, tol=1e-12).objective

    assert float((gradient * move).sum()) == pytest.approx(difference(along), rel=1e-8)  # as above


def test_faces_of_the_balls() -> None:
    G = np.array([[2.0, -2.0, 0.0], [1.0, 2.0, 0.0]])
    l_1, largest = get_norm(1.0), get_norm("max")
    assert l_1.face(G, 1e-9).shape == (2, 6)
    np.testing.assert_allclose(l_1.face(G, 1e-9) @ G.ravel(), 0, atol=1e-15)
    np.testing.assert_array_equal(largest.face(G, 1e-9), np.eye(6)[[2, 5]])
    np.testing.assert_array_equal(l_1.face(G, 1e-9, dual=True), np.eye(6)[[2, 5]])
    D = np.diag([3.0, 3.0, 0.0])
    # Symmetric matrices (2, 2) without trace; one left and one right singular vector of zero.
    assert get_norm("nuclear").face(D, 1e-9).shape == (2, 9)
    assert np.abs(get_norm("spectral").face(D, 1e-9)).tolist() == [[0.0] * 8 + [1.0]]
    assert get_norm(1.5).face(D, 1e-9).shape == (0, 9)


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize(
    ("norm", "same"),
    [
        (norms.KyFan(3), "nuclear"),
        (norms.Mixed(1, 1), 1.0),
        (norms.Mixed(np.inf, np.inf, "columns"), "max"),
        (norms.Weighted(np.ones((3, 3)), 1), 1.0),
        (norms.Weighted(np.full((3, 3), 2.0), np.inf), "max"),
        (norms.Mahalanobis(np.eye(3), base="nuclear"), "nuclear"),
        (norms.Mahalanobis(4 * np.eye(3), np.eye(3), "spectral"), "spectral"),
    ],
    ids=str,
)
def test_faces_of_one_norm_under_two_names(norm, same, dual: bool) -> None:
    for G in (np.diag([3.0, 3.0, 0.0]), np.array([[2.0, -2.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]])):
        expected = get_norm(same).face(G, 1e-9, dual=dual)
        for one in (norm, get_norm(norm)):
            moves = one.face(G, 1e-9, dual=dual)
            np.testing.assert_allclose(moves.T @ moves, expected.T @ expected, atol=1e-14)


def test_faces_of_ky_fan_and_mixed_balls() -> None:
    # The larger of the spectral norm and half the nuclear one: the first, the second, and both. Where both are largest
    # at diag(2, 2, 0), the step from one face to the other is symmetric without trace as well.
    assert norms.KyFan(2).face(np.diag([3.0, 1.0, 1.0]), 1e-9).shape == (0, 9)
    assert norms.KyFan(2).face(np.diag([2.0, 2.0, 1.0]), 1e-9).shape == (0, 9)
    assert norms.KyFan(2).face(np.diag([2.0, 1.0, 1.0]), 1e-9).shape == (1, 9)
    assert norms.KyFan(2).face(np.diag([2.0, 2.0, 0.0]), 1e-9).shape == (2 + 1, 9)
    # One of two equal singular values fits among the first two, or both, or the second one is zero.
    assert norms.KyFan(2).face(np.diag([3.0, 1.0, 1.0]), 1e-9, dual=True).shape == (2, 9)
    assert norms.KyFan(2).face(np.diag([1.0, 1.0, 0.5]), 1e-9, dual=True).shape == (0, 9)
    assert norms.KyFan(2).face(np.diag([1.0, 0.0, 0.0]), 1e-9, dual=True).shape == (4, 9)
    # Two rows of length five and a zero row: how the first two share, and what the third does where rows are bounded.
    G = np.array([[3.0, 4.0], [-5.0, 0.0], [0.0, 0.0]])
    assert norms.Mixed(2, 1).face(G, 1e-9).shape == (1, 6)
    assert norms.Mixed(2, np.inf).face(G, 1e-9).shape == (2, 6)
    assert norms.Mixed(1, 2).face(np.array([[1.0, -1.0], [2.0, 1.0]]), 1e-9).shape == (1, 4)
    # A row of the l_3 ball is a point, also where two of its entries are largest.
    assert norms.Mixed(3, np.inf).face(np.array([[1.0, 1.0], [0.0, 0.0]]), 1e-9).shape == (2, 4)


def test_singular_values_at_the_tolerance_are_within_it() -> None:
    G = np.diag([2.0, 1.0, 0.0])
    # One is within half of the largest, and of zero: symmetric matrices (2, 2) without trace; all of the lower (2, 2).
    assert get_norm("nuclear").face(G, 0.5).shape == (2, 9)
    for norm, dual in ((get_norm("spectral"), False), (norms.KyFan(2), True)):
        moves = norm.face(G, 0.5, dual=dual)
        np.testing.assert_allclose(moves.T @ moves, np.diag([0.0] * 4 + [1.0, 1.0, 0.0, 1.0, 1.0]), atol=1e-15)
    assert get_norm(1.0).face(np.array([[2.0, 1.0]]), 0.5).shape == (1, 2)
    # The spectral norm 2 and half of the nuclear norm 3 agree: a direction of the spectral face, and a step.
    assert norms.KyFan(2).face(G, 0.25).shape == (1 + 1, 9)


@pytest.mark.parametrize("scale", [1e-10, 1e10])
@pytest.mark.parametrize(
    "norm", ["max", "nuclear", "spectral", norms.KyFan(2), norms.Mixed(2, 1), norms.Mixed(2, np.inf)], ids=str
)
def test_faces_do_not_depend_on_the_size(norm, scale: float) -> None:
    norm, G = get_norm(norm), np.array([[3.0, 4.0, 0.0], [5.0, 0.0, 0.0], [1e-11, 0.0, 0.0]])
    for dual in (False, True):
        moves, scaled = (norm.face(one, 1e-9, dual=dual) for one in (G, scale * G))
        np.testing.assert_allclose(moves.T @ moves, scaled.T @ scaled, atol=1e-9)


@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_a_mixed_norm_is_smooth_if_both_exponents_are_neither_one_nor_infinite(axis: str) -> None:
    smooth = {(p, q) for p in (1, 1.5, 3, np.inf) for q in (1, 1.5, 3, np.inf) if norms.Mixed(p, q, axis).smooth}
    assert smooth == {(1.5, 1.5), (1.5, 3), (3, 1.5), (3, 3)}


def test_rows_of_unequal_shape_share_their_length() -> None:
    """The face joins each row's point of the l_3 ball, where its product with G is the row's l_1.5 norm."""
    root = 2.0**0.5
    height = (1.0 + 2.0**1.5) ** (2 / 3)
    G = np.array([[1.0, 2.0], [height, 0.0]])
    first, second = np.array([1.0, root, 0.0, 0.0]) / (1.0 + 2.0**1.5) ** (1 / 3), np.array([0.0, 0.0, 1.0, 0.0])
    step = (second - first) / np.linalg.norm(second - first)
    np.testing.assert_allclose(abs(norms.Mixed(3, 1).face(G, 1e-9) @ step), [1.0], rtol=1e-12)


@pytest.mark.parametrize("norm", ["nuclear", norms.KyFan(2), norms.Mixed(2, 1), norms.Mixed(np.inf, 1, "columns")])
def test_face_directions_stay_in_the_face(norm) -> None:
    """Steps of either sign from the middle of a face keep the norm at one and the product with G."""
    norm = get_norm(norm)
    G = np.diag([2.0, 2.0, 0.0])
    moves = norm.face(G, 1e-9)
    middle = np.diag([0.5, 0.5, 0.0])
    assert norm.value(middle) == pytest.approx(1.0)
    assert float((G * middle).sum()) == pytest.approx(norm.dual(G))
    for move in moves:
        for step in (-0.1, 0.1):
            point = middle + step * move.reshape(3, 3)
            assert norm.value(point) == pytest.approx(1.0, rel=1e-12)
            assert float((G * point).sum()) == pytest.approx(norm.dual(G), rel=1e-12)


def test_faces_of_sums_and_of_the_larger_of_two() -> None:
    D = np.diag([2.0, 2.0, 0.0])
    # One part smooth: a point. The dual ball of a sum has the directions of both; that of the larger of two those of
    # the larger one, and where they agree the step from one gradient to the other, if these differ.
    assert norms.Sum("frobenius", "nuclear").face(D, 1e-9, point=D).shape == (0, 9)
    assert norms.Sum("frobenius", "nuclear").face(D, 1e-9, dual=True).shape == (1, 9)
    assert norms.Sum("spectral", "nuclear").face(D, 1e-9, dual=True).shape == (2 + 1, 9)
    assert norms.Largest("frobenius", 3).face(D, 1e-9, point=D).shape == (0, 9)
    assert norms.Largest("frobenius", 3).face(D, 1e-9, dual=True).shape == (0, 9)
    corner = np.array([[1.0, 0.0], [0.0, 0.0]])
    assert norms.Largest("frobenius", 3).face(corner, 1e-9, dual=True).shape == (0, 4)
    weighted = norms.Weighted(np.array([[1.0, 2.0], [1.0, 1.0]]), 2)
    even = np.array([[1.0, 0.0], [1.0, 1.0]])
    assert norms.Largest("frobenius", weighted).face(even, 1e-9, dual=True).shape == (0, 4)
    odd = np.array([[1.0, 1.0], [1.0, 1.0]]) / np.array([[1.0, 2.0], [1.0, 1.0]])
    factor = np.linalg.norm(odd) / weighted.value(odd)
    same = norms.Weighted(factor * weighted.weights, 2)
    assert norms.Largest("frobenius", same).face(odd, 1e-9, dual=True).shape == (1, 4)


@pytest.mark.parametrize("scale", [1e-10, 1.0, 1e10])
def test_the_dual_face_of_the_larger_of_two_is_that_of_the_larger_one(scale: float) -> None:
    """The l_1 norm of three entries of one size exceeds their length."""
    G = scale * np.array([[1.0, -1.0], [1.0, 0.0]])
    for norm in (norms.Largest(1, "frobenius"), norms.Largest("frobenius", 1)):
        np.testing.assert_allclose(abs(norm.face(G, 1e-9, dual=True)), np.eye(4)[3:], atol=1e-15)


@pytest.mark.parametrize(
    ("G", "point"),
    [
        (np.diag([3.0, 1.0, 1.0]), np.diag([1.0, 0.5, 0.5])),
        (np.diag([1.0, 1.0, 0.5]), np.diag([1.0, 1.0, 0.0])),
        (np.diag([1.0, 0.0, 0.0]), np.diag([1.0, 0.3, 0.2])),
        (np.diag([1.0, 1.0, 1.0]), np.diag([0.7, 0.6, 0.7])),
    ],
    ids=str,
)
def test_faces_of_the_larger_of_two_under_another_name(G: np.ndarray, point: np.ndarray) -> None:
    # The dual of a Ky Fan norm is the larger of the spectral norm and half of the nuclear one.
    pair = norms.Largest("spectral", norms.Mahalanobis(np.eye(3) / 4, base="nuclear"))
    spans = [
        pair.face(G, 1e-7, point=point),
        norms.KyFan(2).face(G, 1e-7, dual=True),
    ]
    np.testing.assert_allclose(spans[0].T @ spans[0], spans[1].T @ spans[1], atol=1e-5)  # the split's error


def test_faces_of_a_sum_of_norms_of_singular_values() -> None:
    # For t in [0, 1] the sum of nuclear and spectral norm of diag(1, 1, t) is 3 + t, and so is the product with G.
    both = norms.Sum("nuclear", "spectral")
    G = np.diag([1.5, 1.5, 1.0])
    moves = both.face(G, 1e-7, point=np.diag([1.0, 1.0, 0.5]))
    # The points of norm one are diag(1, 1, t) / (3 + t).
    expected = (np.eye(3) / 4 - np.diag([1.0, 1.0, 0.0]) / 3).ravel()
    np.testing.assert_allclose(abs(moves @ expected), [np.linalg.norm(expected)], rtol=1e-9)
    # With a third singular value below one nothing of it may appear.
    assert both.face(np.diag([1.5, 1.5, 0.5]), 1e-7, point=np.diag([1.0, 1.0, 0.0])).shape == (0, 9)


def test_a_point_of_the_face_corrects_a_rough_split(monkeypatch: pytest.MonkeyPatch) -> None:
    # The gradients are the identity of the nuclear norm and diag(0.7, 0.3, 0) of the spectral norm.
    both, G, point = norms.Sum("nuclear", "spectral"), np.diag([1.7, 1.3, 1.0]), np.diag([1.0, 1.0, 0.5])
    expected = both.face(G, 1e-7, point=point)
    assert expected.shape == (1, 9)
    monkeypatch.setattr(both, "split", lambda M, slack: (M, np.zeros(M.shape)))
    moves = both.face(G, 1e-7, point=point)
    np.testing.assert_allclose(moves.T @ moves, expected.T @ expected, atol=1e-9)


def test_a_split_on_a_face_is_measured_from_the_gradients_of_both_norms() -> None:
    """Up to the tolerance both entries of V are largest, but each norm's gradient has one."""
    both = norms.Sum("max", norms.Weighted([[1.0, 1.0 + 1e-8]], np.inf))
    G, V = np.array([[1.2, 0.8]]), np.array([[1.0, 1.0 - 1e-9]])
    assert both.dual_on_face(G, V, 1e-6) == pytest.approx(both.dual(G), rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("norm", "caps"),
    [(norms.Sum(1, "max"), None), (norms.Largest(1, norms.Weighted(np.full((2, 2), 2.5), np.inf)), 2.5)],
    ids=str,
)
def test_faces_of_polyhedral_pairs_are_those_of_linear_programs(norm, caps: float | None, seed: int) -> None:
    """Against the points of the face that linear programs find for random objectives."""
    rng = np.random.default_rng(seed)
    # A sum of vertices of the dual ball's parts exposes a face of some dimension.
    signs = rng.choice([-1.0, 1.0], 4) * (rng.random(4) < 0.7 if caps is None else 1.0)
    corner = np.zeros(4)
    corner[0] = 1.0
    G = signs + corner * (signs[0] or 1.0) if caps is None else 0.5 * signs + 0.5 * caps * corner * signs[0]
    # Variables v, u >= |v|, m >= u: sum(u) + m <= 1, or sum(u) <= 1 and caps m <= 1.
    eye, zero = np.eye(4), np.zeros((4, 1))
    above = [
        np.hstack([eye, -eye, zero]),
        np.hstack([-eye, -eye, zero]),
        np.hstack([np.zeros((4, 4)), eye, -np.ones((4, 1))]),
    ]
    ones, none = np.ones(4), np.zeros(4)
    balls = [[*none, *ones, 1.0]] if caps is None else [[*none, *ones, 0.0], [*none, *none, caps]]
    rows, bounds = np.vstack([*above, balls]), np.concatenate([np.zeros(12), np.ones(len(balls))])
    free = (None, None)
    top = -linprog([*-G, *none, 0.0], A_ub=rows, b_ub=bounds, bounds=free).fun
    points = np.array([
        linprog(
            [*rng.standard_normal(4), *none, 0.0],
            A_ub=rows, b_ub=bounds, A_eq=[[*G, *none, 0.0]], b_eq=[top], bounds=free,
        ).x[:4]
        for _ in range(12)
    ])  # fmt: skip
    middle = points.mean(axis=0)
    assert norm.dual_on_face(G.reshape(2, 2), middle.reshape(2, 2), 1e-7) == pytest.approx(top, rel=1e-9)
    _, sigma, basis = np.linalg.svd(points - middle)
    expected = basis[: np.count_nonzero(sigma > 1e-6)]
    moves = norm.face(G.reshape(2, 2), 1e-7, point=middle.reshape(2, 2))
    np.testing.assert_allclose(moves.T @ moves, expected.T @ expected, atol=1e-5)  # the split's error


@pytest.mark.slow
def test_functional_does_not_load_the_solvers() -> None:
    code = "import sys, attsvm.functional; sys.exit(any(name.startswith('attsvm.solvers') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
