"""What every page shares: the template environment, embedded figures, and the versions that made it."""

from __future__ import annotations

import base64
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from matplotlib.figure import Figure

from attsvm.plots.style import NARROW, WIDE, as_svg, save

PACKAGES = ("numpy", "scipy", "torch", "numba", "scikit-learn", "matplotlib")


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
        What a reader who cannot see it is told.
    caption : str
        What to look at.
    """

    name: str
    draw: Callable[[float], Figure]
    alt: str
    caption: str

    def save(self, directory: Path) -> None:
        """Write it as PNG and PDF."""
        save(self._column, directory, self.name)

    @cached_property
    def _column(self) -> Figure:
        return self.draw(WIDE)

    @property
    def wide(self) -> str:
        """Data URI of the figure for a page's column."""
        return data_uri(as_svg(self._column))

    @property
    def narrow(self) -> str:
        """Data URI of the figure for a telephone."""
        return data_uri(as_svg(self.draw(NARROW)))


def data_uri(svg: str) -> str:
    """Embed an SVG document."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


@cache
def environment() -> Environment:
    """Return the templates; an undefined name is an error, not a blank."""
    return Environment(
        loader=PackageLoader("attsvm.report"),
        autoescape=select_autoescape(["html.j2", "html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def versions() -> dict[str, str]:
    """Versions of this package, of Python and of what the numbers rest on."""
    from attsvm import __version__

    found = {"attsvm": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
