"""The experiments by name, and experiments in users' files.

``registry.toml`` describes each experiment; its modules are imported on its first use.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

from attsvm_paper.engine.experiment import Effort, Experiment
from attsvm_paper.engine.own_file import is_file, read_experiment


@dataclass(frozen=True)
class Listing:
    """The description of an experiment that is not imported: attributes of :class:`Experiment`, and its modules."""

    name: str
    title: str
    source: str
    claim: str
    minutes: Mapping[Effort, float]
    instance: tuple[str, ...]
    batch: int
    modules: tuple[str, ...]


_TABLE = tomllib.loads(files("attsvm_paper").joinpath("registry.toml").read_text(encoding="utf-8"))


def _listings(section: str) -> dict[str, Listing | Experiment]:
    listings: dict[str, Listing | Experiment] = {}
    for name, entry in _TABLE[section].items():
        stems = entry.pop("modules", [name.replace("-", "_")])
        modules = tuple(f"{__package__}.{section}.{stem}" for stem in stems)
        listings[name] = Listing(name, instance=tuple(entry.pop("instance")), modules=modules, **entry)
    return listings


FIGURES = _listings("figures")
"""The published figures, in the order of the report."""

BEYOND = _listings("beyond")
"""Experiments without a published counterpart."""


def names() -> tuple[str, ...]:
    """List the experiments: the published figures, then the others."""
    return (*FIGURES, *BEYOND)


def get(name: str) -> Experiment:
    """Import an experiment.

    Parameters
    ----------
    name : str
        A name of the list, or the path of a file that defines an ``EXPERIMENT``, such as ``./own.py``.

    Raises
    ------
    ValueError
        If there is no such experiment (the message suggests the closest names), or the file has none that can run.
    OSError
        If the file cannot be read.
    """
    listings = FIGURES | BEYOND
    if is_file(name):
        experiment = read_experiment(name)
        if experiment.name in listings:
            raise ValueError(f"{name} calls its experiment {experiment.name!r}, as attsvm does; another was expected.")
        return experiment
    if name not in listings:
        close = difflib.get_close_matches(name, listings, n=3, cutoff=0.5)
        suggestion = " or ".join(close) if close else "a name of `attsvm list`, or a file such as ./own.py,"
        raise ValueError(f"{name!r} is no experiment; {suggestion} was expected.")
    listing = listings[name]
    return listing if isinstance(listing, Experiment) else _of_modules(name)


@cache
def _of_modules(name: str) -> Experiment:
    """Collect the parts of an experiment, each from the first of its modules that has it."""
    entry = dict(vars((FIGURES | BEYOND)[name]))
    parts: dict[str, Any] = {}
    for module in reversed(entry.pop("modules")):
        parts |= vars(import_module(module))
    names = ("sweep", "trials", "figure", "verdicts", "joint", "readings")
    return Experiment(config=parts["Config"], **{part: parts.get(part) for part in names}, **entry)
