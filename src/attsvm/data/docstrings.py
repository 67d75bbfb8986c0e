"""Real sentences in every installation: the docstrings of two libraries.

The prose of a docstring (before its first section) is a text of about twenty to a hundred words. Its library is the
label. Texts change slightly with the versions of the libraries.
"""

from __future__ import annotations

import inspect
import re
from pkgutil import resolve_name

import numpy as np

from attsvm.data.text import WORD, LabelledTexts

MODULES = {
    "numpy": ("numpy", "numpy.linalg", "numpy.fft", "numpy.random", "numpy.polynomial.polynomial"),
    "scipy": ("scipy.linalg", "scipy.optimize", "scipy.signal", "scipy.sparse", "scipy.stats", "scipy.integrate"),
}
LEAST_WORDS = 12
# The first section of a docstring, recognised by its underline.
SECTION = re.compile(r"^.+\n-{3,}\s*$", re.MULTILINE)
# Markup, and the signature with which the docstring of a compiled function begins.
MARKUP = re.compile(r"\.\. \w+::.*|:\w+:|^\w+\(.*\)\s*$", re.MULTILINE)


def docstrings(classes: str = "numpy-scipy") -> LabelledTexts:
    """Collect the prose of public functions of two libraries.

    Parameters
    ----------
    classes : str
        The two libraries, joined by a hyphen.

    Returns
    -------
    LabelledTexts
        In the order of module and name; label +1 is the alphabetically later library.

    Raises
    ------
    ValueError
        If `classes` does not name two of the libraries.
    """
    names = sorted(classes.split("-"))
    if len(names) != 2 or not set(names) <= MODULES.keys():
        raise ValueError(f"classes is {classes!r}; two of {', '.join(sorted(MODULES))}, with a hyphen, were expected.")
    texts: dict[str, float] = {}
    for name, label in zip(names, (-1.0, 1.0), strict=True):
        for module in MODULES[name]:
            for text in _prose(module):
                texts.setdefault(text, label)
    return LabelledTexts("docstrings", tuple(texts), np.array(list(texts.values())), (names[1], names[0]))


def _prose(module: str) -> list[str]:
    """Return the texts of a module's public functions and classes that have at least ``LEAST_WORDS`` words."""
    library = resolve_name(module)
    texts = []
    for name in sorted(library.__all__):
        member = getattr(library, name)
        whole = ((inspect.getdoc(member) if callable(member) else None) or "").partition(">>>")[0]
        section = SECTION.search(whole)
        text = MARKUP.sub(" ", whole[: section.start()] if section else whole)
        if len(WORD.findall(text)) >= LEAST_WORDS:
            texts.append(" ".join(text.split()))
    return texts
