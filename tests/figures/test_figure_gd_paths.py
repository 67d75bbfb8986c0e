"""Figure 1: W z and K Q^T z turn into the rays of their own SVMs, and not into the other's."""

import numpy as np
import pytest

from attsvm_paper.figures.gd_paths import READABLE, Config
from figure_trials import check_report, run


@pytest.mark.slow
def test_paths_turn_into_their_rays():
    rows = run("gd-paths", *(Config(T, p, trials=3 if p == "KQ" else 1) for T in (3, 5) for p in ("W", "KQ")))
    for v in check_report("gd-paths", rows).values():
        assert v.measured < READABLE
    rays = {(row["T"], row["parameterization"]): [row["ray_x1"], row["ray_y1"]] for row in rows}
    for T in (3, 5):
        angle = np.degrees(np.subtract(*(np.arctan2(*rays[T, p][::-1]) for p in ("W", "KQ"))))
        assert abs(angle) > READABLE
