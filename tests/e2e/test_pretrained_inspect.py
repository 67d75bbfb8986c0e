"""`attsvm inspect` on the real MiniLM: pages, numbers, refusals, and how it looks in a browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attsvm.cli import main
from pretrained_models import SENTENCES, minilm_path


@pytest.fixture(scope="module")
def inspected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect")
    (folder / "text.txt").write_text("\n\n".join(SENTENCES) + "\n", encoding="utf-8")
    arguments = ["--layers", "0,2", "--queries", "16", "--out", str(folder / "out")]
    assert main(["inspect", str(minilm_path()), "--text", str(folder / "text.txt"), *arguments]) == 0
    return folder / "out"


def test_pages_and_numbers(inspected: Path) -> None:
    record = json.loads((inspected / "inspect.json").read_text(encoding="utf-8"))
    assert record["texts"] == len(SENTENCES)
    assert record["complete"]
    heads = {(head["layer"], head["head"]): head for head in record["heads"]}
    assert set(heads) == {(layer, head) for layer in (0, 2) for head in range(12)}
    assert all(head["error"] < 1e-5 for head in heads.values())
    # Known of MiniLM: head 2 of the first layer looks at the token before, and hardly anywhere else.
    assert heads[0, 2]["verdict"] == "hard"
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
        (["some/name", "--text", "two.txt"], "some/name is no folder here, and could not be fetched"),
    ],
)
def test_refusals(arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("only this\n")
    (tmp_path / "two.txt").write_text("this\nand that\n")
    (tmp_path / "empty").mkdir()
    named = [str(minilm_path()) if part == "MODEL" else part for part in arguments]
    assert main(["inspect", *named, "--out", "out"]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said
    assert not (tmp_path / "out" / "index.html").exists()
