"""Labelled texts as data: what is read, how words become vectors, and one sentence for what cannot be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attsvm.data.docstrings import LEAST_WORDS, docstrings
from attsvm.data.text import (
    WORD,
    LabelledTexts,
    fit_vectors,
    from_vectors,
    principal_components,
    read_texts,
    word_dataset,
)
from attsvm.study import Settings, study


def _file(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "texts.csv"
    path.write_text(content, encoding="utf-8")
    return path


def test_texts_and_labels_are_read(tmp_path: Path) -> None:
    path = _file(tmp_path, '\ufeffid,what,kind\n1,"One, two",a\n2,Three,b\n3,  ,a\n4,"Four\nfive",b\n')
    read = read_texts(path, "what", "kind")
    assert read.texts == ("One, two", "Three", "Four\nfive")
    assert read.labels.tolist() == [-1.0, 1.0, 1.0]
    assert read.classes == ("b", "a")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("what,kind\nx,a\n", "'kind' of .* has 1 values, 'a'; two were expected"),
        ("what,kind\nx,a\ny,b\nz,c\n", "has 3 values, 'a', 'b', 'c'"),
        ("text,kind\nx,a\n", "no column 'what' for --text; it has text, kind"),
        ("what,kind\nx\n", "a row that ends before"),
        ("", "it has no rows"),
    ],
)
def test_what_cannot_be_read_is_said(content: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_texts(_file(tmp_path, content), "what", "kind")


def test_vectors_of_words_in_the_same_company_are_close() -> None:
    """Two groups of words that never meet: within a group all share their company, so cosines are near 1, across 0."""
    rng = np.random.default_rng(0)
    texts = [rng.permutation(5) + 5 * (i % 2) for i in range(200)]
    vectors = fit_vectors([text.tolist() for text in texts], 10, 2)
    cosines = vectors @ vectors.T
    assert cosines[:5, :5].min() > 0.99
    assert np.abs(cosines[:5, 5:]).max() < 0.01
    again = fit_vectors([text.tolist() for text in texts], 10, 2)
    # The two groups have equal singular values, so the vectors are fixed up to a rotation: their cosines are one set.
    np.testing.assert_allclose(again @ again.T, cosines, atol=1e-12)


def _sentences(n: int) -> LabelledTexts:
    rng = np.random.default_rng(1)
    common = [f"word{k}" for k in range(30)]
    marks = {1.0: ["good", "fine", "great"], -1.0: ["bad", "poor", "awful"]}
    labels = np.where(np.arange(n) % 2, 1.0, -1.0)
    texts = tuple(" ".join(rng.permutation([*rng.choice(common, 6), rng.choice(marks[y])])) for y in labels.tolist())
    return LabelledTexts("made.csv", texts, labels, ("good", "bad"))


def test_a_text_is_its_different_words() -> None:
    read = LabelledTexts("f.csv", ("A b a c", "b c a", "b c once", "!!"), np.array([1.0, -1.0, 1.0, -1.0]), ("p", "q"))
    data = word_dataset(read)
    assert data.mask.sum(axis=1).tolist() == [3, 3, 2]
    assert any("without a token are left out, 1 in all" in note for note in data.notes)
    np.testing.assert_allclose(np.linalg.norm(data.tokens.tokens[data.mask], axis=1), 1.0)
    with pytest.raises(ValueError, match="2 words that occur twice"):
        word_dataset(LabelledTexts("f.csv", ("a b", "b a"), np.array([1.0, -1.0]), ("p", "q")))
    with pytest.raises(ValueError, match="all have one label"):
        from_vectors(read, [np.ones((1, 2)), np.ones((0, 2)), np.ones((2, 2)), np.ones((0, 2))], ())


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


def test_training_on_texts_reaches_their_svm() -> None:
    found = study(word_dataset(_sentences(60)), Settings(train=40, steps=4000, shuffles=0))
    run = found.runs["W"]
    assert run.correlation is not None
    # W's correlation approaches one as 1/k^2 once the selection is final; autograd in float32 stops on the way.
    assert run.correlation > 0.99
    plain = next(p for p in found.precision if (p.dtype, p.numerics) == ("float32", "autograd"))
    assert plain.curve[-1] < run.correlation - 0.05


def test_docstrings_are_prose_of_two_libraries() -> None:
    found = docstrings("numpy-scipy")
    assert found.classes == ("scipy", "numpy")
    assert min((found.labels > 0).sum(), (found.labels < 0).sum()) > 100
    assert len(set(found.texts)) == len(found.texts) == len(found.labels)
    assert min(len(WORD.findall(text)) for text in found.texts) >= LEAST_WORDS
    for text in found.texts:
        assert "Parameters -----" not in text
        assert ">>>" not in text
    with pytest.raises(ValueError, match="classes is 'numpy-torch'; two of numpy, scipy"):
        docstrings("numpy-torch")
