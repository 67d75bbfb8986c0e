"""Heads of Hugging Face models as attention SVMs; needs the extra ``pretrained``.

Nothing of transformers is imported before a function is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attsvm.core.extras import extra_for

_HOMES = {
    "Attribution": "attribution",
    "AttributionCheck": "ablation",
    "Component": "activations.residual",
    "AttentionHead": "head",
    "AttentionMonitor": "monitor",
    "HeadTypes": "types",
    "HeadRank": "rank",
    "KernelSolution": "kernel",
    "Lifted": "rope",
    "MarginAudit": "audit",
    "SelectionProbe": "probe",
    "SelectionReport": "selectivity",
    "Standing": "null",
    "TypeScore": "types",
    "attribute": "contrast",
    "example_head": "example",
    "example_model": "example",
    "extract_head": "extract",
    "extract_heads": "extract",
    "head_types": "types",
    "fit_selection": "probe",
    "margin_audit": "audit",
    "rank_profile": "rank",
    "rope_lift": "rope",
    "selection_report": "selectivity",
    "solve_kernel": "kernel",
}

__all__ = [
    "AttentionHead",
    "AttentionMonitor",
    "Attribution",
    "AttributionCheck",
    "Component",
    "HeadRank",
    "HeadTypes",
    "KernelSolution",
    "Lifted",
    "MarginAudit",
    "SelectionProbe",
    "SelectionReport",
    "Standing",
    "TypeScore",
    "attribute",
    "example_head",
    "example_model",
    "extract_head",
    "extract_heads",
    "fit_selection",
    "head_types",
    "margin_audit",
    "rank_profile",
    "rope_lift",
    "selection_report",
    "solve_kernel",
]

if TYPE_CHECKING:
    from attsvm.pretrained.ablation import AttributionCheck
    from attsvm.pretrained.activations.residual import Component
    from attsvm.pretrained.attribution import Attribution
    from attsvm.pretrained.audit import MarginAudit, margin_audit
    from attsvm.pretrained.contrast import attribute
    from attsvm.pretrained.example import example_head, example_model
    from attsvm.pretrained.extract import extract_head, extract_heads
    from attsvm.pretrained.head import AttentionHead
    from attsvm.pretrained.kernel import KernelSolution, solve_kernel
    from attsvm.pretrained.monitor import AttentionMonitor
    from attsvm.pretrained.null import Standing
    from attsvm.pretrained.probe import SelectionProbe, fit_selection
    from attsvm.pretrained.rank import HeadRank, rank_profile
    from attsvm.pretrained.rope import Lifted, rope_lift
    from attsvm.pretrained.selectivity import SelectionReport, selection_report
    from attsvm.pretrained.types import HeadTypes, TypeScore, head_types


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'attsvm.pretrained' has no attribute {name!r}")
    with extra_for(f"attsvm.pretrained.{name}", "pretrained"):
        value = getattr(import_module(f"attsvm.pretrained.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
