"""Two studies beside each other: intervals of differences, what differs, what is refused."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from functools import cache
from itertools import product
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, multinomial

from attsvm import TokenData
from attsvm.cli import main
from attsvm.data.dataset import Dataset
from attsvm.data.images import read_patches
from attsvm.data.passages import Passages
from attsvm.platform.files import locked
from attsvm.report.comparison import letters, numbers, picture, write_comparison
from attsvm.report.study import verdict
from attsvm.study import Settings, study
from attsvm.study.comparison import Record, compare, read_record
from attsvm.study.intervals import difference_interval, mean_difference_interval, paired_interval
from attsvm.study.numbers import row_digest
from attsvm.study.verdict import claims


@pytest.mark.parametrize(("p", "q", "n", "m"), [(0.5, 0.5, 20, 20), (0.9, 0.7, 30, 20), (0.8, 0.95, 40, 25)])
def test_coverage_of_differences_of_different_rows(p: float, q: float, n: int, m: int) -> None:
    """Exactly, by summing over all outcomes; Agresti and Caffo report coverage about the level at such sizes."""
    coverage = 0.0
    first, second = binom.pmf(np.arange(n + 1), n, p), binom.pmf(np.arange(m + 1), m, q)
    for a, b in product(range(n + 1), range(m + 1)):
        low, high = difference_interval((a, b), (n, m))
        coverage += first[a] * second[b] * (low <= q - p <= high)
    assert 0.93 <= coverage <= 0.99


@pytest.mark.parametrize("cells", [(0.1, 0.1), (0.2, 0.05), (0.02, 0.15)])
def test_coverage_of_differences_of_the_same_rows(cells: tuple[float, float]) -> None:
    n, coverage = 40, 0.0
    law = multinomial(n, [*cells, 1 - sum(cells)])
    for gains in range(n + 1):
        for loss in range(n + 1 - gains):
            low, high = paired_interval(gains, loss, n)
            coverage += law.pmf([gains, loss, n - gains - loss]) * (low <= cells[0] - cells[1] <= high)
    assert 0.93 <= coverage <= 0.995


def test_pairing_is_what_makes_an_interval_short() -> None:
    paired = paired_interval(3, 1, 100)
    unpaired = difference_interval((80, 82), (100, 100))
    assert paired[1] - paired[0] < 0.5 * (unpaired[1] - unpaired[0])


@pytest.mark.parametrize("rows", [1, 2])
def test_a_difference_of_shares_is_at_most_one(rows: int) -> None:
    low, high = paired_interval(rows, 0, rows)
    assert -1.0 < low < high == 1.0
    assert paired_interval(0, rows, rows) == (-1.0, -low)


def test_means_of_draws() -> None:
    first, second = np.array([0.4, 0.5, 0.6]), np.array([0.5, 0.6, 0.7, 0.8])
    from scipy.stats import ttest_ind

    expected = ttest_ind(second, first, equal_var=False).confidence_interval()
    many = 10**6, 10**6
    assert mean_difference_interval(first, second, many) == pytest.approx((expected.low, expected.high))
    assert mean_difference_interval(first[:1], second, many) is None


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_draws_that_happen_to_be_alike_have_the_error_of_their_rows(share: float) -> None:
    """Exactly, over all outcomes of two draws each, many of which have no spread of their own."""
    n, coverage = 6, 0.0
    pmf = binom.pmf(np.arange(n + 1), n, share)
    for outcome in product(range(n + 1), repeat=4):
        interval = mean_difference_interval(np.array(outcome[:2]) / n, np.array(outcome[2:]) / n, (n, n))
        assert interval is not None
        coverage += float(np.prod(pmf[list(outcome)])) * (interval[0] <= 0.0 <= interval[1])
    assert coverage >= 0.95
    two = json.loads(json.dumps(content()))
    two["series"]["held_out"] = {"digest": "same", "rows": 40, "right": {"uniform": "01" * 20}}
    first, second = (json.loads(json.dumps(two)) for _ in range(2))
    for record, draw in ((first, 0.55), (second, 0.475)):
        record["series"]["shuffled_labels"] = {"W": [draw, draw]}
    rows = {row.label: row for row in compare(Record("a", first), Record("b", second)).tables["Right on rows held out"]}
    row = rows["W on shuffled labels, mean"]
    assert row.difference.startswith("−7.5 points (−")
    assert not row.differs


@cache
def content(seed: int = 0, steps: int = 60, n: int = 12, name: str = "data", train: int = 8) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    labels = np.where(np.arange(n) % 2, 1.0, -1.0)
    data = Dataset(name, TokenData(rng.standard_normal((n, 3, 6)), rng.standard_normal((n, 4)), labels))
    settings = Settings(train=train, steps=steps, max_steps=steps, shuffles=3, seed=seed, time_limit=2.0)
    result = study(data, settings)
    return json.loads(json.dumps(verdict(result, claims(result), f"attsvm study {name}"), allow_nan=False))


def write_study(folder: Path, content: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "verdict.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_a_study_does_not_differ_from_itself() -> None:
    comparison = compare(Record("a", content()), Record("b", content()))
    assert comparison.settings == []
    assert not any(claim.changed for claim in comparison.claims)
    rows = [row for rows in comparison.tables.values() for row in rows]
    assert len(rows) > 15
    for row in rows:
        assert row.first == row.second
        assert row.difference.split(" ")[0] in ("0", "0.0", "0.0°")
        assert not row.differs


def test_settings_and_numbers_that_differ_are_told() -> None:
    comparison = compare(Record("a", content()), Record("b", content(steps=400)))
    assert comparison.settings == [("steps", 60, 400), ("max_steps", 60, 400)]
    assert "The rows held out are the same" in comparison.cautions[0]
    angles = {row.label: row for row in comparison.tables["Correlation, as an angle"]}
    row = angles["W with its Frobenius SVM"]
    values = [record.value("correlation_W_frobenius") for record in (comparison.first, comparison.second)]
    shift = np.degrees(np.arccos(values[1])) - np.degrees(np.arccos(values[0]))
    assert row.difference == f"{shift:+.1f}°".replace("-", "−")
    assert row.differs is None
    claims = {claim.key: claim for claim in comparison.claims}
    one = {claim["key"]: claim["holds"] for claim in content()["claims"]}
    two = {claim["key"]: claim["holds"] for claim in content(steps=400)["claims"]}
    assert {key for key, claim in claims.items() if claim.changed} == {key for key in one if one[key] is not two[key]}


def test_other_rows_are_not_paired_and_other_data_are_said() -> None:
    seeds = compare(Record("a", content()), Record("b", content(seed=1)))
    assert any(caution.startswith("The rows held out differ") for caution in seeds.cautions)
    assert ("seed", 0, 1) in seeds.settings
    sets = compare(Record("a", content()), Record("b", content(name="other")))
    assert sets.cautions[0].startswith("The data differ, data and other")
    everything = compare(Record("a", content()), Record("b", content(train=12)))
    assert "Right on rows held out" not in everything.tables
    assert any("holds out no rows" in caution for caution in everything.cautions)
    assert ("training rows", 8, 12) in everything.settings
    rows = {row.label: row for row in everything.tables["The SVMs and the training"]}
    row = rows["training rows"]
    assert (row.first, row.second, row.difference) == ("8", "12", "+4")
    row = rows["rows held out"]
    assert (row.first, row.second, row.difference) == ("4", "0", "−4")


def test_what_only_one_study_has_is_told_or_left_out() -> None:
    one, two = (json.loads(json.dumps(content())) for _ in range(2))
    one["versions"] = {"numpy": "2.1", "numba": "0.60"}
    two["versions"] = {"numpy": "2.1", "torch": "2.5"}
    del two["quantities"]["steps_W"]
    left = two["claims"].pop()
    comparison = compare(Record("a", one), Record("b", two))
    assert comparison.settings == [("version of numba", "0.60", None), ("version of torch", None, "2.5")]
    labels = [row.label for row in comparison.tables["The SVMs and the training"]]
    assert "steps of W" not in labels
    assert "steps of K, Q" in labels
    claims = {claim.key: claim for claim in comparison.claims}
    assert [key for key, claim in claims.items() if claim.changed] == [left["key"]]
    assert claims[left["key"]].sentences == (left["sentence"], None)
    assert all(claims[claim["key"]].sentences == (claim["sentence"],) * 2 for claim in two["claims"])


def test_a_correlation_that_rounding_puts_above_one_is_an_angle_of_zero() -> None:
    one, two = (json.loads(json.dumps(content())) for _ in range(2))
    for record, value in ((one, 1 + 2e-16), (two, -1 - 2e-16)):
        record["quantities"]["correlation_W_frobenius"]["value"] = value
    tables = compare(Record("a", one), Record("b", two)).tables
    row = next(row for row in tables["Correlation, as an angle"] if row.label == "W with its Frobenius SVM")
    assert (row.first, row.difference) == ("1 (0.0°)", "+180.0°")


def test_rows_are_known_by_their_texts_or_images_whatever_their_vectors() -> None:
    labels, mask = np.array([1.0, -1.0]), np.ones((2, 2), bool)
    tokens = [TokenData(np.full((2, 2, 3), scale), np.ones((2, 2)), labels) for scale in (1.0, 2.0)]
    texts = Passages.of_texts(["a b", "c d"], [[(0, 1, 0)], [(0, 1, 0)]])
    others = Passages.of_texts(["a b", "c e"], [[(0, 1, 0)], [(0, 1, 0)]])
    names = Passages.of_names(np.array([["a", "b"], ["c", "d"]]), mask)
    assert row_digest(Dataset("d", tokens[0])) != row_digest(Dataset("d", tokens[1]))
    one, two = (Dataset("d", data, passages=texts) for data in tokens)
    assert row_digest(one) == row_digest(two) != row_digest(Dataset("d", tokens[0], passages=others))
    assert row_digest(Dataset("d", tokens[0], passages=names)) == row_digest(Dataset("d", tokens[0]))
    images = read_patches(np.arange(16.0).reshape(2, 2, 4), None, 2, 2)
    one, two = (Dataset("d", data, patches=images) for data in tokens)
    assert row_digest(one) == row_digest(two)
    assert row_digest(one.take(np.array([0]))) != row_digest(one.take(np.array([1])))


def test_a_clear_difference_is_marked() -> None:
    """Of 100 rows 30 are won and none lost: zero lies outside any sensible interval."""
    claims = []
    for hits in ("0" * 30 + "1" * 70, "1" * 100):
        other = json.loads(json.dumps(content()))
        other["series"]["held_out"] = {"digest": "same", "rows": 100, "right": {"W": hits, "uniform": "01" * 50}}
        claims.append(Record("study", other))
    rows = {row.label: row for row in compare(claims[0], claims[1]).tables["Right on rows held out"]}
    assert rows["trained W"].differs
    assert rows["trained W"].difference.startswith("+30.0 points")
    # Of n out of n the exact lower end is 0.025^(1/n).
    assert rows["trained W"].first.startswith("70.0 % (")
    assert rows["trained W"].second == f"100.0 % ({100 * 0.025**0.01:.1f} to 100.0)"
    assert not rows["uniform attention"].differs


@pytest.mark.slow
def test_the_command_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path / "one", content())
    write_study(tmp_path / "two", content(steps=400, name="<b>"))
    assert main(["compare", "one", "two", "--out", "out"]) == 0
    output = capsys.readouterr().out
    assert "steps: 60 against 400" in output
    assert f"Page: {Path('out') / 'compare.html'}" in output
    page = (tmp_path / "out" / "compare.html").read_text(encoding="utf-8")
    assert "<b>" not in page.split('class="caution"')[1].split("</p>")[0]
    assert "one and two" in page
    record = json.loads((tmp_path / "out" / "compare.json").read_text(encoding="utf-8"))
    assert record["first"]["name"] == "one"
    assert record["tables"]["Right on rows held out"][0]["label"] == "uniform attention"
    assert main(["compare", "two", "one", "--out", "out"]) == 0
    assert len(list((tmp_path / "out").iterdir())) == 2


@pytest.fixture
def two_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two studies of which the second is right on 30 more of 100 rows, and a command that draws no page."""
    for name, hits in (("one", "0" * 30 + "1" * 70), ("two", "1" * 100)):
        other = json.loads(json.dumps(content()))
        other["series"]["held_out"] = {"digest": "same", "rows": 100, "right": {"W": hits, "uniform": "01" * 50}}
        write_study(tmp_path / name, other)
    monkeypatch.setattr("attsvm.report.comparison.write_comparison", lambda found, out, command: out / "compare.html")
    monkeypatch.chdir(tmp_path)
    return ["compare", "one", "two", "--out", "out"]


def test_the_command_prints_the_rows_that_differ(two_studies: list[str], capsys) -> None:
    assert main(two_studies) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if "; difference " in line]
    assert len(rows) == 1
    assert rows[0].startswith("  trained W: ")
    assert "; difference +30.0 points" in rows[0]


def test_a_comparison_waits_for_another_in_the_same_folder(two_studies: list[str], tmp_path: Path) -> None:
    released = []

    def release() -> None:
        released.append(True)
        stack.close()

    with ExitStack() as stack:
        stack.enter_context(locked(tmp_path / "out"))
        timer = Timer(0.2, release)
        timer.start()
        assert main(two_studies) == 0
        assert released
        timer.join()


def test_every_part_of_a_table_names_its_role(tmp_path: Path) -> None:
    comparison = compare(Record("a", content()), Record("b", content(steps=400)))
    page = write_comparison(comparison, tmp_path, "attsvm compare a b").read_text(encoding="utf-8")
    for tag, roles in (
        ("tr", {"row"}),
        ("td", {"cell"}),
        ("th", {"columnheader", "rowheader"}),
        ("tbody", {"rowgroup"}),
    ):
        parts = re.findall(rf"<{tag}\b[^>]*>", page)
        assert {match[1] for part in parts if (match := re.search(r'role="(\w+)"', part))} == roles
        assert all("role=" in part for part in parts)
    assert '<th role="rowheader" scope="row">' in page


def test_studies_of_equal_names_are_called_by_letters(tmp_path: Path) -> None:
    comparison = compare(Record("same", content()), Record("same", content(steps=400)))
    page = write_comparison(comparison, tmp_path, "attsvm compare x/same y/same").read_text(encoding="utf-8")
    assert "A and B" in page
    assert numbers(comparison, "")["second"]["name"] == "same"


@pytest.mark.parametrize(("length", "long"), [(24, False), (25, True)])
def test_studies_of_long_names_are_called_by_letters(length: int, long: bool) -> None:
    names = "a", "b" * length
    assert letters(compare(*(Record(name, content()) for name in names))) == (("A", "B") if long else names)


def test_curves_are_drawn_if_a_study_has_any() -> None:
    bare = json.loads(json.dumps(content()))
    bare["series"]["curves"] = {name: {"step": run["step"]} for name, run in bare["series"]["curves"].items()}
    one, other = Record("a", content()), Record("b", bare)
    single = json.loads(json.dumps(bare))
    single["series"]["curves"]["W"]["frobenius"] = content()["series"]["curves"]["W"]["frobenius"]
    for pair in ((one, one), (one, other), (other, one), (Record("c", single), other)):
        assert picture(compare(*pair)) is not None
    assert picture(compare(other, other)) is None


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (None, "is no directory; a directory that attsvm study has written was expected."),
        ({}, "holds no verdict.json; a directory"),
        ({"verdicts.json": "{}"}, "holds a reproduction; a directory"),
        ({"inspect.json": "{}"}, "holds an inspection; a directory"),
        ({"verdict.json": "{"}, "is damaged or holds no study"),
        ({"verdict.json": "[1]"}, "is damaged or holds no study"),
        (
            {"verdict.json": '{"complete": false, "stopped_in": "Training W"}'},
            "interrupted, in the stage “Training W”; a finished one was expected.",
        ),
        ({"verdict.json": '{"complete": true, "attsvm": "0.1"}'}, "by attsvm 0.1, which wrote no curves; a study"),
    ],
)
def test_what_cannot_be_compared_is_refused(files: dict[str, str] | None, sentence: str, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r".*".join(map(str, sentence.split("*")))):
        read_record(folder)


def test_a_study_is_not_compared_with_itself(tmp_path: Path, capsys) -> None:
    folder = write_study(tmp_path / "one", content())
    assert main(["compare", str(folder), str(folder / ".")]) == 2
    assert "are one directory; two studies were expected." in " ".join(capsys.readouterr().err.split())
