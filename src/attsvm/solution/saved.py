"""Solutions written to files, and read from them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from attsvm import check
from attsvm.core.rounding import LENIENT
from attsvm.core.status import Status
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.claim import Claim
from attsvm.proofs.objective import Regularisation
from attsvm.proofs.words import read_norm, read_table
from attsvm.solution.certificate_file import (
    PROMISES,
    certificate_content,
    read_certificate,
    read_certified,
    read_hex,
    read_problem,
    write_certificate,
)


def save_solution(
    path: str | os.PathLike[str], claim: Claim, method: str, iterations: int, seconds: float, note: str
) -> None:
    """Write a claim and the statistics of its run as a certificate; see :meth:`attsvm.Solution.save`."""
    if os.fspath(path).endswith(".npz"):
        raise ValueError(f"path is {os.fspath(path)}; a certificate is JSON, a name such as c.json was expected.")
    run = {"method": method, "iterations": int(iterations), "seconds": float(seconds), "note": note}
    write_certificate(path, certificate_content(claim, run))


def load_solution(path: str | os.PathLike[str], kinds: Mapping[bool, Any]) -> Any:
    """Read a solution that :meth:`attsvm.Solution.save` wrote; see :meth:`attsvm.Solution.load`.

    ``kinds`` maps True to the class for a norm alone, False to the class for a soft margin or a prior.
    """
    content = read_certificate(path)
    try:
        with np.errstate(**LENIENT):
            solution = _read(content, kinds)
            proof = solution.verify()
    except check.FORMAT_ERRORS as error:
        raise ValueError(
            f"{os.fspath(path)} is malformed ({type(error).__name__}, {str(error)[:200]}); a file that Solution.save "
            "wrote was expected."
        ) from error
    if solution.status in PROMISES and not proof:
        raise ValueError(
            f"{os.fspath(path)} says what its W and multipliers do not show; a proof was expected. {proof.statement}"
        )
    return solution


def _read(content: dict[str, Any], kinds: Mapping[bool, Any]) -> Any:
    problem, question, run = read_problem(content), content["problem"], content["run"]
    C = question["C"]
    if C is not None:
        C = float(Fraction(C)) if isinstance(C, str) else np.array([float(Fraction(price)) for price in C])
    prior = None if question["prior"] is None else read_table(question["prior"])
    regularisation = Regularisation(C, question["loss"], prior)
    certificate = None if run["certificate"] is None else FarkasCertificate(problem, read_hex(run["certificate"]))
    return kinds[regularisation.plain](
        problem,
        read_norm(question["norm"]),
        Status[content["claim"]["status"]],
        read_certified(content),
        int(run["iterations"]),
        float(run["seconds"]),
        str(run["method"]),
        certificate,
        float.fromhex(run["tolerance"]),
        str(run["note"]),
        regularisation,
    )
