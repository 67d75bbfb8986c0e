"""Modular addition by a second route: losses from their formulas in numpy, training on one-hot inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attsvm.functional.cross_entropy import exact_cross_entropy
from attsvm_paper.beyond.grokking import Config
from attsvm_paper.beyond.modular_addition import (
    Pairs,
    descend,
    fit,
    initial,
    logits,
    loss_of_gradient,
    margins,
    measurements,
    norms,
    risk,
    split,
    turn,
)

RNG = np.random.default_rng(7)
# Two models, three pairs, four classes; the labels lead, trail and are nearly level.
OUTPUTS = np.array(
    [
        [[3.0, -1.0, 0.5, 0.0], [-2.0, 1.5, 0.2, -0.3], [0.4, 0.1, -0.7, 2.0]],
        [[-0.5, -1.5, 2.5, 1.0], [1.6, 0.2, 0.1, 0.0], [4.0, -3.0, -2.0, -1.0]],
    ]
)
LABELS = np.array([[0, 3, 1], [2, 0, 3]])
A, SUMS = torch.tensor(OUTPUTS), torch.tensor(LABELS)


def of_label(values: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, LABELS[..., None], -1)[..., 0]


def others(values: np.ndarray) -> np.ndarray:
    """Return the values of the other classes, (2, 3, 3)."""
    return values[np.arange(4) != LABELS[..., None]].reshape(2, 3, 3)


def log_odds() -> np.ndarray:
    return of_label(OUTPUTS) - np.log(np.exp(others(OUTPUTS)).sum(-1))


def stable(x: np.ndarray) -> np.ndarray:
    return np.array([value + 1 if value > 0 else 1 / (1 - value) for value in x.ravel()]).reshape(x.shape)


def test_every_loss_is_the_mean_of_its_formula() -> None:
    odds = log_odds()
    # Odds on either side of one tell 1/(1 + m) from a clamp of it.
    assert (odds < 0).any()
    assert ((odds > 0) & (odds < 1)).any()
    assert (odds > 1).any()
    cross_entropy = np.log1p(np.exp(-odds))
    formulas = {
        "plain": cross_entropy,
        "exact": cross_entropy,
        "stablemax": -np.log(of_label(stable(OUTPUTS)) / stable(OUTPUTS).sum(-1)),
        "power": np.where(odds > 0, 1 / (1 + odds), 1 - odds),
    }
    for loss, values in formulas.items():
        np.testing.assert_allclose(risk(loss, A, SUMS).numpy(), values.mean(1), rtol=1e-12, err_msg=loss)


def test_the_scaled_loss_takes_out_the_largest_exponent_of_each_model() -> None:
    exponents = exact_cross_entropy(A, SUMS, "none", dim=-1, scaled=True)[1].numpy()
    expected = np.log1p(np.exp(-log_odds())).mean(1) * np.exp(-exponents.max(1))
    np.testing.assert_allclose(risk("scaled", A, SUMS).numpy(), expected, rtol=1e-12)
    # Of losses near e^-1000 those remain that are among the largest.
    far = torch.tensor([[[1000.0, 0.0], [1001.0, 0.0]]], dtype=torch.float64)
    (value,) = risk("scaled", far, torch.zeros(1, 2, dtype=torch.long)).numpy()
    assert value == pytest.approx((1 + np.exp(-1)) / 2)


@pytest.mark.parametrize(
    ("loss", "outputs"),
    [
        ("stablemax", [[1.0, -1.0, 0.0]]),  # 1/(1 - x) is infinite at 1
        ("power", [[-1.0 + np.log(2), 0.0, 0.0]]),  # 1/(1 + m) is infinite at -1
    ],
)
def test_the_other_branch_leaves_no_trace_in_a_gradient(loss: str, outputs: list[list[float]]) -> None:
    a = torch.tensor([outputs], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: risk(loss, x, torch.zeros(1, 1, dtype=torch.long)), a)


def test_margins_are_over_the_best_other_class() -> None:
    np.testing.assert_allclose(margins(A, SUMS).numpy(), of_label(OUTPUTS) - others(OUTPUTS).max(-1), atol=1e-15)


def test_lost_gradients_are_counted_by_model() -> None:
    # Label 0 leads by 60 or by 10; float64 rounds the first to one.
    a = torch.zeros(3, 4, 2, dtype=torch.float64)
    a[..., 0] = 10
    a[0, 0, 0] = a[1, 1:, 0] = 60
    assert loss_of_gradient("plain", a, torch.zeros(3, 4, dtype=torch.long)).tolist() == [0.25, 0.75, 0]


def test_norms_are_over_all_tensors_of_a_model() -> None:
    first, second = RNG.standard_normal((2, 3, 4)), RNG.standard_normal((2, 5, 1))
    expected = [np.sqrt((one**2).sum() + (other**2).sum()) for one, other in zip(first, second, strict=True)]
    np.testing.assert_allclose(norms([torch.tensor(first), torch.tensor(second)]).numpy(), expected)


def test_a_gradient_is_turned_by_taking_off_its_part_along_the_weights() -> None:
    weight, slope = RNG.standard_normal((2, 3, 4)), RNG.standard_normal((2, 3, 4))
    slope[1] *= 1e-3
    (turned,) = turn([torch.tensor(weight)], [torch.tensor(slope)])
    for b in range(2):
        rest = slope[b] - (weight[b] * slope[b]).sum() / (weight[b] ** 2).sum() * weight[b]
        expected = rest * np.linalg.norm(slope[b]) / np.linalg.norm(rest)
        np.testing.assert_allclose(turned[b].numpy(), expected, rtol=1e-12)


def test_a_gradient_along_the_weights_turns_into_none() -> None:
    weight = torch.tensor([[[2.0, 0.0], [0.0, 0.0]]])
    (turned,) = turn([weight], [3 * weight])
    assert torch.equal(turned, torch.zeros(1, 2, 2))


def test_a_normalised_step_without_gradient_leaves_long_weights_where_they_are() -> None:
    weights = [torch.full((2, 3, 4), 1e3, dtype=torch.float64)]
    slopes = [torch.stack([torch.zeros(3, 4, dtype=torch.float64), torch.eye(3, 4, dtype=torch.float64)])]
    descend(weights, slopes, 0.5)
    assert torch.equal(weights[0][0], torch.full((3, 4), 1e3, dtype=torch.float64))
    # Half of the length sqrt(12) 1e3, against a gradient of length sqrt(3).
    expected = 1e3 - 0.5 * 2e3 * torch.eye(3, 4, dtype=torch.float64)
    torch.testing.assert_close(weights[0][1], expected)


def test_pairs_are_drawn_by_the_seed_alone() -> None:
    both, alone = split([4, 9], 4, 0.3, "cpu"), split([9], 4, 0.3, "cpu")
    for own, other in zip(both, alone, strict=True):
        assert torch.equal(own.rows[1], other.rows[0])
        assert torch.equal(own.sums[1], other.sums[0])
    # Of 16 pairs 4.8 are a 30 %.
    assert [part.sums.shape for part in both] == [(2, 4), (2, 12)]
    assert not torch.equal(both[0].rows[0], both[0].rows[1])
    # The rows of the second number follow those of the first.
    whole = [torch.cat([getattr(part, name)[0] for part in both]) for name in ("rows", "sums")]
    pairs = {(a, b - 4): total for (a, b), total in zip(whole[0].tolist(), whole[1].tolist(), strict=True)}
    assert pairs == {(a, b): (a + b) % 4 for a in range(4) for b in range(4)}


def test_weights_start_as_torchs_do_and_by_the_seed_alone() -> None:
    """torch draws the weights of a linear layer uniformly up to 1/sqrt(inputs)."""
    both, alone = (initial(seeds, 8, 20, torch.float64, "cpu") for seeds in ([4, 9], [9]))
    for weight, other, shape in zip(both, alone, ((16, 20), (20, 20), (20, 8)), strict=True):
        assert weight.shape == (2, *shape)
        assert weight.requires_grad
        assert torch.equal(weight[1], other[0])
        bound = shape[0] ** -0.5
        # Of 160 and more numbers the largest is within 10 % of the bound.
        assert 0.9 * bound < weight.max() <= bound
        assert -bound <= weight.min() < -0.9 * bound
    assert initial([4], 3, 2, torch.float32, "cpu")[0].dtype == torch.float32


def test_a_model_is_measured_on_training_pairs_and_on_held_out_ones() -> None:
    weights = initial([1, 2], 4, 5, torch.float64, "cpu")
    held_out = split([1, 2], 4, 0.5, "cpu")[1]
    # A tie is no success: the second model's pair of label 2 leads, that of label 0 is level with another class.
    outputs = OUTPUTS.copy()
    outputs[1, 1] = [1.0, 1.0, 0.0, 0.0]
    row = measurements("plain", weights, torch.tensor(outputs), SUMS, held_out)
    lead = of_label(outputs) - others(outputs).max(-1)
    np.testing.assert_allclose(row["train"], [1 / 3, 1 / 3])
    np.testing.assert_allclose(row["margin"], lead.min(1))
    np.testing.assert_allclose(row["median"], np.median(lead, axis=1))
    whole = np.array([np.sqrt(sum((w[b] ** 2).sum().item() for w in weights)) for b in range(2)])
    np.testing.assert_allclose(row["normalised"], lead.min(1) / whole**3)
    np.testing.assert_array_equal(row["lost"], [0, 0])
    right = logits(weights, held_out).argmax(-1).numpy() == held_out.sums.numpy()
    np.testing.assert_allclose(row["test"], right.mean(1))


@dataclass
class Plain:
    """Training of one model, step by step: one-hot inputs, and Adam from its formulas."""

    config: Any
    seed: int

    def outputs(self, weights: list[Tensor], pairs: Pairs) -> Tensor:
        inputs = torch.nn.functional.one_hot(pairs.rows[0], 2 * self.config.p).sum(1).to(weights[0].dtype)
        return ((inputs @ weights[0]).relu() @ weights[1]).relu() @ weights[2]

    def course(self) -> list[list[Tensor]]:
        """Return the weights before each step and after the last."""
        config, train = self.config, split([self.seed], self.config.p, self.config.share, "cpu")[0]
        weights = [w[0].detach() for w in initial([self.seed], config.p, config.width, torch.float64, "cpu")]
        first, second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
        course = [weights]
        for step in range(1, config.steps + 1):
            leaves = [w.clone().requires_grad_() for w in weights]
            value = torch.nn.functional.cross_entropy(self.outputs(leaves, train), train.sums[0])
            slopes = list(torch.autograd.grad(value, leaves))
            if config.optimiser == "normalised":
                length, size = (sum((part**2).sum() for part in parts) ** 0.5 for parts in (weights, slopes))
                weights = [w - config.lr * length / size * s for w, s in zip(weights, slopes, strict=True)]
            else:
                if config.optimiser == "perpendicular":
                    slopes = turn([w[None] for w in weights], [s[None] for s in slopes])
                    slopes = [s[0] for s in slopes]
                first = [0.9 * m + 0.1 * s for m, s in zip(first, slopes, strict=True)]
                second = [0.99 * v + 0.01 * s**2 for v, s in zip(second, slopes, strict=True)]
                weights = [
                    w * (1 - config.lr * config.decay)
                    - config.lr * (m / (1 - 0.9**step)) / ((v / (1 - 0.99**step)).sqrt() + config.epsilon)
                    for w, m, v in zip(weights, first, second, strict=True)
                ]
            course.append(weights)
        return course


@pytest.mark.parametrize(
    ("optimiser", "decay", "epsilon"),
    [("Adam", 0.0, 1e-3), ("Adam", 0.5, 1e-25), ("perpendicular", 0.0, 1e-3), ("normalised", 0.0, 1e-25)],
)
def test_training_takes_the_steps_of_its_optimiser(optimiser: Any, decay: float, epsilon: float) -> None:
    """Adam as in docs/findings.md: AdamW with a second decay of 0.99, and all pairs in every step."""
    config = Config("plain", "float64", optimiser, 0.05, decay, epsilon, p=5, width=6, share=0.5, steps=7, records=3)
    seeds = [2, 6]
    curves = fit(config, seeds)
    for seed, one in zip(seeds, curves, strict=True):
        plain = Plain(config, seed)
        course = plain.course()
        # Seven steps in three parts: a record every second step.
        assert one["step"] == [0, 2, 4, 6]
        train, held_out = split([seed], 5, 0.5, "cpu")
        for at, step in enumerate((0, 2, 4, 6)):
            outputs = plain.outputs(course[step], train)
            row = measurements("plain", [w[None] for w in course[step]], outputs[None], train.sums, held_out)
            for name in row:
                assert one[name][at] == pytest.approx(float(row[name][0]), rel=1e-8, abs=1e-12), (name, step)


@pytest.mark.parametrize(("steps", "records", "at"), [(2, 5, [0, 1, 2]), (6, 2, [0, 3, 6]), (5, 5, [0, 1, 2, 3, 4, 5])])
def test_records_are_equally_far_apart_from_the_start_on(steps: int, records: int, at: list[int]) -> None:
    (curves,) = fit(Config("exact", p=3, width=2, steps=steps, records=records), [0])
    assert curves["step"] == at
    assert all(len(curve) == len(at) for curve in curves.values())


def test_logits_are_rounded_to_eight_bits_and_weights_are_not() -> None:
    low, high = (
        fit(Config("exact", name, p=5, width=6, steps=1, records=1), [3])[0] for name in ("bfloat16", "float32")
    )
    # At the start only the training pairs' logits are rounded; held-out accuracy comes from the weights.
    assert low["margin"][0] != high["margin"][0]
    assert low["margin"][0] == pytest.approx(high["margin"][0], rel=0.05, abs=0.01)
    assert low["test"][0] == high["test"][0]
    ratio = [curve["normalised"][0] / curve["margin"][0] for curve in (low, high)]
    assert ratio[0] == pytest.approx(ratio[1], rel=1e-12)
