"""Files of a directory that belong to a study, so that two studies are never mixed."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

PAGE, NUMBERS, FIGURES = "report.html", "verdict.json", "figures"
FIGURE_NAMES = ("correlation", "spectrum", "margins", "precision", "selection", "support", "deciding")
FIGURE_SUFFIXES = (".png", ".pdf")


def listed_files(directory: Path) -> list[Path]:
    """List the files that the verdict.json of an earlier study names, and no others."""
    try:
        names = json.loads((directory / NUMBERS).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    names = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    inside = [PurePosixPath(name) for name in names]
    return [directory / name for name in inside if not name.is_absolute() and ".." not in name.parts]


def file_in_the_way(directory: Path) -> str | None:
    """Name a file that a new study would replace; None if there is none."""
    figures = (f"{FIGURES}/{name}{suffix}" for name in FIGURE_NAMES for suffix in FIGURE_SUFFIXES)
    return next((name for name in (PAGE, NUMBERS, *figures) if (directory / name).exists()), None)
