"""Figures drawn with matplotlib, each answering one question.

The functions named here draw a single result on given or new axes. The modules draw the figures of reports, without
matplotlib's global state.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attsvm.core.extras import extra_for

if TYPE_CHECKING:
    from attsvm.plots.heads import attribution, controls, head
    from attsvm.plots.results import attention, margins, matrix, path, plane, regularisation, shares, spectrum

__all__ = [
    "attention",
    "attribution",
    "controls",
    "head",
    "margins",
    "matrix",
    "path",
    "plane",
    "regularisation",
    "shares",
    "spectrum",
]
_OF_HEADS = ("attribution", "controls", "head")


def __getattr__(name: str) -> Any:
    # Loaded on first use: reports that need only the style should not load training.
    if name not in __all__:
        raise AttributeError(f"module 'attsvm.plots' has no attribute {name!r}")
    with extra_for(f"attsvm.plots.{name}"):
        return getattr(import_module(f"attsvm.plots.{'heads' if name in _OF_HEADS else 'results'}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
