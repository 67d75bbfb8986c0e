"""`attsvm reproduce ./own.py`, with the file that CONTRIBUTING.md walks through."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attsvm.cli import main

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def walk_through() -> str:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.split("## An experiment of one's own\n")[1].split("\n## ")[0]
    (text,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own.py").write_text(walk_through(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reproduce(*arguments: str) -> int:
    return main(["reproduce", *arguments, *([] if "--out" in arguments else ["--out", "out"])])


@pytest.mark.slow
def test_the_file_of_the_walk_through_runs_is_read_again_and_redrawn(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import sys; from attsvm.cli import main; sys.argv[0] = 'attsvm'; sys.exit(main())"
    command = [sys.executable, "-c", code, "reproduce", "./own.py", "--set", "trials=3", "--out", "out"]
    first = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    assert "feasible: 12 trials" in first.stdout
    content = json.loads((folder / "out" / "verdicts.json").read_text(encoding="utf-8"))
    (one,) = content["experiments"]
    assert one["command"] == "attsvm reproduce ./own.py --quick --set trials=3"
    assert [verdict["verdict"] for verdict in content["verdicts"]] == ["measured"] * 4
    page = (folder / "out" / "feasible" / "index.html").read_text(encoding="utf-8")
    assert "selections that have an SVM solution, d=5" in page
    rows = (folder / "out" / "feasible" / "rows.parquet").read_bytes()

    text = walk_through()
    (folder / "own.py").write_text(text.replace("Random selections of tokens", "Drawn at random"), encoding="utf-8")
    assert reproduce("./own.py", "--set", "trials=3") == 0
    assert "read from the run of" in capsys.readouterr().out
    assert (folder / "out" / "feasible" / "rows.parquet").read_bytes() == rows

    (folder / "own.py").write_text(text.replace("rng.integers(config.T", "rng.integers(2"), encoding="utf-8")
    assert reproduce("./own.py", "--set", "trials=3") == 2
    sentence = "attsvm: out/feasible holds another run: its code of the experiment differs"
    assert capsys.readouterr().err.splitlines()[-1].startswith(sentence)


@pytest.mark.slow
def test_workers_compute_the_same_rows(folder: Path) -> None:
    for out, *workers in (("alone",), ("crew", "--workers", "2")):
        assert reproduce("own.py", "--set", "trials=3", *workers, "--out", out) == 0
    alone, crew = (folder / out / "feasible" / "rows.parquet" for out in ("alone", "crew"))
    assert alone.read_bytes() == crew.read_bytes()


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("solve(Sel", "resolve(Sel", r"own\.py cannot be run: line 31: NameError: name 'resolve' is not defined\."),
        ('effort == "full"', "effort.size", r"own\.py cannot be run: line 22: AttributeError: 'str' object has no"),
        ('{"seed": seed, ', "{", "a row of feasible has the seed None; one of those given was expected."),
    ],
)
def test_an_exception_in_the_file_is_a_sentence_with_its_line(
    folder: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, sentence: str
) -> None:
    (folder / "own.py").write_text(walk_through().replace(old, new), encoding="utf-8")
    assert reproduce("own.py", "--set", "trials=1") == 2
    errors = capsys.readouterr().err
    assert re.match(f"attsvm: {sentence}", errors.splitlines()[-1])
    assert "Traceback" not in errors


def test_a_figure_that_fails_keeps_its_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "own.py").write_text(walk_through().replace("grid(1, 1", "grid(0, 1"), encoding="utf-8")
    assert reproduce("own.py", "--set", "trials=1") == 2
    sentence = r"own\.py has no verdicts or figure for trials=1 \(line \d+: .*rows are complete"
    assert re.search(sentence, capsys.readouterr().err)
    assert (folder / "out" / "feasible" / "rows.parquet").exists()


def test_a_missing_file_and_one_without_an_experiment_are_sentences(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce("./other.py") == 2
    assert capsys.readouterr().err == "attsvm: other.py: no such file or directory.\n"
    (folder / "own.py").write_text("", encoding="utf-8")
    assert reproduce("./own.py") == 2
    sentence = "attsvm: ./own.py defines no EXPERIMENT; EXPERIMENT = Experiment(...) was expected.\n"
    assert capsys.readouterr().err == sentence
