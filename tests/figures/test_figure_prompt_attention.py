"""Prompt attention: all limits that theory gives, and the offsets by loss."""

import math

import pytest

from attsvm_paper.figures.prompt_attention import FINITE_PART, offset, sweep
from figure_trials import check_report, run


@pytest.mark.slow
def test_every_limit_is_reached():
    rows = run("prompt-attention", *sweep("quick"))
    verdicts = check_report("prompt-attention", rows)
    assert {v.verdict for v in verdicts.values()} == {"measured"}
    lengths = [math.hypot(row["x"][-1], row["y"][-1]) for row in rows]
    for quantity, verdict in verdicts.items():
        if quantity.startswith("degrees"):
            assert abs(verdict.measured) <= math.degrees(FINITE_PART / min(lengths))
    for row in rows:
        if row["setting"] == "losses":
            # What is left of the other tokens is of order e^-||p||, below rounding; logits carry eps ||p||.
            assert abs(row["y"][-1] - offset(row["loss"], row["C"])) <= 1e-12 * row["x"][-1]
    captures = dict.fromkeys(("equal scores", "third scores less"), 0)
    for row in rows:
        if row["setting"] in captures:
            captures[row["setting"]] += row["selected"][0] == 1
    assert captures["equal scores"] == 0
    assert 0 < captures["third scores less"] < 6
