"""Entry to the solvers: choose a method, run it, certify its answer."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from attsvm.core.norms import FROBENIUS, NUCLEAR, get_norm
from attsvm.core.norms.splitting import evaluations_within
from attsvm.core.problem import SelectionProblem
from attsvm.core.rounding import LENIENT
from attsvm.core.status import Status
from attsvm.core.types import AnyNorm, Shortfall, SolverMethod
from attsvm.data.shards import ShardedProblem
from attsvm.platform.threads import blas_on_one_thread
from attsvm.proofs.objective import Terms
from attsvm.proofs.program import Program
from attsvm.solution.solution import Solution
from attsvm.solvers.answers import Answers
from attsvm.solvers.common.contradictions import opposite_demands
from attsvm.solvers.common.control import Callback, Control
from attsvm.solvers.common.regularisation import read_regularisation
from attsvm.solvers.compiled.frobenius import avoids_compiling, solve_compiled
from attsvm.solvers.in_memory import solve_in_memory
from attsvm.solvers.options import METHODS as METHODS
from attsvm.solvers.options import method_of, read_limits
from attsvm.solvers.schedule import (
    FEW_ENTRIES,
    FEW_FOR_BLOCKS,
    GRAM_LIMIT,
    ONE_THREAD,
    SMALL,
    SMALL_PRODUCTS,
    STREAM_BYTES,
    WARM,
    WORD_BYTES,
    WORDS_A_DIMENSION,
)
from attsvm.solvers.separable.blocks import solve_blocks
from attsvm.solvers.separable.solving import solve_separable
from attsvm.solvers.sharded import solve_shards
from attsvm.solvers.words.margins import suits_words
from attsvm.solvers.words.newton import memory_of, truncated_newton
from attsvm.solvers.words.splitting import memory_of_splitting, split
from attsvm.solvers.working_sets.solution import ShardedSolution
from attsvm.solvers.working_sets.solving import Outcome, WorkingSets

# Gap of the problem without the prior of a hard margin, which only decides whether a W exists.
PHASE_ONE_TOL = 0.1
SHARD_OPTIONS = ("scheduler", "workers", "checkpoint")


Folder = str | os.PathLike[str]


@overload
def solve(
    problem: SelectionProblem,
    norm: AnyNorm = "frobenius",
    *,
    tol: float = 1e-9,
    max_iter: int | None = None,
    time_limit: float | None = None,
    warm_start: Solution | None = None,
    callback: Callback | None = None,
    verbose: bool = False,
    method: SolverMethod | None = None,
    C: float | ArrayLike | None = None,
    loss: Shortfall = "hinge",
    prior: Any = None,
) -> Solution: ...


@overload
def solve(
    problem: ShardedProblem | Folder,
    norm: AnyNorm = "frobenius",
    *,
    tol: float = 1e-9,
    max_iter: int | None = None,
    time_limit: float | None = None,
    callback: Callback | None = None,
    verbose: bool = False,
    C: float | None = None,
    loss: Shortfall = "hinge",
    prior: Any = None,
    scheduler: str | None = None,
    workers: int | None = None,
    checkpoint: Folder | None = None,
) -> ShardedSolution: ...


def solve(
    problem: SelectionProblem | ShardedProblem | Folder,
    norm: AnyNorm = "frobenius",
    *,
    tol: float = 1e-9,
    max_iter: int | None = None,
    time_limit: float | None = None,
    warm_start: Solution | None = None,
    callback: Callback | None = None,
    verbose: bool = False,
    method: SolverMethod | None = None,
    C: float | ArrayLike | None = None,
    loss: Shortfall = "hinge",
    prior: Any = None,
    **shards: Any,
) -> Solution | ShardedSolution:
    r"""Find the smallest W that selects the given tokens with margin one.

    Solves min ||W|| subject to :math:`(x_{i\alpha_i} - x_{it})^\top W z_i \ge 1` for every visible rejected token, and
    equal scores for several selected tokens (Att-SVM and Gen-SVM of arXiv 2308.16898).

    Parameters
    ----------
    problem : SelectionProblem, ShardedProblem or path
        A path is a folder of shards, see :meth:`attsvm.ShardedProblem.from_folder`.
    norm : {"frobenius", "nuclear", "spectral", "max"}, float or Norm
        A number p >= 1 is the entrywise l_p norm; "max" is the largest absolute entry. Other norms are objects of
        :mod:`attsvm.norms`.
    tol : float
        Requested certified relative gap.
    max_iter : int, optional
        Limit on iterations (passes, Newton rounds and interior-point steps count one each).
    time_limit : float, optional
        In seconds.
    warm_start : Solution, optional
        The solution of a similar problem of the same shape.
    callback : callable, optional
        Called with an :class:`attsvm.solvers.common.control.IterationState`; True stops the run.
    verbose : bool
        Print one row per iteration.
    method : str, optional
        Force one method instead of the automatic choice; for the Frobenius norm "active_set", "coordinate_newton",
        "interior_point"; for the nuclear norm "first_order" or "interior_point"; for every norm
        "streamed" (working sets over streamed tokens; automatic when they are large).
    C : float or array_like of shape (n,), optional
        Soft margin: a shortfall ``u = max(0, 1 - margin)`` of a rejected token is permitted and costs ``C u``. The
        costs are added to half the squared norm for the Frobenius norm (scikit-learn's convention) and a Mahalanobis
        norm over it, and to the norm itself for other norms. An array has the C of each query, for problems in memory.
    loss : {"hinge", "squared_hinge"}
        Used with ``C``; "squared_hinge" costs ``C u**2``.
    prior : array_like, shape (d, dz), optional
        A matrix W0: the norm of ``W - prior`` is minimised.
    **shards
        For a problem in pieces: ``scheduler``, address of a running dask scheduler whose workers evaluate the shards;
        ``workers``, number of local processes to start for this instead; ``checkpoint``, file of the run, written after
        every round. A run that was interrupted continues from it.

    Returns
    -------
    Solution or ShardedSolution
        An unsolved problem raises no error; see ``.status`` and ``.raise_for_status()``. The answer is a
        :class:`attsvm.solution.regularised.RegularisedSolution` if ``C`` or ``prior`` is given.

    Raises
    ------
    ValueError
        For arguments out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import SelectionProblem, solve
    >>> tokens = np.array([[[1.0, 0.0], [0.0, 0.0]]])
    >>> solution = solve(SelectionProblem(tokens, [[1.0]], [0]))
    >>> solution.status.name, solution.objective
    ('OPTIMAL', 1.0)
    """
    if isinstance(problem, (str, os.PathLike, ShardedProblem)):
        if method is not None or warm_start is not None:
            raise ValueError("method and warm_start are for problems in memory; neither was expected with shards.")
        limits: dict[str, Any] = {"max_iter": max_iter, "time_limit": time_limit, "callback": callback}
        return solve_shards(problem, norm, tol=tol, **limits, verbose=verbose, C=C, loss=loss, prior=prior, **shards)
    if shards:
        _refuse(shards)
    if not isinstance(problem, SelectionProblem):
        raise ValueError(f"problem has type {type(problem).__name__}; a SelectionProblem was expected.")
    measure = get_norm(norm)
    control = read_limits(problem.shape, measure, tol, max_iter, time_limit, callback, verbose=verbose)
    if warm_start is not None and warm_start.certified.dual.shape != problem.mask.shape:
        raise ValueError(
            f"warm_start has multipliers of shape {warm_start.certified.dual.shape}; a solution of the same shape, "
            f"{problem.mask.shape}, was expected."
        )
    regularisation = read_regularisation(problem.shape, C, loss, prior, streamed=method == "streamed")
    program = Program(problem, measure, regularisation)
    answers = Answers(program, tol, control)
    if not program.plain and method not in (None, "auto", "streamed"):
        raise ValueError(f"method is {method!r}; None, 'auto' or 'streamed' was expected with C or prior.")
    if program.plain and measure.leaves == 1:  # most problems, and small ones notice an empty stack of contexts
        return _solve_hard(answers, method, warm_start)
    with ExitStack() as contexts:
        if measure.leaves > 1:
            # The certificate minimises over splits of a matrix; a dual norm in closed form needs neither.
            contexts.enter_context(evaluations_within(control.is_late))
            if np.prod(problem.shape[2:]) <= ONE_THREAD:
                contexts.enter_context(blas_on_one_thread())
        if program.plain:
            return _solve_hard(answers, method, warm_start)
        contexts.enter_context(np.errstate(**LENIENT))
        return _solve_regularised(answers, method, warm_start)


def _refuse(shards: dict[str, Any]) -> None:
    """Refuse options of shards for a problem in memory, and names that are no options at all."""
    for name, value in shards.items():
        if name not in SHARD_OPTIONS:
            raise TypeError(f"solve() got an unexpected keyword argument {name!r}")
        if value is not None:
            raise ValueError(
                "scheduler, workers and checkpoint are for shards; a ShardedProblem or a folder was expected."
            )


def _solve_hard(answers: Answers, method: SolverMethod | None, warm_start: Solution | None) -> Solution:
    """Solve a hard margin without a prior."""
    program, control = answers.program, answers.control
    problem, measure = program.problem, program.norm
    if not problem.has_rejected:
        control.method = "closed form"
        return answers.of(None, None)
    early: Solution | None = None
    if measure is FROBENIUS and method is None and _small(problem, warm_start) and not control.is_watched:
        early = _in_one_call(problem, control, answers)
        if early is not None and early.status is not Status.UNDECIDED:
            return early
    if method is None:
        with np.errstate(**LENIENT):
            early = _in_parts(answers) or early
        if early is not None and (early.status is not Status.UNDECIDED or control.stopped):
            return early
        control.forget()
    opposites = opposite_demands(problem)
    if opposites is not None:
        control.enter("opposite demands")
        solution = answers.infeasible(opposites)
        if solution is not None:
            return solution
    before = warm_start or early
    start = None if before is None else (before.certified.W, before.certified.dual)
    streamed = method == "streamed" or (method is None and _large(problem))
    with np.errstate(**LENIENT):
        certificate, W, dual = _run(answers, None if streamed else method, start, streamed=streamed)
    if certificate is not None:
        solution = answers.infeasible(certificate, dual)
        if solution is not None:
            return solution
    return _better(early, answers.of(W, dual))


def _run(
    answers: Answers, method: str | None, start: tuple[np.ndarray, np.ndarray] | None, *, streamed: bool
) -> Outcome:
    """Solve the whole problem, or working sets of it without a copy of the tokens."""
    program, control = answers.program, answers.control
    inner = method_of(program.norm, method)
    skip_rounds = method not in (None, "auto") or program.regularisation.prices is not None
    try:
        if streamed:
            return WorkingSets(program, control, inner, start).solve()
        return solve_in_memory(program, control, inner, start, skip_rounds=skip_rounds)
    except MemoryError:
        control.stopped = Status.MEMORY_LIMIT
        return None, None, None


def _solve_regularised(answers: Answers, method: SolverMethod | None, warm_start: Solution | None) -> Solution:
    """Solve with a soft margin or a prior; a hard margin is first solved without the prior, to see if a W exists."""
    program, control = answers.program, answers.control
    problem, terms = program.problem, program.terms
    if terms.hard:
        phase_one = solve(problem, tol=PHASE_ONE_TOL, time_limit=control.time_limit, method=method)
        if phase_one.certificate is not None:
            control.iterations, control.method = phase_one.iterations, phase_one.method
            return answers.of_certificate(phase_one.certificate)
        answers = replace(answers, phase_one=phase_one)
    if not np.isfinite(terms.cost).all():
        # The margins of the prior leave the range of floats, and so do all terms that depend on them.
        return answers.of(None, None)
    # The prior is the answer if it satisfies everything, or if moving away from it costs more than it saves.
    slope = terms.slope(terms.cost)
    if terms.may_stay(problem.adjoint(slope)):
        control.method = "closed form"
        first = answers.of(None, slope)
        if first.status is Status.OPTIMAL:
            return first
        del first
    del slope
    control.method = ""
    has_prices = terms.prices is not None
    early = None if method is not None else _in_parts(answers) or _over_words(answers)
    if early is not None:
        if early.status is Status.OPTIMAL or control.stopped:
            return early
        control.forget()
    start = None if warm_start is None else (warm_start.certified.W, _start_multipliers(warm_start, terms))
    _, W, dual = _run(answers, None, start, streamed=method == "streamed" or (_large(problem) and not has_prices))
    return _better(early, answers.of(W, dual))


def _better(early: Solution | None, late: Solution) -> Solution:
    """Choose the solution with the smaller gap. How the run ended, and what it took, is what the last method says."""
    if early is None or late.status is Status.INFEASIBLE or not early.gap < late.gap:
        return late
    return replace(early, status=late.status, iterations=late.iterations, seconds=late.seconds)


def _in_parts(answers: Answers) -> Solution | None:
    """Solve by columns or by blocks; None if the problem has neither."""
    program, control = answers.program, answers.control
    pair = None if program.terms.prices is not None else solve_separable(program, control)
    if pair is not None:
        W, dual = pair
        # A certificate needs no copy of multipliers that have their signs if their evaluation is given.
        known = None if W is None or dual is None or not program.terms.hard else program.problem.evaluate(W, dual)
        return answers.of(W, dual, known)
    outcome = None if _as_one(program) else solve_blocks(program, answers.tol, control, solve)
    if outcome is None:
        return None
    certificate, W, dual = outcome
    proven = None if certificate is None else answers.infeasible(certificate)
    return proven or answers.of(W, dual)


def _over_words(answers: Answers) -> Solution | None:
    """Solve a squared hinge over many words or classes: Newton's method in W, or splitting in the nuclear norm."""
    program, control = answers.program, answers.control
    problem, is_nuclear = program.problem, program.norm is NUCLEAR
    _, words, _, dimensions = problem.shape
    most = WORD_BYTES if is_nuclear and words >= WORDS_A_DIMENSION * dimensions else STREAM_BYTES
    size = (memory_of_splitting if is_nuclear else memory_of)(program)
    if not (_difference_bytes(problem) > most and suits_words(program) and control.affords(0.0, size)):
        return None
    pair = (split if is_nuclear else truncated_newton)(program, control)
    if pair is None:
        control.forget()
        return None
    return answers.of(*pair)


def _as_one(program: Program) -> bool:
    """Tell whether one problem is faster than its blocks; in mixed norms, whose steps are dear, blocks are faster."""
    norm, problem = program.norm, program.problem
    is_cheap = norm.invariant or norm.power is not None
    return _large(problem) or (is_cheap and int(problem.rejected.sum()) <= FEW_FOR_BLOCKS)


def _start_multipliers(before: Solution, terms: Terms) -> np.ndarray:
    """Multipliers (n, T) of an earlier solution; multipliers at their old bound move to the new bound."""
    dual, earlier = before.certified.dual, before.regularisation
    if earlier.hinge and earlier.C is not None and np.isfinite(terms.upper):
        upper = earlier.C if earlier.prices is None else earlier.prices
        return np.where(dual >= upper * (1.0 - 1e-12), terms.uppers, dual)
    return dual


def _in_one_call(problem: SelectionProblem, control: Control, answers: Answers) -> Solution | None:
    """Solve in one compiled call from tokens to answer; None if it ends without one."""
    control.method, control.iterations = "one-call active set", 1
    optimal, W, adjoint, dual, margins = solve_compiled(problem, control.tol)
    if optimal:
        return answers.of(W, dual, (margins, adjoint))
    if not dual.any():
        return None
    # Unlike other methods' multipliers, these are not corrected, so only a proof in exact arithmetic counts.
    return answers.infeasible(dual / dual[problem.rejected].sum(), dual, exact=True)


def _small(problem: SelectionProblem, warm_start: Solution | None) -> bool:
    """Tell whether one compiled call is cheaper than any method that examines the problem first."""
    n, T, d, dz = problem.shape
    few = n * T <= (SMALL if warm_start is None else WARM) and d * dz <= FEW_ENTRIES
    few = few and n * T * d * dz <= SMALL_PRODUCTS and 8 * n * T * d <= STREAM_BYTES
    return (n * T <= GRAM_LIMIT or few) and not avoids_compiling(problem)


def _large(problem: SelectionProblem) -> bool:
    """Tell whether token differences are better streamed than held in memory."""
    return _difference_bytes(problem) > STREAM_BYTES


def _difference_bytes(problem: SelectionProblem) -> int:
    return 8 * int(problem.rejected.sum()) * problem.shape[2]
