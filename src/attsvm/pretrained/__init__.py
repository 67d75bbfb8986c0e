"""Heads of Hugging Face models as attention SVMs; needs the extra ``pretrained``.

Nothing of transformers is imported before a function is called.
"""

from __future__ import annotations

from attsvm.core.lazy import TYPE_CHECKING, lazy_names

# Checkers and editors read the imports; at run time a name loads its module on first use.
if TYPE_CHECKING:
    from attsvm.pretrained.ablation import AttributionCheck as AttributionCheck
    from attsvm.pretrained.activations.residual import Component as Component
    from attsvm.pretrained.attribution import Attribution as Attribution
    from attsvm.pretrained.audit import MarginAudit as MarginAudit
    from attsvm.pretrained.audit import margin_audit as margin_audit
    from attsvm.pretrained.contrast import attribute as attribute
    from attsvm.pretrained.example import example_head as example_head
    from attsvm.pretrained.example import example_model as example_model
    from attsvm.pretrained.extract import extract_head as extract_head
    from attsvm.pretrained.extract import extract_heads as extract_heads
    from attsvm.pretrained.head import AttentionHead as AttentionHead
    from attsvm.pretrained.kernel import KernelSolution as KernelSolution
    from attsvm.pretrained.kernel import solve_kernel as solve_kernel
    from attsvm.pretrained.monitor import AttentionMonitor as AttentionMonitor
    from attsvm.pretrained.null import Standing as Standing
    from attsvm.pretrained.probe import SelectionProbe as SelectionProbe
    from attsvm.pretrained.probe import fit_selection as fit_selection
    from attsvm.pretrained.rank import HeadRank as HeadRank
    from attsvm.pretrained.rank import rank_profile as rank_profile
    from attsvm.pretrained.rope import Lifted as Lifted
    from attsvm.pretrained.rope import rope_lift as rope_lift
    from attsvm.pretrained.selectivity import SelectionReport as SelectionReport
    from attsvm.pretrained.selectivity import selection_report as selection_report
    from attsvm.pretrained.types import HeadTypes as HeadTypes
    from attsvm.pretrained.types import TypeScore as TypeScore
    from attsvm.pretrained.types import head_types as head_types
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "attsvm.pretrained.ablation": ("AttributionCheck",),
            "attsvm.pretrained.activations.residual": ("Component",),
            "attsvm.pretrained.attribution": ("Attribution",),
            "attsvm.pretrained.audit": ("MarginAudit", "margin_audit"),
            "attsvm.pretrained.contrast": ("attribute",),
            "attsvm.pretrained.example": ("example_head", "example_model"),
            "attsvm.pretrained.extract": ("extract_head", "extract_heads"),
            "attsvm.pretrained.head": ("AttentionHead",),
            "attsvm.pretrained.kernel": ("KernelSolution", "solve_kernel"),
            "attsvm.pretrained.monitor": ("AttentionMonitor",),
            "attsvm.pretrained.null": ("Standing",),
            "attsvm.pretrained.probe": ("SelectionProbe", "fit_selection"),
            "attsvm.pretrained.rank": ("HeadRank", "rank_profile"),
            "attsvm.pretrained.rope": ("Lifted", "rope_lift"),
            "attsvm.pretrained.selectivity": ("SelectionReport", "selection_report"),
            "attsvm.pretrained.types": ("HeadTypes", "TypeScore", "head_types"),
        },
        extra="pretrained",
    )
