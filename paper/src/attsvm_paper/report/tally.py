"""Verdicts of many experiments as counts, sentences and small drawings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from attsvm.platform.json_values import json_values
from attsvm.platform.summary import counted
from attsvm_paper.judging.joint import JointTest
from attsvm_paper.judging.verdict import Kind, Verdict

KINDS: tuple[Kind, ...] = ("agrees", "corrected", "differs", "too weak to tell", "measured")
"""Kinds in the order of the report. "corrected": two tests show an artefact. "measured": nothing was published."""

CLASSES = {kind: kind.split(" ", 1)[0].replace("too", "weak") for kind in KINDS}
"""Names of the kinds for style sheets."""


def count(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """Count verdicts of each kind, including kinds with none.

    A printed number counts once, even if several panels and verdicts show it; the first verdict counts.
    """
    counts = Counter(verdict.verdict for verdict in _distinct(verdicts))
    return {kind: counts[kind] for kind in KINDS}


def _distinct(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    keys = set[str]()
    for verdict in verdicts:
        if verdict.key not in keys:
            yield verdict
        if verdict.key:
            keys.add(verdict.key)


def headline(verdicts: Sequence[Verdict]) -> str:
    """Summarise the verdicts on the published numbers in one sentence."""
    counts = count(verdicts)
    published = sum(counts.values()) - counts["measured"]
    if not published:
        return f"{len(verdicts):,} number{'s' * (len(verdicts) != 1)} measured that nobody has published"
    parts = [f"{counts['agrees']:,} of {published:,} published numbers agree"]
    if counts["corrected"]:
        parts.append(f"{counts['corrected']:,} are corrected")
    if counts["differs"]:
        parts.append(f"{counts['differs']:,} differ{'s' if counts['differs'] == 1 else ''}")
    text = ", ".join(parts)
    weak = counts["too weak to tell"]
    return f"{text}; for {weak:,} the trials are too few to tell" if weak else text


def percent(share: float) -> str:
    """Write an estimated probability in per cent; never 0 or 100."""
    if share > 0.99:
        return "> 99 %"
    return "< 1 %" if share < 0.01 else f"{100 * share:.0f} %"


def power_text(test: JointTest) -> str:
    """List the alternatives of a joint test, with the probability that each would have been rejected."""
    return "; ".join(f"{one.alternative}: {percent(one.power)}" for one in test.powers)


SURE = 0.95
"""Likelihood below which a sentence also names other choices of a protocol."""

MOST_READINGS = 8


def by_figure(explanation: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Group the readings in explanation.json by figure, the likeliest first."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in explanation:
        groups.setdefault(entry["figure"], []).append(entry)
    return groups


def conclusion(readings: Sequence[Mapping[str, Any]]) -> str:
    """Say which choices of a figure's protocol agree with it, and which are not distinguished.

    Parameters
    ----------
    readings : sequence of mapping
        Readings of one figure, from explanation.json, the likeliest first.
    """
    best = readings[0]
    if best["p"] is None:
        return "No reading gives numbers for this figure."
    shares: dict[str, Counter[str]] = {}
    for entry in readings:
        for factor, choice in entry["factors"].items():
            shares.setdefault(factor, Counter())[choice] += entry["weight"]
    sure = [f"{factor} {choice}" for factor, choice in best["factors"].items() if shares[factor][choice] >= SURE]
    agreeing = sum(entry["verdict"] == "agrees" for entry in readings)
    agree = counted(agreeing, "agrees", "agree")
    p = f"p = {number(best['p'])}"
    if best["verdict"] == "differs":
        choices = ", ".join(f"{factor} {choice}" for factor, choice in best["factors"].items())
        if agreeing:
            return f"Of {len(readings)} readings {agree}; the likeliest, {choices}, differs ({p})."
        return f"Of {len(readings)} readings none fits; the likeliest, {choices}, differs too ({p})."
    opening = "Reconstructed" if best["verdict"] == "agrees" else "Too few trials to tell"
    found = f"{opening}: the likeliest of {counted(len(readings), 'reading')}, of which {agree} ({p})"
    text = f"{found}: {', '.join(sure)}." if sure else f"{found}."
    for factor, choice in best["factors"].items():
        if shares[factor][choice] < SURE:
            likely = [(name, share) for name, share in shares[factor].most_common() if share > 1 - SURE]
            text += f" Not told apart, {factor}: {' or '.join(f'{name} ({percent(share)})' for name, share in likely)}."
    return text


def likelihood(weight: float) -> str:
    """Write a likelihood; the smallest are below the range of floats."""
    return number(weight) if weight else "< 1e−300"


def number(value: float | None) -> str:
    """Write a number of a verdict with its significant digits; a dash for None."""
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
    """Return the difference of ours from theirs in units of the tolerance; None if there is nothing to compare."""
    if verdict.published is None or not math.isfinite(verdict.measured) or math.isnan(verdict.tolerance):
        return None
    difference = verdict.measured - verdict.published
    if difference == 0:
        return 0.0
    return difference / verdict.tolerance if verdict.tolerance > 0 else math.copysign(math.inf, difference)


def as_json(verdict: Verdict | JointTest) -> dict[str, Any]:
    """Return the fields of a verdict; null for unknown or unbounded values."""
    return json_values(asdict(verdict))
