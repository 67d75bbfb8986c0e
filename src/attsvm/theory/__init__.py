"""Check the theory on given data: which hypotheses hold, and what follows from them."""

from attsvm.theory.alignment import condition_alignment
from attsvm.theory.basins import Basins, map_basins
from attsvm.theory.conditions import (
    Condition,
    check_conditions,
    condition_a,
    condition_b1,
    condition_b2,
    condition_c,
    condition_d,
    condition_e,
)
from attsvm.theory.constants import LocalConstants, Smoothness, in_cone, local_constants, relative_margin, smoothness
from attsvm.theory.divergence import norm_bounded, norm_diverges
from attsvm.theory.kkt import kkt_residual
from attsvm.theory.landscape import Landscape, explore
from attsvm.theory.loss_slopes import LossConstants, loss_constants
from attsvm.theory.relevance import RelevanceCeiling, relevance_ceiling
from attsvm.theory.search import End
from attsvm.theory.separability import Separability, check_separability, separates
from attsvm.theory.temperature import TemperatureSaving, temperature_saving
from attsvm.theory.tokens import LocalOptimality, Trial, local_optimality
from attsvm.theory.verdict import Observation, Outcome, Prediction, agrees, observe, predict

__all__ = [
    "Basins",
    "Condition",
    "End",
    "Landscape",
    "LocalConstants",
    "LocalOptimality",
    "LossConstants",
    "Observation",
    "Outcome",
    "Prediction",
    "RelevanceCeiling",
    "Separability",
    "Smoothness",
    "TemperatureSaving",
    "Trial",
    "agrees",
    "check_conditions",
    "check_separability",
    "condition_a",
    "condition_alignment",
    "condition_b1",
    "condition_b2",
    "condition_c",
    "condition_d",
    "condition_e",
    "explore",
    "in_cone",
    "kkt_residual",
    "local_constants",
    "local_optimality",
    "loss_constants",
    "map_basins",
    "norm_bounded",
    "norm_diverges",
    "observe",
    "predict",
    "relative_margin",
    "relevance_ceiling",
    "separates",
    "smoothness",
    "temperature_saving",
]
