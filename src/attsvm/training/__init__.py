"""Training attention without losing the direction to rounding."""

from attsvm.training.loop import train
from attsvm.training.registry import OPTIMIZERS
from attsvm.training.trace import Trace

__all__ = ["OPTIMIZERS", "Trace", "train"]
