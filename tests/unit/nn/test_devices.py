"""The same numbers on every device, and results where the data are; the tests marked gpu need one."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import attsvm
from attsvm import SelectionProblem, ShardedProblem, TokenData, margin_report, pretrained, solve
from attsvm.functional import exact_attention, exact_cross_entropy, exact_softmax, max_margin

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "gpu.py"

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


def test_exact_functions_bring_nothing_to_the_host() -> None:
    # Tensors without numbers: whatever looked at one of them would fail.
    q, k, v = (torch.empty(2, 5, 4, device="meta", requires_grad=True) for _ in range(3))
    for causal in (False, True):
        exact_attention(q, k, v, is_causal=causal).sum().backward()
    exact_cross_entropy(exact_softmax(q), torch.empty(2, 5, dtype=torch.int64, device="meta")).backward()
    assert q.grad is not None
    assert q.grad.device.type == "meta"


@pytest.mark.parametrize("device", DEVICES)
def test_many_trials_at_once_are_the_trials_alone(device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randn(300, 3, 4, 5, generator=generator, dtype=torch.float64)
    queries = torch.randn(300, 3, 5, generator=generator, dtype=torch.float64)
    labels = torch.ones(300, 3, dtype=torch.float64)
    head = torch.randn(5, generator=generator, dtype=torch.float64)

    def weights(trials: slice, place: str) -> torch.Tensor:
        data = TokenData(tokens[trials].to(place), queries[trials].to(place), labels[trials].to(place))
        return attsvm.train(data, head.to(place), steps=10, lr=0.1, backend="torch").W

    together = weights(slice(None), device)
    assert together.device.type == device
    for trial in (0, 170, 299):
        torch.testing.assert_close(together[trial].cpu(), weights(slice(trial, trial + 1), "cpu")[0], rtol=1e-9, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_margins_reports_and_prices_of_data_on_a_device(device: str) -> None:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randn(6, 5, 4, generator=generator, dtype=torch.float64)
    queries = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    selected = torch.einsum("ntd,nd->nt", tokens, queries).argmax(dim=1)
    there = [x.to(device) for x in (tokens, queries, selected)]
    plain = solve(SelectionProblem(tokens.numpy(), queries.numpy(), selected.numpy()))
    solution = solve(SelectionProblem(*there))
    assert solution.W.device.type == device
    np.testing.assert_allclose(solution.W.cpu().numpy(), plain.W, rtol=1e-8)

    leaf = there[0].requires_grad_()
    margin = max_margin(leaf, *there[1:])
    margin.backward()
    assert margin.device.type == leaf.grad.device.type == device
    assert margin.item() == pytest.approx(1.0 / plain.objective, rel=1e-9)

    problem = SelectionProblem(there[0].detach(), *there[1:])
    report = margin_report(solution.W, problem, norms=("frobenius", "nuclear"))
    assert report["frobenius"].share == pytest.approx(1.0, abs=2e-6)
    pieces = ShardedProblem.from_arrays(there[0].detach(), *there[1:], chunk=2)
    assert solve(pieces).objective == pytest.approx(plain.objective, rel=2e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_a_head_is_extracted_where_its_model_is(device: str) -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(4)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertModel(BertConfig(vocab_size=50, **sizes), add_pooling_layer=False).eval()
    inputs = {"input_ids": torch.arange(24).reshape(4, 6)}
    plain = pretrained.extract_head(model, 0, 1, inputs)
    there = pretrained.extract_head(model.to(device), 0, 1, inputs)
    # Single precision through one layer.
    np.testing.assert_allclose(there.W, plain.W, rtol=1e-5, atol=1e-6)
    assert there.error < 1e-5


@pytest.fixture(scope="module")
def script() -> Any:
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def test_the_benchmark_says_that_there_is_no_device(
    script: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script.main([]) == 2
    assert capsys.readouterr().err == "device is 'cuda', and torch finds no CUDA device; --device cpu was expected.\n"


@pytest.mark.parametrize("device", DEVICES)
def test_the_benchmark_writes_its_tables(script: Any, device: str, tmp_path: Path) -> None:
    file = tmp_path / "GPU.md"
    assert script.main(["--device", device, "--small", "--out", str(file)]) == 0
    text = file.read_text(encoding="utf-8")
    for title in ("Memory", "Training", "Pricing", "Attention"):
        assert f"## {title}" in text
    assert "nan" not in text
