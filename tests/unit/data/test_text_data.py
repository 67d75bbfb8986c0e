"""Labelled texts as data: what is read, how words become vectors, and one sentence for what cannot be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attsvm.data.dataset import Dataset
from attsvm.data.digits import digits
from attsvm.data.docstrings import LEAST_WORDS, docstrings
from attsvm.data.table import read_texts
from attsvm.data.text import (
    WINDOW,
    WORD,
    LabelledTexts,
    fit_vectors,
    from_vectors,
    principal_components,
    word_dataset,
)
from attsvm.data.token_data import TokenData
from attsvm.study import Settings, study
from attsvm.study.headline import cautions
from attsvm.study.run import default_train


def _file(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "texts.csv"
    path.write_text(content, encoding="utf-8")
    return path


def test_texts_and_labels_are_read(tmp_path: Path) -> None:
    path = _file(tmp_path, '\ufeffid,what,kind\n1,"One, two",a\n2,Three,b\n3,  ,a\n4,"Four\nfive",b\n')
    corpus = read_texts(path, "what", "kind")
    assert corpus.texts == ("One, two", "Three", "Four\nfive")
    assert corpus.labels.tolist() == [-1.0, 1.0, 1.0]
    assert corpus.classes == ("b", "a")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("what,kind\nx,a\n", r"'kind' of .* has 1 value, 'a' \(1 row\); two were expected\."),
        (
            "what,kind\nx,a\ny,b\nz,c\n",
            r"has 3 values, 'a' \(1 row\), .*; two were expected; --classes a,b keeps two of them",
        ),
        (
            f"what,kind\nx,{'word ' * 9}\ny,b\nz,c\n",
            r"has 3 values, '(word ){6}…' \(1 row\), 'b' \(1 row\), 'c' \(1 row\); two were expected\.",
        ),
        ("text,kind\nx,a\n", "has the columns text, kind; a column 'what' was expected for --text"),
        ("what,kind\nx\n", "a row that ends before"),
        ("", "has no rows"),
    ],
)
def test_what_cannot_be_read_is_said(content: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_texts(_file(tmp_path, content), "what", "kind")


@pytest.mark.parametrize(
    ("name", "raw", "note"),
    [
        ("a.tsv", "id\twhat\tkind\n1\tcafé, au lait\ta\n2\tthé\tb\n".encode(), None),
        ("a.csv", "id;what;kind\n1;café, au lait;a\n2;thé;b\n".encode(), "separated by semicolons"),
        ("a.csv", "id\twhat\tkind\r\n1\tcafé, au lait\ta\r\n2\tthé\tb\r\n".encode("latin-1"), "separated by tabs"),
        ("a.csv", 'id,what,kind\n1,"café, au lait",a\n2,thé,b\n'.encode("latin-1"), "Windows-1252"),
        ("a.csv", 'id,what,kind\n1,"café, au lait",a\n2,thé,b\n'.encode("utf-16"), None),
    ],
)
def test_files_as_people_have_them(name: str, raw: bytes, note: str | None, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(raw)
    corpus = read_texts(path, "what", "kind")
    assert corpus.texts == ("café, au lait", "thé")
    assert corpus.labels.tolist() == [-1.0, 1.0]
    assert note is None or note in " ".join(corpus.notes)


@pytest.mark.parametrize(("name", "text"), [("a.csv", "one"), ("a.tsv", "two")])
def test_the_usual_delimiter_of_a_file_comes_first(name: str, text: str, tmp_path: Path) -> None:
    """Commas and tabs both give the columns, with different texts."""
    path = tmp_path / name
    path.write_text("what,kind,\twhat\tkind\none,a,\ttwo\tc\none,b,\ttwo\td\n", encoding="utf-8")
    corpus = read_texts(path, "what", "kind")
    assert corpus.texts == (text, text)
    assert "separated" not in " ".join(corpus.notes)


def test_gaps_and_repeats_are_said(tmp_path: Path) -> None:
    path = _file(tmp_path, "what,kind\nx,a\ny,b\nx,a\ny,a\n,a\nz,\nw,NA\nv,b\n")
    corpus = read_texts(path, "what", "kind")
    assert corpus.texts == ("x", "y", "x", "y", "v")
    text = " ".join(corpus.notes)
    assert "without a text are left out, 1 in all" in text
    assert "without a label are left out, 2 in all" in text
    assert "2 of 5 rows repeat the text of another; 1 of these texts have both labels" in text


def test_two_of_three_classes(tmp_path: Path) -> None:
    path = _file(tmp_path, "what,kind\nx,good\ny,bad\nz,neither\nw,good\n")
    corpus = read_texts(path, "what", "kind", ("good", "bad"))
    assert corpus.texts == ("x", "y", "w")
    assert corpus.classes == ("good", "bad")
    assert corpus.notes == ("Rows with another label are left out, 1 in all.",)
    with pytest.raises(ValueError, match="--classes is good,worse; two of the labels in 'kind'"):
        read_texts(path, "what", "kind", ("good", "worse"))


def test_long_files_are_drawn_from_and_the_rest_is_said() -> None:
    """Vectors come from all rows, the data set holds some; what is not trained on is named."""
    rng = np.random.default_rng(0)
    texts = tuple(" ".join(f"w{word}" for word in rng.integers(0, 9, size=6)) for _ in range(900))
    corpus = LabelledTexts("long.csv", texts, np.where(np.arange(900) % 50, 1.0, -1.0), ("yes", "no"))
    data = word_dataset(corpus, most=600)
    assert data.tokens.n == 600
    assert any("600 of 900 texts were drawn at random" in note for note in data.notes)
    full = word_dataset(corpus)
    assert full.tokens.n == 900
    # Three quarters fit: 900 rows of 6 tokens and 8 coordinates are 43,200 entries.
    assert default_train(full) == 675
    result = study(full, Settings(train=120, steps=20, shuffles=0, max_steps=20))
    text = " ".join(cautions(result))
    assert "98 % of the" in text
    assert "'yes'" in text
    assert "--train takes more" not in text


def test_the_default_trains_on_what_the_time_allows() -> None:
    """A million entries: 488 texts of 64 tokens and 32 coordinates; digits keep their 100."""
    tokens = np.zeros((3000, 64, 32))
    tokens[..., 0] = 1.0
    data = Dataset("long", TokenData(tokens, tokens[:, 0], np.where(np.arange(3000) % 2, 1.0, -1.0), None))
    assert default_train(data) == 1_000_000 // (64 * 32)
    assert default_train(digits()) == 100


def test_vectors_of_words_in_the_same_company_are_close() -> None:
    """Two groups of words that never meet: within a group all share their company, so cosines are near 1, across 0."""
    rng = np.random.default_rng(0)
    texts = [rng.permutation(5) + 5 * (i % 2) for i in range(200)]
    vectors = fit_vectors([text.tolist() for text in texts], 10, 2)
    cosines = vectors @ vectors.T
    assert cosines[:5, :5].min() > 0.99
    assert np.abs(cosines[:5, 5:]).max() < 0.01
    second = fit_vectors([text.tolist() for text in texts], 10, 2)
    # The two groups have equal singular values, so the vectors are fixed up to a rotation: their cosines are one set.
    np.testing.assert_allclose(second @ second.T, cosines, atol=1e-12)


def test_vectors_are_the_leading_part_of_positive_information() -> None:
    rng, words = np.random.default_rng(3), 7
    texts = [rng.choice(words, size=6, p=np.arange(1, words + 1) / 28).tolist() for _ in range(30)]
    table = np.zeros((words, words))
    for text in texts:
        for i, one in enumerate(text):
            for other in text[i + 1 : i + 1 + WINDOW]:
                table[one, other] += 1
                table[other, one] += 1
    expected = np.outer(table.sum(axis=0), table.sum(axis=0)) / table.sum()
    positive = np.log(np.maximum(table / expected, 1.0))
    left, sigma, _ = np.linalg.svd(positive)
    assert sigma[2] > 1.01 * sigma[3]
    vectors = left[:, :3] * np.sqrt(sigma[:3])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = fit_vectors(texts, words, 3)
    np.testing.assert_allclose(found @ found.T, vectors @ vectors.T, atol=1e-10)
    assert fit_vectors(texts, words, words + 1).shape == (words, words - 1)


def _sentences(n: int) -> LabelledTexts:
    rng = np.random.default_rng(1)
    common = [f"word{k}" for k in range(30)]
    marks = {1.0: ["good", "fine", "great"], -1.0: ["bad", "poor", "awful"]}
    labels = np.where(np.arange(n) % 2, 1.0, -1.0)
    texts = tuple(" ".join(rng.permutation([*rng.choice(common, 6), rng.choice(marks[y])])) for y in labels.tolist())
    return LabelledTexts("made.csv", texts, labels, ("good", "bad"))


def test_a_text_is_its_different_words() -> None:
    corpus = LabelledTexts(
        "f.csv", ("A b a c", "b c a", "b c once", "!!"), np.array([1.0, -1.0, 1.0, -1.0]), ("p", "q")
    )
    data = word_dataset(corpus)
    assert data.mask.sum(axis=1).tolist() == [3, 3, 2]
    assert any("without a token are left out, 1 in all" in note for note in data.notes)
    np.testing.assert_allclose(np.linalg.norm(data.tokens.tokens[data.mask], axis=1), 1.0)
    with pytest.raises(ValueError, match="2 words that occur twice"):
        word_dataset(LabelledTexts("f.csv", ("a b", "b a"), np.array([1.0, -1.0]), ("p", "q")))
    with pytest.raises(ValueError, match="all have one label"):
        from_vectors(corpus, [np.ones((1, 2)), np.ones((0, 2)), np.ones((2, 2)), np.ones((0, 2))], ())


def test_principal_components() -> None:
    """Points on a plane in five dimensions keep their distances, up to the scale, in two."""
    rng = np.random.default_rng(2)
    points = rng.standard_normal((9, 2)) @ np.linalg.qr(rng.standard_normal((5, 2)))[0].T + 7.0
    (first, second), share = principal_components([points[:4], points[4:]], 2)
    assert share == pytest.approx(1.0)
    flat = np.concatenate([first, second])
    assert np.linalg.norm(flat, axis=1).mean() == pytest.approx(1.0)
    ratio = np.linalg.norm(points[0] - points[1:], axis=1) / np.linalg.norm(flat[0] - flat[1:], axis=1)
    np.testing.assert_allclose(ratio, ratio[0])


def test_a_large_mean_costs_no_digits_of_the_variance() -> None:
    """Sums of squares about zero would round by as much as the variance."""
    points = np.random.default_rng(4).integers(-512, 512, size=(7, 3)) / 256
    variances = np.linalg.svd(points - points.mean(axis=0), compute_uv=False) ** 2
    _, share = principal_components([points[:3] + 2.0**30, points[3:] + 2.0**30], 1)
    # The rounding of the mean is 2^-23 at most.
    assert share == pytest.approx(variances[0] / variances.sum(), rel=1e-6)


def test_equal_vectors_keep_all_of_their_variance() -> None:
    (first, second), share = principal_components([np.ones((2, 3)), np.ones((1, 3))], 2)
    assert share == 1.0
    assert not first.any()
    assert not second.any()


@pytest.mark.slow
def test_training_on_texts_reaches_their_svm() -> None:
    result = study(word_dataset(_sentences(60)), Settings(train=40, steps=2000, shuffles=0))
    run = result.runs["W"]
    assert run.correlation is not None
    # W's correlation approaches one as 1/k^2 once the selection is final; autograd in float32 stops on the way.
    assert run.correlation > 0.99
    plain = next(p for p in result.precision if (p.dtype, p.numerics) == ("float32", "autograd"))
    assert plain.curve[-1] < run.correlation - 0.05


def test_docstrings_are_prose_of_two_libraries() -> None:
    result = docstrings("numpy-scipy")
    assert result.classes == ("scipy", "numpy")
    assert set(result.labels) == {-1.0, 1.0}
    assert min((result.labels > 0).sum(), (result.labels < 0).sum()) > 100
    assert len(set(result.texts)) == len(result.texts) == len(result.labels)
    assert min(len(WORD.findall(text)) for text in result.texts) >= LEAST_WORDS
    for text in result.texts:
        assert "Parameters -----" not in text
        assert ">>>" not in text
    with pytest.raises(ValueError, match="classes is 'numpy-torch'; two of numpy, scipy"):
        docstrings("numpy-torch")


def test_lines_that_end_in_carriage_returns_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'id,what,kind\r1,"One, two",a\r2,"Three\nfour",b\r'.replace(b"\n", b" "))
    corpus = read_texts(path, "what", "kind")
    assert corpus.texts == ("One, two", "Three four")
    assert "Lines of a.csv end in carriage returns." in corpus.notes


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"what,kind\nhello\rworld,a\nx,b\n", r"malformed in line 2 \(new-line character seen in unquoted field"),
        (b"\xff\xfew\x00h\x00a", "bytes at offset 6 that are no text; UTF-8, UTF-16 or Windows-1252 was expected"),
        (b"what,kind\n\x81\x8d,a\nx,b\n", "bytes at offset 10 that are no text"),
        (b"what,kind\nx\x00y,a\nx,b\n", "has a NUL at character 11; text in UTF-8"),
        (bytes(range(256)) * 4, "that are no text|has a NUL"),
        (b'what,kind\n"' + b"x" * 131_073 + b'",a\ny,b\n', r"malformed in line 2 \(field larger than field limit"),
        (b"w" * 131_073 + b"what,kind\nx,a\ny,b\n", r"malformed in line 1 .* fields of up to 131,072 characters"),
        (b"what,kind,what\nx,a,z\ny,b,z\n", "has 2 columns 'what'; different names were expected"),
        (b"what, kind ,kind\nx,a,z\ny,b,z\n", "has 2 columns 'kind'; different names were expected"),
    ],
)
def test_files_that_are_no_table_get_a_sentence(raw: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=sentence) as refusal:
        read_texts(path, "what", "kind")
    assert not isinstance(refusal.value, UnicodeError)  # whose own words name no file
    assert str(refusal.value).startswith(str(path))


def test_quotes_of_another_delimiter_are_none(tmp_path: Path) -> None:
    """Under commas the quoted field begins within another, so that its carriage return would end a line."""
    path = tmp_path / "a.csv"
    path.write_bytes(b'what;kind;"a\rnote"\nx;a;n\ny;b;n\n')
    assert read_texts(path, "what", "kind").texts == ("x", "y")
