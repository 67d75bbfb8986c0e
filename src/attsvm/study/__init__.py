"""A study: from a labelled data set to a verdict.

:func:`study` runs the stages of :mod:`attsvm.study.run`; :mod:`attsvm.study.verdict` turns their results into sentences
and numbers. Nothing here writes files or draws.
"""

from attsvm.study.results import Settings, Study
from attsvm.study.run import study

__all__ = ["Settings", "Study", "study"]
