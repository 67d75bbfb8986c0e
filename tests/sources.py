"""The modules of the distributions attsvm, attsvm-pretrained and attsvm-paper."""

from __future__ import annotations

from pathlib import Path

import attsvm
import attsvm_paper
import attsvm_pretrained

PACKAGES = tuple(Path(package.__path__[0]) for package in (attsvm, attsvm_pretrained, attsvm_paper))
FILES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))


def place(path: Path) -> str:
    """Return a module's path with its package in front: attsvm/core/problem.py."""
    package = next(package for package in PACKAGES if package in path.parents)
    return path.relative_to(package.parent).as_posix()
