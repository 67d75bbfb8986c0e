"""Figures 8 and 11b compared with ours: distances along training and by threshold, and masked probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attsvm_paper.figures.multi_token import (
    DIMENSIONS,
    FIGURE,
    LOG_MARGIN,
    MARKS,
    NAME,
    NUMERICS,
    SIZE,
    STATES,
    THRESHOLDS,
    TITLES,
    WORDS,
    Config,
)
from attsvm_paper.judging.comparison import SHARE_MARGIN, mean_verdict, share_verdict
from attsvm_paper.judging.grouping import by, having
from attsvm_paper.judging.joint import JointTest, joint_test
from attsvm_paper.judging.points import Point, curve_points, next_values, swap
from attsvm_paper.judging.readings import Reading
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.published.ledger import curve


def printed_curve(d: int, what: str) -> Any:
    """Return the printed curve of a distance, or None."""
    return curve(f"Fig. 8 upper: d={d}, {WORDS[what]}") if d in DIMENSIONS else None


def printed_scatter(d: int) -> Mapping[str, list[float]]:
    """Return the printed scatter of a dimension: decimal logarithms of masked probability and distance."""
    return curve(f"Fig. 8 lower: d={d}").scatter or {"x": [], "y": []}


def _theirs_below(d: int, threshold: int) -> tuple[int, float]:
    """Return number of trials and standard deviation behind a mean of Fig. 11b, from the scatter of Fig. 8."""
    scatter = printed_scatter(d)
    own = [10.0**y for x, y in zip(scatter["x"], scatter["y"], strict=True) if x < threshold]
    return len(own), float(np.std(own, ddof=1))


def _error(row: Row, what: str, iteration: int) -> float | None:
    if row[what] is None or iteration + 1 not in row["step"]:
        return None
    return row[what][row["step"].index(iteration + 1)]


def end(row: Row, what: str = "equivalent") -> float | None:
    """Return the final distance of a trial."""
    return None if row[what] is None else row[what][-1]


def below(row: Row, threshold: int) -> float | None:
    """Return the final distance of a trial whose masked probabilities lie below a power of ten."""
    return end(row) if row["masked"] is not None and row["masked"] < 10.0**threshold else None


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Compare the means over accepted draws with the published ones, and report how many draws were accepted."""
    for (numerics, d), cell in by(rows, "numerics", "d").items():
        sample = having(cell, state="accepted")
        infeasible = len(having(cell, state="infeasible"))
        counts = {state: len(having(cell, state=state)) for state in STATES}
        survivors = having(sample, dead=0)
        # The printed curve depends on the 500 accepted runs in the arithmetic in which they stopped moving.
        same = (cell[0]["n"], cell[0]["T"]) == SIZE and numerics == "published"

        def compare(
            quantity: str, values: list[float], reference: Any, note: str = "", base: Any = None, **theirs: Any
        ) -> Verdict:
            cell, sample, infeasible = base
            return mean_verdict(
                NAME, quantity, values, published=reference, interval="bootstrap", trials=len(cell), **theirs,
                margin=LOG_MARGIN * (reference.value if reference is not None else 1.0),
                discarded=len(cell) - len(sample) - infeasible, infeasible=infeasible, note=note,
            )  # fmt: skip

        base = (cell, sample, infeasible)
        for what, title in TITLES.items():
            line = printed_curve(d, what) if same else None
            for mark in MARKS:
                values = [value for row in sample if (value := _error(row, what, mark)) is not None]
                if values or mark == MARKS[-1]:
                    name = f"1 - correlation with the {title}, d={d}, iteration {mark}, {numerics} numerics"
                    note = "" if numerics == "published" else _drift(survivors, what)
                    yield compare(name, values, None if line is None else line.at(mark), note, base)
        masked = [row["masked"] for row in sample]
        for threshold in THRESHOLDS[:-1] if same and d in DIMENSIONS and sample else ():
            name = f"share of accepted draws with all masked probabilities below 1e{threshold}, d={d}"
            small = sum(probability < 10.0**threshold for probability in masked)
            reference = curve(f"Fig. 8 lower: d={d}").at(threshold)
            yield share_verdict(NAME, name, small, len(sample), published=reference)
        for threshold in THRESHOLDS if same and d in DIMENSIONS else ():
            values = [value for row in sample if (value := below(row, threshold)) is not None]
            if values:
                reference = curve(f"Fig. 11b: d={d}").at(threshold)
                name = f"1 - correlation with the SVM equivalent, d={d}, masked below 1e{threshold}"
                trials, deviation = _theirs_below(d, threshold)
                yield compare(name, values, reference, "", base, assumed_trials=trials, published_deviation=deviation)
        yield share_verdict(
            NAME,
            f"draws accepted, d={d}, {numerics} numerics",
            len(sample),
            len(cell),
            infeasible=infeasible,
            note=f"{counts['undecided']} undecided, {counts['finite']} finite, {infeasible} infeasible. "
            f"{len(sample) - len(survivors)} of {len(sample)} accepted draws have a query without gradient.",
        )


def _drift(survivors: Sequence[Row], what: str) -> str:

    if not survivors:
        return "Queries in the flat part of the ReLU have no gradient and drift."
    return (
        "Queries in the flat part of the ReLU have no gradient and drift; without them the mean at the end is "
        f"{np.mean([last for row in survivors if (last := end(row, what)) is not None]):.3g} ({len(survivors)} draws)."
    )


@listed
def points(rows: Sequence[Row]) -> Iterator[Point]:
    """Pair the printed numbers of Fig. 8 with our accepted draws."""
    for (d,), cell in by(having(rows, state="accepted", n=SIZE[0], T=SIZE[1]), "d").items():
        for what in WORDS if d in DIMENSIONS else ():
            for mark in MARKS:

                def value(row: Row, what: str = what, mark: int = mark) -> float | None:
                    return _error(row, what, mark)

                yield from curve_points(printed_curve(d, what), {mark: cell}, value, LOG_MARGIN, "log")


@listed
def threshold_points(rows: Sequence[Row]) -> Iterator[Point]:
    """Pair the printed numbers of Fig. 11b with our accepted draws."""
    for (d,), cell in by(having(rows, state="accepted", n=SIZE[0], T=SIZE[1]), "d").items():
        for threshold in THRESHOLDS if d in DIMENSIONS else ():

            def value(row: Row, threshold: int = threshold) -> float | None:
                return below(row, threshold)

            line, theirs = curve(f"Fig. 11b: d={d}"), _theirs_below(d, threshold)
            yield from curve_points(line, {threshold: cell}, value, LOG_MARGIN, "log", *theirs)


@listed
def scatter_points(rows: Sequence[Row]) -> Iterator[Point]:
    """Pair the shares below each threshold in the scatter of Fig. 8 with our accepted draws."""
    for (d,), cell in by(having(rows, state="accepted", n=SIZE[0], T=SIZE[1]), "d").items():
        for threshold in THRESHOLDS[:-1] if d in DIMENSIONS and len(cell) > 1 else ():
            yield from curve_points(
                curve(f"Fig. 8 lower: d={d}"), {threshold: cell},
                lambda row, t=threshold: float(row["masked"] < 10.0**t), SHARE_MARGIN, "share",
            )  # fmt: skip


def joint(rows: Sequence[Row]) -> list[JointTest]:
    """Test both parts of Fig. 8 and Fig. 11b as wholes, and state the power of the tests."""
    plain = having(rows, numerics="published")
    main, by_threshold, masked = points(plain), threshold_points(plain), scatter_points(plain)
    dense = {f"Fig. 8 lower: d={d}": f"Fig. 8 lower: d={d + 2}" for d in (4, 6, 8)}
    next_d = {
        f"Fig. 8 upper: d={d}, {word}": f"Fig. 8 upper: d={d + 2}, {word}" for d in (4, 6, 8) for word in WORDS.values()
    }
    other = {}
    for d in DIMENSIONS:
        a, b = (f"Fig. 8 upper: d={d}, {word}" for word in ("W^SVMeq", "W^mm"))
        other |= {a: b, b: a}
    tests = [
        joint_test(
            NAME, FIGURE, main,
            {
                "d at the next grid value (2 further)": swap(main, next_d),
                "iteration at the next grid value": next_values(main),
                "W^SVMeq and W^mm exchanged": swap(main, other),
            },
            reading="published arithmetic and filter",
        ),
        joint_test(
            NAME, "Fig. 11b", by_threshold, {"threshold at the next grid value": next_values(by_threshold)},
            reading="published arithmetic and filter",
            note="The trials below a threshold are those of the scatter of Fig. 8.",
        ),
        joint_test(
            NAME, "Fig. 8, lower", masked,
            {
                "d at the next grid value (2 further)": swap(masked, dense),
                "threshold at the next grid value": next_values(masked),
            },
            reading="published arithmetic and filter",
        ),
    ]  # fmt: skip
    return [test for test in tests if test is not None]


@listed
def readings() -> Iterator[Reading]:
    """Return the protocols tried: arithmetic, which undecided draws are omitted, and queries with no gradient."""
    for numerics in NUMERICS:
        cells = tuple(Config(d, numerics, trials=count) for d, count in ((4, 400), (6, 600)))
        for name, dead in (("kept", True), ("left out", False)):

            def pair(rows: Sequence[Row], dead: bool = dead) -> list[Point]:
                return points([row for row in rows if dead or not row["dead"]])

            yield Reading(FIGURE, {"arithmetic": numerics, "draws with a dead query": name}, cells, pair)
