"""The commands of the other distributions, found by their entry points when they are called."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

# Package of the distribution that brings each command.
PACKAGES = {"inspect": "attsvm_pretrained", "list": "attsvm_paper", "reproduce": "attsvm_paper"}


def __getattr__(name: str) -> Any:
    if name not in PACKAGES:
        raise AttributeError(f"no distribution brings the command {name}")
    for command in entry_points(group="attsvm.commands", name=name):
        return command.load()
    raise ModuleNotFoundError(f"{PACKAGES[name]} is not installed", name=PACKAGES[name])
