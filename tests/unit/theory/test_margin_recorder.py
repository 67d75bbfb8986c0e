"""A recorder in a plain torch loop gives the path of the matrices that one records by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attsvm import MarginRecorder, SelectionProblem, margin_path
from attsvm.theory.margin_path import MarginPath

NORMS = ("frobenius", "max")


def assert_equal(ours: MarginPath, theirs: MarginPath) -> None:
    assert ours.steps.tolist() == theirs.steps.tolist()
    for norm in NORMS:
        np.testing.assert_array_equal(ours.shares(norm), theirs.shares(norm))
    assert str(ours) == str(theirs)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("hidden", [False, True])
def test_the_path_is_that_of_matrices_recorded_by_hand(hidden: bool, bias: bool) -> None:
    torch.manual_seed(0)
    X, y = torch.randn(12, 5, dtype=torch.float64), torch.arange(12) % 3
    last = torch.nn.Linear(6 if hidden else 5, 3, bias=bias, dtype=torch.float64)
    below = torch.nn.Sequential(torch.nn.Linear(5, 6, dtype=torch.float64), torch.nn.Tanh(), torch.nn.Dropout(0.1))
    model = torch.nn.Sequential(below if hidden else torch.nn.Identity(), last)
    recorder = MarginRecorder(model, X, y)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    matrices, marks = [], [1, 2, 3, 6, 10, 18, 32, 56, 100, 120]
    for step in range(1, 121):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(X), y).backward()
        optimizer.step()
        recorder.step()
        if step in marks:
            columns = [last.weight, last.bias[:, None]] if bias else [last.weight]
            matrices.append(torch.cat(columns, 1).detach().clone())
    path = recorder.path(NORMS)
    assert model.training
    model.eval()
    with torch.no_grad():
        features = model[0](X).numpy()
    inputs = np.column_stack([features, np.ones(12)]) if bias else features
    assert_equal(path, margin_path(matrices, marks, SelectionProblem.from_classes(inputs, y), NORMS))
    assert "10 records" in repr(recorder)


def test_a_model_without_a_linear_layer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"without a torch.nn.Linear"):
        MarginRecorder(torch.nn.Tanh(), torch.eye(2), [0, 1])
