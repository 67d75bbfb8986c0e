"""Problems that separate over columns: the method of each norm, and its answer in the problem's coordinates."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
from scipy.linalg import LinAlgError

from attsvm.core.columns import Columns
from attsvm.core.norms import FROBENIUS
from attsvm.proofs.objective import Terms
from attsvm.proofs.program import Program
from attsvm.solvers.common.control import Control
from attsvm.solvers.separable.closed_form import exponents_of, least_change
from attsvm.solvers.separable.projection import Projection
from attsvm.solvers.separable.splitting import proximal_map, report, split

# W (d, dz) and multipliers (n, T); each may be None.
Pair = tuple[np.ndarray | None, np.ndarray | None]
Method = Callable[[Columns, Terms, np.ndarray, Control], None]


def solve_separable(program: Program, control: Control) -> Pair | None:
    """Solve by columns; None if the problem does not separate or the norm has no method for columns."""
    method = _method_of(program)
    columns = None if method is None else Columns.of(program.problem)
    if method is None or columns is None or not _separates(columns, program):
        return None
    # Zeros that nothing writes to take no memory.
    origin = np.zeros(columns.shape) if program.prior is None else columns.lower(program.prior)
    method(columns, program.terms, origin, control)
    scores, dual = control.W, control.dual
    control.W = control.dual = None  # each as large as the answer
    if scores is None:
        return None, dual
    if program.prior is None:
        columns.tie(scores)
        return columns.lift(scores), dual
    return program.prior + columns.lift(scores), dual


def _method_of(program: Program) -> Method | None:
    """Look up the method of a norm; losses are added to a norm, not to the power that some methods minimise."""
    norm, hard = program.norm, program.regularisation.hard
    if norm is FROBENIUS:
        return _project
    if proximal_map(norm) is not None and (hard or not norm.smooth):
        return _split
    return _closed_form if exponents_of(norm) is not None and hard else None


def _separates(columns: Columns, program: Program) -> bool:
    """Whether norm and losses separate too: entrywise norms need one-hot vectors, losses need one query per column."""
    if not program.norm.invariant and not columns.is_one_hot:
        return False
    if program.regularisation.hard:
        return True
    queries = int(columns.problem.constrained.any(axis=1).sum())
    return queries == columns.shape[1]


def _project(columns: Columns, terms: Terms, origin: np.ndarray, control: Control) -> None:
    control.method = "projection of columns"
    change = Projection(columns, terms)(origin)
    report(columns, terms, change, change, control)


def _closed_form(columns: Columns, terms: Terms, origin: np.ndarray, control: Control) -> None:
    control.method = "closed form of columns"
    exponents = exponents_of(terms.norm)
    assert exponents is not None
    report(columns, terms, *least_change(columns, origin, *exponents), control)


def _split(columns: Columns, terms: Terms, origin: np.ndarray, control: Control) -> None:
    control.method = "splitting over columns"
    merged, first, number = columns.merge(origin)
    # A column that stands for k has their scores times sqrt(k).
    times = np.sqrt(merged.copies)
    if merged is not columns:
        origin = origin[:, first] * times
    # Squares of scores leave the range of floats first; methods that scale the problem go on.
    with suppress(LinAlgError):
        split(merged, terms, origin, control)
    if merged is not columns and control.W is not None:
        control.W = (control.W / times)[:, number]
