"""`attsvm inspect` on the real MiniLM: pages, numbers, refusals, and how it looks in a browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers as tf

from attsvm.cli import main
from attsvm.pretrained.inspection import inspect_model
from attsvm.report.inspection import refusals
from pretrained_models import SENTENCES, minilm, minilm_path


@pytest.fixture(scope="module")
def inspected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect")
    (folder / "text.txt").write_text("\n\n".join(SENTENCES) + "\n", encoding="utf-8")
    arguments = ["--layers", "0,2", "--queries", "16", "--out", str(folder / "out")]
    assert main(["inspect", str(minilm_path()), "--text", str(folder / "text.txt"), *arguments]) == 0
    return folder / "out"


@pytest.mark.parametrize(
    ("kind", "reads"), [("vit", "pixel_values"), ("deit", "pixel_values"), ("whisper", "input_features")]
)
def test_models_of_images_and_sound_are_refused(kind: str, reads: str, tmp_path: Path, capsys) -> None:
    """Without a traceback, and with the way that remains."""
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = {
        "vit": lambda: tf.ViTConfig(**small, image_size=16, patch_size=8),
        "deit": lambda: tf.DeiTConfig(**small, image_size=16, patch_size=8),
        "whisper": lambda: tf.WhisperConfig(
            d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=60, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            decoder_start_token_id=1,
        ),
    }[kind]()  # fmt: skip
    tf.AutoModel.from_config(config).save_pretrained(tmp_path / "model")
    (tmp_path / "two.txt").write_text("this\nand that\n")
    assert main(["inspect", str(tmp_path / "model"), "--text", str(tmp_path / "two.txt"), "--out", str(tmp_path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"which reads {reads}; a model of text was expected" in said
    assert "Traceback" not in said


def test_an_encoder_decoder_and_a_head_that_is_refused() -> None:
    """T5 reads the text in both halves; a bent head is listed with its reason and the others are inspected."""
    _, tokenizer = minilm()
    torch.manual_seed(0)
    config = tf.T5Config(d_model=32, d_kv=8, num_layers=1, num_heads=2, d_ff=32, vocab_size=tokenizer.vocab_size)
    config.decoder_start_token_id = 0
    model = tf.AutoModel.from_config(config)
    bent = model.encoder.block[0].layer[0].SelfAttention.q
    bent.register_forward_hook(
        lambda module, arguments, output: torch.cat([output[..., :8], output[..., 8:].abs()], -1)
    )
    inspection = inspect_model(model, tokenizer, SENTENCES[:6], queries=6)
    assert [(head.layer, head.head) for head in inspection.heads] == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert [(one.layer, one.head) for one in inspection.refused] == [(0, 1)]
    assert [len(heads) for _, heads in refusals(inspection)] == [1]


def test_a_second_ctrl_c_keeps_the_heads_that_are_done() -> None:
    _, tokenizer = minilm()
    torch.manual_seed(0)
    config = tf.BertConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=tokenizer.vocab_size,
    )

    def progress(sentence: str, share: float) -> bool:
        if sentence.startswith("Inspecting heads: 2 of 4"):
            raise KeyboardInterrupt
        return False

    options = {"queries": 6, "progress": progress, "interval": 0.0}
    inspection = inspect_model(tf.BertModel(config), tokenizer, SENTENCES[:6], **options)
    assert [(head.layer, head.head) for head in inspection.heads] == [(0, 0), (0, 1)]
    assert not inspection.complete


def test_pages_and_numbers(inspected: Path) -> None:
    record = json.loads((inspected / "inspect.json").read_text(encoding="utf-8"))
    assert record["texts"] == len(SENTENCES)
    assert record["complete"]
    heads = {(head["layer"], head["head"]): head for head in record["heads"]}
    assert set(heads) == {(layer, head) for layer in (0, 2) for head in range(12)}
    assert all(head["error"] < 1e-5 for head in heads.values())
    # Known of MiniLM: head 2 of the first layer looks at the token before, and hardly anywhere else.
    assert heads[0, 2]["verdict"] == "hard"
    assert heads[0, 2]["type"] == "previous"
    assert heads[0, 2]["better_than_null"]
    assert heads[0, 2]["null"]["cosine"]["draws"] == 12
    assert "token before" in (inspected / "heads" / "L00H02.html").read_text(encoding="utf-8")
    assert len(list((inspected / "heads").glob("*.html"))) == 24
    assert str(minilm_path().parent) not in (inspected / "heads" / "L00H02.html").read_text(encoding="utf-8")


@pytest.fixture
def report(inspected: Path) -> Path:
    return inspected / "index.html"


def test_pages_in_a_browser(page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.click("#heads th:nth-child(2) button")
    column = "[...document.querySelectorAll('#heads tbody tr')].map((row) => Number(row.cells[1].dataset.value))"
    falling = page.evaluate(column)
    assert falling == sorted(falling, reverse=True)
    page.click("#heads th:nth-child(2) button")
    assert page.evaluate(column) == sorted(falling)
    page.click("#map-top1 td a >> nth=2")
    assert page.inner_text("h1") == "Layer 0, head 2"
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.said == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["MODEL", "--text", "absent.txt"], "absent.txt: no such file or directory."),
        (["MODEL", "--text", "one.txt"], "has 1 lines of text; at least two were expected"),
        (["MODEL", "--text", "two.txt", "--layers", "a"], "--layers is 'a'; numbers and ranges such as 0-2,5"),
        (["MODEL", "--text", "two.txt", "--layers", "7"], "a number from 0 to 5"),
        (["empty", "--text", "two.txt"], "empty holds no config.json"),
        (["./absent", "--text", "two.txt"], "./absent is no folder of a model"),
        (["truncated", "--text", "two.txt"], "the model in truncated could not be loaded: Error while deserializing"),
        (["some/name", "--text", "two.txt"], "some/name is no folder here, and could not be fetched"),
    ],
)
def test_refusals(arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("only this\n")
    (tmp_path / "two.txt").write_text("this\nand that\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "truncated").mkdir()
    for file in minilm_path().iterdir():
        if file.is_file():
            (tmp_path / "truncated" / file.name).write_bytes(file.read_bytes()[:1_000_000])
    named = [str(minilm_path()) if part == "MODEL" else part for part in arguments]
    assert main(["inspect", *named, "--out", "out"]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said
    assert not (tmp_path / "out" / "index.html").exists()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing(violations, report: Path, width: int, scheme: str) -> None:
    for file in (report, report.parent / "heads" / "L00H02.html"):
        assert violations(file, width, scheme) == [], file


def test_every_column_is_on_the_screen(page) -> None:
    outside = """[...document.querySelectorAll('#heads tbody td')].filter(
        (cell) => cell.getBoundingClientRect().right > window.innerWidth || !cell.getBoundingClientRect().width)"""
    if page.viewport_size["width"] == 400:
        assert page.evaluate(f"{outside}.map((cell) => cell.dataset.name)") == []
        named = "[...document.querySelectorAll('#heads tbody tr:first-child td')].map((cell) => cell.dataset.name)"
        heads = "[...document.querySelectorAll('#heads thead th')].map((cell) => cell.innerText || cell.textContent)"
        assert page.evaluate(named) == [name.strip() for name in page.evaluate(heads)]
