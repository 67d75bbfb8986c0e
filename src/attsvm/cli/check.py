"""`attsvm check`: a certificate in, what it proves out."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from attsvm import check as checker
from attsvm.cli.console import BadInput, Exit, refusing
from attsvm.cli.solve import read_problem
from attsvm.proofs.proof import interval_statement
from attsvm.solution.certificate_file import data_content
from attsvm.solution.certificate_norms import read_norm


def check(file: Path, data: Path | None = None, /) -> int:
    """Check a certificate in exact arithmetic, with nothing of the solvers.

    Exits with 0 when everything claimed is proven, 1 when it is not, 2 when a file cannot be read. The checker is one
    file that needs nothing but Python: `python -m attsvm.check FILE` does the same.

    Parameters
    ----------
    file
        The certificate, as written by `attsvm solve --certificate` or Solution.save.
    data
        The .npz file whose problem the certificate is to be about; by default the problem it holds itself.
    """
    with refusing():
        problem = None if data is None else read_problem(data)
        content = _read_json(file)
    try:
        claims = checker.check(content)
        if problem is not None and data_content(problem) != content["data"]:
            raise checker.Rejected(f"the certificate is about another problem than {data}")
    except checker.Rejected as error:
        print(f"rejected  {error}")
        return Exit.REJECTED
    for name, text in statements(content, claims):
        print(f"{name:9} {text}")
    return Exit.DONE


def _read_json(file: Path) -> Any:
    """Read JSON.

    Raises
    ------
    BadInput
        If the file holds something else.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file} is not JSON; a certificate was expected.") from error


def statements(content: dict[str, Any], claims: dict[str, Any]) -> list[tuple[str, str]]:
    """Word what was proven, a name and a sentence each."""
    lines = [("proven", claims["status"].lower())]
    if claims["status"] == "INFEASIBLE":
        return [*lines, ("reason", "No W satisfies the constraints: the multipliers cancel exactly.")]
    description, norm = content["problem"], read_norm(content["problem"]["norm"]).name
    low, high = claims["lower"], claims.get("upper", float("inf"))
    if description["C"] is None and description["prior"] is None:
        lines.append(("norm", interval_statement(norm, low, high)))
    else:
        lines.append(("objective", f"The smallest lies in [{float(low):.15g}, {float(high):.15g}], {norm} norm."))
    if "distance" in claims:
        what = "W over its smallest margin" if description["C"] is None and description["prior"] is None else "W"
        lines.append(("distance", f"{what} lies within {_up(claims['distance'])} of the optimum (Frobenius norm)."))
    if "rank_at_least" in claims:
        least, most = int(claims["rank_at_least"]), int(claims["rank_at_most"])
        lines.append(
            ("rank", f"{least} for every optimum." if least == most else f"{least} to {most} for every optimum.")
        )
    if "tail" in claims:
        face, tail = int(claims["face"]), _up(claims["tail"])
        lines.append(("spectrum", f"The singular values of an optimum after the first {face} sum to {tail} at most."))
    return lines


def _up(value: Fraction) -> str:
    """Write a bound with two digits, rounded up."""
    return f"{float(value) * 1.05:.1e}" if value else "0"
