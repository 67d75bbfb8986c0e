"""Fig. 4: ranks counted both ways, and what is said of the printed means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, solve
from attsvm.data.synthetic import gapped_trial, random_trial
from attsvm_paper.figures import svm_rank as module
from attsvm_paper.figures.svm_rank import Config, joint, points, readings, sweep, trials, verdicts
from attsvm_paper.judging.comparison import correction, count_deviation, mean_verdict
from attsvm_paper.judging.joint import joint_test
from attsvm_paper.judging.points import Point, by_key, next_values
from attsvm_paper.judging.verdict import Row, Verdict
from attsvm_paper.published.instances import draw
from attsvm_paper.published.ledger import LedgerNumber, curve
from attsvm_paper.published.solver import splitting_solution

NAME, FIGURE = "svm-rank", "Fig. 4"
SIZES = ((5, 5), (10, 5), (15, 5), (5, 10), (5, 15))
DIMENSIONS = (1, 2, 3, 4, 5, 10, 15, 20)
KEYS = {
    (5, 5): "Fig. 4a: n=5, {}",
    (10, 5): "Fig. 4a: n=10, {}",
    (15, 5): "Fig. 4a: n=15, {}",
    (5, 10): "Fig. 4b: T=10, {}",
    (5, 15): "Fig. 4b: T=15, {}",
}
WORDS = {"frobenius": "Frobenius", "nuclear": "nuclear"}
INFEASIBLE = "Infeasible instances were counted as rank 1."


@pytest.mark.parametrize(("effort", "count"), [("quick", 25), ("full", 100)])
def test_a_full_run_has_the_sizes_and_trials_of_the_figure(effort: Any, count: int) -> None:
    """v1, Fig. 4: T = 5 with n = 5, 10, 15, and n = 5 with T = 5, 10, 15; d from 1 to 20, 100 trials."""
    cells = [(c.n, c.T, c.d, c.gap, c.repeated, c.trials) for c in sweep(effort)]
    assert cells == [
        *((n, T, d, 0.1, True, count) for n, T in SIZES for d in DIMENSIONS),
        # One more than each dimension of the figure.
        *((n, T, d, 0.1, True, 25) for n, T in SIZES for d in (6, 11, 16, 21)),
        *((n, 5, d, 0.0, False, count) for n in (10, 15) for d in (2, 3, 4, 5)),
    ]


def large(values: np.ndarray, cut: float) -> int:
    return int((np.linalg.svd(values, compute_uv=False) > cut).sum())


@pytest.mark.parametrize(
    "config", [Config(3, 3, 2), Config(2, 3, 3), Config(4, 3, 2, gap=0.0, repeated=False), Config(2, 2, 1, gap=0.0)]
)
def test_a_row_has_the_certified_and_the_published_count_of_both_norms(config: Config) -> None:
    seeds = list(range(6))
    found = trials(config, np.array(seeds))
    assert [row["seed"] for row in found] == seeds
    instances = draw(seeds, config.n, config.T, config.d, config.gap or None)
    gaps = {norm: instances.solve(instances.optimal, norm, tol=1e-12).gap for norm in ("frobenius", "nuclear")}
    for b, row in enumerate(found):
        rng = np.random.default_rng(row["seed"])
        sizes = (config.n, config.T, config.d)
        tokens, queries, labels, v = gapped_trial(rng, *sizes, config.gap) if config.gap else random_trial(rng, *sizes)
        problem = SelectionProblem(tokens, queries, (labels[:, None] * (tokens @ v)).argmax(-1))
        for norm in ("frobenius", "nuclear"):
            solution = solve(problem, norm, tol=1e-10)
            feasible = bool(np.isfinite(solution.objective))
            assert row["infeasible"] == (not feasible)
            counted = norm == "frobenius" or config.repeated
            if not feasible:
                assert (row[f"{norm}_rank"], row[f"{norm}_gap"]) == (None, None)
                assert row[f"{norm}_published_count"] == (1 if counted else None)
                continue
            assert row[f"{norm}_rank"] == large(np.asarray(solution.W), 1e-4)
            assert row[f"{norm}_gap"] == pytest.approx(gaps[norm][b], abs=1e-13)
            # The published runs count singular values above 1e-7, of the nuclear norm in an inaccurate solution.
            W = np.asarray(solution.W) if norm == "frobenius" else splitting_solution(problem)
            assert row[f"{norm}_published_count"] == (large(W, 1e-7) if counted else None)
    assert {row["infeasible"] for row in found} == ({True, False} if config.d < 3 else {False})


def test_a_solution_with_small_singular_values_is_counted_by_the_published_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "splitting_solution", lambda problem: np.diag([1.0, 2e-7, 0.5e-7]))
    (row,) = trials(Config(2, 3, 3), np.array([2]))
    assert row["nuclear_published_count"] == 2


def made(n: int = 5, T: int = 5, d: int = 4, trials: int = 12, missing: int = 0, **fields: Any) -> list[Row]:
    """Make rows near the printed mean by the published count, and lower by the certified one."""
    rng = np.random.default_rng([n, T, d, trials, missing])
    printed = curve(KEYS[n, T].format("Frobenius")).at(d) if (n, T) in KEYS else None
    level = 3 if printed is None else max(round(printed.value), 1)
    rows: list[Row] = []
    for seed in range(trials):
        there = seed >= missing
        row: Row = {"n": n, "T": T, "d": d, "gap": 0.1, "seed": seed, "infeasible": not there}
        for norm in WORDS:
            row[f"{norm}_rank"] = int(rng.integers(1, 3)) + (norm == "frobenius") if there else None
            row[f"{norm}_published_count"] = level - int(rng.random() < 0.1) if there else 1
        rows.append(row | fields)
    return rows


def number(norm: str, n: int, T: int, d: int) -> LedgerNumber | None:
    return curve(KEYS[n, T].format(WORDS[norm])).at(d)


def judge(quantity: str, rows: Sequence[Row], field: str, reference: LedgerNumber | None, **more: Any) -> Verdict:
    counts = [row[field.replace("_rank", "_published_count")] for row in rows]
    deviation = None
    if reference is not None:
        deviation = count_deviation(reference.value, [one for one in counts if one is not None])
    return mean_verdict(
        NAME, quantity, [row[field] for row in rows if row[field] is not None], published=reference, margin=0.5,
        published_deviation=deviation, infeasible=sum(row["infeasible"] for row in rows), **more,
    )  # fmt: skip


@pytest.mark.parametrize("missing", [0, 3])
@pytest.mark.parametrize(("n", "T", "d"), [(5, 5, 4), (5, 15, 10), (15, 5, 10)])
def test_a_certified_rank_is_corrected_if_the_published_count_gives_the_printed_mean(
    n: int, T: int, d: int, missing: int
) -> None:
    rows = made(n, T, d, trials=40, missing=missing)
    note = "3 of 40 instances have no solution." if missing else ""
    expected = []
    for norm in WORDS:
        reference = number(norm, n, T, d)
        size = f"{norm}, n={n}, T={T}, d={d}"
        truth = judge(f"certified rank, {size}", rows, f"{norm}_rank", reference, trials=40, note=note)
        restored = judge(f"published count, {size}", rows, f"{norm}_published_count", reference)
        artefacts = [INFEASIBLE] * bool(missing) + [module.NOISE_ARTEFACT] * (norm == "nuclear")
        expected.append(correction(truth, restored, " ".join(artefacts)))
    assert verdicts(rows) == expected
    if not missing:
        assert expected[1].verdict == "corrected"


@pytest.mark.parametrize(
    ("n", "T", "fields", "size"),
    [
        (5, 5, {"gap": 0.0}, "n=5, T=5, d=4, gap 0"),
        (10, 5, {"gap": 0.25}, "n=10, T=5, d=4, gap 0.25"),
        (4, 5, {}, "n=4, T=5, d=4"),
        (5, 4, {}, "n=5, T=4, d=4"),
    ],
)
def test_what_is_not_printed_is_measured(n: int, T: int, fields: dict[str, Any], size: str) -> None:
    rows = made(n, T, missing=2, **fields)
    assert verdicts(rows) == [
        judge(
            f"certified rank, {norm}, {size}", rows, f"{norm}_rank", None, trials=12,
            note="2 of 12 instances have no solution.",
        )
        for norm in WORDS
    ]  # fmt: skip


def test_a_rank_that_is_not_counted_as_published_is_only_compared() -> None:
    rows = made(nuclear_published_count=None)
    note = {"trials": 12, "note": ""}
    truth = judge("certified rank, nuclear, n=5, T=5, d=4", rows, "nuclear_rank", number("nuclear", 5, 5, 4), **note)
    assert verdicts(rows)[1] == truth


@pytest.mark.parametrize("there", [0, 1, 2])
def test_where_hardly_an_instance_has_a_solution_the_printed_mean_is_of_the_others(there: int) -> None:
    """At n = 15, T = 5, d = 3 the printed mean is 1: no instance of theirs has a solution."""
    rows = made(15, 5, 3, trials=30, missing=30 - there)
    found = verdicts(rows)
    for norm, one in zip(WORDS, found, strict=True):
        size = f"{norm}, n=15, T=5, d=3"
        reference = number(norm, 15, 5, 3)
        note = f"{30 - there} of 30 instances have no solution."
        truth = judge(f"certified rank, {size}", rows, f"{norm}_rank", reference, trials=30, note=note)
        restored = judge(f"published count, {size}", rows, f"{norm}_published_count", reference)
        if there == 2:
            artefacts = [INFEASIBLE] + [module.NOISE_ARTEFACT] * (norm == "nuclear")
            assert one == correction(truth, restored, " ".join(artefacts))
            continue
        assert restored.verdict == "agrees"
        expected = replace(
            truth, verdict="corrected", tolerance=restored.tolerance,
            note=f"{INFEASIBLE} {note} With that put back {restored.measured:.4g}: agrees.",
        )  # fmt: skip
        # Without a certified rank the measured number is no number, and equals nothing.
        assert repr(one) == repr(expected)


def test_an_empty_mean_that_is_not_restored_has_the_verdict_of_the_restoration() -> None:
    rows = made(5, 5, 4, missing=12)
    for norm, one in zip(WORDS, verdicts(rows), strict=True):
        # Rank 1 for a printed 3.99 and 3.79.
        assert one.verdict == "differs"
        assert one.note == f"{INFEASIBLE} 12 of 12 instances have no solution. With that put back 1: differs."
        assert one.key == KEYS[5, 5].format(WORDS[norm]) + " @ 4"


def test_neighbouring_dimensions_have_a_verdict_only_if_there_are_no_others() -> None:
    others = made(d=6) + made(d=21)
    assert {one.quantity.split(", d=")[1] for one in verdicts(others + made(d=4))} == {"4"}
    assert len(verdicts(others)) == 4


def pairs(rows: Sequence[Row], field: str = "{}_published_count", none: float | None = None, offset: int = 0) -> Any:
    """Pair each printed mean with our trials; `none` is the rank of an infeasible instance without one."""
    found = []
    for n, T in sorted(SIZES):
        for norm, word in WORDS.items():
            one = curve(KEYS[n, T].format(word))
            for at, d in enumerate(one.x):
                cell = [row for row in rows if (row["n"], row["T"], row["d"]) == (n, T, d + offset)]
                values = {}
                for row in cell:
                    value = row[field.format(norm)]
                    if value is None and row["infeasible"]:
                        value = none
                    if value is not None:
                        values[row["seed"]] = float(value)
                reference = one.at(d)
                assert reference is not None
                found += [Point(reference, values, 0.5, "count", (one.key, at))] * bool(cell)
    return found


def plain(points: Sequence[Point]) -> list[Any]:
    return [(p.published.key, p.place, dict(p.values), p.margin, p.kind, p.trials, p.deviation) for p in points]


def grid(dimensions: Sequence[int] = (4, 5, 6, 10), trials: int = 14, **fields: Any) -> list[Row]:
    sizes = (*SIZES, (4, 5))
    return [row for n, T in sizes for d in dimensions for row in made(n, T, d, trials, n % 4, **fields)]


def test_a_point_has_the_ranks_that_are_counted() -> None:
    rows = grid()
    unsolved = [row | {"nuclear_published_count": None, "nuclear_rank": None, "infeasible": False} for row in rows]
    for cells in (rows, unsolved):
        assert plain(points(cells)) == plain(pairs(cells))
        assert plain(points(cells, "{}_rank")) == plain(pairs(cells, "{}_rank"))
        assert plain(points(cells, "{}_rank", 1.0)) == plain(pairs(cells, "{}_rank", 1.0))
        assert plain(points(cells, "{}_rank", 0.0)) == plain(pairs(cells, "{}_rank", 0.0))
        assert plain(points(cells, offset=1)) == plain(pairs(cells, offset=1))


def test_the_joint_tests_are_of_both_counts_and_of_both_gaps() -> None:
    gap = grid()
    without = [
        row | {"gap": 0.0, "nuclear_published_count": None}
        for n in (10, 15)
        for d in (4, 5)
        for row in made(n, 5, d, trials=15)
    ]
    main, certified = pairs(gap), pairs(gap, "{}_rank")
    no_gap = [one for one in pairs(without) if one.values]
    same = [one for one in main if any(other.published.key == one.published.key for other in no_gap)]
    following = "d at the next grid value"
    alternatives = {
        following: next_values(main),
        "d off by one": by_key(pairs(gap, offset=1)),
        "certified ranks": by_key(certified),
        "no score gap": by_key(no_gap),
    }
    tail = "n = 10 and 15, d = 2 to 5, Frobenius"

    def test_of(points: list[Point], reading: str) -> Any:
        return joint_test(NAME, FIGURE, points, {following: next_values(points)}, reading)

    expected = [
        joint_test(NAME, FIGURE, main, alternatives, "ranks counted as published, score gap 0.1"),
        test_of(certified, "certified ranks of feasible instances, score gap 0.1"),
        test_of(same, f"as published, score gap 0.1, {tail}"),
        test_of(no_gap, f"as published, no score gap, {tail}"),
    ]
    assert joint(gap + without + grid((4,), gap=0.3)) == expected
    assert joint(gap) == [
        joint_test(
            NAME, FIGURE, main, dict(list(alternatives.items())[:3]), "ranks counted as published, score gap 0.1"
        ),
        expected[1],
    ]  # fmt: skip


def test_every_combination_of_the_open_choices_is_tried_once() -> None:
    """docs/paper.md: 6 readings; counted as published, an infeasible instance has rank 1 already."""
    found = readings()
    assert [dict(one.factors) for one in found] == [
        {"score gap": gap, "ranks": ranks, "without solution": f"counts as {none}"}
        for gap in ("0", "0.1")
        for ranks, none in (("above 1e-7, stopped at 1e-4", 1), ("certified", 1), ("certified", 0))
    ]
    rows = grid()
    for one in found:
        assert one.figure == FIGURE
        assert [(c.n, c.T, c.d) for c in one.cells] == [(n, 5, d) for n in (5, 15) for d in (2, 3, 4, 5, 10)]
        assert {(f"{c.gap:g}", c.trials, c.repeated) for c in one.cells} == {(one.factors["score gap"], 50, True)}
        field = "{}_rank" if one.factors["ranks"] == "certified" else "{}_published_count"
        expected = pairs(rows, field, float(one.factors["without solution"][-1]))
        assert plain(one.points(rows)) == plain(expected)
