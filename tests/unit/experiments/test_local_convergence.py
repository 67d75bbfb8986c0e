"""Fig. 7: what a trial records, what is read at a printed iteration, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from attsvm import SelectionProblem, TokenData, solve, train
from attsvm.data.synthetic import gapped_trial
from attsvm_paper.figures import local_convergence as module
from attsvm_paper.figures.local_convergence import Config, joint, points, readings, sweep, trials, verdicts
from attsvm_paper.judging.comparison import correction, mean_verdict
from attsvm_paper.judging.joint import JointTest, joint_test
from attsvm_paper.judging.points import Point, by_key, next_values, swap
from attsvm_paper.judging.verdict import Row, Verdict
from attsvm_paper.published.instances import draw, start_seeds
from attsvm_paper.published.ledger import LedgerNumber, curve
from attsvm_paper.published.numerics import PublishedDescent

NAME = "local-convergence"
PRINTED = (50, 100, 200, 300, 400, 500, 599)
# In print the second SVM of each panel has the other parameterisation's label.
CAPTIONS = {
    ("W", "frobenius"): "Fig. 7b: W, Frobenius SVM",
    ("W", "nuclear"): "Fig. 7c: W, nuclear SVM",
    ("W", "attention"): "Fig. 7a: W, largest softmax",
    ("KQ", "frobenius"): "Fig. 7b: KQ, Frobenius SVM",
    ("KQ", "nuclear"): "Fig. 7c: KQ, nuclear SVM",
    ("KQ", "attention"): "Fig. 7a: KQ, largest softmax",
}
DRAWN = CAPTIONS | {
    ("W", "nuclear"): CAPTIONS["KQ", "frobenius"],
    ("KQ", "frobenius"): CAPTIONS["W", "nuclear"],
}
WORDS = {
    "frobenius": "correlation with the Frobenius SVM",
    "nuclear": "correlation with the nuclear SVM",
    "attention": "mean top softmax probability",
}


def made(p: str = "W", trials: int = 12, infeasible: int = 0, **fields: Any) -> list[Row]:
    """Make rows whose records are near the printed numbers, and different at each step."""
    rng = np.random.default_rng([len(p), trials, *map(ord, str(sorted(fields.items())))])
    steps = [1, *sorted({mark + more for mark in PRINTED for more in (0, 1)})]
    rows: list[Row] = []
    for seed in range(trials):
        row: Row = {
            "parameterization": p, "numerics": "published", "gap": 0.1, "start": "torch", "n": 6, "T": 8, "d": 10,
            "seed": seed, "feasible": seed >= infeasible, "step": steps, "norm": (seed + np.arange(15.0)).tolist(),
        }  # fmt: skip
        for what in WORDS:
            reference = curve(DRAWN[p, what])
            level = np.interp(np.array(steps) - (what != "attention"), reference.x, reference.y)
            row[what] = np.clip(level + 0.03 * rng.standard_normal(15), 0, 1).tolist()
        if seed < infeasible:
            row |= {"frobenius": None, "nuclear": None}
        rows.append(row | fields)
    return rows


def read(row: Row, what: str, mark: int, late: int = 1) -> float | None:
    """Read an iteration k: attention before a step, W after k + 1 of them."""
    if row[what] is None:
        return None
    return dict(zip(row["step"], row[what], strict=True)).get(mark if what == "attention" else mark + late)


def number(key: str, mark: int) -> LedgerNumber:
    one = curve(key).at(mark)
    assert one is not None
    return one


def pairs(rows: Sequence[Row], labels: dict[tuple[str, str], str], late: int = 1) -> list[Point]:
    """Pair each printed number with the trials of the curve of this label."""
    found = []
    for p in sorted({row["parameterization"] for row in rows}):
        for what in WORDS:
            for at, mark in enumerate(PRINTED):
                values = {row["seed"]: read(row, what, mark, late) for row in rows if row["parameterization"] == p}
                plain = {seed: value for seed, value in values.items() if value is not None}
                key = labels[p, what]
                margin = 0.05 if what == "attention" else 0.03
                found.append(Point(number(key, mark), plain, margin, "mean", (key, at)))
    return [one for one in found if one.values]


def plain(points: Sequence[Point]) -> list[Any]:
    return [(p.published.key, p.place, dict(p.values), p.margin, p.kind, p.trials, p.deviation) for p in points]


@pytest.mark.parametrize("effort", ["quick", "full"])
def test_both_sizes_run_the_same_cells(effort: Any) -> None:
    """v1, Fig. 7: n = 6, T = 8, d = 10, 100 trials, 600 iterations; ours goes on to 10,000 steps."""
    cells = [(c.parameterization, c.numerics, c.gap, c.d, c.steps) for c in sweep(effort)]
    assert cells == [
        case
        for p in ("W", "KQ")
        for case in (
            (p, "exact", 0.1, 10, 10_000),
            (p, "published", 0.1, 10, 10_000),
            (p, "published", 0.0, 10, 600),
            (p, "published", 0.1, 11, 600),
        )
    ]
    assert {(c.n, c.T, c.start, c.trials) for c in sweep(effort)} == {(6, 8, "torch", 100)}


CASES: list[tuple[Config, dict[str, Any]]] = [
    (Config("W", "exact", n=2, T=3, d=3, steps=60), {"lr": 0.1, "init": "torch"}),
    (
        Config("KQ", "published", n=2, T=3, d=2, steps=20),
        {"parameterization": "KQ", "optimizer": PublishedDescent(0.1), "numerics": "autograd", "init": "torch"},
    ),
    (Config("KQ", "exact", start="small", n=2, T=3, d=2, steps=12), {"parameterization": "KQ"}),
    # Of three tokens on a line two are equal, and their selection has no SVM.
    (Config("W", "exact", n=2, T=3, d=1, steps=15), {"lr": 0.1, "init": "torch"}),
]


@pytest.mark.parametrize(("config", "options"), CASES)
def test_a_row_has_the_records_of_a_training_from_its_seed(config: Config, options: dict[str, Any]) -> None:
    seeds = [4, 11, 12] + [17, 23, 24] * (config.d == 1)
    found = trials(config, np.array(seeds))
    assert [row["seed"] for row in found] == seeds
    steps = [step for step in module.RECORDS if step <= config.steps]
    instances = draw(seeds, config.n, config.T, config.d, config.gap)
    start = start_seeds(seeds)
    every = train(instances.data, instances.v, steps=config.steps, seed=start, record_every=1, **options)
    for row, W in zip(found, np.asarray(every.W), strict=True):
        *parts, _ = gapped_trial(np.random.default_rng(row["seed"]), config.n, config.T, config.d, config.gap)
        data = TokenData(*parts)
        attention = softmax(np.einsum("ntd,rde,ne->rnt", data.tokens, W, data.queries), -1)
        assert row["step"] == sorted({*steps, config.steps})
        assert row["norm"] == pytest.approx(np.sqrt((W[row["step"]] ** 2).sum((1, 2))))
        assert row["attention"] == pytest.approx(attention[row["step"]].max(-1).mean(-1))
        problem = SelectionProblem(data.tokens, data.queries, attention[-1].argmax(-1))
        for norm in ("frobenius", "nuclear"):
            solution = solve(problem, norm)
            assert row["feasible"] == bool(np.isfinite(solution.objective))
            if not row["feasible"]:
                assert row[norm] is None
                continue
            target = np.asarray(solution.W)
            cosines = [(w * target).sum() / np.linalg.norm(w) / np.linalg.norm(target) for w in W[row["step"]]]
            assert row[norm] == pytest.approx(cosines, abs=1e-6)
    assert {row["feasible"] for row in found} == ({True, False} if config.d == 1 else {True})


def named(found: Sequence[Verdict]) -> dict[str, Verdict]:
    result = {one.quantity: one for one in found}
    assert len(result) == len(found)
    return result


def test_every_printed_number_is_compared_with_the_record_of_its_iteration() -> None:
    cells = {"W": made("W", trials=40, infeasible=2), "KQ": made("KQ", trials=15)}
    found = named(verdicts([*cells["KQ"], *cells["W"]]))
    assert len(found) == 2 * (3 * len(PRINTED) + 1)
    exchanged = {("W", "nuclear"): ("KQ", "frobenius"), ("KQ", "frobenius"): ("W", "nuclear")}
    kinds = set()
    for (p, what), key in CAPTIONS.items():
        for mark in PRINTED:
            quantity = f"{WORDS[what]}, {p}, iteration {mark}, published numerics"

            def judge(cell: list[Row], field: str) -> Verdict:
                values = [value for row in cell if (value := read(row, field, mark)) is not None]  # noqa: B023
                return mean_verdict(
                    NAME, quantity, values, published=number(key, mark),  # noqa: B023
                    margin=0.05 if field == "attention" else 0.03, infeasible=2 if p == "W" else 0,  # noqa: B023
                )  # fmt: skip

            expected = judge(cells[p], what)
            if (p, what) in exchanged:
                other, field = exchanged[p, what]
                expected = correction(expected, judge(cells[other], field), module.LABELS)
                kinds.add(expected.verdict)
            assert found[quantity] == expected
    # At iteration 50 the curves are furthest apart, and at the end hardly.
    assert "corrected" in kinds


def test_the_end_of_training_is_measured_with_the_svm_of_its_own_norm() -> None:
    rows = {"W": made("W", infeasible=3), "KQ": made("KQ", trials=6)}
    found = named(verdicts([*rows["W"], *rows["KQ"]]))
    for p, norm, missing, median in (("W", "frobenius", 3, 19.5), ("KQ", "nuclear", 0, 16.5)):
        ends = [1 - row[norm][-1] for row in rows[p] if row[norm] is not None]
        quantity = f"1 - correlation of {p} with its SVM, step 600, published numerics"
        # The norms end at the seed plus 14, seeds from 0 to 11 or to 5.
        assert found[quantity] == mean_verdict(
            NAME, quantity, ends, infeasible=missing, interval="bootstrap",
            note=f"Median norm of W at the end {median:g}.",
        )  # fmt: skip


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"numerics": "exact"}, "exact numerics"),
    ({"gap": 0.0}, "published numerics, no score gap"),
    ({"gap": 0.05}, "published numerics, gap 0.05"),
    ({"gap": 1.0}, "published numerics, gap 1"),
    ({"start": "small"}, "published numerics, small start"),
    ({"d": 11}, "published numerics, d=11"),
    ({"n": 5}, "published numerics, d=10"),
    ({"gap": 0.0, "start": "small", "T": 3}, "published numerics, no score gap, small start, d=10"),
]


@pytest.mark.parametrize(("fields", "protocol"), OTHERS)
def test_other_settings_are_measured_only(fields: dict[str, Any], protocol: str) -> None:
    rows = made("W", trials=3, **fields)
    found = named(verdicts(rows))
    assert {one.verdict for one in found.values()} == {"measured"}
    assert {one.published for one in found.values()} == {None}
    assert set(found) == {
        *(f"{words}, W, iteration {mark}, {protocol}" for words in WORDS.values() for mark in PRINTED),
        f"1 - correlation of W with its SVM, step 600, {protocol}",
    }
    assert not any(module._is_reference(row) for row in rows)
    for what, words in WORDS.items():
        mean = np.mean([row[what][row["step"].index(301 if what != "attention" else 300)] for row in rows])
        assert found[f"{words}, W, iteration 300, {protocol}"].measured == pytest.approx(mean)


def test_iterations_without_a_record_and_trials_without_an_svm_have_no_verdict() -> None:
    short: dict[str, Any] = {"step": [50, 51, 100], "attention": [0.1, 0.2, 0.3], "norm": [1.0, 2.0, 3.0]}
    rows = made("KQ", trials=1, infeasible=1, **short)
    found = verdicts(rows)
    assert [one.quantity for one in found] == [
        "mean top softmax probability, KQ, iteration 50, published numerics",
        "mean top softmax probability, KQ, iteration 100, published numerics",
        "1 - correlation of KQ with its SVM, step 100, published numerics",
    ]
    assert [one.measured for one in found[:2]] == [0.1, 0.3]
    assert np.isnan(found[2].measured)
    assert found[2].infeasible == 1
    assert found[2].note == "Median norm of W at the end 3."
    assert np.isnan(module._median([]))
    assert module._median([1.0, 5.0, 2.0]) == 2.0


def test_a_wrong_label_is_not_shown_without_the_other_parameterisation() -> None:
    found = named(verdicts(made("W", trials=30)))
    one = found[f"{WORDS['nuclear']}, W, iteration 50, published numerics"]
    assert one.verdict == "differs"
    assert one.note == f"Not shown to be this: {module.LABELS} With that put back nan: measured."


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("labels", ["captions", "notebook"])
def test_a_point_has_the_trials_of_the_curve_with_its_label(labels: str, late: int) -> None:
    rows = [*made("W", infeasible=1), *made("KQ")]
    expected = pairs(rows, DRAWN if labels == "notebook" else CAPTIONS, late)
    assert plain(points(rows, late, labels == "notebook")) == plain(expected)
    assert plain(points(rows)) == plain(pairs(rows, DRAWN))


def test_points_without_a_trial_are_left_out() -> None:
    found = points(made("W", trials=2, infeasible=2))
    assert {one.place[0] for one in found} == {CAPTIONS["W", "attention"]}
    assert len(found) == len(PRINTED)


def same(found: Sequence[JointTest], expected: Sequence[JointTest | None]) -> None:
    assert list(found) == [one for one in expected if one is not None]


def test_the_joint_tests_are_of_the_printed_setting_with_and_without_a_gap() -> None:
    gap = [*made("W", 14), *made("KQ", 14)]
    without = [*made("W", 14, gap=0.0), *made("KQ", 14, gap=0.0)]
    wider = [*made("W", 14, d=11), *made("KQ", 14, d=11)]
    # None of these enters: another size, arithmetic, start or gap.
    changes: list[dict[str, Any]] = [
        {"n": 5}, {"T": 7}, {"numerics": "exact"}, {"start": "small"}, {"gap": 0.5}, {"d": 12},
    ]  # fmt: skip
    others = [row for fields in changes for row in made("W", 12, **fields)]
    main, caption, no_gap = pairs(gap, DRAWN), pairs(gap, CAPTIONS), pairs(without, DRAWN)
    late = "iteration at the next grid value (100 further)"
    # The curve of W with its own SVM for that of (K, Q) with the same, and so on.
    partner = {key: CAPTIONS["KQ" if p == "W" else "W", what] for (p, what), key in CAPTIONS.items()}
    alternatives = {
        late: next_values(main),
        "W and (K, Q) swapped": swap(main, partner),
        "d off by one": by_key(pairs(wider, DRAWN)),
        "no score gap": by_key(no_gap),
        "curves as captioned": by_key(caption),
    }
    names = "curves as the notebook draws them", "curves as captioned"
    same(
        joint([*others, *wider, *without, *gap]),
        [
            joint_test(NAME, "Fig. 7", main, alternatives, f"reconstructed: score gap 0.1, {names[0]}"),
            joint_test(NAME, "Fig. 7", no_gap, {late: next_values(no_gap)}, f"no score gap, {names[0]}"),
            joint_test(NAME, "Fig. 7", caption, {late: next_values(caption)}, f"score gap 0.1, {names[1]}"),
        ],
    )
    assert [one.reading for one in joint(without)] == [f"no score gap, {names[0]}"]
    assert joint(others) == []


def test_w_and_k_q_change_places_in_the_name_of_a_curve() -> None:
    for what in WORDS:
        w, kq = CAPTIONS["W", what], CAPTIONS["KQ", what]
        assert (module._swap(w), module._swap(kq)) == (kq, w)


def test_every_combination_of_the_open_choices_is_tried_once() -> None:
    """docs/paper.md: 32 readings of Fig. 7."""
    found = readings()
    assert len({one.name for one in found}) == len(found) == 32
    rows = [*made("W", 3), *made("KQ", 3)]
    for one in found:
        assert one.figure == "Fig. 7"
        factors = dict(one.factors)
        for cell, p in zip(one.cells, ("W", "KQ"), strict=True):
            assert (cell.parameterization, cell.numerics, cell.start) == (p, factors["arithmetic"], factors["start"])
            assert f"{cell.gap:g}" == factors["score gap"]
            assert (cell.n, cell.T, cell.d, cell.steps) == (6, 8, 10, 600)
        late = {"after a step": 1, "before it": 0}[factors["iteration 0"]]
        labels = {"as the notebook draws them": DRAWN, "as captioned": CAPTIONS}[factors["curves"]]
        assert plain(one.points(rows)) == plain(pairs(rows, labels, late))
    assert {one.factors["score gap"] for one in found} == {"0", "0.1"}
