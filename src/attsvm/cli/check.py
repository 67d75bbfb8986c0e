"""`attsvm check`: verify a certificate."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from attsvm import check as checker
from attsvm.cli.console import BadInput, Exit, refusing
from attsvm.cli.solve import read_problem
from attsvm.proofs.witness import data_content


def check(file: Path, data: Path | None = None, /, *, tol: float = checker.TOLERANCE) -> int:
    """Check a certificate in exact arithmetic, independently of the solvers.

    Exits with 0 if every claim is proven and the interval is no wider than --tol, 1 if not, 2 if a file cannot be read.
    The checker is one file that needs only Python: `python -m attsvm.check FILE` does the same.

    Parameters
    ----------
    file
        The certificate, as written by `attsvm solve --certificate` or Solution.save.
    data
        The .npz file with the problem that the certificate must be about; by default the problem in the certificate.
    tol
        Largest width of the interval of an optimum, relative to its lower end.
    """
    with refusing():
        if not 0 <= tol < float("inf"):
            raise BadInput(f"--tol is {tol}; a number from 0 was expected.")
        problem = None if data is None else read_problem(data)
        content = _read_json(file)
    try:
        claims = checker.check(content)
        if problem is not None and data_content(problem) != content["data"]:
            raise checker.Rejected(f"the certificate is about another problem than {data}")
    except checker.Rejected as error:
        print(f"rejected  {error}")
        return Exit.REJECTED
    for name, text in checker.statements(content, claims):
        print(f"{name:9} {text}")
    refusal = checker.refusal(claims, Fraction(tol))
    if refusal is not None:
        print(f"rejected  {refusal}")
    return Exit.DONE if refusal is None else Exit.REJECTED


def _read_json(file: Path) -> Any:
    """Read a JSON file; raise BadInput if the file is not JSON."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file} is not JSON; a certificate was expected.") from error
