"""Training attention, exact where softmax saturates."""

from attsvm.platform.extras import extra_for

with extra_for("attsvm.training"):
    from attsvm.training.optimisers.registry import OPTIMIZERS
    from attsvm.training.paths.path import regularization_path
    from attsvm.training.paths.path_result import RegularizationPath
    from attsvm.training.risk.embeddings import Vocabulary
    from attsvm.training.run.loop import train
    from attsvm.training.run.trace import Trace

__all__ = ["OPTIMIZERS", "RegularizationPath", "Trace", "Vocabulary", "regularization_path", "train"]
