"""Networks of attention layers: their start, outputs and training, and the sequences that they learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attsvm.data.digits import digits
from attsvm_paper.beyond.layered import START, Between, Layers, chain_task, digits_task, fit

SEEDS = np.array([4, 5])


def random_tokens(*shape: int) -> torch.Tensor:
    return torch.as_tensor(np.random.default_rng(0).standard_normal(shape))


@pytest.mark.parametrize("T", [3, 4])
def test_the_path_of_a_chain_visits_other_tokens_once(T: int) -> None:
    task = chain_task(np.random.default_rng(1), 60, T)
    assert task.tokens.shape == (60, T, 2 * T + 1)
    assert task.chain is not None
    assert task.chain.shape == (60, 2)
    first, second = task.chain.T
    # Every pair of other tokens comes up, and no pair of one token or with the first.
    pairs = {(a, b) for a in range(1, T) for b in range(1, T) if a != b}
    assert set(zip(first.tolist(), second.tolist(), strict=True)) == pairs
    keys, pointers, values = np.split(task.tokens, [T, 2 * T], axis=-1)
    # Keys are in any order, and a token off the path points anywhere, also to itself.
    assert len({tuple(order) for order in keys.argmax(-1).tolist()}) > 4
    assert (keys.sum(1) == 1).all()
    # The first token points to the first of the path, and that to the second.
    for source, target in ((np.zeros(60, dtype=int), first), (first, second)):
        at = np.arange(60)
        np.testing.assert_array_equal(pointers[at, source], keys[at, target])
    off = second[:, None] == np.arange(T)
    targets = pointers[off].argmax(-1)
    assert set(targets.tolist()) == set(range(T))
    assert (targets == keys[off].argmax(-1)).any()
    # The label is a coin flip, the value of the path's end; the first token has none.
    assert (values[:, 0] == 0).all()
    assert (np.abs(values[:, 1:]) == 1).all()
    assert set(task.labels.tolist()) == {-1.0, 1.0}
    np.testing.assert_array_equal(task.labels, values[np.arange(60), second, 0])


def test_three_hops_lead_through_three_tokens() -> None:
    task = chain_task(np.random.default_rng(2), 20, 4, hops=3)
    assert task.chain is not None
    assert np.array_equal(np.sort(task.chain, axis=1), np.tile([1, 2, 3], (20, 1)))
    np.testing.assert_array_equal(task.labels, task.tokens[np.arange(20), task.chain[:, 2], -1])


def test_images_are_split_without_loss_and_labels_stay_with_them() -> None:
    train, test = digits_task(np.random.default_rng(3), 100)
    whole = digits("3-8", positions="append").tokens
    assert (len(train.tokens), len(train.labels)) == (100, 100)
    assert len(test.tokens) == len(test.labels) == len(whole.tokens) - 100
    everything = {image.tobytes(): label for image, label in zip(whole.tokens, whole.labels, strict=True)}
    seen: set[bytes] = set()
    for part in (train, test):
        assert part.chain is None
        for image, label in zip(part.tokens, part.labels, strict=True):
            assert everything[image.tobytes()] == label
            seen.add(image.tobytes())
    assert seen == set(everything)
    assert set(train.labels.tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize(
    ("between", "shapes"),
    [("residual", []), ("linear", [(40, 40)]), ("mlp", [(40, 80), (80, 40)])],
)
def test_weights_start_at_half_the_size_that_keeps_a_states_length(
    between: Between, shapes: list[tuple[int, int]]
) -> None:
    model = Layers(SEEDS, 40, 3, between, first=True)
    assert [W.shape for W in model.W] == [(2, 40, 40)] * 3
    assert [[matrix.shape[1:] for matrix in maps] for maps in model.maps] == [shapes] * 3
    assert model.v.shape == (2, 40, 1)
    assert len(model.parameters) == 4 + 3 * len(shapes)
    for matrix in model.parameters[:-1]:
        state = random_tokens(1, 200, matrix.shape[1])
        squares = (state @ matrix.detach()).square().mean((1, 2))
        # Means over thousands of entries.
        np.testing.assert_allclose(squares.sqrt().numpy(), START, rtol=0.1)
    assert START == 0.5


def test_a_start_is_decided_by_its_own_seed() -> None:
    both, alone = (Layers(seeds, 4, 2, "mlp", first=False) for seeds in (SEEDS, SEEDS[1:]))
    for own, other in zip(both.parameters, alone.parameters, strict=True):
        assert torch.equal(own[1], other[0])
        assert not torch.equal(own[0], own[1])


@pytest.mark.parametrize("first", [True, False])
def test_the_label_is_read_from_the_first_state_or_from_the_mean(first: bool) -> None:
    model = Layers(SEEDS, 5, 2, "linear", first)
    tokens = random_tokens(2, 3, 4, 5)
    outputs = model.predict(tokens)
    assert outputs.shape == (2, 3)
    states = model.states(tokens)[0]
    assert len(states) == 3
    read = states[-1][:, :, 0] if first else sum(states[-1][:, :, t] for t in range(4)) / 4
    torch.testing.assert_close(outputs, torch.einsum("bnd,bd->bn", read, model.v[..., 0]))


def test_a_step_of_adam_descends_on_the_mean_loss_of_each_trial() -> None:
    """The first step of Adam moves an entry by lr g / (|g| + 1e-8)."""
    model = Layers(SEEDS, 5, 1, "residual", first=True)
    # Gradients are of the size of Adam's epsilon, so that the step shows their size.
    tokens = 1e-8 * random_tokens(2, 3, 4, 5)
    labels = torch.tensor([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]], dtype=torch.float64)
    start = model.v.detach().clone()
    read = model.states(tokens)[0][-1][:, :, 0].detach()
    fit(model, tokens, labels, 1, 0.25)
    # Outputs near zero have the slope -1/2 in the signed output.
    gradient = -torch.einsum("bn,bnd->bd", labels, read) / 3 / 2
    expected = start[..., 0] - 0.25 * gradient / (gradient.abs() + 1e-8)
    torch.testing.assert_close(model.v.detach()[..., 0], expected, rtol=1e-6, atol=1e-9)


def test_training_learns_the_labels_of_each_trial_whatever_its_batch() -> None:
    tokens = random_tokens(2, 6, 3, 5)
    labels = torch.as_tensor(np.random.default_rng(1).choice([-1.0, 1.0], (2, 6)))
    both, alone = Layers(SEEDS, 5, 2, "mlp", first=True), Layers(SEEDS[1:], 5, 2, "mlp", first=True)
    fit(both, tokens, labels, 40, 0.05)
    fit(alone, tokens[1:], labels[1:], 40, 0.05)
    for own, other in zip(both.parameters, alone.parameters, strict=True):
        torch.testing.assert_close(own[1], other[0], rtol=1e-8, atol=1e-10)
    assert (both.predict(tokens) * labels > 0).all()
