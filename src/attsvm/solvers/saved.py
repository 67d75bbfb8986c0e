"""Solutions back from their files."""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np

from attsvm.core.status import Status
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import certify
from attsvm.proofs.objective import Regularisation
from attsvm.solution.certificate_file import read_certificate, read_data
from attsvm.solution.certificate_norms import read_norm, read_table
from attsvm.solution.solution import Solution
from attsvm.solvers.regularised import RegularisedSolution


def load_solution(path: str | os.PathLike[str]) -> Solution:
    """Read a solution that :meth:`attsvm.Solution.save` wrote; see :meth:`attsvm.Solution.load`."""
    content = read_certificate(path)
    problem, norm, description = read_data(content), read_norm(content["problem"]["norm"]), content["problem"]
    witness, run, status = content["witness"], content["run"], Status[content["claim"]["status"]]
    n, T, d, dz = problem.shape
    W = np.zeros((d, dz)) if witness["W"] is None else read_table(witness["W"])
    dual = np.zeros((n, T)) if witness["dual"] is None else read_table(witness["dual"])
    certificate = None
    if witness["farkas"] is not None:
        exact = [[Fraction(x) for x in row] for row in witness["farkas"]]
        total = sum(exact[i][t] for i, t in zip(*problem.rejected.nonzero(), strict=True))
        certificate = FarkasCertificate(problem, np.array([[float(x / total) for x in row] for row in exact]))
    tol = float(Fraction(content["claim"]["tolerance"]))
    C = None if description["C"] is None else float(Fraction(description["C"]))
    prior = None if description["prior"] is None else read_table(description["prior"])
    regularisation = Regularisation(C, description["loss"], prior)
    certified = certify(problem, norm, W, dual, regularisation)
    if status is Status.OPTIMAL and certified.gap > tol:
        certified = certify(problem, norm, W, dual, regularisation, sharp=True)
    kind = Solution if regularisation.plain else RegularisedSolution
    about = (run["iterations"], run["seconds"], run["method"], certificate, tol, run["note"], regularisation)
    return kind(problem, norm, status, certified, *about)
