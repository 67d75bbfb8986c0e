"""The main job: a labelled data set in, a verdict out.

:func:`study` runs the stages of :mod:`attsvm.study.run` one after the other; :mod:`attsvm.study.verdict` turns what
they found into sentences and numbers. Nothing here writes files or draws.
"""

from attsvm.study.results import Settings, Study
from attsvm.study.run import study

__all__ = ["Settings", "Study", "study"]
