"""Prompt attention: all published limits, and the offsets by loss."""

from attsvm.experiments.figures.prompt_attention import sweep
from figure_trials import check_report, run


def test_every_limit_is_reached():
    rows = run("prompt-attention", *sweep("quick"))
    found = check_report("prompt-attention", rows)
    assert {v.verdict for v in found.values()} == {"agrees"}
    caught = dict.fromkeys(("equal scores", "third scores less"), 0)
    for row in rows:
        if row["setting"] in caught:
            caught[row["setting"]] += row["selected"][0] == 1
    assert caught["equal scores"] == 0
    assert 0 < caught["third scores less"] < 6
