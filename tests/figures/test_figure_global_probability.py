"""Figure 6: the published probabilities are those of instances with a score gap."""

from attsvm.experiments.figures.global_probability import GAP, Config
from figure_trials import check_report, run


def test_probabilities_need_the_gap():
    gapped, open_ = (Config(20, 5, 20, gap=gap, steps=1000, trials=50) for gap in (GAP, 0.0))
    small = Config(10, 5, 5, "KQ", steps=500, trials=50)
    found = check_report("global-probability", run("global-probability", gapped, open_, small))
    assert found["P(global), W, n=20, T=5, d=20"].verdict == "agrees"
    assert found["P(global), KQ, n=10, T=5, d=5"].verdict == "agrees"
    without = found["P(global), W, n=20, T=5, d=20, without a score gap"]
    assert without.verdict == "measured"
    assert without.high < found["P(global), W, n=20, T=5, d=20"].low
