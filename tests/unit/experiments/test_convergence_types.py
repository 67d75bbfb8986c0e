"""Figs 2 and 5: what a trial of convergence types contains, which share it enters, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from attsvm import SelectionProblem, TokenData, solve, train
from attsvm.data.synthetic import gapped_trial
from attsvm_paper.figures import convergence_types as module
from attsvm_paper.figures.convergence_types import ARTEFACT, Config, joint, points, readings, sweep, trials, verdicts
from attsvm_paper.judging.comparison import correction, share_verdict
from attsvm_paper.judging.joint import joint_test
from attsvm_paper.judging.points import Point, by_key, next_values, swap
from attsvm_paper.judging.verdict import Row, Verdict
from attsvm_paper.published.instances import draw, start_seeds
from attsvm_paper.published.ledger import LedgerNumber, curve
from attsvm_paper.published.numerics import descent

NAME, FIGURE = "convergence-types", "Figs 2 and 5"
KEYS = {
    "not local": "Fig. 5{}, not local",
    "global": "Fig. 5{}, global",
    "local": "Fig. 5{}, local, global included",
    "slack B.1": "Fig. 5{}, B.1 (average margin at most 1.1)",
}
PANELS = {"W": "a: W", "KQ": "b: KQ"}
FIELDS = ("global", "local", "saturated", "feasible", "b1_slack", "b1_strict")


@pytest.mark.parametrize(
    ("effort", "exact", "published", "dimensions"),
    [("quick", 200, 100, (2, 3, 4, 10)), ("full", 500, 500, (2, 3, 4, 5, 10, 20, 40))],
)
def test_a_full_run_has_the_dimensions_and_trials_of_the_figure(
    effort: Any, exact: int, published: int, dimensions: tuple[int, ...]
) -> None:
    """v1, p. 8, Fig. 5: n = T = 5, d from 2 to 40, 500 trials; exact runs of W take 10,000 steps, of (K, Q) 2000."""
    cells = [(c.parameterization, c.numerics, c.d, c.steps, c.trials) for c in sweep(effort)]
    assert cells == [
        case
        for p, steps in (("W", 10_000), ("KQ", 2000))
        for case in (
            *((p, "exact", d, steps, exact) for d in (2, 3, 4, 5, 10, 20, 40)),
            *((p, "published", d, 1000, published) for d in dimensions),
        )
    ]
    assert {(c.n, c.T) for c in sweep(effort)} == {(5, 5)}


def test_one_token_is_no_choice() -> None:
    with pytest.raises(ValueError, match="T is 1; at least 2 tokens were expected"):
        Config(2, T=1)
    assert Config(2, T=2).T == 2


SEEDS = list(range(8))


@pytest.mark.parametrize(
    ("p", "numerics", "n", "T", "d", "steps"),
    [
        ("W", "exact", 3, 4, 2, 30),
        ("KQ", "exact", 2, 3, 2, 30),
        ("W", "published", 2, 3, 5, 23),
        ("KQ", "published", 2, 3, 4, 15),
        ("W", "exact", 2, 3, 1, 30),
    ],
)
def test_a_row_classifies_the_run_of_its_seed_alone(
    monkeypatch: pytest.MonkeyPatch, p: Any, numerics: Any, n: int, T: int, d: int, steps: int
) -> None:
    monkeypatch.setattr(module, "STOP_STEP", 20)
    monkeypatch.setattr(module, "STOPS", (10, 20, 40))
    monkeypatch.setattr(module, "STOP_ATTENTION", 0.75)
    found = trials(Config(d, p, numerics, n, T, steps), np.array(SEEDS))
    records = sorted({step for step in (10, 20) if step <= steps} | {steps})
    assert [row["seed"] for row in found] == SEEDS
    norm = "frobenius" if p == "W" else "nuclear"
    instances = draw(SEEDS, n, T, d, 0.1)
    start = start_seeds(SEEDS)
    every = train(
        instances.data, instances.v, steps=steps, init="torch", seed=start, record_every=1, **descent(numerics, p)
    )
    for row, W in zip(found, np.asarray(every.W), strict=True):
        *parts, v = gapped_trial(np.random.default_rng(row["seed"]), n, T, d, 0.1)
        data = TokenData(*parts)
        logits = np.einsum("ntd,rde,ne->rnt", data.tokens, W, data.queries)
        top = softmax(logits, -1).max(-1)
        assert row["step"] == records
        assert row["mean_top"] == pytest.approx(top[records].mean(-1))
        assert row["attention"] == pytest.approx(top[-1].min())
        assert row["saturated"] == (top[min(20, steps)].mean() >= 0.75)

        scores = data.labels[:, None] * (data.tokens @ v)
        best, selected = scores.argmax(-1), logits[-1].argmax(-1)
        own, margins = svm(data, selected, norm)
        assert row["global"] == (best == selected).all()
        if own is None:
            assert not row["local"]
            assert row["correlation"] is None
        else:
            neighbours = np.isclose(margins, 1, atol=1e-5) & (np.arange(T) != selected[:, None])
            assert row["local"] == (scores < scores[range(n), selected][:, None])[neighbours].all()
            cosine = (W[-1] * own).sum() / np.linalg.norm(W[-1]) / np.linalg.norm(own)
            assert row["correlation"] == pytest.approx(cosine, abs=1e-6)
        ideal, margins = svm(data, best, norm)
        assert row["feasible"] == (ideal is not None)
        if ideal is None:
            assert (row["mean_margin"], row["b1_strict"], row["b1_slack"]) == (None, False, False)
        else:
            others = margins[np.arange(T) != best[:, None]]
            assert row["mean_margin"] == pytest.approx(others.mean(), abs=1e-6)
            assert row["b1_strict"] == np.allclose(others, 1, atol=1e-5)
            assert row["b1_slack"] == (others.mean() <= 1.1)


def svm(data: TokenData, selected: np.ndarray, norm: Any) -> tuple[np.ndarray | None, np.ndarray]:
    """Return W and the margins of all tokens, those of the selected ones zero; None if there is no W."""
    solution = solve(SelectionProblem(data.tokens, data.queries, selected), norm)
    if not np.isfinite(solution.objective):
        return None, np.zeros(())
    W = np.asarray(solution.W)
    logits = np.einsum("ntd,de,ne->nt", data.tokens, W, data.queries)
    return W, np.take_along_axis(logits, selected[:, None], 1) - logits


def made(p: str = "W", numerics: str = "exact", d: int = 2, trials: int = 12, **fields: Any) -> list[Row]:
    """Make rows whose outcomes are independent of each other; more are good with W than with (K, Q)."""
    rng = np.random.default_rng([len(p), len(numerics), d, trials, *map(ord, str(fields))])
    return [
        {"parameterization": p, "numerics": numerics, "d": d, "n": 5, "T": 5, "seed": seed}
        | {name: bool(rng.random() < (0.8 if p == "W" else 0.3)) for name in FIELDS}
        | {"attention": float(rng.choice([0.5, 0.9985, 0.999, 1.0])), "step": [500, 1000, 2000]}
        | {"mean_top": rng.choice([0.8, 0.9, 0.99, 0.999, 0.9999, 0.99999, 1.0], 3).tolist()}
        | fields
        for seed in range(trials)
    ]


def number(p: str, what: str, d: int) -> LedgerNumber | None:
    return curve(KEYS[what].format(PANELS[p])).at(d)


Counts = Callable[[Row], bool]
# Exact runs are trained to the end; a published run that is not saturated counts as not local.
EXACT: dict[str, Counts] = {
    "not local": lambda row: not row["local"],
    "global": lambda row: row["global"],
    "local": lambda row: row["local"],
    "slack B.1": lambda row: row["b1_slack"],
}
PUBLISHED: dict[str, Counts] = {
    "not local": lambda row: not row["saturated"],
    "global": lambda row: row["global"] and row["saturated"],
    "local": lambda row: row["local"] and row["saturated"],
}


def judge(quantity: str, rows: Sequence[Row], counts: Counts, reference: LedgerNumber | None, **more: Any) -> Verdict:
    return share_verdict(NAME, quantity, sum(map(counts, rows)), len(rows), published=reference, margin=0.1, **more)


def strict(rows: Sequence[Row], p: str, d: int, infeasible: int) -> Verdict:
    return share_verdict(
        NAME, f"strict B.1, {p}, d={d}", sum(row["b1_strict"] for row in rows), len(rows), infeasible=infeasible,
        note="Every non-optimal token at margin one; the published test asks for their average only.",
    )  # fmt: skip


def remaining(rows: Sequence[Row]) -> str:
    rest = [row for row in rows if not row["local"]]
    infeasible, shared = sum(not row["feasible"] for row in rest), sum(row["attention"] < 0.999 for row in rest)
    return (
        f"Of the {len(rest)} that are not, {infeasible} have no SVM for the optimal tokens, and {shared} still share "
        "attention (a top probability below 0.999)."
    )


@pytest.mark.parametrize("p", ["W", "KQ"])
def test_exact_shares_are_compared_and_unfinished_runs_put_back(p: str) -> None:
    exact, published = made(p, trials=80), made(p, "published", trials=60, saturated=False)
    for row in published[:22]:
        row |= {"saturated": True, "local": True}
    infeasible = sum(not row["feasible"] for row in exact)
    assert 0 < infeasible < len(exact)
    expected = []
    for what, counts in EXACT.items():
        reference = number(p, what, 2)
        note = remaining(exact) if what == "not local" else ""
        own = judge(
            f"{what}, {p}, d=2, exact numerics", exact, counts, reference, infeasible=infeasible, note=note
        )  # fmt: skip
        if what in PUBLISHED:
            restored = judge(f"{what}, {p}, d=2, published numerics", published, PUBLISHED[what], reference)
            own = correction(own, restored, ARTEFACT)
        expected.append(own)
    assert verdicts([*published, *exact]) == [*expected, strict(exact, p, 2, infeasible)]


def test_published_runs_alone_are_compared_without_b1() -> None:
    """Of B.1 nothing is trained, and so nothing depends on the arithmetic."""
    rows = made("W", "published", d=3)
    infeasible = sum(not row["feasible"] for row in rows)
    assert verdicts(rows) == [
        judge(f"{what}, W, d=3, published numerics", rows, counts, number("W", what, 3), infeasible=infeasible)
        for what, counts in PUBLISHED.items()
    ]


@pytest.mark.parametrize("fields", [{"n": 4}, {"T": 6}, {"d": 7}])
def test_other_sizes_are_measured(fields: dict[str, Any]) -> None:
    rows = [row | fields for row in made("KQ", d=2)]
    published = [row | {"numerics": "published"} for row in rows]
    d = fields.get("d", 2)
    infeasible = sum(not row["feasible"] for row in rows)
    expected = [
        judge(
            f"{what}, KQ, d={d}, exact numerics", rows, counts, None, infeasible=infeasible,
            note=remaining(rows) if what == "not local" else "",
        )
        for what, counts in EXACT.items()
    ]  # fmt: skip
    assert verdicts(rows + published) == [*expected, strict(rows, "KQ", d, infeasible)]
    assert module.published("global", rows[0]) is None
    assert module.published("slack B.1", made("KQ", d=10)[0]) == number("KQ", "slack B.1", 10)


def test_published_runs_of_another_size_put_nothing_back() -> None:
    exact, other = made("W"), made("W", "published", T=6)
    expected = verdicts(exact) + verdicts(other)
    assert verdicts([*other, *exact]) == expected
    assert not any("Reconstructed" in one.note for one in expected)


def test_runs_that_end_elsewhere_are_described() -> None:
    ends = [
        {"local": False, "feasible": False, "attention": 0.5},
        {"local": False, "feasible": False, "attention": 0.999},
        {"local": False, "feasible": True, "attention": 0.9989},
        {"local": False, "feasible": True, "attention": 0.4},
        {"local": True, "feasible": False, "attention": 0.3},
    ]
    assert module._remaining(ends) == (
        "Of the 4 that are not, 2 have no SVM for the optimal tokens, and 3 still share attention (a top probability "
        "below 0.999)."
    )
    assert module._remaining(ends[4:]) == ""


def pairs(rows: Sequence[Row], counts: dict[str, Counts]) -> list[Point]:
    """Pair each printed share with the trials of its dimension, by parameterisation."""
    found = []
    for p in sorted({row["parameterization"] for row in rows}):
        for what, value in counts.items():
            one = curve(KEYS[what].format(PANELS[p]))
            for at, d in enumerate(one.x):
                cell = [row for row in rows if (row["parameterization"], row["d"]) == (p, d)]
                values = {row["seed"]: float(value(row)) for row in cell}
                reference = one.at(d)
                assert reference is not None
                found += [Point(reference, values, 0.1, "share", (one.key, at))] * bool(cell)
    return found


def plain(points: Sequence[Point]) -> list[Any]:
    return [(p.published.key, p.place, dict(p.values), p.margin, p.kind, p.trials, p.deviation) for p in points]


def ended(has_ended: Counts) -> dict[str, Counts]:
    return {
        "global": lambda row: row["global"] and has_ended(row),
        "local": lambda row: row["local"] and has_ended(row),
    }


def grid(**fields: Any) -> list[Row]:
    return [row for p in ("W", "KQ") for d in (2, 4, 3, 7) for row in made(p, d=d, trials=14) for row in [row | fields]]


def test_a_run_that_has_not_ended_is_neither_global_nor_local() -> None:
    """The share that is not local is one minus another, and tests nothing more."""
    rows = grid()
    for has_ended in (lambda row: row["saturated"], lambda row: True):
        others = grid(n=4) + grid(T=4)
        assert plain(points([*others, *rows], has_ended)) == plain(pairs(rows, ended(has_ended)))
    assert {one.place[0][:6] for one in points(rows, lambda row: True)} == {"Fig. 5"}


def test_the_joint_tests_are_of_stopped_runs_of_finished_ones_and_of_b1() -> None:
    exact = grid()
    published = [row | {"numerics": "published", "saturated": row["seed"] % 3 > 0} for row in exact]
    main = pairs(published, ended(lambda row: row["saturated"]))
    trained = pairs(exact, ended(lambda row: True))
    slack = pairs(exact, {"slack B.1": lambda row: row["b1_slack"]})
    partner = {
        KEYS[what].format(PANELS[p]): KEYS[what].format(PANELS[q])
        for what in KEYS
        for p, q in (("W", "KQ"), ("KQ", "W"))
    }
    following = "d at the next grid value"
    alternatives = {
        following: next_values(main),
        "W and (K, Q) swapped": swap(main, partner),
        "training to its end": by_key(trained),
    }
    reading = "reconstructed: published arithmetic, mean top probability 0.9999 by step 1000"
    tests = [
        joint_test(NAME, FIGURE, main, alternatives, reading),
        joint_test(
            NAME, FIGURE, trained, {following: next_values(trained)},
            "exact arithmetic, trained until attention is one-hot",
        ),
        joint_test(NAME, FIGURE, slack, {following: next_values(slack)}, "B.1 as an average margin of 1.1"),
    ]  # fmt: skip
    assert joint([*exact, *published, *grid(n=4), *grid(T=4)]) == tests
    assert joint(published) == [joint_test(NAME, FIGURE, main, dict(list(alternatives.items())[:2]), reading)]
    assert {module._swap(key) for key in partner} == set(partner)
    assert all(module._swap(key) == other for key, other in partner.items())


def test_every_end_of_training_is_tried_once() -> None:
    """docs/paper.md: 18 readings, 500, 1000 or 2000 steps and a mean top probability."""
    found = readings()
    assert len({one.name for one in found}) == len(found) == 18
    rows = grid(numerics="published")
    for one in found:
        assert one.figure == FIGURE
        steps, top = one.factors["steps"], float(one.factors["ended from a mean top probability of"])
        assert [(c.parameterization, c.d, c.numerics, c.steps, c.trials, c.n, c.T) for c in one.cells] == [
            (p, d, "published", int(steps), 100, 5, 5) for p in ("W", "KQ") for d in (2, 3, 4, 5)
        ]
        at = ["500", "1000", "2000"].index(steps)
        expected = pairs(rows, ended(lambda row, at=at, top=top: row["mean_top"][at] >= top))
        assert plain(one.points(rows)) == plain(expected)
    tops = {one.factors["ended from a mean top probability of"] for one in found}
    assert tops == {"0.9", "0.99", "0.999", "0.9999", "0.99999", "0"}
