"""Modules of the experiments under their earlier names; the distribution attsvm-paper has them."""

from __future__ import annotations

import sys

from attsvm.platform.extras import extra_for

with extra_for("attsvm.experiments"):
    from attsvm_paper import registry
    from attsvm_paper.engine import experiment, runner, workers
    from attsvm_paper.judging import comparison, joint, readings

__all__ = ["comparison", "experiment", "joint", "readings", "registry", "runner", "workers"]

# An import of attsvm.experiments.runner first imports this module and then finds its entry here.
sys.modules |= {f"{__name__}.{name}": globals()[name] for name in __all__}
