"""Which files of a directory belong to a study, so that two are never mixed."""

from __future__ import annotations

from pathlib import Path

PAGE, NUMBERS, FIGURES = "report.html", "verdict.json", "figures"
FIGURE_SUFFIXES = (".png", ".pdf")


def files_of_study(directory: Path) -> list[Path]:
    """List the files that an earlier study left in a directory; others that lie there are not ours."""
    own = [directory / name for name in (PAGE, NUMBERS) if (directory / name).is_file()]
    figures = directory / FIGURES
    if figures.is_dir():
        own += sorted(path for path in figures.iterdir() if path.suffix in FIGURE_SUFFIXES)
    return own


def holds_study(directory: Path) -> bool:
    """Tell whether a directory holds the page or the numbers of a study."""
    return any((directory / name).is_file() for name in (PAGE, NUMBERS))
