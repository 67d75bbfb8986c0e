"""The grokking experiment: network, losses and optimisers against what can be said of them, and small runs."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from attsvm_paper.beyond import grokking, modular_addition
from attsvm_paper.beyond.grokking import LOSSES, Config, words
from attsvm_paper.beyond.modular_addition import (
    descend,
    initial,
    logits,
    loss_of_gradient,
    norms,
    risk,
    split,
    turn,
)
from figure_trials import check_report, run


def one_label(margin: float, dtype: torch.dtype, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits (1, 1, classes) whose label 0 leads all others by the margin."""
    a = torch.zeros(1, 1, classes, dtype=dtype)
    a[..., 0] = margin
    return a, torch.zeros(1, 1, dtype=torch.long)


def test_the_network_is_that_of_one_hot_inputs_without_biases():
    seeds, p, width = [3, 8], 5, 4
    train, held_out = split(seeds, p, 0.6, "cpu")
    weights = initial(seeds, p, width, torch.float64, "cpu")
    for pairs in (train, held_out):
        values = logits(weights, pairs)
        for b in range(2):
            inputs = torch.nn.functional.one_hot(pairs.rows[b], 2 * p).sum(1).double()
            first, second, last = (weight[b] for weight in weights)
            expected = ((inputs @ first).relu() @ second).relu() @ last
            torch.testing.assert_close(values[b], expected, rtol=1e-13, atol=1e-15)


def test_pairs_are_split_and_summed():
    train, held_out = split([0, 1], 5, 0.6, "cpu")
    assert train.sums.shape == (2, 15)
    for b in range(2):
        both = torch.cat([train.rows[b], held_out.rows[b]]).numpy()
        assert len({tuple(pair) for pair in both}) == 25
        sums = torch.cat([train.sums[b], held_out.sums[b]]).numpy()
        np.testing.assert_array_equal((both[:, 0] + both[:, 1] - 5) % 5, sums)


def test_the_scaled_loss_has_the_direction_of_the_exact_one_model_by_model():
    rng = np.random.default_rng(0)
    a = torch.tensor(rng.normal(size=(2, 6, 4)) * np.array([1.0, 20.0])[:, None, None], requires_grad=True)
    sums = torch.tensor(rng.integers(4, size=(2, 6)))
    slopes = {loss: torch.autograd.grad(risk(loss, a, sums).sum(), a)[0] for loss in ("exact", "scaled", "plain")}
    ratio = norms([slopes["scaled"]]) / norms([slopes["exact"]])
    torch.testing.assert_close(slopes["scaled"], slopes["exact"] * ratio[:, None, None], rtol=1e-10, atol=1e-18)
    torch.testing.assert_close(slopes["plain"], slopes["exact"], rtol=1e-10, atol=1e-15)
    assert abs(float(ratio[0] / ratio[1]) - 1) > 1e-3


@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_falls_with_the_margin_and_matches_finite_differences(loss):
    sums = torch.tensor([[0, 2], [1, 1]])
    a = torch.tensor(np.random.default_rng(1).normal(size=(2, 2, 3)), requires_grad=True)
    # The exponent that `scaled` takes out is no function of the logits to be differentiated.
    if loss != "scaled":
        assert torch.autograd.gradcheck(lambda x: risk(loss, x, sums), a)
        falling = [float(risk(loss, *one_label(m, torch.float64))) for m in (-2.0, -0.1, 0.1, 3.0, 20.0)]
        assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize(
    ("loss", "dtype", "margin", "share"),
    [
        ("plain", torch.float32, 10.0, 0.0),
        ("plain", torch.float32, 30.0, 1.0),
        ("plain", torch.float64, 30.0, 0.0),
        ("exact", torch.float32, 60.0, 0.0),
        ("exact", torch.float32, 120.0, 1.0),  # exp underflows
        ("scaled", torch.float32, 1e4, 0.0),
        ("stablemax", torch.float32, 100.0, 0.0),
        ("power", torch.float32, 1e4, 0.0),
    ],
)
def test_where_the_gradient_at_the_label_is_lost(loss, dtype, margin, share):
    assert float(loss_of_gradient(loss, *one_label(margin, dtype))) == share


def test_the_share_of_lost_gradients_is_over_the_pairs_of_each_model():
    # In float32 a margin of 30 is lost and one of 10 is not; one label throughout.
    lost, kept = (one_label(margin, torch.float32)[0] for margin in (30.0, 10.0))
    a = torch.cat([torch.cat([lost, kept, kept, kept], 1), torch.cat([kept, lost, lost, lost], 1)])
    shares = loss_of_gradient("plain", a, torch.zeros(2, 4, dtype=torch.long))
    assert shares.tolist() == [0.25, 0.75]


@pytest.mark.parametrize("loss", ["plain", "exact", "scaled", "power"])
def test_losses_of_a_softmax_do_not_change_with_all_logits_together(loss):
    a, sums = torch.tensor([[[0.5, -1.0, 2.0], [1.0, 3.0, 0.0]]], dtype=torch.float64), torch.tensor([[0, 1]])
    assert float(risk(loss, a + 3, sums)) == pytest.approx(float(risk(loss, a, sums)), rel=1e-12)


def test_stablemax_collapses_too_once_the_others_are_rounding():
    # Others at -m as well: their sum is 4/(1 + m) against m + 1, below 2^-24 of it from m = 8200 on.
    for margin, share in ((1e3, 0.0), (1e5, 1.0)):
        a, sums = one_label(margin, torch.float32)
        assert float(loss_of_gradient("stablemax", a - margin * (a == 0), sums)) == share
        assert float(loss_of_gradient("stablemax", (a - margin * (a == 0)).double(), sums)) == 0.0


def test_a_turned_gradient_is_orthogonal_and_as_long():
    rng = np.random.default_rng(2)
    weights, slopes = ([torch.tensor(rng.normal(size=(3, 4, 2))) for _ in range(2)] for _ in range(2))
    for weight, slope, new in zip(weights, slopes, turn(weights, slopes), strict=True):
        torch.testing.assert_close((weight * new).sum((1, 2)), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-13)
        torch.testing.assert_close(norms([new]), norms([slope]), rtol=1e-13, atol=0)


def test_a_normalised_step_is_a_share_of_the_weights_whatever_the_gradient():
    weights = initial([0, 1, 2], 4, 3, torch.float64, "cpu")
    before = [weight.detach().clone() for weight in weights]
    sizes = torch.tensor([1.0, 1e-150, 0.0], dtype=torch.float64)[:, None, None]
    slopes = [torch.randn_like(weight) * sizes for weight in before]
    descend(weights, slopes, 0.1)
    steps = norms([new.detach() - old for new, old in zip(weights, before, strict=True)]) / norms(before)
    torch.testing.assert_close(steps, torch.tensor([0.1, 0.1, 0.0], dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.slow
def test_orthogonal_gradients_generalise_where_adam_alone_does_not():
    size = {"width": 128, "steps": 120, "records": 3, "lr": 0.005, "trials": 2}
    cells = [Config("plain", optimiser=name, **size) for name in ("perpendicular", "Adam")]
    rows = run("grokking", *cells)
    verdicts = check_report("grokking", rows)
    perpendicular, plain = ([row for row in rows if row["optimiser"] == cell.optimiser] for cell in cells)
    assert min(row["last_test"] for row in perpendicular) > 0.8
    assert all(row["last_train"] > 0.9 and row["last_test"] < 0.3 for row in plain)
    assert any("Predicted by guess" in verdict.note for verdict in verdicts.values())


def test_contrasts_pair_the_seeds_of_cells_that_differ_in_one_thing():
    size = {"p": 7, "width": 8, "steps": 4, "records": 2, "optimiser": "normalised", "trials": 3}
    rows = run("grokking", *(Config(loss, **size) for loss in ("plain", "scaled", "power")))
    verdicts = check_report("grokking", rows)
    (tail,) = (verdict for name, verdict in verdicts.items() if name.startswith("tail"))
    best = {loss: np.mean([row["best"] for row in rows if row["loss"] == loss]) for loss in ("scaled", "power")}
    assert tail.measured == pytest.approx(best["power"] - best["scaled"], abs=1e-12)
    assert len([name for name in verdicts if name.startswith("arithmetic")]) == 1
    assert all(row["step"] == [0, 2, 4] for row in rows)


def test_precisions_are_compared_under_stablemax_only():
    size = {"p": 7, "width": 8, "steps": 4, "records": 2, "optimiser": "normalised", "trials": 3}
    cells = [Config(loss, precision, **size) for loss in ("plain", "stablemax") for precision in ("float32", "float64")]
    quantities = [one.quantity for one in grokking.verdicts(run("grokking", *cells))]
    (contrast,) = (name for name in quantities if "float64 over float32" in name)
    assert "stablemax" in contrast


def test_a_cell_is_named_by_what_it_changes():
    name = words(asdict(Config("plain", decay=0.5)))
    assert "decay 0.5" in name
    assert "epsilon" not in name


@pytest.mark.parametrize("wrong", [{"p": 1}, {"share": 1.0}, {"share": 0.001}, {"steps": 0}, {"lr": 0.0}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        Config("plain", **wrong)


def test_weights_are_kept_in_float32_for_bfloat16():
    assert modular_addition.DTYPES["bfloat16"] == torch.bfloat16
    (row, _) = run("grokking", Config("exact", "bfloat16", p=7, width=8, steps=4, records=2, trials=2))
    # Logits of eight bits have margins of few bits.
    assert row["last_margin"] == float(torch.tensor(row["last_margin"], dtype=torch.bfloat16))
