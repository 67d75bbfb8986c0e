"""The same numbers on every device, and results where the data are; the tests marked gpu need one."""

from __future__ import annotations

import pytest
import torch

import attsvm
from attsvm import TokenData
from attsvm.functional import exact_attention, exact_softmax

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
        ],
    ),
]


@pytest.mark.parametrize("device", DEVICES)
def test_exact_functions_stay_where_the_data_are(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 5, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    there = [x.to(device) for x in (q, k, v)]
    for function, arguments, plain in ((exact_attention, there, (q, k, v)), (exact_softmax, there[:1], (q,))):
        out = function(*arguments)
        assert out.device.type == device
        torch.testing.assert_close(out.cpu(), function(*plain), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("parameterization", ["W", "KQ"])
def test_training_stays_where_the_data_are(parameterization: str, device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randn(3, 4, 5, 6, generator=generator, dtype=torch.float64)
    queries = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64)
    labels = torch.ones(3, 4, dtype=torch.float64)
    head = torch.randn(6, generator=generator, dtype=torch.float64)
    traces = [
        attsvm.train(
            TokenData(tokens.to(place), queries.to(place), labels.to(place)),
            head.to(place),
            parameterization=parameterization,
            steps=20,
            lr=0.1,
            backend="torch",
        )
        for place in ("cpu", device)
    ]
    assert traces[1].W.device.type == device
    # Twenty steps of sums in another order.
    torch.testing.assert_close(traces[1].W.cpu(), traces[0].W, rtol=1e-9, atol=1e-12)
