"""Predictions written before an experiment's first run, and their outcomes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from attsvm_paper.judging.verdict import Verdict

_FILE = "theory_predictions.toml"


@dataclass(frozen=True)
class Prediction:
    """Bounds on a number, written before the first run.

    Attributes
    ----------
    low, high : float
    basis : {"theorem", "calculation", "guess"}
    reason : str
        With the paper, if there is one.
    """

    low: float
    high: float
    basis: str
    reason: str

    def outcome(self, low: float, high: float) -> str:
        """Return the outcome for a number with the 95 % interval [low, high]: "hit", "miss" or "undecided"."""
        if self.low <= low and high <= self.high:
            return "hit"
        return "miss" if high < self.low or low > self.high else "undecided"


@cache
def predictions() -> Mapping[str, Mapping[str, Prediction]]:
    """Return every prediction by experiment and name."""
    text = resources.files("attsvm_paper.beyond").joinpath(_FILE).read_text(encoding="utf-8")
    table: Mapping[str, Mapping[str, Any]] = tomllib.loads(text)
    return {
        experiment: {name: Prediction(**entry) for name, entry in entries.items()}
        for experiment, entries in table.items()
    }


def with_outcome(verdict: Verdict, name: str) -> Verdict:
    """Add the prediction and its outcome to a verdict's note."""
    foreseen = predictions()[verdict.experiment][name]
    outcome = foreseen.outcome(verdict.low, verdict.high)
    text = f"Predicted by {foreseen.basis}: {foreseen.low:g} to {foreseen.high:g}, {outcome}. {foreseen.reason}"
    return replace(verdict, note=" ".join(filter(None, (verdict.note, text))))
