r"""A solution as a file of rational numbers, which :mod:`attsvm.check` reads and anyone can check.

The file claims what the checker itself proves, rounded outward, so every written file passes the check. W, the
multipliers and the data equal the solution's bit for bit. The part ``run`` holds the rest of the solution, which the
checker does not need.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np

from attsvm import __version__, check
from attsvm.core.problem import SelectionProblem
from attsvm.core.status import Status
from attsvm.platform.files import replacing_file
from attsvm.platform.interop import Kind
from attsvm.proofs.certified import Certified
from attsvm.proofs.claim import Claim
from attsvm.proofs.prove import Examination, examine
from attsvm.proofs.words import norm_words, read_table, table

# Claims are rounded outward to this many bits.
BITS = 80
# Statuses that promise an answer: their file is written only when the answer is proven.
PROMISES = (Status.OPTIMAL, Status.INFEASIBLE)


def certificate_content(claim: Claim, run: dict[str, Any]) -> dict[str, Any]:
    """Write a certificate as nested dictionaries and lists, ready for JSON.

    Parameters
    ----------
    run : dict
        Statistics of the run, which are not checked.

    Raises
    ------
    ValueError
        If the norm has no rational certificate, or the claim cannot be proven in exact arithmetic.
    """
    norm_words(claim.norm)
    examination, name = examine(claim), claim.status.name
    parts = examination.parts
    if parts is None or (claim.status in PROMISES and not examination.proof):
        reason = examination.proof.statement.removeprefix("Not proven: ")
        if claim.status is Status.INFEASIBLE and claim.certificate is None:
            reason = f"multipliers that cancel exactly were not found, since {reason}"
        raise ValueError(f"solution has status {name}; a claim that exact arithmetic proves was expected: {reason}")
    content = {
        "format": check.FORMAT,
        "attsvm": __version__,
        **parts,
        "claim": {"status": name, **_claims(claim, examination)},
        "run": run | _state(claim, parts["witness"]),
    }
    return content | {"digest": check.digest(content)}


def _claims(claim: Claim, examination: Examination) -> dict[str, str]:
    """Round proven numbers outward; the tolerance covers the interval of an optimum, whose ends were rounded."""
    proven = examination.proven
    rounded = {name: _outward(proven[name], sign) for name, sign in check.CLAIMS.items() if name in proven}
    width = check.gap({name: Fraction(rounded[name]) for name in ("lower", "upper") if name in rounded})
    tolerance = Fraction(claim.tol)
    if claim.status is Status.OPTIMAL and width is not None:
        tolerance = max(tolerance, width)
    return {"tolerance": str(tolerance), **rounded}


def _state(claim: Claim, witness: dict[str, Any]) -> dict[str, Any]:
    """Write every bit of a solution that the certificate itself does not hold."""
    certified, problem = claim.certified, claim.problem
    numbers = {field.name: getattr(certified, field.name) for field in fields(Certified)}
    arrays = {name: numbers.pop(name) for name in ("W", "dual", "margins")}
    # A witness holds no matrix that is not finite.
    told = {
        name: array
        for name, array in arrays.items()
        if not np.isfinite(array).all() or table(array) != witness.get(name)
    }
    split = numbers.pop("split")
    if split is not None:
        told["split"] = split.reshape(-1, split.shape[-1])
    return {
        "tolerance": claim.tol.hex(),
        "tokens": str(problem.tokens.dtype),
        "results": str(np.dtype(_dtype_name(problem.kind))),
        "numbers": {name: None if x is None else float(x).hex() for name, x in numbers.items()},
        "arrays": {name: hex_table(array) for name, array in told.items()},
        "certificate": None if claim.certificate is None else hex_table(claim.certificate.dual),
    }


def _dtype_name(kind: Kind) -> str:
    return str(kind.dtype).rpartition(".")[2]


def hex_table(array: np.ndarray) -> list[list[str]]:
    """Write any floats, infinities and NaN included."""
    return [[x.hex() for x in row] for row in np.asarray(array, dtype=np.float64).tolist()]


def read_hex(rows: list[list[str]]) -> np.ndarray:
    """Read what :func:`hex_table` wrote."""
    return np.array([[float.fromhex(x) for x in row] for row in rows], dtype=np.float64)


def read_certified(content: dict[str, Any]) -> Certified:
    """Read W, multipliers, margins and the statements about them."""
    witness, run = content["witness"], content["run"]
    names = ("W", "dual", "margins")
    arrays = {
        name: read_hex(run["arrays"][name]) if name in run["arrays"] else read_table(witness[name]) for name in names
    }
    split = read_hex(run["arrays"]["split"]).reshape(-1, *arrays["W"].shape) if "split" in run["arrays"] else None
    for array in arrays.values():
        array.setflags(write=False)
    numbers: dict[str, Any] = {k: None if x is None else float.fromhex(x) for k, x in run["numbers"].items()}
    return Certified(**arrays, **numbers, split=split)


def write_certificate(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write a certificate under a temporary name in the same folder, then rename it."""
    with replacing_file(path) as temporary:
        temporary.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


def read_certificate(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a certificate whose digest fits its content.

    Raises OSError if the file cannot be read, and ValueError if it is no certificate, or was changed.
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


def read_problem(content: dict[str, Any]) -> SelectionProblem:
    """Read tokens, queries, selection, mask and sequences, with their dtypes."""
    data, run = content["data"], content["run"]
    problem = SelectionProblem(
        np.array([read_table(rows) for rows in data["tokens"]]).astype(np.dtype(run["tokens"])),
        read_table(data["queries"]),
        np.array(data["selected"], dtype=bool),
        mask=np.array(data["mask"], dtype=bool),
        sequence=np.array(data["sequence"]),
    )
    problem.kind = Kind(np.dtype(run["results"]))
    return problem


def _outward(value: Fraction | int, sign: int) -> str:
    """Round a proven number so that less is claimed, to :data:`BITS` bits."""
    x = Fraction(value)
    shift = BITS - x.numerator.bit_length() + x.denominator.bit_length()
    unit = Fraction(2) ** max(shift, 0)
    rounded = (math.floor if sign > 0 else math.ceil)(x * unit)
    return str(Fraction(rounded) / unit)
