"""Thousands of problems of one shape: :func:`solve_batch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numba import get_num_threads

from attsvm.core.error_free import gamma
from attsvm.core.norms import FROBENIUS, NUCLEAR, Norm, get_norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.rounding import LENIENT, PAIRWISE
from attsvm.core.status import Status
from attsvm.core.types import AnyNorm
from attsvm.platform.cluster import gathered, remote_client
from attsvm.platform.kernels import Stopwatch, call, compiles, frozen, spares
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import certify
from attsvm.proofs.program import Program
from attsvm.solution.problem_batch import BatchSolution, ProblemBatch
from attsvm.solution.solution import Solution
from attsvm.solvers.compiled import frobenius as frobenius_batch
from attsvm.solvers.compiled import nuclear as nuclear_batch
from attsvm.solvers.compiled.infeasibility import INFEASIBLE, prove_stack
from attsvm.solvers.frobenius.active_set import CONTRADICTION, OPEN, SOLVED
from attsvm.solvers.nuclear.face_newton import fits
from attsvm.solvers.options import AIMED_GAP
from attsvm.solvers.schedule import NUCLEAR_INTERIOR_STEPS, nuclear_interior_work
from attsvm.solvers.solving import solve

# Largest number of entries of token differences held at once, and length below which squares may have lost digits.
DIFFERENCE_ENTRIES, TOO_SHORT = 1 << 22, 1e-100
# Number of pieces per core or worker, so that a slow one does not delay the others.
PIECES = 8


def solve_batch(
    problems: ProblemBatch | Sequence[SelectionProblem],
    norm: AnyNorm = "frobenius",
    *,
    tol: float = 1e-9,
    scheduler: str | None = None,
) -> BatchSolution:
    """Solve many problems of one shape.

    Compiled calls, one per core, solve all of them in the Frobenius norm, and in the nuclear norm up to 250
    constraints and 24 queries (or query dimensions) per instance. Instances that a compiled call leaves open
    (infeasible or ill-conditioned), larger nuclear instances and all other norms go through :func:`attsvm.solve` one by
    one. In either case each instance gets the certificate that it would get alone.

    Parameters
    ----------
    problems : ProblemBatch, or a sequence of SelectionProblem of one shape
    norm : str or float
        As for :func:`attsvm.solve`.
    tol : float
        Certified relative gap.
    scheduler : str, optional
        Address of a running dask scheduler, whose workers share the batch.

    Returns
    -------
    BatchSolution

    Raises
    ------
    ValueError
        For an empty batch or problems of different shapes.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import ProblemBatch, solve_batch
    >>> random = np.random.default_rng(0)
    >>> tokens, queries = random.normal(size=(100, 3, 4, 8)), random.normal(size=(100, 3, 8))
    >>> answers = solve_batch(ProblemBatch(tokens, queries, np.zeros((100, 3), int)))
    >>> answers.W.shape, float(answers.gap.max()) < 1e-9
    ((100, 8, 8), True)
    >>> answers[7].status.name
    'OPTIMAL'
    """
    watch = Stopwatch()
    setup = BatchSetup(problems, norm, tol)
    if scheduler is None:
        setup.solve_compiled()
        setup.solve_singly()
    else:
        answers = _on_cluster(setup.stack, setup.norm, tol, scheduler)
        setup.take({b: replace(answer, problem=problems[b]) for b, answer in enumerate(answers)})
    return setup.solution(watch.seconds)


@dataclass(frozen=True, eq=False)
class CompiledCall:
    """The compiled call that solves a stack.

    ``work`` is its number of operations per instance. ``spared_work`` is the seconds per instance of the method in
    memory, which runs while the kernel ``entry`` is not compiled.
    """

    solve_stack: Callable[..., None]
    entry: Any
    options: tuple[float, ...]
    work: float
    spared_work: float
    method: str

    @classmethod
    def of(cls, norm: Norm, tol: float, shape: tuple[int, int, int, int]) -> CompiledCall | None:
        """Look up the call for instances of a shape (n, T, d, dz); None if the norm or the size has none."""
        n, T, d, dz = shape
        if norm is FROBENIUS:
            kernels = frobenius_batch
            call_of_norm = kernels.solve_stack, kernels.solve_each, (AIMED_GAP * tol, True), kernels.work(*shape)
            return cls(*call_of_norm, kernels.interior_work(*shape), "batched active set")
        if norm is NUCLEAR and fits(n * (T - 1), min(n, dz)):
            kernels = nuclear_batch
            call_of_norm = kernels.solve_stack, kernels.solve_one, (AIMED_GAP * tol,), kernels.work(*shape)
            spared = NUCLEAR_INTERIOR_STEPS * nuclear_interior_work((min(d, n * T), min(dz, n)), n * (T - 1))
            return cls(*call_of_norm, spared, "batched first order + face Newton")
        return None

    def pays(self, count: int) -> bool:
        """Whether the call is compiled, or worth compiling, for this number of instances."""
        operations = count * self.work
        return compiles(self.entry, operations) and not spares(self.entry, operations, count * self.spared_work)


class BatchSetup:
    """A batch, the compiled call of its norm, and the arrays of its answers."""

    def __init__(self, problems: ProblemBatch | Sequence[SelectionProblem], norm: AnyNorm, tol: float) -> None:
        if not 0 < tol < 1:
            raise ValueError(f"tol is {tol!r}; a number between 0 and 1 was expected.")
        self.problems, self.norm, self.tol = problems, get_norm(norm), tol
        self.stack = problems if isinstance(problems, ProblemBatch) else _stack(problems)
        B, n, T, d = self.stack.tokens.shape
        dz = self.stack.queries.shape[2]
        self.compiled = CompiledCall.of(self.norm, tol, (n, T, d, dz))
        self.W, self.dual, self.margins = np.empty((B, d, dz)), np.empty((B, n, T)), np.empty((B, n, T))
        self.objective, self.gap = np.empty(B), np.empty(B)
        self.state = np.zeros(B, dtype=np.int64)
        # Answers to the instances that are solved one by one.
        self.singles: dict[int, Solution] = {}

    def solve_compiled(self) -> None:
        """Solve all instances in compiled calls, if that pays; those without a certificate stay open."""
        stack, state, compiled = self.stack, self.state, self.compiled
        if compiled is None or not compiled.pays(len(stack)):
            return
        data = tuple(frozen(array) for array in (stack.tokens, stack.queries, stack.selected, stack.mask))
        arrays = (self.W, self.dual, self.margins, self.objective, self.gap, state)
        _on_all_cores(compiled.solve_stack, data, compiled.options, arrays)
        self.margins[~stack.mask] = np.inf
        if (state == CONTRADICTION).any():
            constraints, entries = self.dual.size, self.W[0].size
            call(prove_stack, float(constraints) * entries**2, *data, self.dual, state)
            state[state == CONTRADICTION] = OPEN
        rounding = _rounding(stack, self.norm, self.W, self.dual, self.objective)
        for b in np.flatnonzero((state == SOLVED) & np.isinf(rounding)):
            pair = certify(Program(self.problems[int(b)], self.norm), self.W[b], self.dual[b])
            self.gap[b], rounding[b] = pair.gap if pair.tie_residual == 0 else np.inf, 0.0
        self.gap += rounding
        state[(state == SOLVED) & ~(self.gap <= self.tol)] = OPEN
        contradictory = state == INFEASIBLE
        self.W[contradictory] = np.nan
        self.objective[contradictory] = self.gap[contradictory] = np.inf
        self.margins[contradictory[:, None, None] & stack.mask] = 0.0

    def solve_singly(self) -> None:
        """Solve the open instances one after the other; threads would wait for the interpreter and take longer."""
        self.take(
            {int(b): solve(self.problems[int(b)], self.norm, tol=self.tol) for b in np.flatnonzero(self.state == OPEN)}
        )

    def take(self, singles: dict[int, Solution]) -> None:
        """Copy the answers to single instances into the arrays."""
        self.singles = singles
        for b, solution in singles.items():
            self.W[b] = solution.certified.W if np.isfinite(solution.objective) else np.nan
            proof = solution.certificate
            self.dual[b] = solution.certified.dual if proof is None else proof.dual
            self.margins[b] = np.where(self.stack.mask[b], solution.certified.margins, np.inf)
            self.objective[b], self.gap[b] = solution.objective, solution.gap

    def certified(self, b: int) -> Solution:
        """Return the answer to one instance with its certificate."""
        if b in self.singles:
            return self.singles[b]
        assert self.compiled is not None
        problem, method = self.problems[b], self.compiled.method
        program = Program(problem, self.norm)
        if self.state[b] == INFEASIBLE:
            proof = FarkasCertificate(problem, self.dual[b].copy())
            answer = certify(program, np.zeros(self.W[b].shape), self.dual[b])
            return Solution(problem, self.norm, Status.INFEASIBLE, answer, 1, 0.0, method, proof, self.tol)
        answer = certify(program, self.W[b], self.dual[b])
        return Solution(problem, self.norm, Status.OPTIMAL, answer, 1, 0.0, method, tol=self.tol)

    def solution(self, seconds: float) -> BatchSolution:
        """Return the answers in the array type of the given problems."""
        status = np.full(len(self.stack), Status.OPTIMAL, dtype=object)
        status[self.state == INFEASIBLE] = Status.INFEASIBLE
        for b, solution in self.singles.items():
            status[b] = solution.status
        problems = self.problems
        kind = self.stack.kind if isinstance(problems, ProblemBatch) else problems[0].kind
        return BatchSolution(
            problems=problems,
            norm=self.norm,
            W=kind.restore(self.W),
            dual=kind.restore(self.dual),
            margins=kind.restore(self.margins),
            objective=self.objective,
            gap=self.gap,
            status=status,
            seconds=seconds,
            certified=self.certified,
        )


def _on_cluster(stack: ProblemBatch, norm: Norm, tol: float, scheduler: str) -> list[Solution]:
    """Share a batch out among the workers of a cluster, several pieces per worker."""
    with remote_client(scheduler) as client:
        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        count = min(len(stack), max(1, PIECES * workers))
        bounds = np.linspace(0, len(stack), count + 1).astype(int)
        data = stack.tokens, stack.queries, stack.selected, stack.mask
        futures = [
            client.submit(_piece, tuple(array[first:last] for array in data), norm, tol, pure=False)
            for first, last in pairwise(bounds)
        ]
        return [solution for piece in gathered(client, futures, futures) for solution in piece]


def _piece(data: tuple[np.ndarray, ...], norm: Norm, tol: float) -> list[Solution]:
    """Solve part of a batch on a worker."""
    return list(solve_batch(ProblemBatch(*data), norm, tol=tol))


def _rounding(stack: ProblemBatch, norm: Norm, W: np.ndarray, dual: np.ndarray, objective: np.ndarray) -> np.ndarray:
    """Bound the rounding of each gap, (B,), as :func:`attsvm.proofs.certified.certify` counts it.

    Infinite for an instance with ties, or next to the ends of the range of floats, which has to be certified by itself.
    """
    B, n, T, d = stack.tokens.shape
    dz = W.shape[2]
    reference = stack.selected.argmax(axis=2)
    length, weight = np.empty(B), np.empty(B)
    step = max(1, DIFFERENCE_ENTRIES // (n * T * d))
    with np.errstate(**LENIENT):
        for start in range(0, B, step):
            part = slice(start, start + step)
            x = stack.tokens[part]
            selection = np.take_along_axis(x, reference[part][:, :, None, None], axis=2)
            squares = (
                np.vecdot(selection - x, selection - x) * np.vecdot(stack.queries[part], stack.queries[part])[..., None]
            )
            lengths = np.sqrt(np.where(stack.mask[part], squares, 0.0))  # (part, n, T)
            length[part] = lengths.max(axis=(1, 2))
            weight[part] = np.where(np.isfinite(dual[part]), dual[part] * lengths, 0.0).sum(axis=(1, 2))
        size = np.sqrt(np.vecdot(W.reshape(B, -1), W.reshape(B, -1)))
        # A^T dual is W in the Frobenius norm, and has dual norm one in other norms.
        adjoint = objective if norm is FROBENIUS else np.ones(B)
        entries = d * dz if norm is FROBENIUS else 4 * d * dz
        relative = gamma(d + dz + 8) * size * length + gamma(n + T + 12) * weight / adjoint + 2 * gamma(entries + 16)
        relative += gamma(min(n * T, PAIRWISE) + 16)  # of the sum of the multipliers, and of small norms
    tied = (stack.selected.sum(axis=2) > 1).any(axis=1)
    # These are first-order terms; while they are small, a tenth of them exceeds all other terms.
    return np.where(tied | ~(relative < 0.01) | (length < TOO_SHORT), np.inf, 1.1 * relative)


def _on_all_cores(
    compiled: Callable[..., None],
    problems: tuple[np.ndarray, ...],
    options: tuple[float, ...],
    answers: tuple[np.ndarray, ...],
) -> None:
    """Share a stack out among threads, one compiled call per piece.

    Plain threads compile faster than a parallel loop, and may be started from several threads.
    """
    # The first instance is solved on this thread, whose clock leaves out compiling.
    compiled(*(array[:1] for array in problems), *options, *(array[:1] for array in answers))
    count, cores = len(answers[0]), get_num_threads()
    pieces = cores * PIECES if cores > 1 else 1
    bounds = np.linspace(1, count, min(count - 1, pieces) + 1).astype(int)
    parts = [slice(first, last) for first, last in pairwise(bounds)]

    def solve_part(part: slice) -> None:
        compiled(*(array[part] for array in problems), *options, *(array[part] for array in answers))

    if len(parts) <= 1:
        for part in parts:
            solve_part(part)
        return
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(solve_part, parts))


def _stack(problems: Sequence[SelectionProblem]) -> ProblemBatch:
    if not len(problems):
        raise ValueError("problems is empty; at least one problem was expected.")
    shapes = sorted({problem.shape for problem in problems})
    if len(shapes) > 1:
        raise ValueError(f"problems has shapes {shapes[0]} and {shapes[1]}; one shape (n, T, d, dz) was expected.")
    return ProblemBatch(
        np.stack([problem.tokens_of(slice(None)) for problem in problems]),
        np.stack([problem.queries for problem in problems]),
        np.stack([problem.selected for problem in problems]),
        np.stack([problem.mask for problem in problems]),
    )
