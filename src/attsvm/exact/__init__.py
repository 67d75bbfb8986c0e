"""Proofs of a solution's claim in exact rational and interval arithmetic, with nothing but Python's integers."""

from __future__ import annotations

from attsvm.exact.proof import Proof
from attsvm.exact.prove import prove
from attsvm.exact.recheck import recheck

__all__ = ["Proof", "prove", "recheck"]
