"""Verdicts as counts, sentences and short numbers."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest

from attsvm_paper.judging.joint import JointTest, Power
from attsvm_paper.judging.verdict import Kind, Verdict
from attsvm_paper.report.tally import (
    CLASSES,
    KINDS,
    as_json,
    by_figure,
    conclusion,
    count,
    deviation,
    headline,
    likelihood,
    number,
    percent,
    power_text,
)


def verdict(kind: Kind, key: str = "", **fields: Any) -> Verdict:
    numbers = {"published": 0.5, "measured": 0.5, "low": 0.4, "high": 0.6, "trials": 10, "tolerance": 0.1} | fields
    return Verdict("tiny", "P(global)", verdict=kind, key=key, **numbers)


def of(**counts: int) -> list[Verdict]:
    names = {"weak": "too weak to tell"}
    return [verdict(cast("Kind", names.get(name, name))) for name, times in counts.items() for _ in range(times)]


def test_a_printed_number_counts_once_and_the_first_verdict_counts() -> None:
    verdicts = [
        verdict("agrees", "a"), verdict("differs", "b"), verdict("differs", "a"), verdict("agrees", "b"),
        verdict("measured"), verdict("measured"), verdict("agrees"),
    ]  # fmt: skip
    assert count(verdicts) == {"agrees": 2, "corrected": 0, "differs": 1, "too weak to tell": 0, "measured": 2}
    assert tuple(count([])) == KINDS
    assert not any(count([]).values())


def test_kinds_have_one_word_as_their_class() -> None:
    assert CLASSES == {
        "agrees": "agrees", "corrected": "corrected", "differs": "differs", "too weak to tell": "weak",
        "measured": "measured",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({"agrees": 3}, "3 of 3 published numbers agree"),
        ({"agrees": 1, "measured": 4, "differs": 1}, "1 of 2 published numbers agree, 1 differs"),
        (
            {"agrees": 1, "corrected": 2, "differs": 3, "weak": 4},
            "1 of 10 published numbers agree, 2 are corrected, 3 differ; for 4 the trials are too few to tell",
        ),
        ({"weak": 1}, "0 of 1 published numbers agree; for 1 the trials are too few to tell"),
        ({"measured": 1}, "1 number measured that nobody has published"),
        ({"measured": 1234}, "1,234 numbers measured that nobody has published"),
        ({}, "0 numbers measured that nobody has published"),
    ],
)
def test_the_headline_counts_published_numbers(counts: dict[str, int], text: str) -> None:
    assert headline(of(**counts)) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "< 1 %"), (0.009, "< 1 %"), (0.01, "1 %"), (0.456, "46 %"), (0.99, "99 %"), (0.991, "> 99 %"),
        (1.0, "> 99 %"),
    ],
)  # fmt: skip
def test_an_estimated_probability_is_never_certain(share: float, text: str) -> None:
    assert percent(share) == text


def test_every_alternative_is_listed_with_its_power() -> None:
    powers = (Power("next d", 0.999), Power("no filter", 0.25))
    test = JointTest("tiny", "Fig. 0", "", 2, 0, 1.0, 5.0, 0.5, 0.01, 0.5, 0.7, 0.2, powers, -1.0, "agrees")
    assert power_text(test) == "next d: > 99 %; no filter: 25 %"


def reading(weight: float, verdict: str | None = "agrees", p: float | None = 0.5, **factors: str) -> dict[str, Any]:
    return {"factors": factors, "weight": weight, "p": p, "verdict": verdict}


def test_readings_of_a_figure_stay_in_their_order() -> None:
    entries = [{"figure": figure, "place": place} for place, figure in enumerate("abab")]
    assert by_figure(entries) == {"a": [entries[0], entries[2]], "b": [entries[1], entries[3]]}
    assert list(by_figure(entries)) == ["a", "b"]


def test_a_choice_is_sure_from_a_likelihood_of_95_per_cent() -> None:
    readings = [
        reading(0.90, gap="0.1", start="a", end="1"),
        reading(0.05, gap="0.1", start="b", end="2"),
        reading(0.04, "differs", gap="0", start="a", end="2"),
        reading(0.01, gap="0", start="b", end="3"),
    ]
    assert conclusion(readings) == (
        "Reconstructed: the likeliest of 4 readings, of which 3 agree (p = 0.5): gap 0.1. "
        # Likelihoods of 94 and 6 per cent; of 90, 9 and, left out, 1.
        "Not told apart, start: a (94 %) or b (6 %). Not told apart, end: 1 (90 %) or 2 (9 %)."
    )


def test_a_choice_of_exactly_95_per_cent_is_sure_and_one_of_5_per_cent_is_not_named() -> None:
    assert conclusion([reading(0.95, gap="1"), reading(0.05, gap="2")]) == (
        "Reconstructed: the likeliest of 2 readings, of which 2 agree (p = 0.5): gap 1."
    )
    three = [reading(0.9, gap="1"), reading(1 - 0.95, gap="2"), reading(0.06, gap="3")]
    assert conclusion(three).endswith("agree (p = 0.5). Not told apart, gap: 1 (90 %) or 3 (6 %).")


def test_one_reading_that_agrees_is_one() -> None:
    assert conclusion([reading(1.0, gap="1", start="a")]) == (
        "Reconstructed: the likeliest of 1 reading, of which 1 agrees (p = 0.5): gap 1, start a."
    )


def test_a_likeliest_reading_that_differs_names_all_its_choices() -> None:
    differs = [reading(0.6, "differs", 2e-4, gap="1", start="a"), reading(0.4, "differs", 1e-4, gap="2", start="a")]
    assert conclusion(differs) == ("Of 2 readings none fits; the likeliest, gap 1, start a, differs too (p = 0.0002).")
    agree = [*differs, reading(0.0, gap="3", start="b"), reading(0.0, gap="4", start="b")]
    assert conclusion(agree) == "Of 4 readings 2 agree; the likeliest, gap 1, start a, differs (p = 0.0002)."


def test_readings_without_numbers_and_with_too_few_trials_are_told() -> None:
    assert conclusion([reading(0.0, None, None, gap="1")]) == "No reading gives numbers for this figure."
    assert conclusion([reading(1.0, "too weak to tell", gap="1"), reading(0.0, None, None, gap="2")]) == (
        "Too few trials to tell: the likeliest of 2 readings, of which 0 agree (p = 0.5): gap 1."
    )


def test_a_likelihood_below_all_floats_is_told() -> None:
    assert (likelihood(0.0), likelihood(0.25), likelihood(1e-300)) == ("< 1e−300", "0.25", "1e−300")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (math.nan, "–"), (math.inf, "∞"), (-math.inf, "−∞"), (0.0, "0"), (-0.25, "−0.25"),
        (1000.4, "1,000"), (12345.6, "12,346"), (-1234.5, "−1,234"), (999.94, "999.9"), (100.06, "100.1"),
        (99.994, "99.99"), (10.006, "10.01"), (9.9994, "9.999"), (0.0104, "0.01"), (0.00996, "0.01"),
        (0.00123, "0.0012"), (-0.00123, "−0.0012"), (2.5e-10, "2.5e−10"), (3e-20, "3e−20"), (20.0, "20"), (100, "100"),
    ],
)  # fmt: skip
def test_a_number_has_its_significant_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("fields", "units"),
    [
        ({"measured": 0.75, "tolerance": 0.125}, 2.0),
        ({"measured": 0.25, "tolerance": 0.125}, -2.0),
        ({"measured": 0.5, "tolerance": 0.0}, 0.0),
        ({"measured": 0.75, "tolerance": 0.0}, math.inf),
        ({"measured": 0.25, "tolerance": 0.0}, -math.inf),
        ({"published": None}, None),
        ({"measured": math.nan}, None),
        ({"measured": math.inf}, None),
        ({"tolerance": math.nan}, None),
    ],
)
def test_a_difference_is_counted_in_tolerances(fields: dict[str, Any], units: float | None) -> None:
    assert deviation(verdict("agrees", **fields)) == units


def test_unknown_and_unbounded_values_are_null_in_the_record() -> None:
    record = as_json(verdict("measured", published=None, low=-math.inf, tolerance=math.nan))
    assert (record["published"], record["low"], record["tolerance"]) == (None, None, None)
    assert (record["measured"], record["trials"], record["verdict"]) == (0.5, 10, "measured")
