"""Proofs of a solution's claim in exact rational and interval arithmetic, with nothing but Python's integers."""

from __future__ import annotations

from attsvm.proofs.claim import Claim
from attsvm.proofs.proof import Proof
from attsvm.proofs.prove import prove
from attsvm.proofs.recheck import recheck

__all__ = ["Claim", "Proof", "prove", "recheck"]
