"""A study: from a labelled data set to a verdict.

:func:`study` runs the stages of :mod:`attsvm.study.run`; :mod:`attsvm.study.verdict` turns their results into sentences
and numbers. Nothing here writes files or draws.

The names load their module on first use: `attsvm solve` takes words from here, and needs no scikit-learn.
"""

from attsvm.platform.lazy import TYPE_CHECKING, lazy_names

if TYPE_CHECKING:
    from attsvm.study.results import Settings as Settings
    from attsvm.study.results import Study as Study
    from attsvm.study.run import study as study
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__, {"attsvm.study.results": ("Settings", "Study"), "attsvm.study.run": ("study",)}
    )
