"""The commands of the distribution attsvm-paper, found by their entry points when they are called."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any


def __getattr__(name: str) -> Any:
    for command in entry_points(group="attsvm.commands", name=name):
        return command.load()
    raise ModuleNotFoundError(f"no distribution brings the command {name}", name="attsvm_paper")
