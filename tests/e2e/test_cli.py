"""The command line: what it prints, what it writes, and its exit codes.

Most cases call ``main`` in this process, which is what the installed script does with the process' arguments; a few run
the script itself, to see that nothing but one line reaches the terminal and that it starts quickly.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import attsvm
from attsvm.cli import main

SCRIPT = [sys.executable, "-c", "import sys; from attsvm.cli import main; sys.exit(main())"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def script(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*SCRIPT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=False)


def problem(**change: np.ndarray | None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    given = {
        "tokens": rng.standard_normal((4, 3, 5)),
        "queries": rng.standard_normal((4, 5)),
        "selected": np.array([0, 1, 2, 0]),
    }
    return {name: value for name, value in (given | change).items() if value is not None}


def data_set(**change: np.ndarray | None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    given = {
        "tokens": rng.standard_normal((6, 3, 5)),
        "queries": rng.standard_normal((6, 4)),
        "labels": np.array([1, -1, 1, -1, 1, -1]),
    }
    return {name: value for name, value in (given | change).items() if value is not None}


def write(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def one_sentence(captured: pytest.CaptureResult[str]) -> str:
    """Check that a refusal is one line on stderr and nothing on stdout, and return it."""
    assert captured.out == ""
    assert captured.err.startswith("attsvm: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_solve_writes_what_python_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str], norm: str) -> None:
    given = problem(mask=np.array([[1, 1, 1], [1, 1, 1], [0, 1, 1], [1, 1, 0]]))
    source, target = write(tmp_path / "in.npz", given), tmp_path / "out.npz"
    assert main(["solve", str(source), "--norm", norm, "--out", str(target)]) == 0
    printed = capsys.readouterr().out
    built = attsvm.SelectionProblem(given["tokens"], given["queries"], given["selected"], mask=given["mask"] == 1)
    expected = attsvm.solve(built, norm, callback=lambda state: False)  # watched, as the command watches it
    with np.load(target, allow_pickle=False) as saved:
        np.testing.assert_array_equal(saved["W"], expected.W)
        np.testing.assert_array_equal(saved["support"], expected.support)
        assert str(saved["status"]) == "OPTIMAL"
        assert float(saved["gap"]) <= 1e-9
    for part in ("optimal", norm, f"{expected.objective:.6g}"[:6], "4 queries", str(target)):
        assert part in printed


def test_solve_reads_shared_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = problem(queries=np.eye(5)[:3], selected=np.array([0, 2, 1]), sequence=np.array([1, 1, 3]))
    assert main(["solve", str(write(tmp_path / "a.npz", given))]) == 0
    assert "3 queries" in capsys.readouterr().out


def test_an_infeasible_problem_exits_with_3_and_saves_its_proof(tmp_path: Path, capsys) -> None:
    given = problem()
    given["tokens"][0, 1] = given["tokens"][0, 0]
    target = tmp_path / "out.npz"
    assert main(["solve", str(write(tmp_path / "a.npz", given)), "--out", str(target)]) == 3
    assert "infeasible" in capsys.readouterr().out
    with np.load(target) as saved:
        assert np.isnan(saved["W"]).all()
        assert saved["certificate"].sum() == pytest.approx(1)


def test_a_limit_exits_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    teacher = rng.standard_normal((20, 20))
    tokens, queries = rng.standard_normal((60, 12, 20)), rng.standard_normal((60, 20))
    selected = np.einsum("ntd,de,ne->nt", tokens, teacher, queries).argmax(axis=1)
    source = write(tmp_path / "a.npz", {"tokens": tokens, "queries": queries, "selected": selected})
    assert main(["solve", str(source), "--max-iter", "1", "--norm", "nuclear"]) == 4
    assert "limit" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokens": None}, "tokens"),
        ({"queries": np.zeros((2, 5))}, "queries"),
        ({"selected": np.array([0, 1, 2, 3])}, "selected"),
        ({"selected": np.array([0.5, 1, 2, 0])}, "selected"),
        ({"tokens": np.full((4, 3, 5), np.nan)}, "tokens"),
        ({"tokens": np.zeros((0, 3, 5)), "queries": np.zeros((0, 5)), "selected": np.zeros(0, int)}, "tokens"),
        ({"mask": np.zeros((4, 3), bool)}, "mask"),
        ({"mask": np.zeros((4, 2), bool)}, "mask"),
        ({"sequence": np.array([0, 1, 2, 9])}, "sequence"),
    ],
)
def test_bad_problems_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, np.ndarray | None], named: str
) -> None:
    source = write(tmp_path / "a.npz", problem(**change))
    assert main(["solve", str(source), "--out", str(tmp_path / "out.npz")]) == 2
    assert named in one_sentence(capsys.readouterr())
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"labels": None}, "labels"),
        ({"labels": np.array([1, 2, 1, 2, 1, 2])}, "labels"),
        ({"labels": np.zeros(6)}, "labels"),
        ({"queries": np.full((6, 4), np.inf)}, "queries"),
        ({"tokens": np.zeros((6, 5))}, "tokens"),
        ({"tokens": np.zeros((6, 3, 5))}, "tokens"),
        ({"queries": np.zeros((6, 4))}, "queries"),
        ({"head": np.ones(4)}, "head"),
    ],
)
def test_bad_data_sets_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, np.ndarray | None], named: str
) -> None:
    source = write(tmp_path / "a.npz", data_set(**change))
    assert main(["study", str(source), "--out", str(tmp_path / "out")]) == 2
    assert named in one_sentence(capsys.readouterr())
    assert not (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["solve", "no such file.npz"], "no such file.npz"),
        (["solve", "{text}"], "text.npz"),
        (["solve", "{good}", "--norm", "manhattan"], "norm"),
        (["solve", "{good}", "--tol", "2"], "tol"),
        (["solve", "{good}", "--max-iter", "0"], "max_iter"),
        (["solve", "{good}", "--tol", "small"], "tol"),
        (["solve", "{good}", "--colour", "blue"], "--colour"),
        (["solve", "{good}", "--out", "{text}/out.npz"], "out"),
        (["solve", "{good}", "--out", "{here}"], "directory"),
        (["solve"], "FILE"),
        (["sing"], "sing"),
        (["study", "letters"], "letters"),
        (["study", "no such file.npz"], "no such file.npz"),
        (["study", "digits", "--classes", "3-x"], "classes"),
        (["study", "digits", "--train", "9999"], "train"),
        (["study", "digits", "--steps", "0"], "steps"),
        (["study", "digits", "--out", "{text}"], "text.npz"),
        (["study", "{data}", "--query", "patch"], "--query"),
        (["study", "digits", "--seed", "one"], "seed"),
    ],
)
def test_bad_arguments_are_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {
        "text": tmp_path / "text.npz",
        "good": write(tmp_path / "good.npz", problem()),
        "data": write(tmp_path / "data.npz", data_set()),
        "here": tmp_path,
    }
    places["text"].write_text("not an archive")
    before = sorted(tmp_path.rglob("*"))
    assert main([argument.format(**places) for argument in arguments]) == 2
    assert named.lower() in one_sentence(capsys.readouterr()).lower()
    assert sorted(tmp_path.rglob("*")) == before


def test_the_script_refuses_without_a_traceback(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.npz", problem()).read_bytes()
    (tmp_path / "a.npz").write_bytes(whole[: len(whole) // 2])
    done = script("solve", tmp_path / "a.npz")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"attsvm: {tmp_path / 'a.npz'} is not a .npz file, or it is truncated.\n"


def test_version_and_help_are_quick() -> None:
    assert script("--version").stdout.strip() == attsvm.__version__
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = script("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0
        assert {"solve", "study"} <= set(done.stdout.split())
    # Half a second is the promise. Processor time, since others may be using the machine; a busy one is slower even so.
    assert min(seconds) < 0.75


def test_help_loads_nothing_heavy() -> None:
    code = "import sys; from attsvm.cli import main; main(['--help']); print(*sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    heavy = {"torch", "numba", "sklearn", "matplotlib", "scipy", "jinja2"}
    assert heavy.isdisjoint(done.stderr.split())


STUDY = ("--steps", "60", "--shuffles", "1", "--seed", "3")


def test_a_study_of_a_file_from_the_shell(tmp_path: Path) -> None:
    source, out = write(tmp_path / "mine.npz", data_set()), tmp_path / "deep" / "out"
    done = script("study", source, "--out", out, *STUDY)
    assert done.returncode == 0, done.stderr
    made = json.loads((out / "verdict.json").read_text(encoding="utf-8"))
    assert made["attsvm"] == attsvm.__version__
    assert made["seed"] == 3
    assert made["complete"] is True
    assert made["parameters"]["steps"] == 60
    assert str(source) in made["command"]
    assert made["headline"] == done.stdout.splitlines()[0]
    assert f"Report: {out / 'report.html'}" in done.stdout
    # A log gets a line a stage, and no control characters of a bar.
    lines = done.stderr.splitlines()
    assert len(lines) >= 6
    assert all(line.startswith("[") and "\x1b" not in line for line in lines)
    names = {path.name for path in (out / "figures").iterdir()}
    assert {"correlation.png", "correlation.pdf", "spectrum.png", "margins.png", "precision.png"} <= names
    assert sorted(p.name for p in out.iterdir()) == ["figures", "report.html", "verdict.json"]


def test_a_second_study_never_mixes_with_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "mine.npz", data_set())
    monkeypatch.chdir(tmp_path)
    for name in ("attsvm-study", "attsvm-study-2"):
        assert main(["study", str(source), "--steps", "5", "--shuffles", "0"]) == 0
        assert f"Report: {name}/report.html" in capsys.readouterr().out
    first = Path("attsvm-study/verdict.json").read_bytes()
    assert main(["study", str(source), "--steps", "6", "--shuffles", "0", "--out", "attsvm-study"]) == 2
    assert "holds a study already" in one_sentence(capsys.readouterr())
    assert Path("attsvm-study/verdict.json").read_bytes() == first
    stale, notes = Path("attsvm-study/figures/selection.png"), Path("attsvm-study/notes.txt")
    stale.write_bytes(b"a figure of another study")
    notes.write_text("mine")
    again = ["study", str(source), "--steps", "6", "--shuffles", "0", "--out", "attsvm-study", "--overwrite"]
    assert main(again) == 0
    assert json.loads(Path("attsvm-study/verdict.json").read_text(encoding="utf-8"))["parameters"]["steps"] == 6
    assert not stale.exists()
    assert notes.read_text() == "mine"


def test_solve_does_not_overwrite_its_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.npz", problem())
    before = source.read_bytes()
    for out in (source, tmp_path / "." / "in.npz"):
        assert main(["solve", str(source), "--out", str(out)]) == 2
        assert "the file of the problem" in one_sentence(capsys.readouterr())
    assert source.read_bytes() == before


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    command = [*SCRIPT, "study", "digits", "--out", str(tmp_path / "out"), "--steps", "100000000", "--train", "10"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    assert running.stderr is not None
    for line in running.stderr:
        if "Training W" in line:
            break
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    out, rest = running.communicate(timeout=120)
    assert running.returncode == 130, rest
    assert "what is done will be kept" in rest
    made = json.loads((tmp_path / "out" / "verdict.json").read_text(encoding="utf-8"))
    assert made["complete"] is False
    assert made["quantities"]["steps_W"]["value"] > 0
    assert "stopped early" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert out.startswith("Interrupted while training W")
    assert "Stopped early" in out
    assert made["headline"] in out
    assert "Report:" in out
