"""Training attention, exact where softmax saturates."""

from attsvm.core.extras import extra_for

with extra_for("attsvm.training"):
    from attsvm.training.embeddings import Vocabulary
    from attsvm.training.loop import train
    from attsvm.training.path import regularization_path
    from attsvm.training.path_result import RegularizationPath
    from attsvm.training.registry import OPTIMIZERS
    from attsvm.training.trace import Trace

__all__ = ["OPTIMIZERS", "RegularizationPath", "Trace", "Vocabulary", "regularization_path", "train"]
