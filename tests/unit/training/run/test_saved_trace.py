"""A trace that was written and read again answers every question as before."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attsvm import TokenData, Trace, train
from attsvm.data.npz import write_arrays
from attsvm.nn.heads import LambdaHead, LinearHead, ReLUHead, ValueHead
from attsvm.training import Vocabulary

RANDOM = np.random.default_rng(3)
TOKENS, QUERIES = RANDOM.normal(size=(2, 4, 3, 5)), RANDOM.normal(size=(2, 4, 5))
LABELS = np.array([[1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, 1.0]])
BATCH = TokenData(TOKENS, QUERIES, LABELS)
ONE = TokenData(TOKENS[0], QUERIES[0], LABELS[0])
MASKED = TokenData(TOKENS[0], QUERIES[0], LABELS[0], mask=np.array([[True, True, False]] * 4))
V, HIDDEN = RANDOM.normal(size=5), RANDOM.normal(size=(5, 4))
WORDS = Vocabulary(RANDOM.normal(size=(6, 5)), RANDOM.integers(0, 6, (4, 3)), RANDOM.integers(0, 6, 4))

RUNS: dict[str, tuple[TokenData, Any, dict[str, Any]]] = {
    "W": (ONE, V, {}),
    "K and Q": (ONE, V, {"parameterization": "KQ", "rank": 2}),
    "mask and held-out data": (MASKED, V, {"held_out": ONE}),
    "trials with heads of their own": (BATCH, LinearHead(RANDOM.normal(size=(2, 5))), {"sample_weight": [1, 2, 3, 4]}),
    "trained head": (BATCH, ReLUHead(HIDDEN), {"head_lr": 0.1}),
    "lambda-head": (ONE, LambdaHead(V, 0.3), {"loss": "exponential"}),
    "value matrix": (ONE, ValueHead(HIDDEN, np.ones(4)), {"head_lr": 0.1}),
    "attention heads": (ONE, V, {"heads": 2, "init": "torch", "held_out": ONE}),
    "float32": (
        TokenData(*(a.astype(np.float32) for a in (TOKENS[0], QUERIES[0], LABELS[0]))),
        V,
        {"dtype": "float32"},
    ),
    "label noise": (ONE, V, {"label_noise": 0.5, "seed": 1}),
    "embeddings": (WORDS.data(LABELS[0]), V, {"vocabulary": WORDS, "embedding_lr": 0.1}),
    "plain numerics": (ONE, V, {"numerics": "autograd", "optimizer": "adam"}),
}
FILE_FIELDS = ("step", "W", "K", "Q", "embeddings", "flipped", "last_step")
DERIVED_FIELDS = ("loss", "accuracy", "attention", "norm", "selected", "stationary")


def _reload(trace: Trace, path: Path, **options: Any) -> Trace:
    trace.save(path / "trace.npz")
    return Trace.load(path / "trace.npz", **options)


def _alike(one: Any, two: Any) -> bool:
    if one is None or two is None:
        return one is two
    return one.dtype == two.dtype and np.array_equal(one, two)


@pytest.mark.parametrize("name", RUNS)
def test_everything_comes_back(name: str, tmp_path: Path) -> None:
    data, head, options = RUNS[name]
    trace = train(data, head, steps=12, record_every=5, **options)
    copy = _reload(trace, tmp_path)
    for attribute in (*FILE_FIELDS, *DERIVED_FIELDS):
        assert _alike(getattr(trace, attribute), getattr(copy, attribute)), attribute
    assert trace.head.keys() == copy.head.keys()
    assert all(_alike(rows, copy.head[part]) for part, rows in trace.head.items())
    if "held_out" in options:
        assert _alike(trace.held_out_loss, copy.held_out_loss)
    assert repr(copy) == repr(trace)


def test_a_trace_that_was_read_is_continued(tmp_path: Path) -> None:
    first = train(ONE, V, steps=10)
    later = train(ONE, V, steps=10, init=first.W[-1])
    whole = _reload(first, tmp_path).followed_by(later)
    assert np.array_equal(whole.loss, first.followed_by(later).loss)


def test_a_head_and_loss_of_ones_own_are_asked_for(tmp_path: Path) -> None:
    head, loss = torch.nn.Linear(5, 1, dtype=torch.float64), lambda u: torch.exp(-u)
    trace = train(ONE, head, loss=loss, head_lr=0.1, steps=5)
    with pytest.raises(ValueError, match="head of train"):
        _reload(trace, tmp_path)
    with pytest.raises(ValueError, match="loss of train"):
        _reload(trace, tmp_path, head=head)
    assert np.array_equal(_reload(trace, tmp_path, head=head, loss=loss).loss, trace.loss)


def test_tensors_come_back_as_arrays(tmp_path: Path) -> None:
    data = TokenData(*(torch.as_tensor(a) for a in (TOKENS[0], QUERIES[0], LABELS[0])))
    trace = train(data, V, steps=5)
    assert np.array_equal(_reload(trace, tmp_path).W, trace.W.numpy())


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"W": np.ones(2)}, "lacks meta"),
        ({"meta": np.ones(3)}, "no text"),
        ({"meta": np.array([123, 125], np.uint8)}, "no trace"),
    ],
)
def test_other_files_are_no_traces(arrays: dict[str, np.ndarray], words: str, tmp_path: Path) -> None:
    write_arrays(tmp_path / "other.npz", arrays)
    with pytest.raises(ValueError, match=words):
        Trace.load(tmp_path / "other.npz")


def test_arrays_are_not_written_as_json(tmp_path: Path) -> None:
    trace = train(ONE, V, steps=2)
    with pytest.raises(ValueError, match=r"t\.json; a trace is arrays, a name such as t\.npz was expected"):
        trace.save(tmp_path / "t.json")
    assert not list(tmp_path.iterdir())
