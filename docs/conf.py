"""Sphinx configuration: Markdown pages, numpydoc docstrings, and a gallery of runnable examples."""

import os
import sys
import warnings
from pathlib import Path

import attsvm

sys.path.insert(0, str(Path(__file__).parent))
# Gallery scripts run while the pages are built, on machines without a display.
os.environ.setdefault("MPLBACKEND", "agg")
warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")

project = "attsvm"
author = "The attsvm developers"
version = release = attsvm.__version__
# The theme prints this at the foot of every page.
copyright = f"2026, The attsvm developers. Version {release}, MIT licence"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "numpydoc",
    "defaults",
    "glossary_links",
    "mathml",
    "notebook_pages",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
# releasing.md is for those who publish the package: it is read in the repository.
exclude_patterns = ["releasing.md", "_templates", "tables", "_build", "**sg_execution_times.rst"]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False

sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["auto_examples"],
    "subsection_order": ["../examples/solving", "../examples/training", "../examples/applications"],
    "backreferences_dir": "generated/backreferences",
    "doc_module": ("attsvm",),
    "filename_pattern": r"/plot_",
    "abort_on_example_error": True,
    "min_reported_time": 10,
}

html_math_renderer = "mathml"
html_theme = "furo"
html_static_path = ["_static", "../src/attsvm/report/font"]
html_js_files = ["accessible.js"]
html_css_files = ["figures.css"]
html_title = f"attsvm {release}"
# All pages fit into the sidebar of a screen that is 1,000 pixels high.
html_theme_options = {
    "light_css_variables": {
        "sidebar-item-font-size": "0.82rem",
        "sidebar-item-spacing-vertical": "0.26rem",
        "sidebar-caption-space-above": "0.6rem",
        "sidebar-search-space-above": "0.2rem",
        "sidebar-tree-space-above": "0",
    }
}
