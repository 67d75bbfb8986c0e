"""Size on disk of attsvm's installed dependencies, by extra; PyTorch and packages that only it requires are separate.

    python benchmarks/installed_size.py [EXTRA ...]

The script follows the requirements of installed distributions, beginning with pyproject.toml, and adds the sizes of the
files that each distribution lists.
"""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(name: str, extras: set[str]) -> list[str]:
    """Return the requirements of a distribution with these extras; none if it is not installed."""
    if name == "attsvm":
        optional = PROJECT["optional-dependencies"]
        return [text for extra in sorted(extras) for text in optional[extra]] + PROJECT["dependencies"]
    try:
        return distribution(name).requires or []
    except PackageNotFoundError:
        return []


def closure(name: str, extras: set[str], visits: set[tuple[str, str]]) -> set[str]:
    """Return the names of a distribution and of all that it requires, directly or not."""
    names = {name}
    for text in requirements(name, extras):
        one = Requirement(text)
        applies = one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))
        key = (one.name.lower(), ",".join(sorted(one.extras)))
        if applies and key not in visits:
            visits.add(key)
            names |= closure(one.name.lower(), set(one.extras), visits)
    return names


def size(name: str) -> int:
    """Return the bytes of the files of a distribution; zero if it is not installed."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return 0
    paths = (Path(str(one.locate())) for one in distribution(name).files or [])
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> None:
    """Print a line for the core and for each extra."""
    core = closure("attsvm", set(), set()) - {"attsvm"}
    torch = closure("torch", set(), set())
    for extra in ("", *sys.argv[1:]):
        names = closure("attsvm", {extra} - {""}, set()) - {"attsvm"}
        rest = core | (names - torch)
        label = f"attsvm[{extra}]" if extra else "attsvm"
        also = (
            f", and {sum(map(size, torch - rest)) / 1e9:.2f} GB of PyTorch as installed here"
            if "torch" in names
            else ""
        )
        print(f"{label}: {sum(map(size, rest)) / 1e9:.2f} GB ({len(rest)} packages){also}")


if __name__ == "__main__":
    main()
