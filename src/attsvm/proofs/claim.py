"""What a solution claims, as far as a proof looks at it."""

from __future__ import annotations

from dataclasses import dataclass

from attsvm.core.norms import Norm
from attsvm.core.problem import SelectionProblem
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import Certified


@dataclass(frozen=True, eq=False)
class Claim:
    """A problem, and the W, multipliers or certificate that are said to solve it.

    Attributes
    ----------
    problem : SelectionProblem
    norm : Norm
    certified : Certified
    certificate : FarkasCertificate or None
    """

    problem: SelectionProblem
    norm: Norm
    certified: Certified
    certificate: FarkasCertificate | None
