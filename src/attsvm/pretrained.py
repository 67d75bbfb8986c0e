"""Heads of Hugging Face models as attention SVMs; the distribution attsvm-pretrained has them.

transformers is imported when a function first needs it.
"""

from __future__ import annotations

from attsvm.platform.lazy import TYPE_CHECKING, lazy_names

# Checkers and editors read the imports; at run time a name loads its module on first use.
if TYPE_CHECKING:
    from attsvm_pretrained.activations.residual import Component as Component
    from attsvm_pretrained.attribution.ablation import AttributionCheck as AttributionCheck
    from attsvm_pretrained.attribution.attribution import Attribution as Attribution
    from attsvm_pretrained.attribution.contrast import attribute as attribute
    from attsvm_pretrained.attribution.effects import HeadEffects as HeadEffects
    from attsvm_pretrained.attribution.effects import head_effects as head_effects
    from attsvm_pretrained.attribution.logits import LogitAttribution as LogitAttribution
    from attsvm_pretrained.attribution.logits import attribute_logit as attribute_logit
    from attsvm_pretrained.heads.example import example_head as example_head
    from attsvm_pretrained.heads.example import example_model as example_model
    from attsvm_pretrained.heads.extract import extract_head as extract_head
    from attsvm_pretrained.heads.extract import extract_heads as extract_heads
    from attsvm_pretrained.heads.head import AttentionHead as AttentionHead
    from attsvm_pretrained.inspection.checkpoints import Checkpoints as Checkpoints
    from attsvm_pretrained.inspection.checkpoints import HeadSeries as HeadSeries
    from attsvm_pretrained.inspection.checkpoints import over_checkpoints as over_checkpoints
    from attsvm_pretrained.monitoring.monitor import AttentionMonitor as AttentionMonitor
    from attsvm_pretrained.selection.audit import MarginAudit as MarginAudit
    from attsvm_pretrained.selection.audit import margin_audit as margin_audit
    from attsvm_pretrained.selection.kernel import KernelSolution as KernelSolution
    from attsvm_pretrained.selection.kernel import solve_kernel as solve_kernel
    from attsvm_pretrained.selection.null import Standing as Standing
    from attsvm_pretrained.selection.probe import SelectionProbe as SelectionProbe
    from attsvm_pretrained.selection.probe import fit_selection as fit_selection
    from attsvm_pretrained.selection.rank import HeadRank as HeadRank
    from attsvm_pretrained.selection.rank import rank_profile as rank_profile
    from attsvm_pretrained.selection.rope import Lifted as Lifted
    from attsvm_pretrained.selection.rope import rope_lift as rope_lift
    from attsvm_pretrained.selection.selectivity import SelectionReport as SelectionReport
    from attsvm_pretrained.selection.selectivity import selection_report as selection_report
    from attsvm_pretrained.selection.types import HeadTypes as HeadTypes
    from attsvm_pretrained.selection.types import TypeScore as TypeScore
    from attsvm_pretrained.selection.types import head_types as head_types
    from attsvm_pretrained.selection.types import judge_heads as judge_heads
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "attsvm_pretrained.attribution.ablation": ("AttributionCheck",),
            "attsvm_pretrained.activations.residual": ("Component",),
            "attsvm_pretrained.attribution.attribution": ("Attribution",),
            "attsvm_pretrained.selection.audit": ("MarginAudit", "margin_audit"),
            "attsvm_pretrained.attribution.contrast": ("attribute",),
            "attsvm_pretrained.attribution.effects": ("HeadEffects", "head_effects"),
            "attsvm_pretrained.attribution.logits": ("LogitAttribution", "attribute_logit"),
            "attsvm_pretrained.heads.example": ("example_head", "example_model"),
            "attsvm_pretrained.heads.extract": ("extract_head", "extract_heads"),
            "attsvm_pretrained.heads.head": ("AttentionHead",),
            "attsvm_pretrained.inspection.checkpoints": ("Checkpoints", "HeadSeries", "over_checkpoints"),
            "attsvm_pretrained.selection.kernel": ("KernelSolution", "solve_kernel"),
            "attsvm_pretrained.monitoring.monitor": ("AttentionMonitor",),
            "attsvm_pretrained.selection.null": ("Standing",),
            "attsvm_pretrained.selection.probe": ("SelectionProbe", "fit_selection"),
            "attsvm_pretrained.selection.rank": ("HeadRank", "rank_profile"),
            "attsvm_pretrained.selection.rope": ("Lifted", "rope_lift"),
            "attsvm_pretrained.selection.selectivity": ("SelectionReport", "selection_report"),
            "attsvm_pretrained.selection.types": ("HeadTypes", "TypeScore", "head_types", "judge_heads"),
        },
        extra="pretrained",
    )
