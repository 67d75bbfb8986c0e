"""Weight decay on K and Q: minima on the factors, their measures, verdicts and figure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from attsvm import SelectionProblem, solve, train
from attsvm.plots.style import NARROW, WIDE
from attsvm_paper.beyond import shrinkage, weight_decay
from attsvm_paper.beyond.predictions import predictions
from attsvm_paper.beyond.weight_decay import Config
from attsvm_paper.judging.statistics import bootstrap_interval
from attsvm_paper.published.instances import Instances, draw, start_seeds
from drawn import curves, in_one_column, levels, panel_height, ticks, titles

RNG = np.random.default_rng(5)
K0, Q0 = RNG.standard_normal((3, 3)), RNG.standard_normal((3, 3))
FIELDS = {"excess", "balance", "stationarity", "rank", "reference_rank", "rate"}
Risk = Callable[[np.ndarray], tuple[float, np.ndarray]]


@pytest.mark.parametrize(("effort", "trials"), [("quick", 8), ("full", 100)])
def test_the_sweep_has_three_weights_three_decays_and_two_rates(effort: Any, trials: int) -> None:
    """docs/findings.md: 300 full trials of the hinge at three weights, on the published n = 6, T = 8, d = 10."""
    cells = [(one.setting, one.strength) for one in weight_decay.sweep(effort)]
    assert cells == [
        *(("margin", C) for C in (0.1, 1.0, 10.0)),
        *(("attention", decay) for decay in (0.01, 0.001, 0.0001)),
        *(("descent", decay) for decay in (0.02, 0.05)),
    ]
    assert {(one.n, one.T, one.d, one.steps, one.trials) for one in weight_decay.sweep(effort)} == {
        (6, 8, 10, 2000, trials)
    }


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("margins", 1.0), "setting is 'margins'; 'margin', 'attention' or 'descent' was expected"),
        (("margin", 0.0), "strength is 0.0; a positive number was expected"),
        (("descent", -0.1), "strength is -0.1"),
    ],
)
def test_settings_and_strengths_are_checked(given: tuple[Any, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Config(*given)


@pytest.mark.parametrize(
    ("setting", "strength", "filled"),
    [
        ("margin", 2.0, {"excess", "balance", "rank", "reference_rank"}),
        ("attention", 0.05, {"stationarity", "balance", "rank", "reference_rank"}),
        ("descent", 0.4, {"rate"}),
    ],
)
def test_each_setting_fills_its_fields_and_trials_do_not_depend_on_their_batch(
    setting: Any, strength: float, filled: set[str]
) -> None:
    config = Config(setting, strength, d=3, n=2, T=3, steps=20)
    rows = weight_decay.trials(config, np.array([4, 7]))
    assert [row["seed"] for row in rows] == [4, 7]
    assert all(set(row) == FIELDS | {"seed"} for row in rows)
    assert all({name for name in FIELDS if row[name] is not None} == filled for row in rows)
    (alone,) = weight_decay.trials(config, np.array([7]))
    for name, value in rows[1].items():
        assert alone[name] == (None if value is None else pytest.approx(value, rel=1e-6, abs=1e-8))


def test_a_quadratic_risk_has_the_soft_threshold_of_its_singular_values_as_minimum() -> None:
    """The nuclear penalty shrinks singular values by the decay: those of A above 0.5 remain, less 0.5."""
    U, V = (np.linalg.qr(RNG.standard_normal((4, 4)))[0] for _ in range(2))
    A = U @ np.diag([3.0, 1.0, 0.4, 0.1]) @ V.T
    K, Q = weight_decay.minimum_on_factors(lambda W: (((W - A) ** 2).sum() / 2, W - A), 0.5, 4, 3)
    np.testing.assert_allclose(K @ Q.T, U @ np.diag([2.5, 0.5, 0.0, 0.0]) @ V.T, atol=1e-6)
    np.testing.assert_allclose(K.T @ K, Q.T @ Q, atol=1e-6)
    assert weight_decay.balance(K, Q) == pytest.approx(0, abs=1e-9)
    assert weight_decay.rank_of(K @ Q.T) == 2


def test_the_descent_on_factors_starts_at_normal_numbers_of_size_three_tenths(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Any, np.ndarray, dict[str, Any]]] = []

    def spy(value: Any, start: np.ndarray, **options: Any) -> Any:
        given.append((value, start.copy(), options))
        return minimize(value, start, **options)

    monkeypatch.setattr(weight_decay, "minimize", spy)
    A = RNG.standard_normal((3, 3)) / 10
    weight_decay.minimum_on_factors(lambda W: (float((A * W).sum()), A), 2.0, 3, 11)
    ((value, start, options),) = given
    np.testing.assert_allclose(start, 0.3 * np.random.default_rng(11).standard_normal(18))
    assert options["options"]["gtol"] == pytest.approx(1e-9 * 2.0)
    number, slope = value(np.stack([K0, Q0]).ravel())
    assert number == pytest.approx(np.trace(A.T @ K0 @ Q0.T) + (K0**2).sum() + (Q0**2).sum())
    np.testing.assert_allclose(slope.reshape(2, 3, 3), [A @ Q0 + 2 * K0, A.T @ K0 + 2 * Q0])


def test_the_balance_is_the_share_that_the_nuclear_norm_lacks() -> None:
    half = ((K0**2).sum() + (Q0**2).sum()) / 2
    lacking = half - np.linalg.svd(K0 @ Q0.T)[1].sum()
    assert weight_decay.balance(K0, Q0) == pytest.approx(lacking / half, rel=1e-12)
    assert weight_decay.balance(np.eye(2), np.eye(2)) == pytest.approx(0, abs=1e-15)
    assert weight_decay.balance(np.zeros((2, 2)), np.zeros((2, 2))) == 0.0
    # Factors without a product lack all of it, however small they are.
    assert weight_decay.balance(np.diag([1e-3, 0.0]), np.diag([0.0, 1e-3])) == pytest.approx(1)


@pytest.mark.parametrize(
    ("sigma", "rank"),
    [((4.0, 1.0, 0.005), 3), ((4.0, 1.0, 0.003), 2), ((0.5, 2e-4, 0.0), 1), ((0.05, 1e-4, 0.0), 2), ((0.0, 0.0), 0)],
)
def test_singular_values_below_a_thousandth_of_the_largest_are_noise(sigma: tuple[float, ...], rank: int) -> None:
    assert weight_decay.rank_of(np.diag(sigma)) == rank


@pytest.fixture
def risks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Risk, float, int, int]]:
    """Every call of minimum_on_factors; it gives fixed factors."""
    given: list[tuple[Risk, float, int, int]] = []

    def spy(risk: Risk, strength: float, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        given.append((risk, strength, d, seed))
        return K0, Q0

    monkeypatch.setattr(weight_decay, "minimum_on_factors", spy)
    return given


def slope_of(risk: Risk, W: np.ndarray) -> np.ndarray:
    """Differentiate by central differences."""
    slope, step = np.empty(W.shape), 1e-6
    for at in np.ndindex(*W.shape):
        ends = []
        for sign in (1, -1):
            moved = W.copy()
            moved[at] += sign * step
            ends.append(risk(moved)[0])
        slope[at] = (ends[0] - ends[1]) / (2 * step)
    return slope


def test_the_hinge_of_given_factors_is_compared_with_the_certified_minimum(
    risks: list[tuple[Risk, float, int, int]],
) -> None:
    seeds, config = [2, 6], Config("margin", 3.0, d=3, n=2, T=3)
    instances = draw(seeds, 2, 3, 3)
    rows = weight_decay.margins(config, instances, seeds)
    for b, (row, (risk, strength, d, seed)) in enumerate(zip(rows, risks, strict=True)):
        assert (strength, d, seed) == (1.0, 3, start_seeds(seeds)[b])
        tokens, queries, best = instances.data.tokens[b], instances.data.queries[b], instances.optimal[b]
        lacking = [
            max(1 - (x[chosen] - x[t]) @ K0 @ Q0.T @ z, 0)
            for x, z, chosen in zip(tokens, queries, best, strict=True)
            for t in range(3)
            if t != chosen
        ]
        hinge = 3.0 * np.square(lacking).sum()
        assert risk(K0 @ Q0.T)[0] == pytest.approx(hinge, rel=1e-12)
        np.testing.assert_allclose(risk(K0 @ Q0.T)[1], slope_of(risk, K0 @ Q0.T), rtol=1e-6, atol=1e-6)
        least = solve(SelectionProblem(tokens, queries, best), "nuclear", C=3.0, loss="squared_hinge")
        value = hinge + ((K0**2).sum() + (Q0**2).sum()) / 2
        assert row == {
            "excess": pytest.approx(value / least.lower_bound - 1, rel=1e-9),
            "balance": weight_decay.balance(K0, Q0),
            "rank": 3,
            "reference_rank": np.linalg.matrix_rank(least.W, 1e-6),
        }


def test_a_minimum_on_the_factors_is_the_certified_one() -> None:
    """arXiv 2410.23819, with the bounds of the prediction."""
    rows = weight_decay.trials(Config("margin", 1.0, d=3, n=2, T=3), [2, 6])
    foreseen = predictions()["weight-decay"]["excess"]
    assert all(foreseen.low <= row["excess"] <= foreseen.high for row in rows)
    assert all(row["rank"] == row["reference_rank"] for row in rows)


def stationarity(W: np.ndarray, G: np.ndarray, decay: float) -> float:
    """How far ||G||_2 <= decay and -<G, W> = decay ||W||_* are missed, relative to their right sides."""
    sigma = np.linalg.svd(W)[1].sum()
    slack = abs(-np.trace(G.T @ W) - decay * sigma) / (decay * sigma)
    return float(max(np.linalg.svd(G)[1][0] / decay - 1, 0, slack))


@pytest.mark.parametrize("decay", [0.01, 0.1, 10.0])
def test_stationarity_is_the_larger_of_two_residuals(decay: float, risks: list[tuple[Risk, float, int, int]]) -> None:
    seeds = [2, 6]
    instances = draw(seeds, 2, 3, 3)
    rows = weight_decay.attention(Config("attention", decay, d=3, n=2, T=3), instances, seeds)
    W = K0 @ Q0.T
    for b, (row, (risk, strength, d, seed)) in enumerate(zip(rows, risks, strict=True)):
        assert (strength, d, seed) == (decay, 3, start_seeds(seeds)[b])
        number, G = risk(W)
        assert number == pytest.approx(shrinkage.risk(instances, b, W), rel=1e-12)
        np.testing.assert_allclose(G, slope_of(risk, W), rtol=1e-6, atol=1e-9)
        tokens, queries = instances.data.tokens[b], instances.data.queries[b]
        control = shrinkage.regularised_solution(tokens, queries, instances.gamma[b], decay)
        assert row == {
            "stationarity": pytest.approx(stationarity(W, G, decay), rel=1e-9),
            "balance": weight_decay.balance(K0, Q0),
            "rank": 3,
            "reference_rank": (np.linalg.svd(control)[1] > 1e-3 * np.linalg.norm(control, 2)).sum(),
        }


def test_zero_is_stationary_where_the_gradient_is_below_the_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    zero = np.zeros((3, 3))
    monkeypatch.setattr(weight_decay, "minimum_on_factors", lambda *_: (zero, zero))
    instances = draw([2], 2, 3, 3)
    for decay, stationary in ((10.0, True), (1e-3, False)):
        (row,) = weight_decay.attention(Config("attention", decay, d=3, n=2, T=3), instances, [2])
        assert (row["stationarity"] == 0) is stationary
        assert (row["rank"], row["balance"]) == (0, 0.0)


def test_factors_end_at_a_stationary_point_of_the_nuclear_penalty() -> None:
    rows = weight_decay.trials(Config("attention", 0.05, d=3, n=2, T=3), [2, 6])
    assert all(row["stationarity"] < 1e-4 and row["balance"] < 1e-6 for row in rows)


def descent_by_hand(instances: Instances, b: int, seed: int, decay: float, steps: int, every: int) -> float:
    """Descend on K and Q with steps of 0.05 and decay, and fit the rate of the imbalance over twice the decay."""
    trace = train(
        instances.data[b], instances.v[b], parameterization="KQ", optimizer="gd", lr=0.05, steps=1, init="torch",
        seed=seed,
    )  # fmt: skip
    assert trace.K is not None
    assert trace.Q is not None
    K, Q = np.array(trace.K[0]), np.array(trace.Q[0])
    tokens, queries, gamma = instances.data.tokens[b], instances.data.queries[b], instances.gamma[b]
    times, sizes = [], []
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            times.append(0.05 * step)
            sizes.append(np.log(np.sqrt(((K.T @ K - Q.T @ Q) ** 2).sum())))
        G = np.zeros((3, 3))
        for x, z, scores in zip(tokens, queries, gamma, strict=True):
            logits = x @ K @ Q.T @ z
            s = np.exp(logits) / np.exp(logits).sum()
            slope = -1 / (1 + np.exp(s @ scores)) / len(tokens)
            G += slope * np.outer(x.T @ (s * (scores - s @ scores)), z)
        K, Q = K - 0.05 * (G @ Q + decay * K), Q - 0.05 * (G.T @ K + decay * Q)
    t, y = np.array(times) - np.mean(times), np.array(sizes)
    return float(-(t @ y) / (t @ t) / (2 * decay))


@pytest.mark.parametrize(
    ("steps", "decay", "taken", "every"), [(50, 0.3, 50, 2), (2000, 2.5, 24, 1), (1000, 0.5, 120, 6), (15, 0.3, 15, 1)]
)
def test_the_imbalance_shrinks_until_it_is_e_to_the_minus_six_or_the_steps_end(
    steps: int, decay: float, taken: int, every: int
) -> None:
    """It shrinks at twice the decay in time, and a step of 0.05 takes 0.05: by e^-6 after 3 / (0.05 decay) steps."""
    seeds = [2, 6]
    instances = draw(seeds, 2, 3, 3)
    rows = weight_decay.descent(Config("descent", decay, d=3, n=2, T=3, steps=steps), instances, seeds)
    for b, (row, seed) in enumerate(zip(rows, start_seeds(seeds), strict=True)):
        assert row["rate"] == pytest.approx(descent_by_hand(instances, b, int(seed), decay, taken, every), rel=1e-8)


def rows_of(setting: str, strength: float, **columns: Any) -> list[dict[str, Any]]:
    fixed = {"setting": setting, "strength": strength, "n": 6, "T": 8, "d": 10} | dict.fromkeys(FIELDS)
    count = max(len(values) for values in columns.values())
    return [fixed | {name: values[at] for name, values in columns.items()} for at in range(count)]


MARGIN = rows_of("margin", 0.1, excess=[2e-9, 4e-9], balance=[3e-8, 1e-8], rank=[2, 3], reference_rank=[2, 2])
ATTENTION = [
    *rows_of("attention", 0.01, stationarity=[2e-3, 4e-3], balance=[1e-3, 0.0], rank=[2, 1], reference_rank=[6, 6]),
    *rows_of("attention", 0.001, stationarity=[1e-5, 1e-5], balance=[0.0, 0.0], rank=[3, None], reference_rank=[6, 5]),
]
DESCENT = [*rows_of("descent", 0.02, rate=[1.0, 1.02, 1.01]), *rows_of("descent", 0.05, rate=[0.5, 0.7])]
EXCESS = "objective on the factors over the certified minimum, less one"
BALANCE = "share by which the nuclear norm is below half the squared norms"
RESIDUAL = "residual of the nuclear-penalised problem"
LOST = "rank {} less that on the factors"
BELOW = "Predicted by theorem: -1e-09 to 1e-06,"


def test_verdicts_state_each_measure_with_its_prediction() -> None:
    cells = {
        "attention, decay=0.01": (
            (BALANCE, 5e-4, f"At most 0.001. {BELOW} undecided.", "balance"),
            (RESIDUAL, 3e-3, "At most 0.004. Predicted by theorem: 0 to 0.001, miss.", "stationarity"),
            (
                LOST.format("under a penalty on W itself"),
                4.5,
                "1.50 on the factors, 6.00 under a penalty on W itself. Predicted by guess: 0.5 to 20, hit.",
                "rank",
            ),
        ),
        "descent, decay=0.02": (
            (
                "rate at which the imbalance shrinks, over twice the decay",
                1.01,
                "Predicted by theorem: 0.95 to 1.05, hit.",
                "rate",
            ),
        ),
        "margin, C=0.1": (
            (EXCESS, 3e-9, f"At most 4e-09. {BELOW} hit.", "excess"),
            (BALANCE, 2e-8, f"At most 3e-08. {BELOW} hit.", "balance"),
            (
                LOST.format("of the certified nuclear solution"),
                -0.5,
                "2.50 on the factors, 2.00 of the certified nuclear solution.",
                None,
            ),
        ),
    }
    expected = [
        (
            f"{words}, {where}, n=6, T=8, d=10",
            pytest.approx(value),
            3 if where.startswith("descent") else 2,
            note if name is None else f"{note} {predictions()['weight-decay'][name].reason}",
        )
        for where, measures in cells.items()
        for words, value, note, name in measures
    ]
    verdicts = weight_decay.verdicts([*MARGIN, *ATTENTION[:2], *DESCENT[:3]])
    assert [(one.quantity, one.measured, one.trials, one.note) for one in verdicts] == expected
    assert {(one.experiment, one.verdict) for one in verdicts} == {("weight-decay", "measured")}


def test_a_trial_without_a_rank_is_requested_and_not_counted() -> None:
    lost = weight_decay.verdicts(ATTENTION[2:])[-1]
    assert (lost.quantity, lost.measured, lost.trials) == (
        "rank under a penalty on W itself less that on the factors, attention, decay=0.001, n=6, T=8, d=10",
        3.0,
        2,
    )


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_figure_has_excesses_ranks_and_rates(width: float) -> None:
    rows = [*MARGIN, *rows_of("margin", 10.0, excess=[-1e-12, 5e-8]), *ATTENTION, *DESCENT]
    figure = weight_decay.figure(rows, width)
    least, ranks, rate = figure.axes
    assert titles(figure.axes) == ["over the certified minimum", "attention: rank of W", "descent: imbalance"]
    assert in_one_column(figure) is (width == NARROW)
    assert 2.4 < panel_height(figure) < 3.5
    # The axis is logarithmic: an excess of zero or less is drawn at rounding.
    dots = np.concatenate([np.asarray(line.get_xydata()) for line in least.lines])
    assert list(map(tuple, dots.tolist())) == [(0.1, 2e-9), (0.1, 4e-9), (10.0, 1e-16), (10.0, 5e-8)]
    assert least.get_yscale() == "log"
    assert (ticks(least.xaxis), ticks(ranks.xaxis), ticks(rate.xaxis)) == (
        {0.1: "0.1", 10.0: "10"},
        {0.001: "0.001", 0.01: "0.01"},
        {0.02: "0.02", 0.05: "0.05"},
    )
    drawn = curves(ranks)
    assert (drawn["penalty on W"].x, drawn["penalty on W"].y) == ([0.001, 0.01], [5.5, 6.0])
    assert (drawn["penalty on K, Q"].x, drawn["penalty on K, Q"].y) == ([0.001, 0.01], [3.0, 1.5])
    # The measured curve of the next panel is of factors too.
    assert (drawn["penalty on K, Q"].look, drawn["penalty on W"].look, curves(rate)["measured"].look) == (0, 1, 0)
    legend = ranks.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == list(drawn)
    measured = curves(rate)["measured"]
    assert (measured.x, measured.y) == ([0.02, 0.05], pytest.approx([1.01, 0.6]))
    assert (measured.low[0], measured.high[0]) == pytest.approx(bootstrap_interval([1.0, 1.02, 1.01]))
    assert levels(rate) == {"": 1.0}
    assert rate.get_ylim() == (0.8, 1.2)


@pytest.mark.parametrize(("rows", "filled"), [(MARGIN, 0), (ATTENTION, 1), (DESCENT, 2)])
def test_the_figure_of_one_setting_leaves_the_other_panels_without_data(
    rows: list[dict[str, Any]], filled: int
) -> None:
    figure = weight_decay.figure(rows)
    assert len(figure.axes) == 3
    drawn = [bool(curves(ax)) or any(line.get_marker() == "." for line in ax.lines) for ax in figure.axes]
    assert drawn == [at == filled for at in range(3)]
    assert (figure.axes[0].get_yscale() == "log") is (filled == 0)
    assert [ax.get_xscale() == "log" for ax in figure.axes] == drawn
