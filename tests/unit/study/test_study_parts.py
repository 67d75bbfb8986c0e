"""The head, the controls, the rank, and the words of a study."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from attsvm import SelectionProblem, Status, TokenData, solve
from attsvm.core.error_free import EPS
from attsvm.core.types import FactorNorm, Parameterization
from attsvm.data.dataset import Dataset
from attsvm.data.text import LabelledTexts, word_dataset
from attsvm.platform.summary import counted
from attsvm.study import Settings, Study
from attsvm.study.accuracy import accuracies, rows_right, soft_attention
from attsvm.study.controls import controls, direction_of, hebbian, shuffle
from attsvm.study.convergence import climbing, steps_to
from attsvm.study.head import PENALTIES, fit_head, mean_tokens
from attsvm.study.intervals import share_interval, upper_limit
from attsvm.study.labels import shuffled_labels
from attsvm.study.results import ControlDirections
from attsvm.study.run import STAGES, prepare, run, train_and_compare
from attsvm.study.spectrum import certified_rank, singular_values
from attsvm.study.training import LONGER, MORE_RECORDS, SOLVING, _needs_more, record_steps, train_and_solve
from attsvm.study.watch import Watch
from attsvm.study.words import correlation_text, share_text, small_text
from attsvm.theory.tokens import Trial
from attsvm.training import train


def data_set(seed: int = 0, n: int = 8, T: int = 4, d: int = 5, dz: int = 3, *, masked: bool = False) -> Dataset:
    rng = np.random.default_rng(seed)
    mask = rng.random((n, T)) < 0.6
    mask[:, 0] = True
    labels = np.where(np.arange(n) % 2, 1.0, -1.0)
    tokens, queries = rng.standard_normal((n, T, d)), rng.standard_normal((n, dz))
    return Dataset("data", TokenData(tokens, queries, labels, mask if masked else None))


@pytest.mark.parametrize("n", [2, 30])
def test_the_head_is_the_ridge_solution_of_its_penalty(n: int) -> None:
    data = data_set(n=n, masked=True)
    head = fit_head(data)
    means = mean_tokens(data)
    rows = [data.tokens.tokens[i][data.mask[i]].mean(axis=0) for i in range(n)]
    np.testing.assert_allclose(means, rows)
    assert head.penalty is not None
    assert any(np.isclose(head.penalty, PENALTIES))
    strength = head.penalty * np.mean(np.sum(means**2, axis=1))
    ridge = np.linalg.solve(means.T @ means + strength * np.eye(5), means.T @ data.tokens.labels)
    np.testing.assert_allclose(head.v, ridge / np.linalg.norm(ridge), rtol=1e-8)


def test_the_head_of_one_row_is_its_mean_token_at_the_largest_penalty() -> None:
    """Without the row there is nothing to fit, so that leave-one-out error is the same for every penalty."""
    data = data_set(n=1)
    head, mean = fit_head(data), data.tokens.tokens[0].mean(axis=0)
    np.testing.assert_allclose(head.v, data.tokens.labels[0] * mean / np.linalg.norm(mean))
    assert head.penalty == max(PENALTIES)


def test_no_other_penalty_has_a_smaller_leave_one_out_error() -> None:
    data = data_set(n=30)
    head, means, y = fit_head(data), mean_tokens(data), data.tokens.labels
    power = np.mean(np.sum(means**2, axis=1))

    def error(penalty: float) -> float:
        total = 0.0
        for i in range(30):
            rest = np.arange(30) != i
            A = means[rest].T @ means[rest] + penalty * power * np.eye(5)
            total += (y[i] - means[i] @ np.linalg.solve(A, means[rest].T @ y[rest])) ** 2
        return total

    assert head.penalty is not None
    assert error(head.penalty) <= min(map(error, PENALTIES)) * (1 + 1e-9)


def test_a_given_head_is_only_scaled_and_a_zero_head_is_refused() -> None:
    data = data_set()
    source = Dataset("data", data.tokens, head=np.arange(5.0))
    np.testing.assert_allclose(fit_head(source).v, np.arange(5.0) / np.sqrt(30))
    centred = data.tokens.tokens - data.tokens.tokens.mean(axis=1, keepdims=True)
    blank = TokenData(centred - centred.mean(axis=1, keepdims=True), data.tokens.queries, data.tokens.labels)
    zero = Dataset("data", TokenData(np.zeros_like(blank.tokens), blank.queries, blank.labels))
    with pytest.raises(ValueError, match="head"):
        fit_head(zero)


def test_prepare_scales_lengths_and_scores_what_is_visible() -> None:
    setup = prepare(data_set(masked=True), Settings(train=6))
    train = setup.train
    assert np.linalg.norm(train.tokens.tokens, axis=2)[train.mask].mean() == pytest.approx(1)
    assert np.linalg.norm(train.tokens.queries, axis=1).mean() == pytest.approx(1)
    assert (setup.trial.gamma[~train.mask] == -np.inf).all()
    assert train.mask[np.arange(6), setup.optimal].all()
    assert setup.test is not None
    assert setup.test.tokens.n == 2


def test_centred_queries_have_mean_zero_and_a_constant() -> None:
    data = data_set(n=12)
    setup = prepare(Dataset("data", data.tokens, centre=True), Settings(train=9))
    queries = setup.train.tokens.queries
    assert queries.shape == (9, 4)
    np.testing.assert_allclose(queries[:, :-1].mean(axis=0), 0, atol=1e-14)
    np.testing.assert_allclose(queries[:, -1], queries[0, -1])
    assert not setup.train.centre
    assert setup.test is not None
    np.testing.assert_allclose(setup.test.tokens.queries[:, -1], queries[0, -1])


def test_a_feature_that_never_varies_is_standardised_to_zero() -> None:
    data = data_set(n=12)
    tokens = data.tokens.tokens.copy()
    tokens[..., 0] = 3.0
    given = TokenData(tokens, data.tokens.queries, data.tokens.labels)
    setup = prepare(Dataset("data", given, standardise=True), Settings(train=9))
    assert setup.test is not None
    for half in (setup.train, setup.test):
        np.testing.assert_array_equal(half.tokens.tokens[..., 0], 0.0)
    visible = setup.train.tokens.tokens.reshape(-1, 5)[:, 1:]
    np.testing.assert_allclose(visible.mean(axis=0), 0.0, atol=1e-14)
    np.testing.assert_allclose(visible.std(axis=0), visible.std(axis=0)[0])


def test_hebbian_is_selected_minus_mean_of_the_others() -> None:
    data = data_set(masked=True)
    X, Z, mask = data.tokens.tokens, data.tokens.queries, data.mask
    selected = mask.argmax(axis=1)
    expected = np.zeros((5, 3))
    for i, a in enumerate(selected):
        others = [X[i, t] for t in range(4) if mask[i, t] and t != a]
        if others:
            expected += np.outer(X[i, a] - np.mean(others, axis=0), Z[i])
    np.testing.assert_allclose(hebbian(SelectionProblem(X, Z, selected, mask=mask)), expected, atol=1e-12)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_a_control_exists_where_no_svm_does(norm: FactorNorm) -> None:
    data = data_set(n=40, T=4, d=2, dz=1)
    infeasible = SelectionProblem(data.tokens.tokens, data.tokens.queries, np.arange(40) % 4)
    W, reason = direction_of(infeasible, norm, 10.0, Watch(None, {"only": 1.0}))
    assert reason == "infeasible"
    assert np.linalg.norm(W) > 0
    roomy = data_set(n=3)
    few = SelectionProblem(roomy.tokens.tokens, roomy.tokens.queries, [0, 1, 2])
    W, reason = direction_of(few, norm, 10.0, Watch(None, {"only": 1.0}))
    assert reason == ""
    # Strong convexity bounds the distance of two answers by their gaps, 1e-9 each at most.
    best = solve(few, norm).W
    assert np.linalg.norm(W - best) <= 2 * np.sqrt(2e-9) * np.linalg.norm(best)


def test_shuffles_keep_the_counts_and_differ() -> None:
    rng = np.random.default_rng(0)
    selected = np.array([0, 0, 1, 2, 2, 2])
    for _ in range(20):
        shuffled = shuffle(selected, np.ones((6, 3), bool), rng)
        assert shuffled is not None
        assert (shuffled != selected).any()
        np.testing.assert_array_equal(np.sort(shuffled), selected)


def test_shuffles_select_visible_tokens_only_or_do_not_exist() -> None:
    rng = np.random.default_rng(0)
    mask = rng.random((30, 4)) < 0.5
    mask[np.arange(30), np.arange(30) % 4] = True
    shuffled = shuffle(np.arange(30) % 4, mask, rng)
    assert shuffled is not None
    assert mask[np.arange(30), shuffled].all()
    assert shuffle(np.array([1, 1, 1]), np.ones((3, 2), bool), rng) is None
    assert shuffle(np.array([1]), np.ones((1, 2), bool), rng) is None


def controls_of(data: Dataset, selected: np.ndarray) -> dict[str, ControlDirections]:
    """Three shuffles and the other controls of a selection of all rows."""
    setup = prepare(data, Settings(train=data.tokens.n))
    W = np.ones((1, data.tokens.d, data.tokens.dz))
    found = controls(setup, W, selected, "frobenius", 3, 0, 10.0, Watch(None, {"only": 1.0}))
    return {control.key: control for control in found}


def test_a_control_says_how_many_of_its_svms_do_not_exist() -> None:
    """Two weights cannot select among 160 random tokens; fifteen select among twelve."""
    crowded = controls_of(data_set(n=40, d=2, dz=1), np.arange(40) % 4)
    assert crowded["shuffled"].note == "3 of 3 infeasible: the soft-margin direction stands for it."
    assert crowded["optimal"].note == "It is infeasible: the soft-margin direction stands for it."
    roomy = controls_of(data_set(n=3), np.array([0, 1, 2]))
    assert (roomy["shuffled"].note, roomy["optimal"].note) == ("", "")


def test_the_optimal_tokens_are_the_reference_only_if_every_row_selects_its_own() -> None:
    data = data_set(n=3)
    best = prepare(data, Settings(train=3)).optimal
    control = controls_of(data, best)["optimal"]
    assert control.coincides
    assert "this is the reference itself" in control.note
    control = controls_of(data, np.where(np.arange(3) == 0, (best + 1) % 4, best))["optimal"]
    assert not control.coincides
    assert control.note == ""


def test_rank_is_what_the_certified_gap_supports() -> None:
    # Three orthogonal tasks of one direction each: rank 3 by construction, and every singular value equal.
    tokens = np.zeros((3, 2, 3))
    tokens[np.arange(3), 0, np.arange(3)] = 1.0
    solution = solve(SelectionProblem(tokens, np.eye(3), [0, 0, 0]))
    assert certified_rank(solution) == 3
    np.testing.assert_allclose(singular_values(solution.W), 1)
    np.testing.assert_array_equal(singular_values(np.zeros((2, 2))), 0)
    np.testing.assert_allclose(singular_values(np.diag([1.0, 4.0, 2.0])), [1, 0.5, 0.25])


@pytest.mark.parametrize("gap", [0.0, 1e-4])
def test_a_singular_value_counts_above_the_error_that_the_gap_allows(gap: float) -> None:
    """The error is ||W|| sqrt(2 g); a gap is known to four roundings at best."""
    limit = np.sqrt(2 * max(gap, 4 * EPS))
    for share, rank in ((0.95, 1), (1.05, 2)):
        solution: Any = SimpleNamespace(W=np.diag([1.0, share * limit]), gap=gap)
        assert certified_rank(solution) == rank
    nothing: Any = SimpleNamespace(W=np.zeros((2, 2)), gap=gap)
    assert certified_rank(nothing) == 0


def test_an_output_of_zero_is_wrong_for_either_label() -> None:
    tokens = np.array([[[0.0, 1.0]], [[0.0, 1.0]], [[1.0, 0.0]], [[1.0, 0.0]]])
    trial = Trial.of(TokenData(tokens, np.ones((4, 1)), np.array([1.0, -1.0, 1.0, -1.0])), np.array([1.0, 0.0]))
    np.testing.assert_array_equal(rows_right(trial, np.ones((4, 1))), [False, False, True, False])


def test_soft_attention_is_the_softmax_of_the_visible_logits() -> None:
    data = data_set(masked=True)
    trial, W = Trial.of(data.tokens, np.ones(5)), np.random.default_rng(1).standard_normal((5, 3))
    logits = np.einsum("ntd,de,ne->nt", data.tokens.tokens, W, data.tokens.queries)
    expected = softmax(np.where(data.mask, logits, -np.inf), axis=1)
    np.testing.assert_allclose(soft_attention(trial, W), expected, rtol=1e-12)


def test_the_head_alone_reads_the_mean_of_the_visible_tokens() -> None:
    settings = Settings(train=40)
    setup = prepare(data_set(n=70, masked=True), settings)
    (row,) = accuracies(Study(settings, setup))
    assert setup.test is not None
    right = [mean_tokens(half) @ setup.head.v * half.tokens.labels > 0 for half in (setup.train, setup.test)]
    assert (row.key, row.train, row.test) == ("uniform", right[0].mean(), right[1].mean())
    np.testing.assert_array_equal(row.right, right[1])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5866, "0.586"),
        (-0.0173, "-0.018"),
        (0.9996, "0.9996"),
        (0.99994, "0.99994"),
        (0.9999964, "0.999996"),
        (1 - 4.5e-9, "0.999999995"),
        (1 - 2e-12, "1 − 2×10⁻¹²"),
        (1.0, "1"),
        (1 + 2e-16, "1"),
    ],
)
def test_correlations_are_rounded_down(value: float, text: str) -> None:
    assert correlation_text(value) == text


def test_words() -> None:
    assert (counted(1, "patch", "patches"), counted(1200, "patch", "patches")) == ("1 patch", "1,200 patches")
    assert (counted(0, "step"), counted(1, "step"), counted(2, "step")) == ("0 steps", "1 step", "2 steps")
    assert (share_text(0.984), share_text(None)) == ("98.4 %", "–")
    texts = ("3×10⁻⁷", "2×10⁻¹⁶", "rounding level", "∞")
    assert tuple(map(small_text, (3e-7, EPS, 0.0, float("inf")))) == texts


def test_records_are_steps_of_the_run() -> None:
    for steps in (1, 2, 100, 20_000):
        records = record_steps(steps)
        assert records[0] == 1
        assert records[-1] == steps
        assert records == sorted(set(records))


def test_a_run_that_goes_on_doubles_its_steps_and_ends_with_the_svms_of_its_last_selection() -> None:
    """Few steps per round: the selection changes between rounds, in some rows only."""
    setup, settings = prepare(data_set(5, n=12), Settings(train=12)), Settings(steps=2, max_steps=400)
    result = train_and_solve(setup, settings, "W", Watch(None, STAGES))
    step, selected = result.trace.step, np.asarray(result.trace.attention).argmax(axis=-1)
    end = int(step[-1])
    assert settings.steps < end < settings.budget
    assert end in 2 ** np.arange(10)
    last = np.geomspace(end / 2, end, MORE_RECORDS + 1)[1:].round()
    np.testing.assert_array_equal(step[step > end // 2], last)
    changes = (selected[-1] != selected[np.isin(step, 2 ** np.arange(10))]).sum(axis=1)
    assert ((changes > 0) & (changes < 12)).any()
    for solution in result.solutions.values():
        np.testing.assert_array_equal(solution.problem.reference, selected[-1])


@pytest.mark.parametrize(("parameterization", "own"), [("W", "frobenius"), ("KQ", "nuclear")])
def test_neighbours_are_those_of_the_svm_that_the_theory_pairs_with_the_training(
    parameterization: Parameterization, own: FactorNorm
) -> None:
    setup = prepare(data_set(), Settings(train=6))
    result = train_and_solve(setup, Settings(steps=300, max_steps=300), parameterization, Watch(None, STAGES))
    assert result.locality is not None
    assert result.locality.solution is result.solutions[own]


def test_the_first_k_is_drawn_from_a_stream_of_the_seed() -> None:
    """Stream 0 splits the rows, 1 draws K, 2 shuffles selections and 3 labels."""
    setup, settings = prepare(data_set(), Settings(train=6)), Settings(steps=5, max_steps=5, seed=4)
    result = train_and_solve(setup, settings, "KQ", Watch(None, STAGES))
    seed = int(np.random.SeedSequence((4, 1)).generate_state(1)[0])
    expected = train(setup.train.tokens, setup.head.v, parameterization="KQ", steps=5, seed=seed)
    np.testing.assert_allclose(result.trace.W[-1], expected.W[-1])


def test_training_goes_on_while_attention_concentrates_or_the_correlation_rises() -> None:
    step = np.array([1, 2, 4, 8, 16])
    flat, rising, arrived = np.full(5, 0.9), 1 - 0.4 / step, 1 - 0.01 / step

    def goes_on(least: np.ndarray, curve: np.ndarray | None) -> bool:
        rows = np.stack([least, np.ones(5)], axis=1)  # the other row selects from the start
        trace: Any = SimpleNamespace(step=step, attention=np.stack([rows, 1 - rows], axis=2))
        return _needs_more(trace, curve)

    assert goes_on(rising, None)
    assert not goes_on(flat, None)
    assert not goes_on(arrived, None)
    assert goes_on(flat, rising)
    assert not goes_on(flat, flat)
    assert not goes_on(flat, arrived)


def test_a_second_interruption_of_a_solver_keeps_the_training() -> None:
    calls: list[str] = []

    def insist(stage: str, share: float) -> bool:
        calls.append(stage)
        if calls.count(SOLVING["KQ"]) == 2:  # the first poll of the solver
            raise KeyboardInterrupt
        return False

    setup, watch = prepare(data_set(), Settings(train=6)), Watch(insist, STAGES)
    result = train_and_solve(setup, Settings(steps=20), "KQ", watch)
    assert (watch.stopped, watch.stopped_in) == (True, SOLVING["KQ"])
    assert result.trace.step[-1] == 20
    assert result.solutions["nuclear"].status is Status.CANCELLED
    assert LONGER["KQ"] not in calls


def test_the_time_of_a_study_is_that_between_its_start_and_its_end() -> None:
    settings = Settings(train=6, steps=5, shuffles=0)
    before = time.perf_counter()
    result = run(prepare(data_set(), settings), settings, lambda stage, share: True)
    assert 0 < result.seconds <= time.perf_counter() - before


@pytest.mark.parametrize(("steps", "most", "budget"), [(7, None, 70), (7, 30, 30), (7, 5, 7)])
def test_the_budget_is_ten_times_the_steps_unless_given(steps: int, most: int | None, budget: int) -> None:
    assert Settings(steps=steps, max_steps=most).budget == budget


@pytest.mark.parametrize("power", [0.3, 1.0, 2.0])
def test_a_power_law_climbs_and_tells_its_steps(power: float) -> None:
    step = np.array(record_steps(1000))
    curve = 1 - 0.3 * (step / 1000.0) ** -power * 0.5
    assert climbing(step, curve)
    steps = 1000 * (0.15 / 0.02) ** (1 / power)
    prediction = steps_to(step, curve, 0.98)
    assert max(steps, 2000) * (1 - 1e-9) <= prediction <= 2.5 * max(steps, 2000)


def test_a_run_stopped_before_its_first_step_is_told_to_go_on() -> None:
    assert steps_to(np.array([0]), np.array([0.3]), 0.98) == 2


@pytest.mark.parametrize(("steps", "advice"), [(1, 2), (2, 5), (3, 10), (5, 10), (6, 20), (20, 50), (1000, 2000)])
def test_without_a_rise_twice_the_steps_are_advised_rounded_up_to_a_coin(steps: int, advice: int) -> None:
    assert steps_to(np.array([steps]), np.array([0.3]), 0.98) == advice
    assert steps_to(np.array([steps, 2 * steps]) / 2, np.array([0.3, 0.3]), 0.98) == advice
    assert steps_to(np.array([steps, 2 * steps]) / 2, np.array([0.4, 0.3]), 0.98) == advice


def test_the_start_counts_as_half_a_step() -> None:
    """One minus the correlation halves from half a step to one, so it is inverse to the steps: 7.5 are needed."""
    assert steps_to(np.array([0, 1]), np.array([0.7, 0.85]), 0.98) == 10


def test_a_flat_or_falling_curve_does_not_climb() -> None:
    step = np.array(record_steps(1000))
    for value in (0.93, 1.0):
        assert not climbing(step, np.full(len(step), value))
    assert not climbing(step, np.linspace(0.95, 0.9, len(step)))


def test_a_short_run_is_compared_with_its_half() -> None:
    step = np.array([1, 2, 3, 4, 8])
    assert not climbing(step, np.array([0.1, 0.3, 0.5, 0.9, 0.9]))
    assert climbing(step, np.array([0.9, 0.9, 0.9, 0.1, 0.9]))


def test_a_share_of_few_rows_says_little() -> None:
    # Of n out of n the exact lower end is (alpha/2)^(1/n).
    assert share_interval(3, 3) == pytest.approx((0.025 ** (1 / 3), 1.0))
    assert share_interval(0, 3) == pytest.approx((0.0, 1 - 0.025 ** (1 / 3)))
    low, high = share_interval(50, 100)
    assert low + high == pytest.approx(1)
    assert share_interval(0, 0) == (0.0, 1.0)


def test_two_draws_have_no_spread_to_speak_of() -> None:
    assert upper_limit(np.array([0.1, 0.3])) == 0.3
    assert upper_limit(np.array([0.1, 0.3, 0.2])) > 0.3


def test_watch_counts_stages_by_their_share_and_remembers_a_stop() -> None:
    reports: list[tuple[str, float]] = []
    watch = Watch(lambda stage, share: reports.append((stage, share)) or stage == "b", {"a": 1.0, "b": 3.0, "c": 4.0})
    assert watch.enter("a")
    assert not watch.inside(0.5)
    assert not watch.enter("b")
    assert watch.poll(None)
    assert not watch.enter("c")
    assert reports == [("a", 0.0), ("a", 0.0625), ("b", 0.125), ("c", 0.5)]
    assert not Watch(lambda stage, share: stage != "a" or share > 0, {"a": 1.0, "b": 3.0}).poll(None)


def test_controls_begin_after_a_good_part_of_their_stage() -> None:
    """Two SVMs are solved before them."""
    reports: list[tuple[str, float]] = []
    watch = Watch(lambda stage, share: reports.append((stage, share)), STAGES)
    train_and_compare(prepare(data_set(), Settings(train=6)), Settings(steps=5, max_steps=5, shuffles=1), "W", watch)
    start, end = (sum(list(STAGES.values())[: list(STAGES).index(SOLVING["W"]) + one]) for one in (0, 1))
    shares = [share * sum(STAGES.values()) for stage, share in reports if stage == SOLVING["W"]]
    assert shares[0] == pytest.approx(start)
    assert shares == sorted(shares)
    assert 0.2 < (shares[-1] - start) / (end - start) < 1


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"steps": 1.5}, {"seed": -1}, {"shuffles": -1}, {"lr": 0.0}, {"time_limit": float("nan")}]
)
def test_settings_out_of_range_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Settings(**wrong)  # type: ignore[arg-type]


def test_shuffled_labels_stop_in_the_middle_of_a_training() -> None:
    setup, calls = prepare(data_set(n=12), Settings(train=8)), []

    def progress(sentence: str, share: float) -> bool:
        calls.append(share)
        return len(calls) > 5

    watch = Watch(progress, {"labels": 1.0})
    assert shuffled_labels(setup, Settings(train=8, steps=400, shuffles=2), "W", watch) is None
    assert 0 < calls[-1] < 0.5  # the first of two trainings is a half


@pytest.mark.parametrize(("parameterization", "lr"), [("W", 0.5), ("KQ", None)])
def test_a_shuffle_of_labels_trains_head_and_attention_on_them(
    parameterization: Parameterization, lr: float | None
) -> None:
    setup, settings = prepare(data_set(n=60), Settings(train=30)), Settings(steps=40, lr=0.5, shuffles=2, seed=7)
    control = shuffled_labels(setup, settings, parameterization, Watch(None, {"labels": 1.0}))
    assert setup.test is not None
    assert control is not None
    random, halves = np.random.default_rng((7, 3)), (setup.train, setup.test)
    labels, expected = np.concatenate([half.tokens.labels for half in halves]), []
    for _ in range(2):
        fitted, held_out = (
            replace(half, tokens=TokenData(half.tokens.tokens, half.tokens.queries, given, half.tokens.mask))
            for half, given in zip(halves, np.split(random.permutation(labels), [30]), strict=True)
        )
        v, seed = fit_head(fitted).v, int(random.integers(2**31))
        trace = train(fitted.tokens, v, parameterization=parameterization, steps=40, lr=lr, seed=seed)
        right = []
        for data in (fitted.tokens, held_out.tokens):
            weights = np.exp(np.einsum("ntd,de,ne->nt", data.tokens, np.asarray(trace.W[-1]), data.queries))
            outputs = np.einsum("nt,ntd,d->n", weights, data.tokens, v)
            right.append(np.mean(data.labels * outputs > 0))
        expected.append(right)
    np.testing.assert_allclose(np.stack([control.train, control.test], axis=1), expected)


def test_the_progress_of_shuffled_labels_rises_from_zero_to_one() -> None:
    shares: list[float] = []
    setup, watch = prepare(data_set(), Settings(train=6)), Watch(lambda _, share: shares.append(share), {"labels": 1.0})
    assert watch.enter("labels")
    shuffled_labels(setup, Settings(steps=5, shuffles=4), "W", watch)
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert {0.25, 0.5, 0.75} <= set(shares)


def test_texts_of_one_word_are_a_sentence() -> None:
    texts = LabelledTexts("f.csv", ("aa", "bb", "cc") * 4, np.array([1.0, -1.0] * 6), ("p", "q"))
    with pytest.raises(ValueError, match="texts of several words were expected"):
        word_dataset(texts)


def test_a_solver_hears_of_an_interruption_within_its_stage() -> None:
    presses = iter((False, False, True))
    watch = Watch(lambda stage, share: next(presses), {"solving": 1.0, "later": 1.0})
    assert watch.enter("solving")
    assert not watch.poll(None)
    assert watch.poll(None)
    assert (watch.stopped, watch.stopped_in) == (True, "solving")
