r"""A solution as a file of rational numbers that anyone can check: what :mod:`attsvm.check` reads.

The floats of the data, of W and of the multipliers are rational numbers and are written as such. Two things are mended
on the way, exactly: a W whose tied tokens score alike only to rounding is moved onto the ties
(:mod:`attsvm.proofs.tie_moves`), and multipliers that nearly cancel are replaced by integers that do
(:mod:`attsvm.proofs.infeasible`). What is claimed is what the checker itself proves of that, rounded outward, so that a
file which was written is one that holds.
"""

from __future__ import annotations

import json
import math
import os
from fractions import Fraction
from typing import Any

import numpy as np

from attsvm import __version__, check
from attsvm.core.files import replacing_file
from attsvm.core.norms import Norm
from attsvm.core.problem import SelectionProblem
from attsvm.core.status import Status
from attsvm.proofs.certified import Certified
from attsvm.proofs.dyadic import Dyadic
from attsvm.proofs.infeasible import exact_multipliers
from attsvm.proofs.objective import Regularisation, admissible
from attsvm.proofs.optimum import differences
from attsvm.proofs.tie_moves import TieEquations, common, exact_move
from attsvm.solution.certificate_norms import norm_proof, norm_words, read_table, singular_vectors, table

# Claims are rounded outward to this many bits.
BITS = 80


def certificate_content(
    problem: SelectionProblem,
    norm: Norm,
    asked: Regularisation,
    status: Status,
    certified: Certified,
    farkas: np.ndarray | None,
    tol: float,
    run: dict[str, Any],
) -> dict[str, Any]:
    """Write a certificate as nested dictionaries and lists, ready for JSON.

    Parameters
    ----------
    problem : SelectionProblem
    norm : Norm
    asked : Regularisation
    status : Status
    certified : Certified
    farkas : ndarray, shape (n, T), or None
        Multipliers that nearly prove infeasibility.
    tol : float
    run : dict
        How the solution came about, kept and not checked.

    Raises
    ------
    ValueError
        If the norm has no rational certificate, or the claim cannot be proven in exact arithmetic.
    """
    infeasible = status is Status.INFEASIBLE
    claim: dict[str, Any] = {"status": status.name, "tolerance": str(Fraction(tol))}
    content = {
        "format": check.FORMAT,
        "attsvm": __version__,
        "data": data_content(problem),
        "problem": {
            "norm": norm_words(norm),
            "C": None if asked.C is None else str(Fraction(asked.C)),
            "loss": asked.loss,
            "prior": None if asked.prior is None else table(asked.prior),
        },
        "claim": claim,
        "witness": _contradiction(problem, farkas) if infeasible else _witness(problem, norm, asked, certified),
        "run": run,
    }
    try:
        data, question, witness = content["data"], content["problem"], content["witness"]
        proven = check.Certificate(data, question, witness, status.name).proven
        claim |= {name: _outward(proven[name], sign) for name, sign in check.CLAIMS.items() if proven[name] is not None}
        content["digest"] = check.digest(content)
        check.check(content)
    except check.Rejected as error:
        reason = f"solution has status {status.name}, which exact arithmetic does not prove: {error}."
        raise ValueError(reason) from error
    return content


def write_certificate(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write a certificate beside its place and rename it."""
    with replacing_file(path) as beside:
        beside.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


def read_certificate(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a certificate whose digest fits its content.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is no certificate, or was changed.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            content = json.load(stream)
        whole = isinstance(content, dict) and content.get("format") == check.FORMAT
        if whole and content.get("digest") == check.digest(content):
            return content
    except (ValueError, RecursionError):
        pass
    raise ValueError(f"{os.fspath(path)} is damaged or another file; a certificate ({check.FORMAT}) was expected.")


def data_content(problem: SelectionProblem) -> dict[str, Any]:
    """Write tokens, queries, selection, mask and sequences."""
    return {
        "tokens": [table(rows) for rows in problem.tokens],
        "queries": table(problem.queries),
        "selected": (problem.selected & problem.mask).astype(int).tolist(),
        "mask": problem.mask.astype(int).tolist(),
        "sequence": problem.sequence.tolist(),
    }


def read_data(content: dict[str, Any]) -> SelectionProblem:
    """Read what :func:`data_content` wrote."""
    data = content["data"]
    return SelectionProblem(
        np.array([read_table(rows) for rows in data["tokens"]]),
        read_table(data["queries"]),
        np.array(data["selected"], dtype=bool),
        mask=np.array(data["mask"], dtype=bool),
        sequence=np.array(data["sequence"]),
    )


def _outward(value: Fraction | int, sign: int) -> str:
    """Round a proven number so that less is claimed, to :data:`BITS` bits."""
    x = Fraction(value)
    shift = BITS - x.numerator.bit_length() + x.denominator.bit_length()
    unit = Fraction(2) ** max(shift, 0)
    rounded = (math.floor if sign > 0 else math.ceil)(x * unit)
    return str(Fraction(rounded) / unit)


def _contradiction(problem: SelectionProblem, farkas: np.ndarray | None) -> dict[str, Any]:
    """Write multipliers that cancel exactly.

    Raises
    ------
    ValueError
        If there are none, or they are too many to be found.
    """
    exact = None if farkas is None else exact_multipliers(problem, np.asarray(farkas, dtype=np.float64))
    if exact is None:
        raise ValueError(
            "solution has status INFEASIBLE; multipliers that cancel exactly were not found beside its own."
        )
    return {"farkas": [[str(x) for x in row] for row in exact.tolist()], "W": None, "dual": None, "vectors": None}


def _witness(problem: SelectionProblem, norm: Norm, asked: Regularisation, certified: Certified) -> dict[str, Any]:
    """Write W and multipliers, and the singular vectors that bound their norms."""
    top = asked.C if asked.C is not None and asked.hinge else math.inf
    dual = admissible(certified.dual, problem.rejected, problem.tied, top)
    has_solution = bool(np.isfinite(certified.objective) and np.isfinite(certified.W).all())
    W = _on_ties(problem, certified.W) if has_solution else None
    vectors: dict[str, Any] = {"V": None, "W": None, "adjoint": norm_proof(norm, problem.adjoint(dual), dual=True)}
    if has_solution:
        vectors["W"] = singular_vectors(certified.W)
        vectors["V"] = norm_proof(norm, certified.W if asked.prior is None else certified.W - asked.prior)
    exact = None if W is None else [[str(x) for x in row] for row in W]
    return {"W": exact, "dual": table(dual), "farkas": None, "vectors": vectors}


def _on_ties(problem: SelectionProblem, W: np.ndarray) -> list[list[Fraction]]:
    """Return W (d, dz) exactly, moved so that tied tokens score exactly the same.

    Raises
    ------
    ValueError
        If there are too many ties to solve for.
    """
    exact = Dyadic.of(W)
    rows = [[Fraction(x) for x in row] for row in W.tolist()]
    queries = Dyadic.of(problem.queries)
    left, right, margins = [], [], []
    for i in np.flatnonzero(problem.tied.any(axis=1)).tolist():
        delta, z = differences(problem, i)[problem.tied[i]], Dyadic(queries.numbers[i], queries.exponent)
        margin = delta @ (exact @ z)
        for k in range(len(delta.numbers)):
            left.append(Dyadic(delta.numbers[k], delta.exponent))
            right.append(z)
            margins.append(Dyadic(np.array(margin.numbers[k], dtype=object), margin.exponent))
    if not any(int(margin.numbers) for margin in margins):
        return rows
    move = exact_move(TieEquations(common(left), common(right), common(margins)))
    if move is None or move.change is None:
        raise ValueError(f"problem has {len(left)} tied tokens; few enough to be solved for exactly were expected.")
    change = np.array(move.change.fractions(), dtype=object).reshape(W.shape) / move.denominator
    return [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(rows, change.tolist(), strict=True)]
