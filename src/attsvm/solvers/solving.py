"""The one door to the solvers: choose a method, run it, certify what it says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attsvm.core.norms import FROBENIUS, NUCLEAR, Norm, get_norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.reduction import Reduced, reduce
from attsvm.core.status import Status
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import LENIENT, Certified, certify
from attsvm.proofs.decision import contradiction, decidable
from attsvm.solution.solution import Solution
from attsvm.solvers.common import farkas
from attsvm.solvers.common.contradictions import opposite_demands
from attsvm.solvers.common.control import Callback, Control
from attsvm.solvers.common.evaluation import report
from attsvm.solvers.common.refinement import refine
from attsvm.solvers.common.ties import Ties
from attsvm.solvers.compiled.frobenius import GRAM_LIMIT, solve_compiled
from attsvm.solvers.frobenius.portfolio import FORCED as FROBENIUS_METHODS
from attsvm.solvers.frobenius.streamed import solve_streamed
from attsvm.solvers.interior_point.general import solve_hard_margin
from attsvm.solvers.nuclear.portfolio import METHODS as NUCLEAR_METHODS
from attsvm.solvers.regularised import read_regularisation, solve_regularised
from attsvm.solvers.working_set import solve_on_working_sets

Method = Callable[[Reduced, Control, np.ndarray | None], np.ndarray | None]
METHODS: dict[Norm, dict[str, Method]] = {
    FROBENIUS: FROBENIUS_METHODS,
    NUCLEAR: NUCLEAR_METHODS,
}

# Lifting an answer to the original coordinates costs a few roundings; methods aim below the gap that is promised.
AIM = 0.5
# A hard margin with a prior asks of the problem without it only whether a W exists.
OPENING_TOL = 0.1
# The last resort forms the constraints densely.
LINEAR_PROGRAM_ENTRIES = 50_000_000
# The part of tol that rounding may take up before sums are taken again in twice the precision.
ROUNDING = 1e-3
# Where the gap is closed all the same, that only sharpens what is reported, and pays for small problems only.
SHARP_ENTRIES = 50_000
EXISTS = "By exact arithmetic a W exists."
# Tokens, and entries of W, up to which one compiled call from tokens to answer is cheaper than looking at the problem.
SMALL, FEW_ENTRIES = 1000, 1100
# Token differences above this size are streamed instead of copied.
STREAM_BYTES = 1 << 28


def solve(
    problem: SelectionProblem,
    norm: Norm | str | float = "frobenius",
    *,
    tol: float = 1e-9,
    max_iter: int | None = None,
    time_limit: float | None = None,
    warm_start: Solution | None = None,
    callback: Callback | None = None,
    verbose: bool = False,
    method: str | None = None,
    C: float | None = None,
    loss: str = "hinge",
    prior: Any = None,
) -> Solution:
    r"""Find the smallest W that selects the given tokens with margin one.

    Solves min ||W|| subject to :math:`(x_{i\alpha_i} - x_{it})^\top W z_i \ge 1` for every visible rejected token, and
    equal scores for several selected tokens (Att-SVM and Gen-SVM of arXiv 2308.16898).

    Parameters
    ----------
    problem : SelectionProblem
    norm : {"frobenius", "nuclear", "spectral", "max"}, float or Norm
        A number p >= 1 is the entrywise l_p norm; "max" is the largest absolute entry. Others are objects of
        :mod:`attsvm.norms`.
    tol : float
        Certified relative gap asked for.
    max_iter : int, optional
        Limit on iterations (passes, Newton rounds and interior-point steps count one each).
    time_limit : float, optional
        In seconds.
    warm_start : Solution, optional
        The answer to a similar problem of the same shape.
    callback : callable, optional
        Called with an :class:`attsvm.solvers.common.control.IterationState`; True stops the run.
    verbose : bool
        Print a row an iteration.
    method : str, optional
        Force one method instead of the automatic choice; for the Frobenius norm "active_set", "coordinate_newton",
        "interior_point"; for the nuclear norm "first_order" or "interior_point"; for every norm
        "streamed" (working sets over streamed tokens; automatic when they are large).
    C : float, optional
        Soft margin: a shortfall ``u = max(0, 1 - margin)`` of a rejected token costs ``C u`` instead of being
        forbidden, added to half the squared Frobenius norm (scikit-learn's convention), or to any other norm itself.
    loss : {"hinge", "squared_hinge"}
        With ``C``: the second charges ``C u**2``.
    prior : array_like, shape (d, dz), optional
        A W0 to stay near: the norm of ``W - prior`` is minimised.

    Returns
    -------
    Solution
        Never raises for an unsolved problem: see ``.status``, and ``.raise_for_status()``. With ``C`` or ``prior`` it
        is a :class:`attsvm.solvers.regularised.RegularisedSolution`.

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
    if not isinstance(problem, SelectionProblem):
        raise ValueError(f"problem must be a SelectionProblem; got {type(problem).__name__}.")
    measure = get_norm(norm)
    _check_options(tol, max_iter, time_limit, warm_start, problem, measure)
    n, T, d, dz = problem.shape

    def answer(
        status: Status, W: np.ndarray, dual: np.ndarray, certificate: FarkasCertificate | None = None
    ) -> Solution:
        certified = certify(problem, measure, W, dual)
        if certificate is None:
            doubtful = certified.gap > tol or (certified.rounding > ROUNDING * tol and n * d * dz <= SHARP_ENTRIES)
            if doubtful and certified.gap - certified.rounding <= tol:
                certified = refine(problem, measure, certified, tol)
            if certified.gap <= tol:
                status = Status.OPTIMAL
            unproven = certified.upper_bound == np.inf or certified.tie_residual > 0
            if unproven and decidable(problem):
                return decided(status, certified)
        return package(status, certified, certificate)

    def decided(status: Status, certified: Certified) -> Solution:
        """Ask exact arithmetic whether a W exists, where floats leave that open."""
        dual = contradiction(problem)
        if dual is None:
            return package(status, certified, note=EXISTS)
        certificate = FarkasCertificate(problem, dual)
        if not certificate.verify():
            return package(status, certified)
        return package(Status.INFEASIBLE, certify(problem, measure, nothing, dual), certificate)

    def package(
        status: Status, certified: Certified, certificate: FarkasCertificate | None = None, note: str = ""
    ) -> Solution:
        steps, seconds, method = control.iterations, control.seconds, control.method
        return Solution(problem, measure, status, certified, steps, seconds, method, certificate, tol, note)

    control = Control(AIM * tol, max_iter=max_iter, time_limit=time_limit, callback=callback, verbose=verbose)
    asked = read_regularisation(problem, measure, C, loss, prior)
    if asked is not None:
        if method is not None:
            raise ValueError(f"method must be None with C or prior, whose methods are chosen for them; got {method!r}.")
        opening = None if C is not None else solve(problem, tol=OPENING_TOL, time_limit=time_limit)
        with np.errstate(**LENIENT):
            return solve_regularised(problem, measure, asked, control, tol, warm_start, opening)
    nothing, none = np.zeros((d, dz)), np.zeros((n, T))
    if not problem.has_rejected:
        control.method = "closed form"
        return answer(Status.OPTIMAL, nothing, none)
    plain = measure is FROBENIUS and method is None
    early: Solution | None = None
    if plain and _small(problem) and not control.watched:
        control.method, control.iterations = "one-call active set", 1
        solved, W, dual = solve_compiled(problem, control.tol)
        if solved:
            early = answer(Status.UNDECIDED, W, dual)
            if early.status is not Status.UNDECIDED:
                return early
        elif dual.any():
            certificate = FarkasCertificate(problem, dual / dual[problem.rejected].sum())
            # Only as good as the last bit of these multipliers; the methods below correct theirs.
            if certificate.exact:
                return answer(Status.INFEASIBLE, nothing, dual, certificate)
    opposed = opposite_demands(problem)
    if opposed is not None:
        certificate = FarkasCertificate(problem, opposed)
        if certificate.verify():
            control.enter("opposite demands")
            return answer(Status.INFEASIBLE, nothing, none, certificate)
    if measure is FROBENIUS and (method == "streamed" or (plain and _large(problem))):
        with np.errstate(**LENIENT):
            found = solve_streamed(problem, control)
        W, dual = control.W, control.dual
    elif measure is not FROBENIUS and (method == "streamed" or (method is None and _large(problem))):
        with np.errstate(**LENIENT):
            found = solve_on_working_sets(problem, measure, control, _choose(measure.base, None))
        W, dual = control.W, control.dual
    else:
        base = measure.base
        reduced = reduce(problem, rotate=base.invariant, transform=measure.transform)
        control.unit = reduced.scale
        empty = reduced.rejected & (reduced.lengths == 0.0)
        if empty.any():
            control.method = "closed form"
            found = empty / empty.sum()
        else:
            guess = None if warm_start is None else _warm(reduced, base, warm_start, control)
            found = None
            if not (control.solved or control.stopped):
                with np.errstate(**LENIENT):
                    found = _choose(base, method)(reduced, control, guess)
            if found is None and control.W is None and control.stopped is None:
                found = _last_resort(reduced, control)
        found = None if found is None else reduced.lift_dual(found)
        W = None if control.W is None else reduced.lift(control.W)
        dual = None if control.dual is None else reduced.lift_dual(control.dual)
    W, dual = nothing if W is None else W, none if dual is None else dual
    if found is not None:
        certificate = FarkasCertificate(problem, found)
        if certificate.verify():
            return answer(Status.INFEASIBLE, nothing, dual, certificate)
    late = answer(control.stopped or Status.UNDECIDED, W, dual)
    return early if early is not None and early.gap < late.gap and late.status is not Status.INFEASIBLE else late


def _small(problem: SelectionProblem) -> bool:
    """Whether one compiled call from tokens to answer is cheaper than anything that looks at the problem first."""
    n, T, d, dz = problem.shape
    return n * T <= GRAM_LIMIT or (n * T <= SMALL and d * dz <= FEW_ENTRIES)


def _large(problem: SelectionProblem) -> bool:
    """Whether the token differences are better not all held in memory."""
    return 8 * int(problem.rejected.sum()) * problem.shape[2] > STREAM_BYTES


def _choose(measure: Norm, method: str | None) -> Method:
    known = METHODS.get(measure) or {"auto": partial(solve_hard_margin, norm=measure)}
    if method is not None and method not in known:
        names = ", ".join(repr(name) for name in (*known, "streamed"))
        raise ValueError(f"method must be one of {names} for the {measure.name} norm; got {method!r}.")
    return known[method or "auto"]


def _warm(reduced: Reduced, measure: Norm, warm_start: Solution, control: Control) -> np.ndarray:
    """Judge an earlier pair as it stands, which ends a refit, and hand its multipliers to the method."""
    dual = reduced.gather(warm_start.certified.dual)
    control.method = "warm start"
    control.earlier = reduced.lower(warm_start.certified.W)
    tied = Ties(reduced).project(control.earlier) if reduced.tied.any() else control.earlier
    report(reduced, measure, tied, dual, control)
    return dual


def _last_resort(reduced: Reduced, control: Control) -> np.ndarray | None:
    """Ask a linear program whether any W exists; continue from its multipliers."""
    if reduced.rejected.sum() * np.prod(reduced.shape) > LINEAR_PROGRAM_ENTRIES:
        return None
    control.enter("linear program")
    _, dual = farkas.by_linear_program(reduced, control.remaining)
    return farkas.certificate(reduced, dual, control)


def _check_options(
    tol: float,
    max_iter: int | None,
    time_limit: float | None,
    warm_start: Solution | None,
    problem: SelectionProblem,
    norm: Norm,
) -> None:
    _, _, d, dz = problem.shape
    mismatch = norm.mismatch((d, dz))
    if mismatch is not None:
        raise ValueError(mismatch)
    if not 0 < tol < 1:
        raise ValueError(f"tol must lie between 0 and 1; got {tol!r}.")
    if max_iter is not None and max_iter < 1:
        raise ValueError(f"max_iter must be at least 1; got {max_iter!r}.")
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"time_limit must be positive; got {time_limit!r}.")
    if warm_start is not None and warm_start.certified.dual.shape != problem.mask.shape:
        raise ValueError(
            f"warm_start must be a solution of the same shape, {problem.mask.shape}; "
            f"got {warm_start.certified.dual.shape}."
        )
