"""What a report shows of the user's own rows: words, names of tokens, images of any size."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup
from matplotlib.figure import Figure

from attsvm import TokenData
from attsvm.data.dataset import Dataset
from attsvm.data.images import read_patches
from attsvm.data.npz import read_dataset
from attsvm.data.passages import BETWEEN, Passages
from attsvm.data.text import MOST_TOKENS, LabelledTexts, from_vectors, word_dataset
from attsvm.plots.patches import selection_figure, support_figure
from attsvm.report.formulas import DISPLAY, formula, glossary, tex_of_pages
from attsvm.report.study import TERMS, render
from attsvm.study import Settings, Study, study
from attsvm.study.excerpts import BEST_MARK, SELECTED_MARK, SUPPORT_MARK, excerpts, frequent, trained_margins
from attsvm.study.verdict import claims
from attsvm.study.words import share_text


@cache
def study_result() -> Study:
    """Every text has one word that tells its label among words that do not."""
    rng = np.random.default_rng(5)
    common = [f"word{k}" for k in range(12)]
    labels = np.where(np.arange(40) % 2, 1.0, -1.0)
    marks = {1.0: ["Good", "fine"], -1.0: ["bad", "poor"]}
    texts = [f"{', '.join(rng.permutation([*rng.choice(common, 4), rng.choice(marks[y])]))}." for y in labels.tolist()]
    corpus = LabelledTexts("told.csv", tuple(texts), labels, ("good", "bad"))
    return study(word_dataset(corpus), Settings(train=24, steps=300, max_steps=300, shuffles=0, time_limit=2.0))


def test_a_text_is_cut_at_its_words_and_joins_again() -> None:
    corpus = LabelledTexts("f.csv", ("A b, a c!", "b c a", "b c once."), np.array([1.0, -1.0, 1.0]), ("p", "q"))
    passages = word_dataset(corpus).passages
    assert passages is not None
    assert tuple("".join(pieces) for pieces in passages.pieces) == corpus.texts
    assert passages.pieces[0] == ("A", " ", "b", ", ", "a", " ", "c", "!")
    # The repeated word is one token; what occurs once in the file is none.
    assert passages.tokens[0] == (0, BETWEEN, 1, BETWEEN, 0, BETWEEN, 2, BETWEEN)
    assert passages.tokens[2] == (0, BETWEEN, 1, BETWEEN)
    assert passages.name(0, 2) == "c"
    assert passages.name(2, 5) == ""
    assert passages.take(np.array([1])).pieces == (("b", " ", "c", " ", "a"),)


def test_tokens_past_the_last_are_not_marked_and_texts_without_any_are_left_out() -> None:
    text = " ".join(f"w{k}" for k in range(MOST_TOKENS + 5))
    spans = [(match, match + len(f"w{k}"), k) for k in range(MOST_TOKENS + 5) if (match := text.index(f"w{k}")) >= 0]
    corpus = LabelledTexts("f.csv", ("", text, "w0"), np.array([1.0, -1.0, 1.0]), ("p", "q"))
    vectors = [np.zeros((0, 3)), np.eye(MOST_TOKENS + 5, 3), np.ones((1, 3))]
    data = from_vectors(corpus, vectors, (), [[], spans, [(0, 2, 0)]])
    assert data.passages is not None
    assert len(data.passages.pieces) == data.tokens.n == 2
    assert max(data.passages.tokens[0]) == MOST_TOKENS - 1


def test_overlapping_and_empty_spans_lose_no_letter() -> None:
    passages = Passages.of_texts(["naïve"], [[(0, 3, 0), (2, 3, 1), (3, 3, 2), (3, 5, 3)]])
    assert passages.pieces == (("naï", "ve"),)
    assert passages.tokens == ((0, 3),)


def test_the_closest_decisions_come_first_and_say_what_is_marked() -> None:
    result = study_result()
    run = result.runs["W"]
    margins = trained_margins(result, run)
    extracts = excerpts(result, run)
    assert [one.title for one in extracts[:3]] == ["Closest decision 1", "Closest decision 2", "A typical text"]
    order = np.argsort(margins, kind="stable")
    passages = result.setup.train.passages
    assert passages is not None
    for one, i in zip(extracts[:2], order[:2], strict=True):
        assert "".join(piece.text for piece in one.pieces) == "".join(passages.pieces[i])
        selected = {piece.text for piece in one.pieces if SELECTED_MARK in piece.marks}
        assert selected == {passages.name(i, int(run.selected[i]))}
        neighbours = {passages.name(i, int(t)) for t in np.flatnonzero(run.solutions["frobenius"].support[i])}
        assert {piece.text for piece in one.pieces if SUPPORT_MARK in piece.marks} == neighbours
        assert all(f"“{text}”" in " ".join(one.notes) for text in selected | neighbours)
        best = {piece.text for piece in one.pieces if BEST_MARK in piece.marks}
        assert (best == set()) == (run.selected[i] == result.setup.optimal[i])
        final = np.asarray(run.trace.attention[-1])[i]
        assert f"is selected with {share_text(float(final[run.selected[i]]))} of the attention" in one.notes[0]
        assert max(piece.attention or 0.0 for piece in one.pieces) == final.max()


def test_no_trained_margin_beats_the_svm() -> None:
    """Of its norm the SVM has the largest smallest margin, one, up to its gap of at most 1e-9."""
    result = study_result()
    for run in result.runs.values():
        assert trained_margins(result, run).min() <= 1 + 1e-8


def test_trained_margins_are_those_of_the_last_matrix_at_the_norm_of_the_svm() -> None:
    result = study_result()
    data = result.setup.train
    for run in result.runs.values():
        W, solution = np.asarray(run.trace.W[-1]), run.solutions[run.own]
        values = np.linalg.svd(W, compute_uv=False)
        norm = np.sqrt(np.sum(values**2)) if run.own == "frobenius" else np.sum(values)
        margins = []
        for X, z, visible, a in zip(data.tokens.tokens, data.tokens.queries, data.mask, run.selected, strict=True):
            others = [t for t in np.flatnonzero(visible) if (X[t] != X[a]).any()]
            margins.append(min((X[a] - X[t]) @ W @ z for t in others) * solution.objective / norm)
        np.testing.assert_allclose(trained_margins(result, run), margins, rtol=1e-9)


def test_margins_are_compared_with_an_svm_only_where_there_is_one() -> None:
    result = study_result()
    run = result.runs["W"]
    for shown, ending in ((run, r"of the attention and a margin of -?\d+\.\d\d; the SVM has 1\.$"),
                          (replace(run, curves={}), r"\d % of the attention\.$")):  # fmt: skip
        notes = [one.notes[0] for one in excerpts(result, shown) if not one.title.startswith("Held out")]
        assert notes
        assert all(re.search(ending, note) for note in notes)


def test_a_long_rest_of_a_text_is_cut_between_words() -> None:
    """The rest has no token; words of four characters and a blank fit twelve times into sixty."""
    result = study_result()
    train = result.setup.train
    assert train.passages is not None
    pieces = tuple((*own, "rest " * 20) for own in train.passages.pieces)
    tokens = tuple((*own, BETWEEN) for own in train.passages.tokens)
    longer = replace(train, passages=Passages(pieces, tokens, prose=True))
    run = result.runs["W"]
    pairs = [excerpts(one, run) for one in (result, replace(result, setup=replace(result.setup, train=longer)))]
    shown = [(one, cut) for one, cut in zip(*pairs, strict=True) if not one.title.startswith("Held out")]
    assert shown
    for one, cut in shown:
        assert cut.pieces[:-1] == one.pieces
        assert cut.pieces[-1].text == " ".join(["rest"] * 12) + " …"


def test_an_outcome_of_zero_is_wrong() -> None:
    result = study_result()
    test = result.setup.test
    assert test is not None
    tokens = TokenData(np.zeros_like(test.tokens.tokens), test.tokens.queries, test.tokens.labels, test.tokens.mask)
    blank = replace(result, setup=replace(result.setup, test=replace(test, tokens=tokens)))
    titles = [one.title for one in excerpts(blank, blank.runs["W"]) if one.title.startswith("Held out")]
    assert titles == ["Held out, the text most clearly wrong"]


def test_held_out_rows_are_those_of_largest_and_smallest_outcome() -> None:
    extracts = excerpts(study_result(), study_result().runs["W"])
    titles = [one.title for one in extracts]
    assert "Held out, the text most clearly right" in titles
    right = next(one for one in extracts if one.title.endswith("right"))
    label = right.notes[0].removeprefix("Labelled ").split(": ")[0].split(", predicted ")
    assert label[0] == label[1]
    for one in extracts:
        if one.title.endswith("wrong"):
            label = one.notes[0].removeprefix("Labelled ").split(": ")[0].split(", predicted ")
            assert label[0] != label[1]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_held_out_rows_are_shown_with_their_labels(sign: float) -> None:
    """With all labels turned round, rows that were right are wrong."""
    result = study_result()
    test = result.setup.test
    assert test is not None
    assert test.passages is not None
    tokens = TokenData(test.tokens.tokens, test.tokens.queries, sign * test.tokens.labels, test.tokens.mask)
    turned = replace(result, setup=replace(result.setup, test=replace(test, tokens=tokens)))
    texts = ["".join(pieces) for pieces in test.passages.pieces]
    shown = [one for one in excerpts(turned, turned.runs["W"]) if one.title.startswith("Held out")]
    assert len(shown) == 2
    for one in shown:
        row = texts.index("".join(piece.text for piece in one.pieces))
        assert one.notes[0].startswith(f"Labelled {'good' if tokens.labels[row] > 0 else 'bad'}, predicted ")


def test_frequent_selections_are_counted_by_class() -> None:
    result = study_result()
    counts = frequent(result.setup.train, result.runs["W"].selected)
    assert set(counts) == {"good", "bad"}
    passages, labels = result.setup.train.passages, result.setup.train.tokens.labels
    assert passages is not None
    chosen = [passages.name(i, int(token)).lower() for i, token in enumerate(result.runs["W"].selected)]
    for label, side in (("good", 1), ("bad", -1)):
        text, number = counts[label][0]
        names = [name for name, own in zip(chosen, labels, strict=True) if own == side]
        assert names.count(text) == number == max(map(names.count, names))


def test_the_page_marks_words_by_more_than_colour_and_escapes_them() -> None:
    page = render(study_result(), claims(study_result()), "attsvm study told.csv", {})
    assert 'class="token selected"' in page
    assert "is selected with" in page
    assert "Texts under trained W, chosen by rule" in page
    assert "texts held out" in page
    setup = study_result().setup
    passages = setup.train.passages
    assert passages is not None
    markup = Passages(tuple(("<b>", *pieces[1:]) for pieces in passages.pieces), passages.tokens, prose=True)
    result = replace(study_result(), setup=replace(setup, train=replace(setup.train, passages=markup)))
    section = render(result, claims(result), "", {}).split('id="passages"')[1].split("</section>")[0]
    assert "<b>" not in section
    assert "&lt;b&gt;" in section


def test_formulas_of_the_pages_are_stored() -> None:
    assert {term for term, _ in glossary(TERMS)} == set(TERMS)
    for name in DISPLAY:
        assert formula(name).startswith("<math")
    formulas = " ".join(str(meaning) for _, meaning in glossary(TERMS))
    assert "$" not in formulas
    assert len(tex_of_pages()) > len(DISPLAY)
    assert {tex for tex, displayed in tex_of_pages().items() if displayed} == set(DISPLAY.values())


def test_the_glossary_of_a_page_has_every_word_of_the_documentation() -> None:
    source = files("attsvm.report").joinpath("glossary.md").read_text(encoding="utf-8")
    words = " ".join(re.sub(r"\$[^$]*\$|[*`]", "", source).split())
    for term, meaning in glossary(TERMS):
        shown = Markup(re.sub(r"(?s)<math.*?</math>", "", str(meaning))).striptags()
        assert f"{term} : {' '.join(shown.split())}" in words


def test_the_glossary_sets_terms_in_italics_and_code_as_code() -> None:
    source = files("attsvm.report").joinpath("glossary.md").read_text(encoding="utf-8")
    for term, mark, tag in (("Bag", r"\*", "i"), ("Numerics", "`", "code")):
        text = source.split(f"{term}\n: ")[1].split("\n\n")[0]
        ((_, meaning),) = glossary([term])
        marked = re.findall(f"{mark}(.+?){mark}", text)
        assert marked
        assert re.findall(r"<(\w+)>(.+?)</", meaning) == [(tag, str(Markup.escape(words))) for words in marked]


def arrays(n: int = 4, T: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.where(np.arange(n) % 2, 1, -1)
    return {"tokens": rng.standard_normal((n, T, 2)), "queries": rng.standard_normal((n, 2)), "labels": labels}


def save(path: Path, **more: np.ndarray) -> Path:
    given: dict[str, Any] = arrays() | more
    np.savez(path / "data.npz", **given)
    return path / "data.npz"


def test_names_of_tokens_are_read(tmp_path: Path) -> None:
    mask = np.ones((4, 3), bool)
    mask[1, 0] = False
    names = np.array(["age", "blood pressure", "größe"])
    data = read_dataset(save(tmp_path, names=names, mask=mask, classes=np.array(["ill", "well"])))
    assert data.classes == ("ill", "well")
    assert data.passages is not None
    assert "".join(data.passages.pieces[0]) == "age · blood pressure · größe"
    assert "".join(data.passages.pieces[1]) == "blood pressure · größe"
    assert data.passages.tokens[1] == (1, BETWEEN, 2)
    own = read_dataset(save(tmp_path, names=np.array([[f"{i}{t}" for t in range(3)] for i in range(4)])))
    assert own.passages is not None
    assert own.passages.name(2, 1) == "21"


@pytest.mark.parametrize(
    ("shape", "stored_shape"),
    [
        ((4, 3, 9), (4, 3, 9)),
        ((4, 3, 9, 1), (4, 3, 9)),
        ((4, 3, 9, 3), (4, 3, 9, 3)),
        ((4, 4, 3, 9), (4, 3, 9, 4)),
    ],
)
def test_images_of_any_size_and_number_of_channels(
    shape: tuple[int, ...], stored_shape: tuple[int, ...], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    data = read_dataset(save(tmp_path, images=rng.integers(0, 256, size=shape, dtype=np.uint8)))
    assert data.patches is not None
    assert data.patches.images.shape == stored_shape
    assert data.patches.boxes.tolist() == [[0, 0, 3, 3], [0, 3, 3, 3], [0, 6, 3, 3]]
    assert 0 <= data.patches.shown(data.patches.images).min() < data.patches.shown(data.patches.images).max() <= 1


def test_other_numbers_of_channels_are_shown_by_their_mean() -> None:
    images = np.random.default_rng(0).random((2, 6, 18, 7))
    np.testing.assert_array_equal(read_patches(images, None, 2, 3).images, images.mean(axis=3))


@pytest.mark.parametrize(
    ("smallest", "largest", "span"),
    [(0.2, 0.7, (0.0, 1.0)), (0.0, 0.7, (0.0, 1.0)), (-1.0, 0.5, (-1.0, 0.5)), (0.5, 3.0, (0.5, 3.0))],
)
def test_values_outside_the_usual_range_set_black_and_white(
    smallest: float, largest: float, span: tuple[float, float]
) -> None:
    patches = read_patches(np.linspace(smallest, largest, 2 * 3 * 9).reshape(2, 3, 9), None, 2, 3)
    assert (patches.low, patches.high) == span
    # A mean of images may leave the span by its rounding.
    scaled = patches.shown(np.interp([-0.1, 0.0, 0.25, 1.0, 1.1], [0.0, 1.0], span))
    np.testing.assert_allclose(scaled, [0.0, 0.0, 0.25, 1.0, 1.0])


def test_boxes_may_overlap_and_a_token_may_have_no_place(tmp_path: Path) -> None:
    boxes = np.array([[0, 0, 0, 0], [0, 0, 5, 2], [1, 1, 4, 6]])
    data = read_dataset(save(tmp_path, images=np.linspace(-1, 3, 140).reshape(4, 5, 7), boxes=boxes))
    assert data.patches is not None
    assert (data.patches.low, data.patches.high) == (-1.0, 3.0)
    result = study(data, Settings(train=3, steps=30, max_steps=30, shuffles=0, time_limit=2.0))
    run = result.runs["W"]
    for width in (7.6, 3.7):
        assert isinstance(selection_figure(result.setup.train, result.runs, width), Figure)
        assert isinstance(support_figure(result.setup, run, width), Figure)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"names": np.array(["a", "b"])}, r"names has shape \(2,\); \(3,\), or \(4, 3\) .* was expected"),
        ({"names": np.arange(3)}, "names in .* has dtype int64; text was expected"),
        ({"names": np.array(["a", None, "b"], dtype=object)}, "names in .* holds Python objects; text was expected"),
        ({"classes": np.array(["a", "b", "c"])}, r"classes has shape \(3,\); two names"),
        ({"images": np.zeros((3, 6, 6))}, r"images has shape \(3, 6, 6\); \(4, height, width\)"),
        ({"images": np.zeros((4, 5, 7))}, "5 x 7 pixels cannot be cut into T = 3 squares"),
        ({"images": np.zeros((4, 1, 1))}, "1 x 1 pixels cannot be cut into T = 3 squares"),
        ({"images": np.zeros((4, 5, 7)), "boxes": np.zeros((2, 4), int)}, r"boxes has shape \(2, 4\)"),
        ({"images": np.zeros((4, 5, 7)), "boxes": np.zeros((3, 4))}, "dtype float64; integers"),
        ({"images": np.zeros((4, 5, 7)), "boxes": np.array([[0, 0, 1, 1]] * 2 + [[4, 0, 2, 1]])}, r"boxes\[2\] is"),
        ({"images": np.zeros((4, 5, 7)), "boxes": np.array([[0, 0, 1, 1]] * 2 + [[0, 6, 1, 2]])}, r"boxes\[2\] is"),
        ({"boxes": np.zeros((3, 4), int)}, "boxes are given without images"),
    ],
)
def test_what_does_not_fit_is_named(more: dict[str, np.ndarray], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_dataset(save(tmp_path, **more))


def test_a_grid_is_found_for_any_aspect() -> None:
    for height, width, side in ((32, 32, 8), (24, 40, 8), (7, 49, 7), (224, 224, 16)):
        T = height * width // side**2
        boxes = read_patches(np.zeros((2, height, width)), None, 2, T).boxes
        coverage = np.zeros((height, width), int)
        for row, column, tall, wide in boxes:
            coverage[row : row + tall, column : column + wide] += 1
        assert (coverage == 1).all()
        assert (boxes[:, 2:] == side).all()


def test_images_split_with_their_rows() -> None:
    images = np.arange(4 * 3 * 9, dtype=float).reshape(4, 3, 9)
    data = Dataset("d", TokenData(**arrays()), patches=read_patches(images, None, 4, 3))
    subset = data.take(np.array([2, 0]))
    assert subset.patches is not None
    np.testing.assert_array_equal(subset.patches.images, images[[2, 0]])
