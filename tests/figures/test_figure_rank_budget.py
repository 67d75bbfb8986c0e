"""Figure 10: a few columns of K and Q are enough, one is not."""

import numpy as np
import pytest

from attsvm_paper.figures.rank_budget import Config, first_enough
from figure_trials import check_report, run


@pytest.mark.slow
def test_few_columns_are_enough():
    rows = run("rank-budget", *(Config(m, trials=15) for m in (1, 3, 6)), Config(1, numerics="published", trials=15))
    verdicts = check_report("rank-budget", rows)
    assert verdicts["1 - correlation with the nuclear SVM, m=1, n=5, T=5, exact numerics"].low > 0.1
    # The printed .4946 at m = 1 is what the protocol gives; .4 is the curve of T = 10.
    reference = verdicts["1 - correlation with the nuclear SVM, m=1, n=5, T=5, published numerics"]
    assert reference.published == 0.49442
    assert reference.verdict != "differs"
    errors = {
        m: np.median([row["error"] for row in rows if row["m"] == m and row["numerics"] == "exact"]) for m in (1, 3, 6)
    }
    assert errors[1] > 0.1 > 0.01 > errors[6]
    assert verdicts["first m with 1 - correlation below 0.01, n=5, T=5, exact numerics"].measured > 1


def test_first_enough_is_the_first():
    assert first_enough([[0.5, 0.3], [0.001, 0.03], [0.001, 0.003]], (1, 2, 4)) == 4
    assert np.isnan(first_enough([[0.5, 0.3]], (1,)))
