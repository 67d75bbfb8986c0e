"""Figures drawn with matplotlib, each answering one question.

The functions named here draw a single result on given or new axes. The modules draw the figures of reports, without
matplotlib's global state.
"""

from __future__ import annotations

from attsvm.platform.lazy import TYPE_CHECKING, lazy_names

# Checkers and editors read the imports; at run time a name loads its module on first use.
if TYPE_CHECKING:
    from attsvm.plots.norm_shares import share_path as share_path
    from attsvm.plots.norm_shares import shares as shares
    from attsvm.plots.results import attention as attention
    from attsvm.plots.results import margins as margins
    from attsvm.plots.results import matrix as matrix
    from attsvm.plots.results import path as path
    from attsvm.plots.results import plane as plane
    from attsvm.plots.results import regularisation as regularisation
    from attsvm.plots.results import spectrum as spectrum
    from attsvm_pretrained.plots.heads import attribution as attribution
    from attsvm_pretrained.plots.heads import controls as controls
    from attsvm_pretrained.plots.heads import head as head
    from attsvm_pretrained.plots.series import checkpoints as checkpoints
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "attsvm_pretrained.plots.heads": ("attribution", "controls", "head"),
            "attsvm.plots.norm_shares": ("share_path", "shares"),
            "attsvm.plots.results": ("attention", "margins", "matrix", "path", "plane", "regularisation", "spectrum"),
            "attsvm_pretrained.plots.series": ("checkpoints",),
        },
    )
