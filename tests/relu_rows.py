"""Draws of the ReLU head, made by hand."""

from __future__ import annotations

from typing import Any

from attsvm_paper.judging.verdict import Row

STEP = [1, 101, 201, 501, 1001, 1501, 2001]
NAMES = {"equivalent": "SVM equivalent", "mm": "max-margin part", "single": "SVM of the top tokens"}
PRINTED = {"equivalent": "W^SVMeq", "mm": "W^mm", "single": "W^1token"}


def row(seed: int, d: int = 4, state: str = "infeasible", **other: Any) -> Row:
    nothing = dict.fromkeys(("equivalent", "mm", "single", "step", "masked", "selected"))
    settings = {"numerics": "published", "n": 3, "T": 4, "trial": seed, "steps": 2001}
    return {"seed": seed, "d": d, "state": state, "dead": 0, "norm": 60.0, **settings, **nothing} | other


def accepted(seed: int, d: int = 4, level: float = 0.3, masked: float = 1e-9, **other: Any) -> Row:
    """Return a draw whose distances differ at every record and from each other."""
    courses = {name: [size * level / (1 + at) for at in range(7)] for size, name in enumerate(NAMES, start=1)}
    return row(seed, d, "accepted", step=STEP, masked=masked, selected=1.5, **courses) | other


def upper(d: int, name: str) -> str:
    return f"Fig. 8 upper: d={d}, {PRINTED[name]}"
