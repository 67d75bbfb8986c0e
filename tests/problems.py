"""Named selection problems whose answers are derived by hand, and seeded families of random ones.

Notation: delta_t is the selected token less token t, w = W z for a single query direction. Two facts do most of the
work:

* *simplex*: with orthonormal tokens e_1..e_T, k of them selected and m = T - k rejected, the smallest w with equal
  scores on the selected tokens and margin one to the rejected ones is m/T on the selected and -k/T on the rejected
  coordinates, since it minimises k a^2 + m b^2 under a + b = 1; |w|^2 = k m / T.
* *one direction*: when all queries are multiples of one z, W = w z^T/|z|^2 has rank one, so its nuclear norm is its
  Frobenius norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm import SelectionProblem


@dataclass(frozen=True, eq=False)
class Named:
    """A problem and what is known of it.

    ``frobenius`` and ``nuclear`` are the smallest norms (None: not known in closed form), ``W`` the Frobenius solution.
    """

    problem: SelectionProblem
    feasible: bool = True
    frobenius: float | None = None
    nuclear: float | None = None
    W: np.ndarray | None = None


NAMED: dict[str, Callable[[], Named]] = {}


def named(make: Callable[[], Named]) -> Callable[[], Named]:
    NAMED[make.__name__] = make
    return make


def single(deltas: Any, query: Any = (1.0,), **options: Any) -> SelectionProblem:
    """One query that selects the origin among tokens at ``-deltas``, so that the differences are exactly ``deltas``."""
    tokens = np.vstack([np.zeros((1, np.shape(deltas)[1])), -np.asarray(deltas, dtype=float)])
    return SelectionProblem(tokens[None], np.asarray(query, dtype=float)[None], [0], **options)


# --- feasible, answers in closed form ---


@named
def counterexample() -> Named:
    """arXiv 2308.16898 v1, theorems 4 and 5 fail here: w_1 >= 1 and w_2 >= 1 + 2 w_1, both tight: W e_1 = (1, 3).

    The multipliers are (7, 3): 7 (1, 0) + 3 (-2, 1) = (1, 3).
    """
    tokens = np.array([[[1.0, 0.0], [0.0, 0.0]], [[-2.0, 1.0], [0.0, 0.0]]])
    W = np.array([[1.0, 0.0], [3.0, 0.0]])
    problem = SelectionProblem(tokens, np.array([[1.0, 0.0], [1.0, 0.0]]), [0, 0])
    return Named(problem, frobenius=np.sqrt(10), nuclear=np.sqrt(10), W=W)


@named
def one_constraint() -> Named:
    """n = 1, T = 2: W = delta z^T / (|delta|^2 |z|^2), here 2 x 3; |delta| = 5 and |z| = 2 give norm 1/10."""
    W = np.outer([3.0, 4.0], [0.0, 2.0, 0.0]) / 100
    return Named(single([[3.0, 4.0]], (0.0, 2.0, 0.0)), frobenius=0.1, nuclear=0.1, W=W)


@named
def one_token() -> Named:
    """T = 1: nothing is rejected, so W = 0."""
    problem = SelectionProblem(np.ones((3, 1, 2)), np.ones((3, 2)), [0, 0, 0])
    return Named(problem, frobenius=0.0, nuclear=0.0, W=np.zeros((2, 2)))


@named
def mask_leaves_one_token() -> Named:
    """Every rejected token is hidden, a duplicate of the selected one among them: W = 0."""
    tokens = np.array([[[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]]])
    problem = SelectionProblem(tokens, np.ones((1, 2)), [0], mask=np.array([[True, False, False]]))
    return Named(problem, frobenius=0.0, nuclear=0.0, W=np.zeros((2, 2)))


@named
def mask_hides_a_duplicate() -> Named:
    """The duplicate of the selected token is hidden; what is left is one constraint with |delta| = 1, |z| = 2."""
    tokens = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]])
    problem = SelectionProblem(tokens, np.array([[2.0, 0.0]]), [0], mask=np.array([[True, False, True]]))
    return Named(problem, frobenius=0.5, nuclear=0.5, W=np.array([[0.5, 0.0], [0.0, 0.0]]))


@named
def everything_selected() -> Named:
    """All tokens tie and none is rejected: W = 0 satisfies the equalities."""
    problem = SelectionProblem(np.eye(3)[None], np.ones((1, 2)), np.ones((1, 3), dtype=bool))
    return Named(problem, frobenius=0.0, nuclear=0.0, W=np.zeros((3, 2)))


@named
def one_dimension() -> Named:
    """d = dz = 1: w times 2, 4 and 1/2 must reach one, so w = 2."""
    problem = SelectionProblem(
        np.array([[[2.0], [0.0], [-2.0]], [[0.25], [0.0], [0.0]]]), np.array([[1.0], [2.0]]), [0, 0]
    )
    return Named(problem, frobenius=2.0, nuclear=2.0, W=np.array([[2.0]]))


@named
def one_dimension_negative() -> Named:
    """d = 1 where the smaller token wins: w = -1/3."""
    problem = SelectionProblem(np.array([[[1.0], [4.0]]]), np.array([[1.0]]), [0])
    return Named(problem, frobenius=1 / 3, nuclear=1 / 3, W=np.array([[-1 / 3]]))


@named
def simplex() -> Named:
    """One of five orthonormal tokens: |w|^2 = 4/5."""
    w = np.array([0.8, -0.2, -0.2, -0.2, -0.2])[:, None]
    problem = SelectionProblem(np.eye(5)[None], np.ones((1, 1)), [0])
    return Named(problem, frobenius=np.sqrt(0.8), nuclear=np.sqrt(0.8), W=w)


@named
def simplex_far_from_the_origin() -> Named:
    """A common offset of 1024 leaves every difference, hence the answer, as it was (the sums are exact)."""
    w = np.array([0.8, -0.2, -0.2, -0.2, -0.2])[:, None]
    problem = SelectionProblem(np.eye(5)[None] + 1024.0, np.ones((1, 1)), [0])
    return Named(problem, frobenius=np.sqrt(0.8), nuclear=np.sqrt(0.8), W=w)


@named
def duplicate_rejected_token() -> Named:
    """The simplex of five with one rejected token present three times: the same constraints, the same answer."""
    tokens = np.eye(5)[[0, 1, 1, 1, 2, 3, 4]]
    w = np.array([0.8, -0.2, -0.2, -0.2, -0.2])[:, None]
    return Named(
        SelectionProblem(tokens[None], np.ones((1, 1)), [0]), frobenius=np.sqrt(0.8), nuclear=np.sqrt(0.8), W=w
    )


@named
def repeated_queries() -> Named:
    """The same query and selection four times: four times the constraints (a singular Gram matrix), the same answer."""
    problem = SelectionProblem(np.eye(3)[None], np.ones((4, 1)), [0] * 4, sequence=[0] * 4)
    w = np.array([2.0, -1.0, -1.0])[:, None] / 3
    return Named(problem, frobenius=np.sqrt(2 / 3), nuclear=np.sqrt(2 / 3), W=w)


@named
def permutation() -> Named:
    """n = T = d = 6, shared tokens e_t, query e_i selects token i: W = I - J/6, a projection of rank 5.

    Column i is a simplex, so |W|_F^2 = 6 * 5/6. Equal multipliers 1/6 give A^T lam = I - J/6 of spectral norm one, and
    their sum 30/6 = 5 is the nuclear norm of W: optimal for both norms.
    """
    return _permutation(6)


@named
def large_permutation() -> Named:
    """The same with n = T = d = 24 (552 constraints): norms sqrt(23) and 23."""
    return _permutation(24)


def _permutation(size: int) -> Named:
    problem = SelectionProblem(np.eye(size)[None], np.eye(size), np.arange(size), sequence=np.zeros(size, dtype=int))
    W = np.eye(size) - 1 / size
    return Named(problem, frobenius=np.sqrt(size - 1), nuclear=float(size - 1), W=W)


@named
def queries_of_many_lengths() -> Named:
    """The permutation of four, query i of length s_i: the columns decouple, and column i is divided by s_i."""
    s = np.array([1e-3, 1.0, 10.0, 1e3])
    problem = SelectionProblem(np.eye(4)[None], np.diag(s), np.arange(4), sequence=np.zeros(4, dtype=int))
    W = (np.eye(4) - 0.25) / s
    return Named(problem, frobenius=float(np.sqrt(0.75 * (s**-2).sum())), W=W)


@named
def low_rank_pays() -> Named:
    """Orthogonal queries, unit differences 60 degrees apart: Frobenius keeps rank two, nuclear takes rank one.

    Frobenius: W = [delta_1, delta_2], norm sqrt(2). Nuclear: equal multipliers l give A^T lam = l [delta_1, delta_2] of
    spectral norm l sqrt(1 + cos 60), so the bound is 2/sqrt(1.5); the bisector times (1, 1)/cos 30 attains it.
    """
    second = np.array([0.5, np.sqrt(0.75)])
    tokens = np.array([[[1.0, 0.0], [0.0, 0.0]], [second, [0.0, 0.0]]])
    W = np.column_stack([[1.0, 0.0], second])
    return Named(SelectionProblem(tokens, np.eye(2), [0, 0]), frobenius=np.sqrt(2), nuclear=2 / np.sqrt(1.5), W=W)


@named
def every_constraint_tight() -> Named:
    """Differences (1, s), s = -5..5: w = (1, 0) meets all eleven with equality; multipliers are far from unique."""
    deltas = np.column_stack([np.ones(11), np.arange(-5.0, 6.0)])
    return Named(single(deltas), frobenius=1.0, nuclear=1.0, W=np.array([[1.0], [0.0]]))


@named
def one_support_of_many() -> Named:
    """Differences (k, +-j/64) for k >= 1: only (1, 0) is tight, the hundred others lie beyond it."""
    far = [(k, s * j / 64) for k in range(2, 12) for j in range(1, 6) for s in (-1, 1)]
    return Named(single([(1.0, 0.0), *far]), frobenius=1.0, nuclear=1.0, W=np.array([[1.0], [0.0]]))


@named
def several_selected() -> Named:
    """Two of five orthonormal tokens: |w|^2 = 2*3/5."""
    selected = np.array([[True, False, True, False, False]])
    w = np.where(selected[0], 0.6, -0.4)[:, None]
    problem = SelectionProblem(np.eye(5)[None], np.ones((1, 1)), selected)
    return Named(problem, frobenius=np.sqrt(1.2), nuclear=np.sqrt(1.2), W=w)


@named
def several_selected_twins() -> Named:
    """Both copies of a duplicated token are selected: the tie holds by itself, one constraint of length one is left."""
    tokens = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]])
    problem = SelectionProblem(tokens, np.ones((1, 1)), np.array([[True, True, False]]))
    return Named(problem, frobenius=1.0, nuclear=1.0, W=np.array([[1.0], [0.0]]))


@named
def tie_forces_a_detour() -> Named:
    """Selected (0, 0) and (1, 1), rejected (-1, 0): w_1 = -w_2 and w_1 >= 1, so w = (1, -1), not (1, 0)."""
    tokens = np.array([[[0.0, 0.0], [1.0, 1.0], [-1.0, 0.0]]])
    problem = SelectionProblem(tokens, np.ones((1, 1)), np.array([[True, True, False]]))
    return Named(problem, frobenius=np.sqrt(2), nuclear=np.sqrt(2), W=np.array([[1.0], [-1.0]]))


def _tied_below_the_first_axis(rejected: np.ndarray) -> SelectionProblem:
    """Sixty ties of rank six in nine unknowns: differences orthogonal to e_1, queries (1, u) and (1, -u)."""
    u = np.array([(a, b) for a in range(-2, 3) for b in (1, 3)], dtype=float)
    queries = np.column_stack([np.ones(20), np.concatenate([u, -u])])
    tied = np.array([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, -2.0]])
    selected = np.array([True] * 4 + [False])
    return SelectionProblem(np.vstack([tied, -rejected])[None], queries, np.tile(selected, (20, 1)), sequence=[0] * 20)


@named
def ties_outnumber_the_entries() -> Named:
    """All ties of the function above leave W = e_1 w^T, and w (1, u) >= 1, w (1, -u) >= 1 leave w = e_1."""
    W = np.zeros((3, 3))
    W[0, 0] = 1.0
    problem = _tied_below_the_first_axis(np.array([[1.0, 0.5, -0.25]]))
    return Named(problem, frobenius=1.0, nuclear=1.0, W=W)


@named
def causal() -> Named:
    """Self-attention over e_1, e_2, e_3: query 1 is free, query 2 keeps itself, query 3 the first of three.

    The columns decouple: |W|_F^2 = 0 + 1/2 + 2/3.
    """
    problem = SelectionProblem.from_sequences(np.eye(3)[None], np.array([[0, 1, 0]]), causal=True)
    W = np.array([[0, -1 / 2, 2 / 3], [0, 1 / 2, -1 / 3], [0, 0, -1 / 3]])
    return Named(problem, frobenius=np.sqrt(7 / 6), W=W)


@named
def ragged() -> Named:
    """Sequences of two and three orthonormal tokens, orthogonal queries: |W|_F^2 = 1/2 + 2/3."""
    problem = SelectionProblem([np.eye(3)[:2], np.eye(3)], np.eye(2), [0, 2])
    W = np.array([[1 / 2, -1 / 3], [-1 / 2, -1 / 3], [0, 2 / 3]])
    return Named(problem, frobenius=np.sqrt(7 / 6), W=W)


@named
def zero_query_without_constraint() -> Named:
    """The zero query sees one token only and asks for nothing; the other query asks for norm one."""
    tokens = np.array([[[1.0, 0.0], [0.0, 0.0]], [[5.0, 5.0], [0.0, 0.0]]])
    mask = np.array([[True, True], [True, False]])
    problem = SelectionProblem(tokens, np.array([[1.0], [0.0]]), [0, 0], mask=mask)
    return Named(problem, frobenius=1.0, nuclear=1.0, W=np.array([[1.0], [0.0]]))


@named
def tiny_tokens() -> Named:
    """The counterexample with tokens scaled by 1e-6: W grows by 1e6."""
    return _scaled(counterexample(), 1e-6)


@named
def huge_tokens() -> Named:
    """The counterexample with tokens scaled by 1e6: W shrinks by 1e6."""
    return _scaled(counterexample(), 1e6)


def _scaled(instance: Named, factor: float) -> Named:
    problem = SelectionProblem(instance.problem.tokens * factor, instance.problem.queries, instance.problem.selected)
    assert instance.frobenius is not None
    assert instance.nuclear is not None
    assert instance.W is not None
    return Named(
        problem, frobenius=instance.frobenius / factor, nuclear=instance.nuclear / factor, W=instance.W / factor
    )


@named
def near_duplicate() -> Named:
    """A rejected token 1e-4 from the selected one, another across: w >= 1e4 along it, and -w_1 + w_2 >= 1 follows.

    Both are tight: w = (1e4, 1e4 + 1). A threshold on the norm would call this infeasible.
    """
    h = 1e-4
    w = np.array([1 / h, 1 + 1 / h])
    norm = float(np.linalg.norm(w))
    return Named(single([[h, 0.0], [-1.0, 1.0]]), frobenius=norm, nuclear=norm, W=w[:, None])


@named
def almost_between() -> Named:
    """The selected token lies h = 1e-4 off the middle of two others: differences (1, h), (-1, h), so w = (0, 1/h)."""
    return Named(single([[1.0, 1e-4], [-1.0, 1e-4]]), frobenius=1e4, nuclear=1e4, W=np.array([[0.0], [1e4]]))


@named
def very_nearly_between() -> Named:
    """The same with h = 2^-26, about 1.5e-8: norm 2^26, still far above what rounding blurs."""
    h = 2.0**-26
    return Named(single([[1.0, h], [-1.0, h]]), frobenius=1 / h, nuclear=1 / h, W=np.array([[0.0], [1 / h]]))


# --- infeasible ---


@named
def duplicate_of_the_selected() -> Named:
    """A rejected copy of the selected token has margin zero under every W."""
    tokens = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    return Named(SelectionProblem(tokens, np.ones((1, 2)), [0]), feasible=False)


@named
def one_duplicate_among_many() -> Named:
    """The permutation of six with a seventh token that repeats the first: only query 1 is contradicted."""
    tokens = np.eye(6)[[0, 1, 2, 3, 4, 5, 0]]
    return Named(
        SelectionProblem(tokens[None], np.eye(6), np.arange(6), sequence=np.zeros(6, dtype=int)), feasible=False
    )


@named
def all_tokens_zero() -> Named:
    """Zero tokens are duplicates of one another."""
    return Named(SelectionProblem(np.zeros((1, 3, 2)), np.ones((1, 2)), [1]), feasible=False)


@named
def zero_query() -> Named:
    """A zero query scores every token zero: no margin."""
    tokens = np.array([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]])
    return Named(SelectionProblem(tokens, np.array([[1.0, 0.0], [0.0, 0.0]]), [0, 0]), feasible=False)


@named
def one_dimension_contradiction() -> Named:
    """d = 1: the middle token cannot win."""
    return Named(SelectionProblem(np.array([[[0.0], [1.0], [-1.0]]]), np.ones((1, 1)), [0]), feasible=False)


@named
def inside_the_triangle() -> Named:
    """The selected token is a mean of the rejected ones: multipliers (1, 1, 2) on (2, 1), (0, -3), (-1, 1)."""
    return Named(single([[2.0, 1.0], [0.0, -3.0], [-1.0, 1.0]]), feasible=False)


@named
def midpoint() -> Named:
    """The selected token lies exactly between two rejected ones, on the boundary of their hull."""
    return Named(single([[1.0, 3.0], [-1.0, -3.0], [0.0, 1.0]], (1.0, 2.0)), feasible=False)


@named
def opposite_queries() -> Named:
    """Each query alone is easy; z and -z ask for the same token."""
    tokens = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    problem = SelectionProblem(tokens, np.array([[1.0, 2.0], [-1.0, -2.0]]), [0, 0], sequence=[0, 0])
    return Named(problem, feasible=False)


@named
def dependent_queries() -> Named:
    """z_3 = z_1 + z_2 wants the reverse of what z_1 and z_2 want: the three scores add up to zero."""
    tokens = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    queries = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    return Named(SelectionProblem(tokens, queries, [0, 0, 1], sequence=[0, 0, 0]), feasible=False)


@named
def tie_across_a_rejected_token() -> Named:
    """Tokens 0, 1, 2 on a line, the outer two selected: equal scores there leave no margin in the middle."""
    tokens = np.array([[[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]])
    problem = SelectionProblem(tokens, np.ones((1, 1)), np.array([[True, False, True]]))
    return Named(problem, feasible=False)


@named
def ties_outnumber_the_entries_and_hold_a_rejected_token() -> Named:
    """The rejected token's difference is orthogonal to e_1 too, so that its score follows from the ties."""
    return Named(_tied_below_the_first_axis(np.array([[0.0, 3.0, 1.0]])), feasible=False)


@named
def tie_between_queries() -> Named:
    """Query 1 ties two tokens, query 2 = 3 * query 1 must separate them."""
    tokens = np.array([[[1.0, 0.0], [0.0, 2.0]]])
    selected = np.array([[True, True], [True, False]])
    problem = SelectionProblem(tokens, np.array([[1.0, 1.0], [3.0, 3.0]]), selected, sequence=[0, 0])
    return Named(problem, feasible=False)


@named
def infeasible_with_idle_rows() -> Named:
    """A contradiction in one query among nine satisfiable ones."""
    tokens = np.tile(np.eye(10)[:3], (10, 1, 1))
    tokens[4, 2] = 2 * tokens[4, 0] - tokens[4, 1]
    return Named(SelectionProblem(tokens, np.eye(10), np.zeros(10, dtype=int)), feasible=False)


# --- families of random instances ---


def _sphere(rng: np.random.Generator, *shape: int) -> np.ndarray:
    x = rng.standard_normal(shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _argmax(tokens: np.ndarray, queries: np.ndarray, W: np.ndarray) -> np.ndarray:
    return np.einsum("ntd,de,ne->nt", tokens, W, queries).argmax(axis=1)


def published(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """The published generator: unit vectors, the token with the largest Y v^T x selected. Infeasible at low d."""
    tokens, queries = _sphere(rng, n, T, d), _sphere(rng, n, d)
    sign = rng.choice([-1.0, 1.0], n)
    return SelectionProblem(tokens, queries, (sign[:, None] * (tokens @ _sphere(rng, d))).argmax(axis=1))


def planted(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """A random matrix chooses: always feasible, though its margin may be small."""
    tokens, queries = _sphere(rng, n, T, d), _sphere(rng, n, d)
    return SelectionProblem(tokens, queries, _argmax(tokens, queries, rng.standard_normal((d, d))))


def rectangular(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """Planted, with queries of another dimension."""
    dz = int(rng.integers(1, 2 * d))
    tokens, queries = rng.standard_normal((n, T, d)), rng.standard_normal((n, dz))
    return SelectionProblem(tokens, queries, _argmax(tokens, queries, rng.standard_normal((d, dz))))


def self_attention(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """Queries are the first tokens; random tokens selected."""
    tokens = _sphere(rng, n, T, d)
    return SelectionProblem(tokens, tokens[:, 0], rng.integers(T, size=n))


def masked(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """Random masks; some queries see one token only."""
    tokens, queries = _sphere(rng, n, T, d), _sphere(rng, n, d)
    mask = rng.random((n, T)) < 0.5
    selected = rng.integers(T, size=n)
    mask[np.arange(n), selected] = True
    return SelectionProblem(tokens, queries, selected, mask=mask)


def shared(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """A few sequences read by many queries, planted."""
    sequence = rng.integers(max(1, n // 3), size=n)
    tokens, queries = _sphere(rng, max(1, n // 3), T, d), _sphere(rng, n, d)
    selected = _argmax(tokens[sequence], queries, rng.standard_normal((d, d)))
    return SelectionProblem(tokens, queries, selected, sequence=sequence)


def causal_sequences(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """Causal self-attention with random selections among the tokens seen."""
    tokens = _sphere(rng, max(1, n // T), T, d)
    return SelectionProblem.from_sequences(tokens, rng.integers(np.arange(1, T + 1), size=(len(tokens), T)))


def several(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """One to three tied tokens a query."""
    selected = rng.random((n, T)).argsort(axis=1) < rng.integers(1, min(3, T) + 1, size=(n, 1))
    return SelectionProblem(_sphere(rng, n, T, d), _sphere(rng, n, d), selected)


def correlated(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """Neighbouring tokens are 99 % alike and share a large mean; planted."""
    steps = rng.standard_normal((n, T, d)) * np.where(np.arange(T) == 0, 1.0, 0.14)[:, None]
    tokens, queries = np.cumsum(steps, axis=1) + 3.0, rng.standard_normal((n, d)) * 0.3 + 1.0
    return SelectionProblem(tokens, queries, _argmax(tokens, queries, rng.standard_normal((d, d))))


def integers(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """Coordinates -1, 0, 1: duplicates, zero queries, exact ties and contradictions abound."""
    tokens = rng.integers(-1, 2, size=(n, T, d)).astype(float)
    queries = rng.integers(-1, 2, size=(n, d)).astype(float)
    return SelectionProblem(tokens, queries, rng.integers(T, size=n))


def distinct_integers(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """Coordinates -2..2, planted by an integer matrix, tokens that tie for first place hidden: degenerate, feasible."""
    tokens = rng.integers(-2, 3, size=(n, T, d)).astype(float)
    queries = rng.integers(-2, 3, size=(n, d)).astype(float)
    scores = np.einsum("ntd,de,ne->nt", tokens, rng.integers(-2, 3, size=(d, d)), queries)
    selected = scores.argmax(axis=1)
    mask = scores < scores.max(axis=1, keepdims=True)
    mask[np.arange(n), selected] = True
    return SelectionProblem(tokens, queries, selected, mask=mask)


def subspace(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """Tokens in a plane, queries on a line or in a plane, planted: the Gram matrix is singular many times over."""
    tokens = rng.standard_normal((n, T, 2)) @ rng.standard_normal((2, d))
    queries = rng.standard_normal((n, 1 + n % 2)) @ rng.standard_normal((1 + n % 2, d))
    return SelectionProblem(tokens, queries, _argmax(tokens, queries, rng.standard_normal((d, d))))


def near_duplicates(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """Each sequence holds a rejected token within 1e-3 of the selected one, planted."""
    tokens, queries = _sphere(rng, n, T, d), _sphere(rng, n, d)
    W = rng.standard_normal((d, d))
    best = _argmax(tokens, queries, W)
    other = (best + 1) % T
    tokens[np.arange(n), other] = tokens[np.arange(n), best] + 1e-3 * _sphere(rng, n, d)
    return SelectionProblem(tokens, queries, _argmax(tokens, queries, W))


def dominated(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """Planted, with the mean of two rejected tokens appended: tight when both are, with multipliers to spare."""
    tokens, queries = _sphere(rng, n, T, d), _sphere(rng, n, d)
    selected = _argmax(tokens, queries, rng.standard_normal((d, d)))
    pair = (selected[:, None] + np.array([1, 2])) % T
    mean = tokens[np.arange(n)[:, None], pair].mean(axis=1, keepdims=True)
    return SelectionProblem(np.concatenate([tokens, mean], axis=1), queries, selected)


def badly_scaled(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """Planted, tokens times 1e-6 or 1e6, queries spread over four decades."""
    tokens = _sphere(rng, n, T, d) * rng.choice([1e-6, 1e6])
    queries = _sphere(rng, n, d) * 10 ** rng.uniform(-2, 2, (n, 1))
    return SelectionProblem(tokens, queries, _argmax(tokens, queries, rng.standard_normal((d, d))))


def contradicted(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """Planted, then the first query repeated with another token selected: infeasible, the rest of the data idle."""
    tokens, queries = _sphere(rng, n, T, d), _sphere(rng, n, d)
    selected = _argmax(tokens, queries, rng.standard_normal((d, d)))
    queries[-1], tokens[-1] = 2 * queries[0], tokens[0]
    selected[-1] = (selected[0] + 1) % T
    return SelectionProblem(tokens, queries, selected)


@dataclass(frozen=True)
class Family:
    """A generator, the sizes (n, T, d) it is drawn at, and how many seeds of each."""

    make: Callable[[np.random.Generator, int, int, int], SelectionProblem]
    sizes: tuple[tuple[int, int, int], ...]
    seeds: int

    def draw(self, *size: int, seed: int = 0) -> SelectionProblem:
        """Draw from the stream of a seed and a size, so that every instance can be rebuilt alone."""
        return self.make(np.random.default_rng([seed, *size]), *size)

    def instances(self) -> Iterator[tuple[str, SelectionProblem]]:
        """Yield (label, problem)."""
        for size in self.sizes:
            for seed in range(self.seeds):
                yield f"{self.make.__name__}{size} seed {seed}", self.draw(*size, seed=seed)


FAMILIES: dict[str, Family] = {
    family.make.__name__: family
    for family in (
        Family(published, ((5, 5, 2), (5, 5, 3), (10, 5, 3), (10, 5, 4), (15, 5, 4), (6, 8, 10)), 12),
        Family(planted, ((1, 2, 2), (1, 6, 3), (6, 8, 10), (10, 5, 4), (12, 6, 6)), 10),
        Family(rectangular, ((3, 4, 5), (8, 5, 3), (10, 3, 6)), 10),
        Family(self_attention, ((4, 5, 5), (8, 4, 4), (7, 6, 3)), 10),
        Family(masked, ((6, 6, 4), (10, 4, 3), (5, 8, 6)), 10),
        Family(shared, ((9, 6, 4), (12, 5, 6)), 10),
        Family(causal_sequences, ((6, 6, 6), (10, 5, 4), (12, 4, 2)), 10),
        Family(several, ((4, 4, 4), (5, 6, 6), (6, 5, 8), (5, 4, 2)), 10),
        Family(correlated, ((5, 6, 4), (8, 8, 6)), 10),
        Family(integers, ((2, 3, 2), (3, 3, 4), (4, 3, 6)), 12),
        Family(distinct_integers, ((4, 4, 3), (8, 5, 4)), 12),
        Family(subspace, ((4, 4, 5), (7, 5, 6)), 10),
        Family(near_duplicates, ((4, 4, 4), (6, 5, 8)), 10),
        Family(dominated, ((4, 4, 4), (8, 5, 5)), 10),
        Family(badly_scaled, ((4, 5, 5), (8, 5, 6)), 10),
        Family(contradicted, ((4, 4, 6), (10, 6, 8)), 10),
    )
}


# --- families that no constant of attsvm.solvers.schedule was tuned on, for benchmarks/mid_size.py --held-out ---

WORDS = 400


def heavy_tailed(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """Student's t with two degrees of freedom, whose variance is infinite; planted."""
    tokens, queries = rng.standard_t(2, (n, T, d)), rng.standard_t(2, (n, d))
    return SelectionProblem(tokens, queries, _argmax(tokens, queries, rng.standard_normal((d, d))))


def low_rank(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """Tokens and queries near subspaces of a sixth of the dimensions, 1 % noise; planted."""
    r = max(2, d // 6)
    tokens = rng.standard_normal((n, T, r)) @ rng.standard_normal((r, d)) + 0.01 * rng.standard_normal((n, T, d))
    queries = rng.standard_normal((n, r)) @ rng.standard_normal((r, d)) + 0.01 * rng.standard_normal((n, d))
    return SelectionProblem(tokens, queries, _argmax(tokens, queries, rng.standard_normal((d, d))))


def clustered(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """Tokens and queries within 5 % of one of T / 4 centres, the same for all sequences; planted."""
    centres = _sphere(rng, max(2, T // 4), d)
    tokens = centres[rng.integers(len(centres), size=(n, T))] + 0.05 * _sphere(rng, n, T, d)
    queries = centres[rng.integers(len(centres), size=n)] + 0.05 * _sphere(rng, n, d)
    return SelectionProblem(tokens, queries, _argmax(tokens, queries, rng.standard_normal((d, d))))


def prompts(rng: np.random.Generator, n: int, T: int, d: int) -> SelectionProblem:
    """Causal prompts of words with Zipf's frequencies, vectors of the word and of its position added; planted."""
    frequency = 1.0 / np.arange(1, WORDS + 1)
    words = rng.choice(WORDS, size=(max(1, n // T), T), p=frequency / frequency.sum())
    angles = np.arange(T)[:, None] / 1e4 ** (np.arange((d + 1) // 2) / d)
    positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :d] / np.sqrt(d / 2)
    tokens = _sphere(rng, WORDS, d)[words] + positions
    scores = np.einsum("btd,de,bse->bst", tokens, rng.standard_normal((d, d)), tokens)
    scores[:, np.triu(np.ones((T, T), dtype=bool), 1)] = -np.inf
    return SelectionProblem.from_sequences(tokens, scores.argmax(axis=2))


HELD_OUT = {make.__name__: make for make in (heavy_tailed, low_rank, clustered, prompts)}
