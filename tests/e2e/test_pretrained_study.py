"""`attsvm study FILE.csv`: words fitted on the file, hidden states of a real model, and refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from attsvm.cli import main
from attsvm.cli.study import _read_texts
from attsvm.data.text import MOST_TOKENS
from attsvm_pretrained.heads.hidden import hidden_spans, hidden_states
from pretrained_models import SENTENCES, minilm, minilm_path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [f'"{text}",{"first" if i % 2 else "second"}' for i, text in enumerate(SENTENCES)]
    path = tmp_path / "texts.csv"
    path.write_text("sentence,half\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("with_model", [False, True])
def test_study_of_texts(table: Path, tmp_path: Path, with_model: bool) -> None:
    model = ["--model", str(minilm_path())] if with_model else []
    columns = ["--text", "sentence", "--label", "half", "--train", "6", "--steps", "60"]
    columns += ["--shuffles", "0", "--time-limit", "2"]
    assert main(["study", str(table), *columns, *model, "--out", str(tmp_path / "out")]) == 0
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text(encoding="utf-8"))
    assert verdict["data"] == "texts.csv, second against first"
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert ("last hidden states of model" if with_model else "fitted on the file") in page
    assert "Closest decision 1" in page


def test_texts_are_as_many_as_their_hidden_states_fit(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    width, read = 5, []

    def states(model: object, tokenizer: object, texts: Sequence[str], most: int) -> list[np.ndarray]:
        read.append(len(texts))
        return list(np.random.default_rng(0).standard_normal((len(texts), 2, width)))

    model = SimpleNamespace(config=SimpleNamespace(hidden_size=width))
    monkeypatch.setattr("attsvm_pretrained.heads.loading.load", lambda name: (model, None))
    monkeypatch.setattr("attsvm_pretrained.heads.hidden.hidden_states", states)
    monkeypatch.setattr("attsvm_pretrained.heads.hidden.hidden_spans", lambda tokenizer, texts: None)
    for fit in (4, len(SENTENCES)):
        monkeypatch.setattr("attsvm.data.text.MOST_STATES", fit * MOST_TOKENS * width)
        _read_texts(str(table), "sentence", "half", None, None, "model")
    _read_texts(str(table), "sentence", "half", None, 3, "model")  # the user's number of rows
    assert read == [4, len(SENTENCES), len(SENTENCES)]


def test_components_of_every_dimension_keep_all_variance(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def states(model: object, tokenizer: object, texts: Sequence[str], most: int) -> list[np.ndarray]:
        return list(np.random.default_rng(0).standard_normal((len(texts), 2, 5)))

    model = SimpleNamespace(config=SimpleNamespace(hidden_size=5))
    monkeypatch.setattr("attsvm_pretrained.heads.loading.load", lambda name: (model, None))
    monkeypatch.setattr("attsvm_pretrained.heads.hidden.hidden_states", states)
    monkeypatch.setattr("attsvm_pretrained.heads.hidden.hidden_spans", lambda tokenizer, texts: None)
    notes = _read_texts(str(table), "sentence", "half", None, None, "model").notes
    assert notes[0].endswith(" in their first 5 principal components (100 % of their variance).")


def test_hidden_states_are_those_of_the_words() -> None:
    model, tokenizer = minilm()
    states = hidden_states(model, tokenizer, SENTENCES[:2])
    single = hidden_states(model, tokenizer, SENTENCES[1:2])
    assert [len(rows) for rows in states] == [len(tokenizer.tokenize(text)) for text in SENTENCES[:2]]
    np.testing.assert_allclose(states[1], single[0], atol=1e-5)  # float32, padded or not


def test_spans_are_the_words_of_the_hidden_states() -> None:
    model, tokenizer = minilm()
    texts = ["Unbelievably, she  sang!", *SENTENCES[:2]]
    spans = hidden_spans(tokenizer, texts)
    assert spans is not None
    for text, of_text, states in zip(texts, spans, hidden_states(model, tokenizer, texts), strict=True):
        assert [row for _, _, row in of_text] == list(range(len(states)))
        words = [text[first:end].lower() for first, end, _ in of_text]
        assert words == [word.removeprefix("##") for word in tokenizer.tokenize(text)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["texts.csv", "--text", "sentence"], "texts.csv needs --label with --text or with --bag"),
        (["texts.csv", "--text", "sentence", "--label", "other"], "a column 'other' was expected for --label"),
        (["digits", "--label", "half"], "--label can only be given with a table"),
        (["texts.csv", "--text", "sentence", "--label", "half", "--patch", "2"], "--patch can only be given with"),
        (["absent.csv", "--text", "a", "--label", "b"], "absent.csv does not exist"),
        (["texts.csv", "--text", "sentence", "--label", "half", "--model", "./no"], "./no is no folder of a model"),
    ],
)
def test_refusals_of_texts(
    arguments: list[str], sentence: str, table: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(table.parent)
    assert main(["study", *arguments]) == 2
    assert sentence in capsys.readouterr().err
