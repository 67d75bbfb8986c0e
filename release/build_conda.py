"""Build the conda recipe without access to a conda channel.

The recipe requires Python, pip and the build backend from a channel. This script makes a channel in a folder: its
python is an environment of this Python with the backend, and its other packages are empty. rattler-build then works as
usual: it solves, runs the recipe's script, and packs the installed files. The tests of the recipe need the dependencies
of attsvm, so only a real channel can run them.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from rattler_build import Package, Stage0Recipe

EMPTY = """
package: {{name: {name}, version: "{version}"}}
build: {{number: 0, script: ["mkdir -p $PREFIX/share/{name}", "touch $PREFIX/share/{name}/empty"]}}
"""
# Installs into its folder, as conda's python does.
PYTHON = """
package: {{name: python, version: "{version}"}}
build:
  number: 0
  script:
    - mkdir -p $PREFIX/bin
    - printf '#!/bin/sh\\nPIP_PREFIX=${{0%%/bin/python}} exec {interpreter} "$@"\\n' > $PREFIX/bin/python
    - chmod +x $PREFIX/bin/python
"""


def build_package(recipe: Path, requirements: list[str], folder: Path) -> Path:
    """Build a recipe against a channel that has its requirements for building, and return the package."""
    interpreter = folder / "backend" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder / "backend"], check=True)
    subprocess.run([interpreter, "-m", "pip", "install", "-q", *requirements], check=True)
    stubs = {
        name: EMPTY.format(name=name, version=version) for name, _, version in map(_parts, ["pip>=1", *requirements])
    }
    stubs["python"] = PYTHON.format(version=f"{sys.version_info[0]}.{sys.version_info[1]}.0", interpreter=interpreter)
    channel = folder / "channel"
    for name, text in stubs.items():
        path = folder / name / "recipe.yaml"
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
        _run(path, channel)
    return _run(recipe, channel)


def _parts(requirement: str) -> tuple[str, str, str]:
    return requirement.partition(">=")


def _run(recipe: Path, channel: Path) -> Path:
    """Build one recipe into the channel that has its requirements."""
    (variant,) = Stage0Recipe.from_file(recipe).render()
    result = variant.run_build(output_dir=channel, channels=[channel.as_uri()])
    return Path(result.packages[0])


def difference(package: Path, wheel: Path) -> list[str]:
    """Return the modules and data files that a conda package and a wheel do not share."""
    ours = {name.removeprefix("site-packages/") for name in Package.from_file(package).files}
    theirs = set(zipfile.ZipFile(wheel).namelist())
    return sorted(name for name in ours ^ theirs if name.startswith("attsvm/"))
