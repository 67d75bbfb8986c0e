"""Heads of Hugging Face models as attention SVMs; needs the extra ``pretrained``.

transformers is imported when a function first needs it.
"""

from __future__ import annotations

from attsvm.platform.lazy import TYPE_CHECKING, lazy_names

# Checkers and editors read the imports; at run time a name loads its module on first use.
if TYPE_CHECKING:
    from attsvm.pretrained.activations.residual import Component as Component
    from attsvm.pretrained.attribution.ablation import AttributionCheck as AttributionCheck
    from attsvm.pretrained.attribution.attribution import Attribution as Attribution
    from attsvm.pretrained.attribution.contrast import attribute as attribute
    from attsvm.pretrained.attribution.effects import HeadEffects as HeadEffects
    from attsvm.pretrained.attribution.effects import head_effects as head_effects
    from attsvm.pretrained.attribution.logits import LogitAttribution as LogitAttribution
    from attsvm.pretrained.attribution.logits import attribute_logit as attribute_logit
    from attsvm.pretrained.heads.example import example_head as example_head
    from attsvm.pretrained.heads.example import example_model as example_model
    from attsvm.pretrained.heads.extract import extract_head as extract_head
    from attsvm.pretrained.heads.extract import extract_heads as extract_heads
    from attsvm.pretrained.heads.head import AttentionHead as AttentionHead
    from attsvm.pretrained.inspection.checkpoints import Checkpoints as Checkpoints
    from attsvm.pretrained.inspection.checkpoints import HeadSeries as HeadSeries
    from attsvm.pretrained.inspection.checkpoints import over_checkpoints as over_checkpoints
    from attsvm.pretrained.monitoring.monitor import AttentionMonitor as AttentionMonitor
    from attsvm.pretrained.selection.audit import MarginAudit as MarginAudit
    from attsvm.pretrained.selection.audit import margin_audit as margin_audit
    from attsvm.pretrained.selection.kernel import KernelSolution as KernelSolution
    from attsvm.pretrained.selection.kernel import solve_kernel as solve_kernel
    from attsvm.pretrained.selection.null import Standing as Standing
    from attsvm.pretrained.selection.probe import SelectionProbe as SelectionProbe
    from attsvm.pretrained.selection.probe import fit_selection as fit_selection
    from attsvm.pretrained.selection.rank import HeadRank as HeadRank
    from attsvm.pretrained.selection.rank import rank_profile as rank_profile
    from attsvm.pretrained.selection.rope import Lifted as Lifted
    from attsvm.pretrained.selection.rope import rope_lift as rope_lift
    from attsvm.pretrained.selection.selectivity import SelectionReport as SelectionReport
    from attsvm.pretrained.selection.selectivity import selection_report as selection_report
    from attsvm.pretrained.selection.types import HeadTypes as HeadTypes
    from attsvm.pretrained.selection.types import TypeScore as TypeScore
    from attsvm.pretrained.selection.types import head_types as head_types
    from attsvm.pretrained.selection.types import judge_heads as judge_heads
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "attsvm.pretrained.attribution.ablation": ("AttributionCheck",),
            "attsvm.pretrained.activations.residual": ("Component",),
            "attsvm.pretrained.attribution.attribution": ("Attribution",),
            "attsvm.pretrained.selection.audit": ("MarginAudit", "margin_audit"),
            "attsvm.pretrained.attribution.contrast": ("attribute",),
            "attsvm.pretrained.attribution.effects": ("HeadEffects", "head_effects"),
            "attsvm.pretrained.attribution.logits": ("LogitAttribution", "attribute_logit"),
            "attsvm.pretrained.heads.example": ("example_head", "example_model"),
            "attsvm.pretrained.heads.extract": ("extract_head", "extract_heads"),
            "attsvm.pretrained.heads.head": ("AttentionHead",),
            "attsvm.pretrained.inspection.checkpoints": ("Checkpoints", "HeadSeries", "over_checkpoints"),
            "attsvm.pretrained.selection.kernel": ("KernelSolution", "solve_kernel"),
            "attsvm.pretrained.monitoring.monitor": ("AttentionMonitor",),
            "attsvm.pretrained.selection.null": ("Standing",),
            "attsvm.pretrained.selection.probe": ("SelectionProbe", "fit_selection"),
            "attsvm.pretrained.selection.rank": ("HeadRank", "rank_profile"),
            "attsvm.pretrained.selection.rope": ("Lifted", "rope_lift"),
            "attsvm.pretrained.selection.selectivity": ("SelectionReport", "selection_report"),
            "attsvm.pretrained.selection.types": ("HeadTypes", "TypeScore", "head_types", "judge_heads"),
        },
        extra="pretrained",
    )
