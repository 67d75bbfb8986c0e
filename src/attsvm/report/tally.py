"""Verdicts of many experiments as counts, sentences and small drawings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from attsvm.experiments.experiment import Verdict

KINDS = ("agrees", "corrected", "differs", "measured")
"""In the order of the report: "corrected" stands for an artefact that was found, "measured" for a number that nobody
has published."""


def count(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """Count verdicts of each kind; all kinds are there."""
    counts = Counter(verdict.verdict for verdict in verdicts)
    return {kind: counts[kind] for kind in KINDS}


def headline(verdicts: Sequence[Verdict]) -> str:
    """Say in one sentence how the published numbers fare."""
    counts = count(verdicts)
    published = len(verdicts) - counts["measured"]
    if not published:
        return f"{len(verdicts):,} number{'s' * (len(verdicts) != 1)} measured that nobody has published"
    parts = [f"{counts['agrees']:,} of {published:,} published numbers agree"]
    if counts["corrected"]:
        parts.append(f"{counts['corrected']:,} are corrected")
    if counts["differs"]:
        parts.append(f"{counts['differs']:,} differ{'s' if counts['differs'] == 1 else ''}")
    return ", ".join(parts)


def number(value: float | None) -> str:
    """Write a number of a verdict with the digits that matter; a dash for none."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
    text = f"{value:.2g}" if 0 < size < 0.01 else f"{value:,.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
    return text.replace("-", "−")


def deviation(verdict: Verdict) -> float | None:
    """Difference of ours from theirs in units of the tolerance, None where there is nothing to compare."""
    if verdict.published is None or not math.isfinite(verdict.measured) or math.isnan(verdict.tolerance):
        return None
    difference = verdict.measured - verdict.published
    if difference == 0:
        return 0.0
    return difference / verdict.tolerance if verdict.tolerance > 0 else math.copysign(math.inf, difference)


def as_json(verdict: Verdict) -> dict[str, Any]:
    """Return the fields of a verdict; null for what is unknown or unbounded."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(verdict).items()
    }
