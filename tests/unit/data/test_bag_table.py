"""Tables of instances in bags: what is read, named and refused."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from attsvm import AttentionClassifier, TokenData
from attsvm.data.bag_table import read_bag_table
from attsvm.data.dataset import Dataset
from attsvm.data.digits import bags_of_digits
from attsvm.report.study import render
from attsvm.study import Settings, study
from attsvm.study.bag_report import report_bags
from attsvm.study.run import prepare
from attsvm.study.verdict import claims
from attsvm.study.words import nouns

TABLE = """molecule,conformation,musk,a,b
m1,first,yes,1.0,4
m2,one,no,2.0,5
m1,second,yes,3.0,6
m3,only,yes,4.0,9
"""


def written(folder: Path, content: str) -> Path:
    path = folder / "molecules.csv"
    path.write_text(content, encoding="utf-8")
    return path


def test_instances_are_gathered_by_bag_and_named_by_the_column_of_text(tmp_path: Path) -> None:
    data = read_bag_table(written(tmp_path, TABLE), "molecule", "musk")
    assert data.bags == ("m1", "m2", "m3")
    assert data.classes == ("yes", "no")
    np.testing.assert_array_equal(data.tokens.labels, [1, -1, 1])
    np.testing.assert_array_equal(data.tokens.queries, [[1.0], [1.0], [1.0]])
    np.testing.assert_array_equal(data.mask, [[True, True], [True, False], [True, False]])
    assert data.passages is not None
    assert [data.passages.name(0, 1), data.passages.name(2, 0)] == ["second", "only"]
    np.testing.assert_array_equal(data.tokens.tokens[0, :, 0], [1.0, 3.0])
    assert nouns(data).rows == "bags"
    assert data.take(np.array([2, 0])).bags == ("m3", "m1")
    lines = read_bag_table(written(tmp_path, TABLE.replace("conformation", "musk2").replace("first", "7")
        .replace("one", "8").replace("second", "9").replace("only", "10")), "molecule", "musk")  # fmt: skip
    assert lines.passages is not None
    assert lines.passages.name(0, 1) == "line 4"
    assert lines.tokens.d == 3


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("m1,second,yes", "m1,second,no", "has the labels 'yes' and 'no' in bag 'm1', line 4; one was expected."),
        ("2.0", "", "holds '' in line 3; a number was expected."),
        ("2.0", "inf", "holds 'inf' in line 3; a number was expected."),
        ("molecule", "compound", "a column 'molecule' was expected for --bag."),
        ("no", "yes", "column 'musk' of"),
    ],
)
def test_bad_tables_are_one_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read_bag_table(written(tmp_path, TABLE.replace(old, new, 1)), "molecule", "musk")
    with pytest.raises(ValueError, match="has no column of numbers besides molecule, musk; features were expected"):
        read_bag_table(written(tmp_path, "molecule,musk\nm1,yes\nm2,no\n"), "molecule", "musk")


@pytest.mark.slow
def test_a_study_of_bags_lists_the_nearest_selections_first(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lines = ["molecule,musk,a,b"]
    for bag in range(40):
        deciding = np.array([5.0, 4.0 * (bag % 2) - 2.0]) + random.normal(size=2)
        lines += [f"m{bag},{bag % 2},{x:.6f},{y:.6f}" for x, y in (deciding, *random.normal(size=(2, 2)))]
    data = read_bag_table(written(tmp_path, "\n".join(lines)), "molecule", "musk")
    found = study(data, Settings(train=30, steps=20, max_steps=20, shuffles=0))
    assert found.bags is not None
    margins = [one.margin for one in found.bags.instances]
    assert margins == sorted(margins)
    assert len(margins) == 30
    first = found.bags.instances[0]
    assert first.bag == found.setup.train.bags[first.row]  # type: ignore[index]
    assert f"those of bags {first.bag}, " in found.bags.guarantee
    # The deciding instance is the first of each bag, and bags have three lines.
    assert np.mean([(int(one.instance.removeprefix("line ")) - 2) % 3 == 0 for one in found.bags.instances]) > 0.8
    shares = {row.key: row.test for row in found.accuracies}
    assert shares["bags_attention"] is not None
    assert shares["bags_attention"] > 0.7
    assert shares["bags_witness_svm"] is not None
    page = render(found, claims(found), "attsvm study molecules.csv", {})
    shown, folded = page.split("<summary>The other 15 bags</summary>")
    table = shown[shown.index('id="nearest-bags"') :]
    assert [table.index(f">{one.bag}</td>") for one in found.bags.instances[:15]] == sorted(
        table.index(f">{one.bag}</td>") for one in found.bags.instances[:15]
    )
    assert all(f">{one.bag}</td>" in folded for one in found.bags.instances[15:])


def bags_of_two(random: np.random.Generator, labels: np.ndarray) -> Dataset:
    """In each bag one instance has the larger first feature; its second feature tells the label."""
    n = len(labels)
    tokens, places = random.normal(size=(n, 2, 2)), random.integers(0, 2, n)
    tokens[np.arange(n), places] += np.stack([np.full(n, 9.0), 6.0 * labels], axis=1)
    data = TokenData(tokens, np.ones((n, 1)), labels)
    return Dataset("bags", data, classes=("yes", "no"), bags=tuple(f"{place}" for place in places))


def test_a_report_on_bags_tells_training_bags_from_bags_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """All bags held out have the wrong label; bags are named after the instance that decides them."""
    monkeypatch.setattr(
        "attsvm.attention_classifier.AttentionClassifier", partial(AttentionClassifier, cv=None, decay=1e-3, steps=40)
    )
    random, labels = np.random.default_rng(0), np.where(np.arange(30) % 3, 1.0, -1.0)
    train, strangers = bags_of_two(random, labels), bags_of_two(random, labels[:12])
    wrong = TokenData(strangers.tokens.tokens, strangers.tokens.queries, -strangers.tokens.labels)
    setup = prepare(train, Settings(train=30))
    scale = setup.token_scale, setup.query_scale
    setup = replace(setup, test=replace(strangers, tokens=wrong).scaled(*scale))
    for test in (setup.test, None):
        report = report_bags(replace(setup, test=test), Settings())
        rows = {row.key: row for row in report.accuracies}
        assert set(rows) == {"bags_attention", "bags_svm", "bags_witness_svm"}
        for row in rows.values():
            assert (row.train, row.test) == (1.0, None if test is None else 0.0)
            assert row.right is None if test is None else (row.right is not None and not row.right.any())
        assert ("12 bags held out are covered" in report.guarantee) is (test is not None)
        assert ("held out" in report.guarantee) is (test is not None)
        assert sorted(one.row for one in report.instances) == list(range(30))
        for one in report.instances:
            assert one.label == ("yes" if setup.train.tokens.labels[one.row] > 0 else "no")
            assert one.instance == f"number {one.index + 1}"
            assert one.bag == str(one.index)


def test_features_are_standardised_on_the_training_bags(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lines = ["molecule,musk,a,b"]
    for bag in range(20):
        lines += [f"m{bag},{bag % 2},{x:.6f},{y:.6f}" for x, y in random.normal(3.0, (5.0, 0.1), size=(2, 2))]
    data = read_bag_table(written(tmp_path, "\n".join(lines)), "molecule", "musk")
    setup = prepare(data, Settings(train=12))
    assert setup.test is not None
    instances = setup.train.tokens.tokens[setup.train.mask]
    np.testing.assert_allclose(instances.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(instances.std(axis=0) * setup.token_scale, 1.0)
    assert not setup.train.standardise
    # Eight bags of held-out instances have other moments.
    assert (abs(setup.test.tokens.tokens[setup.test.mask].std(axis=0) * setup.token_scale - 1.0) > 0.01).any()


def test_bags_of_digits_hold_one_deciding_digit_each() -> None:
    data = bags_of_digits(40, 5, seed=1)
    pixels, digit = load_digits(return_X_y=True)
    names = {(row / 16.0).tobytes(): int(name) for row, name in zip(pixels, digit, strict=True)}
    for tokens, label in zip(data.tokens.tokens, data.tokens.labels, strict=True):
        drawn = [names[token.tobytes()] for token in tokens]
        assert drawn.count(3) == (label > 0)
        assert drawn.count(8) == (label < 0)
    assert np.count_nonzero(data.tokens.labels > 0) == 20
    assert data.patches is not None
    row, column, height, width = data.patches.boxes[2]
    patch = data.patches.images[7, row : row + height, column : column + width]
    np.testing.assert_array_equal(patch.ravel(), data.tokens.tokens[7, 2])
    with pytest.raises(
        ValueError, match=r"^classes is 'odd-even'; two different digits such as '3-8' were expected\.$"
    ):
        bags_of_digits(classes="odd-even")


@pytest.mark.parametrize(("classes", "words"), [("3-8", "a 3 or an 8"), ("8-5", "an 8 or a 5")])
def test_the_name_of_bags_of_digits_has_the_article_of_each_digit(classes: str, words: str) -> None:
    assert bags_of_digits(2, 4, classes=classes).name == f"sequences of 4 digits with {words}"
