"""Sphinx configuration: Markdown pages, numpydoc docstrings, and a gallery of runnable examples."""

import os
import warnings

import attsvm

# Gallery scripts run while the pages are built, on machines without a display.
os.environ.setdefault("MPLBACKEND", "agg")
warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")

project = "attsvm"
author = "The attsvm developers"
copyright = "2026, The attsvm developers"
version = release = attsvm.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False

sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["auto_examples"],
    "filename_pattern": r"/plot_",
    "abort_on_example_error": True,
    "min_reported_time": 10,
}

html_theme = "furo"
html_title = f"attsvm {release}"
