"""Gradients of attsvm.functional against 700-digit arithmetic, by the benchmark that prints the table of the docs."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "functional_accuracy.py"


@pytest.fixture(scope="module")
def benchmark():
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


# Beyond these margins exp underflows, and the documentation says so.
MARGINS = {torch.float64: (0, 20, 34, 200, 600), torch.float32: (0, 15, 80)}
DRAWS = 5


@pytest.mark.parametrize("dtype", MARGINS, ids=str)
def test_errors_stay_at_rounding_where_softmax_and_sdpa_are_noise(benchmark, dtype):
    table = benchmark.errors(MARGINS[dtype], (dtype,), DRAWS)
    eps = benchmark.EPS[dtype]
    for margin in MARGINS[dtype]:
        # A score is an inner product of WIDTH terms; its absolute error is the relative error of a probability. The
        # gradient then adds KEYS terms, with some ten times the size of their sum.
        sizes = []
        for seed in range(DRAWS):
            query, keys, _, _ = benchmark.instance(margin, dtype, seed)
            sizes.append(float((query.abs() @ keys.abs().T).max()))
        bound = 10 * eps * (2 * benchmark.WIDTH * np.median(sizes) + benchmark.KEYS + benchmark.WIDTH)
        assert table["exact_attention", dtype, margin] <= bound
        # Cross-entropy starts from given logits: a subtraction of scores, an exponential, a sum.
        assert table["exact_cross_entropy", dtype, margin] <= eps * (2 * np.median(sizes) + benchmark.KEYS)
    largest = MARGINS[dtype][-1]
    for name in ("softmax", "SDPA", "cross_entropy"):
        assert table[name, dtype, largest] > 0.3


def test_bfloat16_keeps_what_its_scores_allow(benchmark):
    """Scores carry two digits, so no bound is small; saturation adds nothing to that, and cross-entropy is exact."""
    dtype, margins = torch.bfloat16, (8, 15)
    table = benchmark.errors(margins, (dtype,), DRAWS)
    for margin in margins:
        assert table["exact_attention", dtype, margin] < table["softmax", dtype, margin]
        assert table["exact_attention", dtype, margin] < table["SDPA", dtype, margin]
        # A difference of given logits, an exponential, a sum: each rounded once more.
        assert table["exact_cross_entropy", dtype, margin] <= benchmark.EPS[dtype] * (2 * margin + benchmark.KEYS)
        assert table["cross_entropy", dtype, margin] > 0.3
