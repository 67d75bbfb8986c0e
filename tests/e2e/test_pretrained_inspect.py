"""`attsvm inspect` on the real MiniLM: pages, numbers, refusals, and how it looks in a browser."""

from __future__ import annotations

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as tf
from PIL import Image
from scipy.io import wavfile

from attsvm.cli import main
from attsvm.pretrained import extract_head, selection_report
from attsvm_pretrained.cli import read_layers
from attsvm_pretrained.heads.media import read_media
from attsvm_pretrained.inspection.inspection import inspect_model
from attsvm_pretrained.report.inspection import percent, refusals, write_inspection
from pretrained_models import SENTENCES, minilm, minilm_path


@pytest.fixture(scope="module")
def inspection_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect")
    (folder / "text.txt").write_text("\n\n".join(SENTENCES) + "\n", encoding="utf-8")
    (folder / "rules.py").write_text('to_a_stop = (".*", "[.]")\n', encoding="utf-8")
    arguments = [
        "--layers",
        "0,2",
        "--queries",
        "16",
        "--rules",
        str(folder / "rules.py"),
        "--out",
        str(folder / "out"),
    ]
    assert main(["inspect", str(minilm_path()), "--text", str(folder / "text.txt"), *arguments]) == 0
    return folder / "out"


@pytest.mark.parametrize(
    ("kind", "reads", "remedy"),
    [
        ("vit", "pixel_values", "images"),
        ("deit", "pixel_values", "images"),
        ("whisper", "input_features", "audio"),
    ],
)
def test_models_of_images_and_sound_read_no_text(kind: str, reads: str, remedy: str, tmp_path: Path, capsys) -> None:
    """Without a traceback, and with the option that serves."""
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
    text = " ".join(capsys.readouterr().err.split())
    assert f"which reads {reads}; a folder of {remedy} (--{remedy}) was expected" in text
    assert "Traceback" not in text


def test_shares_have_two_digits_and_no_exponent() -> None:
    shares = (1.0, 0.996, 0.523, 0.0994, 0.00123, 1e-5, 0.0)
    assert [percent(one) for one in shares] == ["100 %", "100 %", "52 %", "9.9 %", "0.12 %", "<.01 %", "<.01 %"]


def test_patches_are_drawn_on_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four patches of an image: their shares of attention, as the head has them, and the query framed."""
    (tmp_path / "images").mkdir()
    for k in range(3):
        Image.fromarray(np.full((24, 48, 3), 60 * k, dtype=np.uint8)).save(tmp_path / "images" / f"grey{k}.png")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = tf.ViTModel(tf.ViTConfig(**sizes, image_size=16, patch_size=8))
    model.save_pretrained(tmp_path / "model")
    arguments = ["--images", str(tmp_path / "images"), "--queries", "4", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["/bin/attsvm", "inspect", "model", "--images", "two words"])
    assert main(["inspect", str(tmp_path / "model"), *arguments]) == 0
    record = json.loads((tmp_path / "out" / "inspect.json").read_text(encoding="utf-8"))
    assert record["command"] == "attsvm inspect model --images 'two words'"
    assert len(list((tmp_path / "out" / "media").glob("*.png"))) == 3
    page = (tmp_path / "out" / "heads" / "L00H00.html").read_text()
    figures = re.findall(r'<svg class="medium".*?</svg>', page, flags=re.DOTALL)
    assert figures
    media = read_media(tmp_path / "images", "images", model, str(tmp_path / "model"), 9)
    head = media.labelled(extract_head(model, 0, 0, media.inputs))
    assert head.texts is not None
    assert head.texts[0] == ("[CLS]", "row 1, column 1", "row 1, column 2", "row 2, column 1", "row 2, column 2")
    for figure in figures:
        number = int(re.findall(r"media/(\d+)\.png", figure)[0])
        shares = [float(share) for share in re.findall(r"column \d: ([\d.]+) %", figure)]
        own = head.probabilities[(head.sequence == number) & (head.position > 0)][:, 1:]
        assert np.abs(own - np.array(shares) / 100).max(axis=1).min() < 0.006  # two digits are written
        assert figure.count("stroke-width") == 1


def test_images_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    """Two of six are kept and drawn; the reports are those of all six together, and their files are read in batches."""
    rng = np.random.default_rng(0)
    for k in range(6):
        pixels = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"noise{k}.png")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = tf.ViTModel(tf.ViTConfig(**sizes, image_size=16, patch_size=8))
    media = read_media(tmp_path, "images", model, "", 9)
    batches: list[int] = []
    media_with_count = replace(media, read=lambda which: batches.append(len(which)) or media.read(which))
    inspection = inspect_model(model, None, [], media=media_with_count, queries=4, memory=1)
    assert (inspection.texts, inspection.kept, max(batches), sum(batches)) == (6, 2, 2, 7)
    assert inspection.media is not None
    assert len(inspection.media.items) == 2
    for head in inspection.heads:
        whole = selection_report(media.labelled(extract_head(model, 0, head.head, media.inputs)))
        assert head.report.queries == whole.queries
        assert head.report.special == pytest.approx(whole.special, rel=1e-5)  # noted in float32
        assert head.report.top1 == pytest.approx(whole.top1, rel=1e-5)


def test_sounds_have_an_axis_in_seconds(tmp_path: Path) -> None:
    (tmp_path / "audio").mkdir()
    rng = np.random.default_rng(0)
    for k in range(2):
        samples = (3000 * rng.standard_normal(800 * (k + 1))).astype(np.int16)
        wavfile.write(tmp_path / "audio" / f"noise{k}.wav", 8000, samples)
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    conv = {"conv_dim": (8, 8), "conv_kernel": (40, 8), "conv_stride": (20, 8), "num_feat_extract_layers": 2}
    config = tf.Wav2Vec2Config(**sizes, **conv, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2)
    tf.Wav2Vec2Model(config).save_pretrained(tmp_path / "model")
    arguments = ["--audio", str(tmp_path / "audio"), "--queries", "4", "--out", str(tmp_path / "out")]
    assert main(["inspect", str(tmp_path / "model"), *arguments]) == 0
    page = (tmp_path / "out" / "heads" / "L00H00.html").read_text()
    assert "on 2 sounds" in (tmp_path / "out" / "index.html").read_text()
    assert page.count(">0.2 s</text>") >= 2  # the longer of the two lasts 1600 samples at 8000 a second
    assert re.search(r"<title>0\.\d\d s: ", page)


@pytest.mark.parametrize(
    ("text", "numbers"), [("3", [3]), ("2-2", [2]), ("0-2, 5", [0, 1, 2, 5]), ("5,4-6,1", [5, 4, 6, 1])]
)
def test_layers_are_numbers_and_ranges(text: str, numbers: list[int]) -> None:
    assert read_layers(text) == numbers


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [([], "0 of --text, --images and --audio are given"), (["--text", "a", "--images", "b"], "2 of --text")],
)
def test_exactly_one_thing_is_read(arguments: list[str], sentence: str, capsys) -> None:
    assert main(["inspect", "model", *arguments]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_an_encoder_decoder_and_a_head_that_is_refused() -> None:
    """T5 reads the text in both halves; a bent head is listed with its reason and the others are inspected."""
    _, tokenizer = minilm()
    torch.manual_seed(0)
    config = tf.T5Config(d_model=32, d_kv=8, num_layers=1, num_heads=2, d_ff=32, vocab_size=tokenizer.vocab_size)
    config.decoder_start_token_id = 0
    model = tf.AutoModel.from_config(config)
    weight = model.encoder.block[0].layer[0].SelfAttention.q
    weight.register_forward_hook(
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


@pytest.mark.slow
def test_rules_of_a_file_are_types(inspection_folder: Path, tmp_path: Path, capsys) -> None:
    heads = json.loads((inspection_folder / "inspect.json").read_text(encoding="utf-8"))["heads"]
    for head in heads:
        rule, delimiter = head["types"]["to a stop"], head["types"]["delimiter"]
        assert 0 < rule["trained"] <= delimiter["trained"] + 1e-9 or rule["queries"] < delimiter["queries"]
    (tmp_path / "rules.py").write_text("1 / 0")
    (tmp_path / "two.txt").write_text("this\nand that\n")
    arguments = [
        "--text",
        str(tmp_path / "two.txt"),
        "--rules",
        str(tmp_path / "rules.py"),
        "--out",
        str(tmp_path / "x"),
    ]
    assert main(["inspect", str(minilm_path()), *arguments]) == 2
    assert "cannot be run: ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.slow
def test_pages_and_numbers(inspection_folder: Path) -> None:
    record = json.loads((inspection_folder / "inspect.json").read_text(encoding="utf-8"))
    assert record["texts"] == len(SENTENCES)
    assert record["complete"]
    heads = {(head["layer"], head["head"]): head for head in record["heads"]}
    assert set(heads) == {(layer, head) for layer in (0, 2) for head in range(12)}
    assert all(head["error"] < 1e-5 for head in heads.values())
    # Known of MiniLM: head 2 of the first layer looks at the token before, and hardly anywhere else.
    assert heads[0, 2]["verdict"] == "hard"
    assert heads[0, 2]["type"] == "previous"
    assert heads[0, 2]["better_than_null"]
    assert heads[0, 2]["null"]["cosine"]["draws"] == 6  # rotated ones; as many are permuted
    assert "token before" in (inspection_folder / "heads" / "L00H02.html").read_text(encoding="utf-8")
    assert len(list((inspection_folder / "heads").glob("*.html"))) == 24
    assert str(minilm_path().parent) not in (inspection_folder / "heads" / "L00H02.html").read_text(encoding="utf-8")


@pytest.fixture
def report(inspection_folder: Path) -> Path:
    return inspection_folder / "index.html"


@pytest.mark.slow
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
    assert page.console_log == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["MODEL", "--text", "absent.txt"], "absent.txt: no such file or directory."),
        (["MODEL", "--text", "absent.txt", "--texts", "2", "--queries", "2", "--memory", "0.5"], "absent.txt: no such"),
        (["MODEL", "--text", "two.txt", "--queries", "1"], "--queries is 1; at least 2 was expected."),
        (["MODEL", "--text", "two.txt", "--memory", "0"], "--memory is 0; a positive number of GiB was expected."),
        (["MODEL", "--text", "one.txt"], "has 1 line of text; two or more were expected"),
        (["MODEL", "--text", "two.txt", "--layers", "a"], "--layers is 'a'; numbers and rising ranges such as 0-2,5"),
        (["MODEL", "--text", "two.txt", "--layers", "5-2"], "--layers is '5-2'; numbers and rising ranges"),
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
    arguments_of = [str(minilm_path()) if part == "MODEL" else part for part in arguments]
    assert main(["inspect", *arguments_of, "--out", "out"]) == 2
    text = capsys.readouterr().err
    assert sentence in text
    assert "Traceback" not in text
    assert not (tmp_path / "out" / "index.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_nothing(violations, report: Path, width: int, scheme: str) -> None:
    for file in (report, report.parent / "heads" / "L00H02.html"):
        assert violations(file, width, scheme) == [], file


@pytest.mark.slow
def test_the_table_of_heads_moves_sideways_below_the_names_of_the_heads(page) -> None:
    ends = """() => {
        const table = document.querySelector('#heads'), box = table.closest('.scroll')
        const cells = (side) => [...table.querySelectorAll(`tbody tr > :${side}-child`)]
        const left = () => cells('first').map((cell) => cell.getBoundingClientRect().left)
        const before = left()
        box.scrollLeft = box.scrollWidth
        const last = Math.max(...cells('last').map((cell) => cell.getBoundingClientRect().right))
        const moved = left().some((place, k) => place !== before[k])
        box.scrollLeft = 0
        return [document.documentElement.scrollWidth, last, moved]
    }"""
    width = page.viewport_size["width"]
    page_width, right, moved = page.evaluate(ends)
    assert page_width <= width
    assert right <= width
    assert not moved


@pytest.mark.slow
def test_the_table_stays_a_table_to_a_screen_reader(page) -> None:
    """Every row has as many cells as the table has column headers, laid out as a table or as blocks."""
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    nodes = {node["nodeId"]: node for node in tree}
    roles = {key: node["role"]["value"] for key, node in nodes.items() if not node["ignored"]}

    def below(key: str, role: str) -> list[str]:
        children = [child for child in nodes[key].get("childIds", ()) if child in nodes]
        here = [child for child in children if roles.get(child) == role]
        return here + [node for child in children if child not in here for node in below(child, role)]

    tables = [key for key, role in roles.items() if role == "table"]
    widths = {len(below(row, "columnheader")) or len(below(row, "cell")) for row in below(tables[-1], "row")}
    assert widths == {14}
    assert len(below(tables[-1], "row")) == 25
    names = [nodes[key]["name"]["value"].strip() for key in below(tables[-1], "columnheader")]
    assert names[-2:] == ["type", "most beyond the null"]


@pytest.mark.slow
def test_no_number_of_a_map_is_cut_where_a_layer_has_many_heads(browser, violations, tmp_path: Path) -> None:
    """Wide, 32 columns have room for numbers; on a telephone for colours, and every fourth column is numbered."""
    _, tokenizer = minilm()
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = tf.BertModel(tf.BertConfig(vocab_size=tokenizer.vocab_size, **sizes), add_pooling_layer=False)
    two = inspect_model(model, tokenizer, SENTENCES[:4], queries=4)
    many = replace(two, heads=tuple(replace(two.heads[h % 2], head=h) for h in range(32)))
    index = write_inspection(many, tmp_path / "report", "attsvm inspect")
    expression = """[...document.querySelectorAll('.map td a')]
        .filter((cell) => parseFloat(getComputedStyle(cell).fontSize) > 0)"""
    for width, numbers in ((1280, True), (400, False)):
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.goto(index.as_uri())
        assert page.evaluate(f"{expression}.filter((cell) => cell.scrollWidth > cell.clientWidth).length") == 0
        assert page.evaluate(f"{expression}.length > 0") is numbers
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.close()
        assert violations(index, width, "light") == []


@pytest.mark.slow
def test_the_benchmark_of_inspections_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Its smallest size: the model that it makes is inspected, and the costs are said."""
    script = Path(__file__).parents[2] / "benchmarks" / "inspection.py"
    monkeypatch.setattr("sys.argv", [str(script), "quick", "--set", "texts=3", "--keep", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    text = capsys.readouterr().out
    assert re.match(r"0\.0\d+ million weights, 3 texts of 12 tokens: \d+ s of processor time, .* GiB\n", text)
    heads = json.loads((tmp_path / "report" / "inspect.json").read_text())["heads"]
    assert len(heads) == 4
    assert all(head["error"] < 1e-5 for head in heads)
