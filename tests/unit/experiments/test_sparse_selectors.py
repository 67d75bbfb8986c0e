"""Sparse selectors: settings, attention of each selector, rows recomputed, verdicts and figure of rows made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attsvm import SelectionProblem, solve, train
from attsvm.functional import sparsemax
from attsvm.plots.style import NARROW, WIDE
from attsvm.theory import local_optimality
from attsvm.theory.tokens import Trial
from attsvm_paper.beyond import sparse_selectors
from attsvm_paper.beyond.descent import Noise, descend
from attsvm_paper.beyond.sparse_selectors import SELECTORS, Config
from attsvm_paper.judging.statistics import mean_interval
from attsvm_paper.published.instances import draw
from drawn import curves, in_one_column, legend_words, levels, panel_height, ticks, titles

LOGITS = torch.tensor([[[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]], [[3.0, 1.0, 1.0], [0.2, 0.4, 0.1]]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("effort", "dimensions", "trials"), [("quick", [4, 10, 20], 30), ("full", [4, 6, 10, 20], 200)]
)
def test_the_sweep_takes_the_published_instances_of_several_dimensions(
    effort: Any, dimensions: list[int], trials: int
) -> None:
    """Published n = 6 and T = 8; the penalty on entropy and the temperature of Gumbel noise are ours."""
    cells = sparse_selectors.sweep(effort)
    assert [one.d for one in cells] == dimensions
    assert {(one.n, one.T, one.steps, one.penalty, one.temperature, one.trials) for one in cells} == {
        (6, 8, 2000, 0.1, 1.0, trials)
    }


@pytest.mark.parametrize("given", [{"temperature": 0.0}, {"temperature": -1.0}, {"penalty": -0.1}])
def test_temperatures_and_penalties_are_positive(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="positive ones were expected"):
        Config(4, **given)
    assert (Config(4, penalty=0.0).penalty, Config(4, temperature=0.01).temperature) == (0.0, 0.01)


def test_sparsemax_is_the_projection_onto_the_simplex() -> None:
    weights, penalty = sparse_selectors.attentions(Config(4))["sparsemax"](LOGITS, None)
    np.testing.assert_allclose(weights, sparsemax(LOGITS))
    np.testing.assert_allclose(weights[0], [[0, 0, 1], [1 / 3, 1 / 3, 1 / 3]])
    assert penalty is None


def test_the_penalty_is_the_mean_entropy_with_its_gradient() -> None:
    logits, other = (LOGITS.clone().requires_grad_() for _ in range(2))
    weights, penalty = sparse_selectors.attentions(Config(4, penalty=0.7))["entropy"](logits, None)
    expected = torch.softmax(other, -1)
    np.testing.assert_allclose(weights.detach(), expected.detach(), rtol=1e-12)
    entropy = 0.7 * -(expected * expected.log()).sum(-1).mean(-1)
    np.testing.assert_allclose(penalty.detach(), entropy.detach(), rtol=1e-12)
    (own,), (slope,) = torch.autograd.grad(penalty.sum(), logits), torch.autograd.grad(entropy.sum(), other)
    np.testing.assert_allclose(own, slope, atol=1e-12)


class Uniform:
    def __init__(self, values: list[Any]) -> None:
        self.values = torch.tensor(values, dtype=torch.float64)

    def uniform(self, like: torch.Tensor) -> torch.Tensor:
        return self.values.expand_as(like)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_gumbel_draws_one_token_and_its_gradient_is_that_of_the_noisy_softmax(temperature: float) -> None:
    """Jang et al. 2017: logits plus -log(-log u), a hard choice forwards and softmax(noisy / temperature) backwards."""
    noise = [0.9, 0.95, 0.2]
    logits, other = (LOGITS.clone().requires_grad_() for _ in range(2))
    gumbel = sparse_selectors.attentions(Config(4, temperature=temperature))["gumbel"]
    weights, penalty = gumbel(logits, Uniform(noise))
    assert penalty is None
    noisy = other + torch.tensor([-np.log(-np.log(u)) for u in noise], dtype=torch.float64)
    # Hand check of the first query: .5 + 2.25, -1 + 2.97 and 2 - .48.
    assert noisy[0, 0].tolist() == pytest.approx([2.75, 1.97, 1.52], abs=0.01)
    np.testing.assert_allclose(weights.detach(), [[[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 1, 0]]], atol=1e-12)
    soft, direction = torch.softmax(noisy / temperature, -1), torch.tensor([1.0, 2.0, -0.5], dtype=torch.float64)
    (own,) = torch.autograd.grad((weights * direction).sum(), logits)
    np.testing.assert_allclose(own, torch.autograd.grad((soft * direction).sum(), other)[0], atol=1e-10)


def test_gumbel_draws_each_token_as_often_as_the_softmax_says() -> None:
    logits = torch.tensor([[[1.0, 0.0, -1.0]]], dtype=torch.float64).expand(1, 4000, 3)
    weights, _ = sparse_selectors.attentions(Config(4))["gumbel"](logits, Noise([5]))
    # Five standard errors of 4000 draws.
    np.testing.assert_allclose(weights.mean(1), torch.softmax(logits, -1)[:, 0], atol=0.04)


def test_rows_compare_the_tokens_of_each_selector_and_its_margin() -> None:
    seeds, config = [18, 3, 5], Config(3, n=4, T=3, steps=25, penalty=0.3)
    rows = sparse_selectors.trials(config, np.array(seeds))
    assert [(row["selector"], row["seed"]) for row in rows] == [(name, seed) for name in SELECTORS for seed in seeds]
    instances = draw(seeds, 4, 3, 3)
    maps = sparse_selectors.attentions(config)
    W = {name: descend(instances, maps[name], 25, seeds) for name in maps}
    W["softmax"] = train(instances.data, instances.v, steps=25, lr=0.1).W[:, -1]
    at, feasible = np.arange(4), []
    for row in rows:
        b = seeds.index(row["seed"])
        tokens, queries = instances.data.tokens[b], instances.data.queries[b]

        def logits(name: str, b: int = b, tokens: Any = tokens, queries: Any = queries) -> np.ndarray:
            return np.stack([x @ W[name][b] @ z for x, z in zip(tokens, queries, strict=True)])

        own = logits(row["selector"])
        top, matrix = own.argmax(1), W[row["selector"]][b]
        powers = np.exp(own)
        weights = powers / powers.sum(1, keepdims=True)
        if row["selector"] == "sparsemax":
            weights = sparsemax(torch.as_tensor(own)).numpy()
        assert row["same"] == np.mean(top == logits("softmax").argmax(1))
        assert row["optimal"] == np.mean(top == instances.gamma[b].argmax(1))
        assert row["kept"] == (weights > 1e-3).sum() / 4
        assert row["norm"] == pytest.approx(np.sqrt((matrix**2).sum()), rel=1e-9)
        assert row["local"] is local_optimality(Trial.of(instances.data[b], instances.v[b]), top).holds
        solution = solve(SelectionProblem(tokens, queries, top))
        feasible.append(bool(np.isfinite(solution.objective)))
        assert row["infeasible"] is not feasible[-1]
        if feasible[-1]:
            leads = own[at, top][:, None] - own
            leads[at, top] = np.inf
            share = leads.min() / np.sqrt((matrix**2).sum()) * np.sqrt((np.asarray(solution.W) ** 2).sum())
            assert row["margin"] == pytest.approx(share, rel=1e-6)
        else:
            assert row["margin"] is None
    assert {row["local"] for row in rows} == {True, False}
    assert all(row["same"] == 1 for row in rows[:3])
    assert any(row["same"] < 1 for row in rows)


def row(selector: str, d: int = 10, T: int = 8, **values: Any) -> dict[str, Any]:
    fixed = {"selector": selector, "d": d, "n": 6, "T": T, "same": 1.0, "optimal": 0.5, "kept": 1.0, "local": True}
    return fixed | {"infeasible": False, "margin": 0.9} | values


SOFTMAX = [row("softmax", margin=0.8, kept=1.5, local=False), row("softmax", margin=0.84, kept=2.0)]


def test_softmax_reports_its_margin_alone() -> None:
    (verdict,) = sparse_selectors.verdicts([*SOFTMAX, row("softmax", margin=None, infeasible=True, kept=1.0)])
    assert verdict.quantity == "margin of softmax as a share of the largest for its tokens, d=10"
    assert (verdict.measured, verdict.trials, verdict.infeasible) == (pytest.approx(0.82), 3, 1)
    assert (verdict.low, verdict.high) == pytest.approx(mean_interval([0.8, 0.84]))
    assert verdict.note == "It keeps 1.50 tokens a sequence; the selection is locally optimal in 2 of 3 trials."
    assert verdict.experiment == "sparse-selectors"


@pytest.mark.parametrize(
    ("margins", "relation"),
    [
        ([0.1, 0.1], "smaller than"),
        ([1.5, 1.5], "larger than"),
        ([0.82, 0.82], "not distinguished from"),
        ([0.5, 0.9], "not distinguished from"),
        # The interval of softmax is 0.82 plus and minus 0.254.
        ([0.57, 0.57], "not distinguished from"),
        ([0.56, 0.56], "smaller than"),
        ([1.07, 1.07], "not distinguished from"),
        ([1.08, 1.08], "larger than"),
    ],
)
def test_another_selector_is_compared_with_softmax(margins: list[float], relation: str) -> None:
    rows = [
        *SOFTMAX,
        *(row("sparsemax", margin=margin, optimal=share) for margin, share in zip(margins, (0.5, 0.75), strict=True)),
    ]
    _, same, margin = sparse_selectors.verdicts(rows)
    assert same.quantity == "sequences where sparsemax selects as softmax does, d=10"
    assert margin.quantity == "margin of sparsemax as a share of the largest for its tokens, d=10"
    assert margin.measured == pytest.approx(np.mean(margins))
    assert margin.note == (
        f"A margin {relation} that of softmax, 0.820. "
        "It keeps 1.00 tokens a sequence; the selection is locally optimal in 2 of 2 trials."
    )
    assert (same.measured, same.trials) == (1.0, 2)
    assert same.note == (
        "It chooses the token of softmax in 100 % of sequences, more than the 12 % of chance, and the best-scoring "
        "token in 62 %."
    )


def test_equal_margins_are_not_distinguished() -> None:
    """Both intervals are one number, the same."""
    rows = [row(selector, margin=0.75) for selector in ("softmax", "sparsemax") for _ in range(2)]
    assert sparse_selectors.verdicts(rows)[-1].note.startswith(
        "A margin not distinguished from that of softmax, 0.750."
    )


@pytest.mark.parametrize(
    ("shares", "beyond"), [([0.5, 0.5], "no better than"), ([0.51, 0.51], "more than"), ([0.4, 0.9], "no better than")]
)
def test_agreement_beyond_chance_needs_its_whole_interval_above(shares: list[float], beyond: str) -> None:
    """Of two tokens one is chosen by chance in half of the sequences."""
    rows = [row("gumbel", 4, 2, same=share, infeasible=share < 0.5, margin=None) for share in shares]
    same, margin = sparse_selectors.verdicts(rows)
    assert same.note.startswith(
        f"It chooses the token of softmax in {100 * np.mean(shares):.0f} % of sequences, {beyond} the 50 % of chance"
    )
    assert (same.low, same.high) == pytest.approx(mean_interval(shares))
    assert same.infeasible == margin.infeasible == sum(share < 0.5 for share in shares)
    assert np.isnan(margin.measured)
    # Without a margin, its own or that of softmax, nothing is compared.
    assert margin.note.startswith("It keeps 1.00 tokens")


@pytest.mark.parametrize("softmax", [[], [row("softmax", margin=None)], [row("softmax", d=4)]])
def test_margins_are_compared_with_those_of_softmax_at_the_same_dimension(softmax: list[dict[str, Any]]) -> None:
    verdicts = sparse_selectors.verdicts([*softmax, row("entropy"), row("entropy")])
    notes = {one.quantity: one.note for one in verdicts}
    assert notes["margin of entropy as a share of the largest for its tokens, d=10"].startswith("It keeps")
    empty = [*SOFTMAX, row("entropy", margin=None)]
    notes = {one.quantity: one.note for one in sparse_selectors.verdicts(empty)}
    assert notes["margin of entropy as a share of the largest for its tokens, d=10"].startswith("It keeps")


FIGURE = [
    row(selector, d, same=same + part, margin=same / 2, kept=1 + same)
    for selector, shift in (("softmax", 0.6), ("sparsemax", 0.5), ("entropy", 0.3), ("gumbel", 0.1))
    for d in (4, 20)
    for part in (-0.1, 0.1)
    for same in (shift + d / 100,)
]


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_figure_has_agreement_margin_and_tokens_kept(width: float) -> None:
    figure = sparse_selectors.figure(FIGURE, width)
    assert titles(figure.axes) == ["same token as softmax", "margin of the own tokens", "tokens kept"]
    assert in_one_column(figure) is (width == NARROW)
    assert 2.4 < panel_height(figure) < 3.5
    assert [ax.get_ylabel() for ax in figure.axes] == [
        "share of sequences", "margin, share of the largest", "tokens above 0.001"
    ]  # fmt: skip
    assert all(ticks(ax.xaxis) == {4: "4", 20: "20"} and ax.get_xlabel() == "dimension d" for ax in figure.axes)
    same, margin, kept = figure.axes
    assert levels(same) == {"chance": 1 / 8}
    assert (same.get_ylim(), margin.get_ylim()[1], kept.get_ylim()[0]) == ((0, 1.03), 1.03, 0.9)
    others = [label for name, label in SELECTORS.items() if name != "softmax"]
    # Agreement of softmax with itself is no measurement.
    assert list(curves(same)) == others
    assert list(curves(margin)) == list(curves(kept)) == list(SELECTORS.values())
    assert set(legend_words(figure.axes)) == {*SELECTORS.values(), "chance"}
    shifts = {"softmax": 0.6, "sparsemax": 0.5, "entropy": 0.3, "gumbel": 0.1}
    for look, (selector, label) in enumerate(SELECTORS.items()):
        means = np.array([shifts[selector] + d / 100 for d in (4, 20)])
        for ax, y in ((same, means), (margin, means / 2), (kept, 1 + means)):
            if ax is same and selector == "softmax":
                continue
            drawn = curves(ax)[label]
            assert drawn.look == look
            assert drawn.y == pytest.approx(list(y))
            # Points are set apart by at most three percent.
            assert drawn.x == pytest.approx([4, 20], rel=0.031)
    assert len({tuple(one.x) for one in curves(kept).values()}) == 4
    low, high = mean_interval([0.44, 0.64])
    assert (curves(same)["sparsemax"].low[0], curves(same)["sparsemax"].high[0]) == pytest.approx((low, high))
