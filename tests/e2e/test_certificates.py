"""`attsvm solve --certificate` and `attsvm check`, and the checker by itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attsvm import check
from attsvm.cli import main


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    tokens, queries = rng.standard_normal((4, 3, 5)), rng.standard_normal((4, 5))
    np.savez(tmp_path / "p.npz", tokens=tokens, queries=queries, selected=[0, 1, 2, 0])
    np.savez(tmp_path / "moved.npz", tokens=tokens + 1e-12, queries=queries, selected=[0, 1, 2, 0])
    tokens[0, 1] = tokens[0, 0]
    np.savez(tmp_path / "none.npz", tokens=tokens, queries=queries, selected=[0, 1, 2, 0])
    return tmp_path


def run_in_isolation(path: Path) -> subprocess.CompletedProcess[str]:
    """Run the checker as a file, without site-packages."""
    command = [sys.executable, "-I", "-S", str(check.__file__), str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "options",
    [["--norm", "nuclear"], ["--C", "0.1"], ["--norm", "ky-fan:2", "--C", "0.1"]],
    ids=["nuclear", "soft", "ky-fan, soft"],
)
def test_a_certificate_is_written_and_proven(problem: Path, options: list[str], capsys) -> None:
    target = problem / "c.json"
    assert main(["solve", str(problem / "p.npz"), "--certificate", str(target), *options]) == 0
    assert f"certificate written to {target}" in capsys.readouterr().out
    assert main(["check", str(target)]) == 0
    output = capsys.readouterr().out
    assert output.startswith("proven    optimal\n")
    assert "lies in [" in output
    assert main(["check", str(target), str(problem / "p.npz")]) == 0
    capsys.readouterr()
    assert main(["check", str(target), str(problem / "moved.npz")]) == 1
    assert "about another problem" in capsys.readouterr().out
    run = run_in_isolation(target)
    assert (run.returncode, run.stdout.split()[:2]) == (0, ["proven", "optimal"])
    target.write_text(target.read_text(encoding="utf-8").replace("/2", "/3", 1), encoding="utf-8")
    assert main(["check", str(target)]) == run_in_isolation(target).returncode == 1
    assert capsys.readouterr().out.startswith("rejected")


def test_a_certificate_that_nothing_solves_the_problem(problem: Path, capsys) -> None:
    target = problem / "c.json"
    assert main(["solve", str(problem / "none.npz"), "--certificate", str(target)]) == 3
    capsys.readouterr()
    assert main(["check", str(target)]) == 0
    assert "No W satisfies the constraints" in capsys.readouterr().out


def test_an_interval_is_held_against_the_tolerance(problem: Path, capsys) -> None:
    wide, empty = problem / "c.json", problem / "none.json"
    assert main(["solve", str(problem / "p.npz"), "--certificate", str(wide)]) == 0
    assert main(["solve", str(problem / "none.npz"), "--certificate", str(empty)]) == 3
    capsys.readouterr()
    assert main(["check", str(wide)]) == 0
    assert "rejected" not in capsys.readouterr().out
    assert main(["check", str(wide), "--tol", "0"]) == 1  # the norm is a root, which no two equal fractions enclose
    assert re.search(r"^rejected  \S.* 0\b", capsys.readouterr().out, re.MULTILINE)
    assert main(["check", str(empty), "--tol", "0"]) == 0
    for tol in (-0.5, float("inf"), float("nan")):
        assert main(["check", str(wide), f"--tol={tol}"]) == 2
        assert capsys.readouterr().err == f"attsvm: --tol is {tol}; a number from 0 was expected.\n"


def test_files_that_are_no_certificates(problem: Path, capsys) -> None:
    assert main(["check", str(problem / "p.npz")]) == 2
    assert main(["check", str(problem / "absent.json")]) == 2
    assert run_in_isolation(problem / "absent.json").returncode == 2
    capsys.readouterr()
    for content in ("{}", "[1]", "3"):
        (problem / "other.json").write_text(content, encoding="utf-8")
        assert main(["check", str(problem / "other.json")]) == 1
        assert capsys.readouterr().out == "rejected  this is no intact attsvm certificate 2\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "c.npz", "--certificate", "c.npz"], "--certificate c.npz is a file that is read or written"),
        (["--certificate", "c.npz"], "--certificate c.npz would be written as JSON; a name"),
        (["--certificate", "."], "the name of a file was expected for --certificate"),
    ],
)
def test_bad_certificate_targets_are_refused(
    problem: Path, arguments: list[str], message: str, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(problem)
    inputs = arguments if "--certificate" in arguments else [*arguments, "--certificate", "c.json"]
    assert main(["solve", "p.npz", *inputs]) == 2
    assert message in capsys.readouterr().err
    assert not (problem / "c.json").exists()
