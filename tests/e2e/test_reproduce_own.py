"""`attsvm reproduce ./own.py`, with the file that CONTRIBUTING.md walks through."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Every test starts the command.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def walk_through() -> str:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.split("## An experiment of one's own\n")[1].split("\n## ")[0]
    (text,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(walk_through(), encoding="utf-8")
    return tmp_path


def reproduce(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from attsvm.cli import main; sys.argv[0] = 'attsvm'; sys.exit(main())"
    out = [] if "--out" in arguments else ["--out", "out"]
    command = [sys.executable, "-c", code, "reproduce", *arguments, *out]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def test_the_file_of_the_walk_through_runs_is_read_again_and_redrawn(folder: Path) -> None:
    first = reproduce(folder, "./own.py", "--set", "trials=3")
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
    again = reproduce(folder, "./own.py", "--set", "trials=3")
    assert again.returncode == 0, again.stderr
    assert "read from the run of" in again.stdout
    assert (folder / "out" / "feasible" / "rows.parquet").read_bytes() == rows

    (folder / "own.py").write_text(text.replace("rng.integers(config.T", "rng.integers(2"), encoding="utf-8")
    other = reproduce(folder, "./own.py", "--set", "trials=3")
    assert other.returncode == 2
    assert other.stderr.startswith("attsvm: out/feasible holds another run: its code of the experiment differs")


def test_workers_compute_the_same_rows(folder: Path) -> None:
    for out, *workers in (("alone",), ("crew", "--workers", "2")):
        process = reproduce(folder, "own.py", "--set", "trials=3", *workers, "--out", out)
        assert process.returncode == 0, process.stderr
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
def test_an_exception_in_the_file_is_a_sentence_with_its_line(folder: Path, old: str, new: str, sentence: str) -> None:
    (folder / "own.py").write_text(walk_through().replace(old, new), encoding="utf-8")
    process = reproduce(folder, "own.py", "--set", "trials=1")
    assert process.returncode == 2
    assert re.match(f"attsvm: {sentence}", process.stderr.splitlines()[-1])
    assert "Traceback" not in process.stderr


def test_a_figure_that_fails_keeps_its_rows(folder: Path) -> None:
    (folder / "own.py").write_text(walk_through().replace("grid(1, 1", "grid(0, 1"), encoding="utf-8")
    process = reproduce(folder, "own.py", "--set", "trials=1")
    assert process.returncode == 2
    assert re.search(r"own\.py has no verdicts or figure for trials=1 \(line \d+: .*rows are complete", process.stderr)
    assert (folder / "out" / "feasible" / "rows.parquet").exists()


def test_a_missing_file_and_one_without_an_experiment_are_sentences(folder: Path) -> None:
    assert reproduce(folder, "./other.py").stderr == "attsvm: other.py: no such file or directory.\n"
    (folder / "own.py").write_text("", encoding="utf-8")
    process = reproduce(folder, "./own.py")
    assert process.stderr == "attsvm: ./own.py defines no EXPERIMENT; EXPERIMENT = Experiment(...) was expected.\n"
    assert process.returncode == 2
