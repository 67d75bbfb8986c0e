"""The description that an index page shows: README after the substitutions that pyproject.toml asks of a build."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def description(readme: str = README, address: str | None = None) -> str:
    """README as a build has it, or would have it if the project were published at this address."""
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["metadata"]["hooks"]
    for position, rule in enumerate(hook["fancy-pypi-readme"]["substitutions"]):
        replacement = rule["replacement"]
        if address and position < 2:
            assert "https://address.invalid" in replacement
            replacement = replacement.replace("https://address.invalid", address)
        readme = re.sub(rule["pattern"], replacement, readme)
    return readme
