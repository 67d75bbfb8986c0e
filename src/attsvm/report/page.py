"""Parts shared by all pages: the template environment, embedded figures, and versions."""

from __future__ import annotations

import base64
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from matplotlib.figure import Figure

from attsvm.platform.summary import counted
from attsvm.plots.style import NARROW, WIDE, as_png, as_svg, save
from attsvm.report.formulas import formula, glossary, math_font

PACKAGES = ("numpy", "scipy", "torch", "numba", "scikit-learn", "matplotlib")
LARGEST_SVG = 600_000
"""Number of bytes of an SVG above which a figure is embedded as PNG."""


@dataclass(frozen=True)
class Picture:
    """A figure of a report.

    Attributes
    ----------
    name : str
        File name without suffix.
    draw : callable
        Draws the figure at a width in inches.
    alt : str
        Description for readers who cannot see the figure.
    caption : str
        What to look at.
    responsive : bool
        Whether `draw` uses the width; otherwise telephones get the same figure.
    own_colours : bool
        Whether it shows the user's images, whose colours must not be inverted on a dark page.
    """

    name: str
    draw: Callable[[float], Figure]
    alt: str
    caption: str
    responsive: bool = True
    own_colours: bool = False

    def save(self, directory: Path, name: str | None = None) -> None:
        """Write it as PNG and PDF, by default under the picture's name."""
        save(self._column, directory, name or self.name)

    @cached_property
    def _column(self) -> Figure:
        return self.draw(WIDE)

    @cached_property
    def wide(self) -> str:
        """Data URI of the figure for a page's column."""
        return data_uri(self._column)

    @cached_property
    def narrow(self) -> str | None:
        """Data URI of the figure for a telephone; None if it is the same."""
        return data_uri(self.draw(NARROW)) if self.responsive else None


def data_uri(figure: Figure) -> str:
    """Embed a figure as SVG, or as PNG if the SVG would be too large."""
    kind, content = "svg+xml", as_svg(figure).encode()
    if len(content) > LARGEST_SVG:
        kind, content = "png", as_png(figure)
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


_ROLES = {"table": "table", "thead": "rowgroup", "tbody": "rowgroup", "tr": "row", "td": "cell"}
_TABLE_TAG = re.compile(r"<(table|thead|tbody|tr|td|th)(?=[ >])(?P<rest>[^>]*)")


def with_roles(html: str) -> Markup:
    """Add ARIA roles to every part of a table.

    Styles lay tables out as blocks or grids, so that all columns fit on a telephone. Some browsers then no longer
    announce a table to screen readers; the roles restore this.
    """

    def with_name(match: re.Match[str]) -> str:
        tag, rest = match[1], match["rest"]
        head = "rowheader" if 'scope="row"' in rest else "columnheader"
        return f'<{tag} role="{_ROLES.get(tag, head)}"{rest}'

    return Markup(_TABLE_TAG.sub(with_name, html))


@cache
def environment(package: str = "attsvm.report") -> Environment:
    """Return the templates of a package and of all pages; an undefined name is an error, not a blank."""
    pages = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("attsvm.report")]),
        autoescape=select_autoescape(["html.j2", "html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.globals |= {"formula": formula, "glossary": glossary, "math_font": math_font}
    pages.filters |= {"with_roles": with_roles, "counted": counted}
    return pages


def versions() -> dict[str, str]:
    """Versions of this package, of Python and of the packages that computed the numbers."""
    from attsvm import __version__

    names = {"attsvm": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            names[package] = version(package)
        except PackageNotFoundError:
            continue
    return names
