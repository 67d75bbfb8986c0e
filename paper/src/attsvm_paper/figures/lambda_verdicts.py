"""Figures 9 and 12 compared with ours: counts with and without the filter of p. 16, distances, and the bound tau."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from attsvm_paper.figures.lambda_head import (
    EARLY,
    ERROR_LAMBDAS,
    LARGEST_LAMBDA,
    NAME,
    SIZE,
    STEPS,
    TAU_TRIALS,
    TAUS,
    Config,
    Numerics,
)
from attsvm_paper.judging.comparison import SHARE_MARGIN, correction, count_deviation, mean_verdict, share_verdict
from attsvm_paper.judging.grouping import by, column, having
from attsvm_paper.judging.joint import JointTest, joint_test
from attsvm_paper.judging.points import Point, by_key, curve_points, next_values
from attsvm_paper.judging.readings import Reading
from attsvm_paper.judging.verdict import Row, Verdict, listed
from attsvm_paper.published.ledger import PrintedCurve, curve

NINE_A = "Fig. 9a: selected tokens"
# Largest masked output at which an instance is accepted; --explain tries others.
EDGE = 7e-5
EDGES = (None, 5e-4, 2e-4, 1e-4, 7e-5, 6e-5, 5e-5, 3e-5, 1e-5, 1e-6, 1e-8)
NUMERICS: tuple[Numerics, ...] = ("exact", "published")
# Margins of mean counts, and of logarithms of distances (a quarter).
COUNT_MARGIN, LOG_MARGIN = 0.3, 0.25
# Margin of the mean lambda of Fig. 12a, and values of tau in Fig. 12c.
DRAWN_MARGIN, DISTRIBUTIONS = 0.05, (3, 5, 7, 9)
# Bounds of a uniform lambda that --explain tries for Fig. 12.
LEAST, MOST = (0.0, 0.2, 0.25, 0.3, 0.35, 0.4), (1.5, 2.0, LARGEST_LAMBDA)
TAU_NOTE = "The paper does not state how lambda is drawn; ours is uniform on (0, 2.5), without a filter."
FILTER_NAME = f"without instances that have an output in ({EDGE:g}, 0.001]"
POOLED_NOTE = "The paper does not state which lambda the runs with so many tokens have."
FILTER = (
    "Instances with an output between an edge and 1e-3 are left out (p. 16), which keeps those that select every "
    "token; the likeliest edges are near 6e-5, not the stated 1e-8."
)


def passes(row: Row, edge: float | None) -> bool:
    """Whether the filter accepts a trial: no output between the edge and 1e-3."""
    return edge is None or row["masked"] is None or row["masked"] < edge


def error_curve(lam: float, name: str) -> str:
    """Return the key of a printed curve of Fig. 9b."""
    return f"Fig. 9b: lambda={lam:g}, {'W^SVMeq' if name == 'equivalent' else 'W^mm'}"


def number_curve(count: int, name: str) -> str:
    """Return the key of a printed curve of Fig. 9c."""
    return f"Fig. 9c: {count} selected, {'W^SVMeq' if name == 'equivalent' else 'W^mm'}"


def by_count(rows: Sequence[Row]) -> list[int]:
    """List the numbers of selected tokens of Fig. 9c that occur in the rows."""
    there = {row["count"] for row in rows}
    return [count for count in (1, 2, 5, 9) if count in there]


def _has_reference(row: Row) -> bool:
    return (row["T"], row["d"]) == SIZE


def _count_curve(lam: float) -> PrintedCurve:
    return curve(NINE_A if lam else "Fig. 9a: selected tokens at lambda=0")


@listed
def verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Compare counts and distances with the published ones, and attention with Lemma 6."""
    for (numerics, lam, tau), cell in by(rows, "numerics", "lam", "tau").items():
        if tau:
            yield from _bounded(cell, tau)
        elif numerics == "lemma":
            yield mean_verdict(NAME, f"tokens that Lemma 6 keeps, lambda={lam:g}", column(cell, "lemma"))
        else:
            yield from _counts(cell, numerics, lam) if numerics == "exact" else []
            yield from _distances(cell, f"lambda={lam:g}", numerics, lambda name, lam=lam: error_curve(lam, name), lam)
    exact = [row for row in having(rows, numerics="exact", tau=0) if _has_reference(row)]
    for count in by_count(exact):
        own = [row for row in exact if row["count"] == count]
        yield from _distances(
            own, f"{count} selected", "exact",
            lambda name, count=count: number_curve(count, name),
        )  # fmt: skip


def _counts(cell: Sequence[Row], numerics: str, lam: float) -> list[Verdict]:
    reference = _count_curve(lam).at(lam) if _has_reference(cell[0]) else None
    counts, lemma = column(cell, "count"), column(cell, "lemma")
    note = f"Sparsemax keeps {lemma.mean():.2f} on these instances; {column(cell, 'early').mean():.2f} tokens are "
    note += f"above 0.001 after {min(EARLY, cell[0]['steps'])} steps."

    def compare(values: Any, discards: int) -> Verdict:
        return mean_verdict(
            NAME,
            f"tokens selected, lambda={lam:g}",
            values,
            published=reference,
            margin=COUNT_MARGIN,
            published_deviation=None
            if reference is None
            else max(reference.deviation or 0, _least(reference.value, counts)),
            discarded=discards,
            note=note,
        )

    verdict = compare(counts, 0)
    if reference is not None:
        subset = [row["count"] for row in cell if passes(row, EDGE)]
        verdict = correction(verdict, compare(subset, len(cell) - len(subset)), FILTER)
    agreeing = share_verdict(
        NAME,
        f"as many tokens as sparsemax keeps (Lemma 6), lambda={lam:g}",
        int((counts == lemma).sum()),
        len(cell),
        note=f"Largest mean deviation of attention {column(cell, 'off').mean():.2g}.",
    )
    return [verdict, agreeing]


def _least(published: float, counts: Any) -> float:
    return count_deviation(published, counts)


def _error(row: Row, name: str, iteration: int) -> float | None:
    if row[name] is None or iteration + 1 not in row["step"]:
        return None
    return row[name][row["step"].index(iteration + 1)]


def _distances(
    cell: Sequence[Row], which: str, numerics: str, key: Callable[[str], str], lam: float | None = None
) -> list[Verdict]:
    """Compare distances along training with a pair of printed curves."""
    if lam is not None and lam not in ERROR_LAMBDAS:
        return []
    results = []
    for name in ("equivalent", "mm"):
        line = curve(key(name))
        # The exact arithmetic is the likelier one, see :func:`joint`.
        same = _has_reference(cell[0]) and numerics == "exact"
        for iteration in line.x:
            values = [value for row in cell if (value := _error(row, name, iteration)) is not None]
            if not values:
                continue
            reference = line.at(iteration) if same else None
            results.append(
                mean_verdict(
                    NAME,
                    f"1 - correlation with the {'SVM equivalent' if name == 'equivalent' else 'max-margin part'}, "
                    f"{which}, iteration {iteration}, {numerics} numerics",
                    values,
                    published=reference,
                    margin=LOG_MARGIN * (reference.value if reference is not None else 1.0),
                    interval="bootstrap",
                    trials=len(cell),
                    discarded=len(cell) - len(values),
                )
            )
    return results


def _bounded(cell: Sequence[Row], tau: int) -> list[Verdict]:
    same = _has_reference(cell[0])
    counts, lambdas = column(cell, "lemma"), column(cell, "drawn")
    if not len(counts):
        return []
    results = [
        mean_verdict(
            NAME, f"lambda under the constraint, tau={tau}", lambdas, margin=DRAWN_MARGIN, note=TAU_NOTE,
            published=curve("Fig. 12a: lambda").at(tau) if same else None,
        ),
        mean_verdict(
            NAME, f"tokens that Lemma 6 keeps, tau={tau}", counts, margin=COUNT_MARGIN, note=TAU_NOTE,
            published=curve("Fig. 12b: selected tokens").at(tau) if same else None,
        ),
        share_verdict(
            NAME, f"from 2 to tau tokens (Lemma 6), tau={tau}", int(((counts > 1) & (counts <= tau)).sum()), len(cell)
        ),
    ]  # fmt: skip
    if same and tau in DISTRIBUTIONS:
        results += [
            share_verdict(
                NAME, f"P({count} tokens), tau={tau}", int((counts == count).sum()), len(cell), note=TAU_NOTE,
                published=curve(f"Fig. 12c: tau={tau}").at(count),
            )
            for count in TAUS
        ]  # fmt: skip
    return results


def count_points(rows: Sequence[Row], edge: float | None, field: str = "count") -> list[Point]:
    """Pair the counts of Fig. 9a with our trials that pass the filter."""
    cells = {lam: cell for (lam,), cell in by(having(rows, numerics="exact"), "lam").items() if _has_reference(cell[0])}

    def value(row: Row) -> float | None:
        return row[field] if passes(row, edge) else None

    return curve_points(curve(NINE_A), cells, value, COUNT_MARGIN, "count")


@listed
def error_points(rows: Sequence[Row], numerics: Numerics, edge: float | None) -> Iterator[Point]:
    """Pair the distances of Fig. 9b with our trials that pass the filter."""
    for (lam,), cell in by(having(rows, numerics=numerics), "lam").items():
        for name in ("equivalent", "mm") if lam in ERROR_LAMBDAS and _has_reference(cell[0]) else ():
            line = curve(error_curve(lam, name))
            for iteration in line.x:

                def value(row: Row, name: str = name, iteration: int = iteration) -> float | None:
                    return _error(row, name, iteration) if passes(row, edge) else None

                yield from curve_points(line, {iteration: cell}, value, LOG_MARGIN, "log")


@listed
def number_points(rows: Sequence[Row], edge: float | None) -> Iterator[Point]:
    """Pair the distances of Fig. 9c with our trials of that many tokens that pass the filter, for every lambda.

    An instance with the same number of tokens under several lambdas counts once, with its mean.
    """
    exact = [row for row in having(rows, numerics="exact", tau=0) if _has_reference(row) and passes(row, edge)]
    for count in by_count(exact):
        own = by(having(exact, count=count), "seed")
        for name in ("equivalent", "mm"):
            line = curve(number_curve(count, name))
            for iteration in line.x:
                means = [
                    {"seed": seed, "mean": _mean(_error(row, name, iteration) for row in same)}
                    for (seed,), same in own.items()
                ]
                yield from curve_points(line, {iteration: means}, lambda row: row["mean"], LOG_MARGIN, "log")


def _mean(values: Iterable[float | None]) -> float | None:
    values_there = [value for value in values if value is not None]
    return sum(values_there) / len(values_there) if values_there else None


@listed
def tau_points(rows: Sequence[Row], least: float = 0.0, most: float = LARGEST_LAMBDA) -> Iterator[Point]:
    """Pair the distributions of Fig. 12 with our draws of a lambda between two bounds."""
    subset = [row for row in rows if row["tau"] and row["drawn"] is not None and least <= row["drawn"] <= most]
    cells = {tau: cell for (tau,), cell in by(subset, "tau").items() if _has_reference(cell[0])}
    if cells:
        yield from curve_points(curve("Fig. 12a: lambda"), cells, lambda row: row["drawn"], DRAWN_MARGIN)
        yield from curve_points(
            curve("Fig. 12b: selected tokens"), cells, lambda row: row["lemma"], COUNT_MARGIN, "count"
        )
        for tau in DISTRIBUTIONS:
            for count in TAUS if tau in cells else ():
                yield from curve_points(
                    curve(f"Fig. 12c: tau={tau}"), {count: cells[tau]},
                    lambda row, count=count: float(row["lemma"] == count), SHARE_MARGIN, "share",
                )  # fmt: skip


def joint(rows: Sequence[Row]) -> list[JointTest]:
    """Test Fig. 9a with and without the filter, Figs 9b and 9c, and Fig. 12 under a uniform lambda."""
    trained = [row for row in rows if row["numerics"] != "lemma" and not row["tau"]]
    within = count_points(trained, EDGE)
    whole = count_points(trained, None)
    bounded = tau_points(rows)
    numbers = {edge: number_points(trained, edge) for edge in (EDGE, None)}
    errors = {numerics: error_points(trained, numerics, None) for numerics in NUMERICS}
    tests = [
        joint_test(
            NAME, "Fig. 9a", within,
            {"lambda at the next grid value": next_values(within), "no filter": by_key(whole)},
            reading=FILTER_NAME,
        ),
        joint_test(NAME, "Fig. 9a", whole, {"lambda at the next grid value": next_values(whole)}, reading="no filter"),
        *(
            joint_test(
                NAME, "Fig. 9b", points, {"iteration at the next grid value": next_values(points)},
                reading=f"{numerics} arithmetic, no filter",
            )
            for numerics, points in errors.items()
        ),
        *(
            joint_test(
                NAME, "Fig. 9c", points, {"iteration at the next grid value": next_values(points)},
                reading=f"runs of every lambda, {FILTER_NAME if edge else 'no filter'}", note=POOLED_NOTE,
            )
            for edge, points in numbers.items()
        ),
        joint_test(
            NAME, "Fig. 12", bounded, {"tau, and number of tokens, off by one": next_values(bounded)},
            reading="lambda uniform on (0, 2.5), sparsemax", note=TAU_NOTE,
        ),
    ]  # fmt: skip
    return [test for test in tests if test is not None]


@listed
def readings() -> Iterator[Reading]:
    """Return the protocols tried: filter and edge, time of counting, sparsemax, and bounds of lambda."""
    cells = tuple(Config(lam, trials=200) for lam in (0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.5))
    for edge in EDGES:
        name = "none" if edge is None else f"no output in ({edge:g}, 0.001]"
        for field, words in (
            ("count", f"after {STEPS} steps"),
            ("early", f"after {EARLY} steps"),
            ("lemma", "sparsemax"),
        ):
            if edge is not None and field != "count":
                continue
            factors = {"filter": name, "counted": words}
            yield Reading("Fig. 9a", factors, cells, lambda rows, e=edge, f=field: count_points(rows, e, f))
    cells = (Config(0.0), *cells)
    for edge in (None, 2e-4, 1e-4, EDGE):
        factors = {"filter": "none" if edge is None else f"no output in ({edge:g}, 0.001]"}
        yield Reading("Fig. 9c", factors, cells, lambda rows, e=edge: number_points(rows, e))
    for numerics in NUMERICS:
        cells = tuple(Config(lam, numerics) for lam in ERROR_LAMBDAS)
        for edge in (None, 1e-4, EDGE):
            name = "none" if edge is None else f"no output in ({edge:g}, 0.001]"

            def pair(rows: Sequence[Row], numerics: Numerics = numerics, edge: float | None = edge) -> list[Point]:
                return error_points(rows, numerics, edge)

            yield Reading("Fig. 9b", {"arithmetic": numerics, "filter": name}, cells, pair)
    cells = tuple(Config(0.0, "lemma", tau=tau, steps=0, trials=4 * TAU_TRIALS) for tau in TAUS)
    for least, most in product(LEAST, MOST):
        factors = {"lambda": f"uniform on ({least:g}, {most:g})"}
        yield Reading("Fig. 12", factors, cells, lambda rows, a=least, b=most: tau_points(rows, a, b))
