"""Mirror descent: each potential ends closest to the SVM of its own norm."""

import pytest

from attsvm_paper.figures.mirror_descent import EXPONENTS, Config
from figure_trials import check_report, run


@pytest.mark.slow
def test_each_potential_chooses_its_norm():
    verdicts = check_report(
        "mirror-descent", run("mirror-descent", *(Config(p, steps=3000, trials=8) for p in EXPONENTS))
    )
    for p in EXPONENTS:
        place = verdicts[f"place of the l{p:g} SVM among three by mean correlation, l{p:g} descent"]
        assert place.measured == 1
        assert place.high == 1
        assert verdicts[f"share of trials closest to the l{p:g} SVM, l{p:g} descent"].measured > 0.8
