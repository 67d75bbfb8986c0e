"""Figures 8 and 11: accepted draws are near their SVM equivalent, and few draws are accepted."""

import pytest

from attsvm_paper.figures import multi_token_verdicts
from attsvm_paper.figures.multi_token import Config
from attsvm_paper.judging.statistics import wilson_interval
from figure_trials import check_report, run


@pytest.mark.slow
def test_accepted_draws_follow_the_svm_equivalent():
    rows = run("multi-token", Config(4, trials=200))
    verdicts = check_report("multi-token", rows)
    for what in ("SVM equivalent", "max-margin part", "SVM of the top tokens"):
        assert (
            verdicts[f"1 - correlation with the {what}, d=4, iteration 2000, published numerics"].verdict != "differs"
        )
    (test,) = (one for one in multi_token_verdicts.joint(rows) if one.figure == "Fig. 8")
    assert test.verdict != "differs"
    accepted_rows = [row for row in rows if row["state"] == "accepted"]
    assert all(row["equivalent"][-1] <= row["mm"][-1] + 1e-9 for row in accepted_rows)
    assert sum(row["single"][-1] > row["equivalent"][-1] for row in accepted_rows) > len(accepted_rows) / 2
    assert verdicts["draws accepted, d=4, published numerics"].high < 0.5
    # Most of what is kept has a query without gradient.
    assert wilson_interval(sum(row["dead"] > 0 for row in accepted_rows), len(accepted_rows))[0] > 0.5


def test_instances_have_a_negative_label():
    from attsvm_paper.figures.multi_token import instance

    for seed in range(50):
        _, _, labels, V = instance(seed, 2, 3, 4)
        assert (labels == -1).any()
        assert set(labels) <= {-1.0, 1.0}
        assert abs((V**2).sum() - 1) < 1e-12
