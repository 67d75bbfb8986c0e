"""The command line: what it prints, what it writes, and its exit codes.

Most cases call ``main`` in this process, which is what the installed script does with the process' arguments; a few run
the script itself, to see that nothing but one line reaches the terminal and that it starts quickly.
"""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import urllib.request
import zipfile
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import attsvm
from attsvm import Status
from attsvm.cli import main
from attsvm.platform.files import locked
from attsvm.study.files import FIGURE_NAMES, file_in_the_way
from attsvm_pretrained.cli import read_lines

SCRIPT = [sys.executable, "-c", "import sys; from attsvm.cli import main; sys.exit(main())"]
# Studies whose report has the picture "margins" only: drawing six takes most of the seconds of a short study.
FEW_PICTURES = """
import sys
import attsvm.report.study as report
from attsvm.cli import main

pictures = report.pictures
report.pictures = lambda study: {name: one for name, one in pictures(study).items() if name == "margins"}
"""
# Two runs of the command at once, forked when all is imported, so that they meet; their exit codes and what they print.
TWICE = """
import json, os, tempfile
import attsvm.study.run, attsvm.training

def begin():
    file = tempfile.TemporaryFile("w+")
    process = os.fork()
    if not process:
        os.dup2(file.fileno(), 1)
        code = 1
        try:
            code = main()
            sys.stdout.flush()
        finally:
            os._exit(code)
    return process, file

def end(process, file):
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    file.seek(0)
    return code, file.read()

print(json.dumps([end(*one) for one in [begin(), begin()]]))
"""
# Presses Ctrl-C as training of W has told its third share: after the first steps, on a machine of any speed.
PRESS = """
import signal
from attsvm.cli.console import Progress

call, shares = Progress.__call__, set()

def press(self, stage, share):
    if stage.startswith("Training W") and share not in shares:
        shares.add(share)
        if len(shares) == 3:
            signal.raise_signal(signal.SIGINT)
    return call(self, stage, share)

Progress.__call__ = press
"""
QUICK_SCRIPT = [sys.executable, "-c", FEW_PICTURES + "sys.exit(main())"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def script(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command, variables = [*SCRIPT, *map(str, arguments)], ENVIRONMENT | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables, check=False)


def without_progress(errors: str) -> str:
    """A busy machine takes long enough for a line of progress, which opens with its seconds."""
    return "".join(line for line in errors.splitlines(keepends=True) if not re.match(r"\[ *\d+ s\] ", line))


def problem(**change: np.ndarray | None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = {
        "tokens": rng.standard_normal((4, 3, 5)),
        "queries": rng.standard_normal((4, 5)),
        "selected": np.array([0, 1, 2, 0]),
    }
    return {name: value for name, value in (inputs | change).items() if value is not None}


def data_set(**change: np.ndarray | None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = {
        "tokens": rng.standard_normal((6, 3, 5)),
        "queries": rng.standard_normal((6, 4)),
        "labels": np.array([1, -1, 1, -1, 1, -1]),
    }
    return {name: value for name, value in (inputs | change).items() if value is not None}


def write(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def one_sentence(streams: pytest.CaptureResult[str]) -> str:
    """Check that a refusal is one line on stderr and nothing on stdout, and return it."""
    assert streams.out == ""
    assert streams.err.startswith("attsvm: ")
    assert streams.err.count("\n") == 1
    assert "Traceback" not in streams.err
    return streams.err


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_solve_writes_what_python_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str], norm: str) -> None:
    original = problem(mask=np.array([[1, 1, 1], [1, 1, 1], [0, 1, 1], [1, 1, 0]]))
    source, target = write(tmp_path / "in.npz", original), tmp_path / "out.npz"
    assert main(["solve", str(source), "--norm", norm, "--out", str(target)]) == 0
    output = capsys.readouterr().out
    built_problem = attsvm.SelectionProblem(
        original["tokens"], original["queries"], original["selected"], mask=original["mask"] == 1
    )
    expected = attsvm.solve(built_problem, norm, callback=lambda state: False)  # watched, as the command watches it
    with np.load(target, allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["W"], expected.W)
        np.testing.assert_array_equal(archive["support"], expected.support)
        assert str(archive["status"]) == "OPTIMAL"
        assert float(archive["gap"]) <= 1e-9
    for part in ("optimal", norm, f"{expected.objective:.6g}"[:6], "4 queries", str(target)):
        assert part in output


def test_solve_reads_shared_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = problem(queries=np.eye(5)[:3], selected=np.array([0, 2, 1]), sequence=np.array([1, 1, 3]))
    assert main(["solve", str(write(tmp_path / "a.npz", source))]) == 0
    assert "3 queries" in capsys.readouterr().out


def test_an_infeasible_problem_exits_with_3_and_saves_its_proof(tmp_path: Path, capsys) -> None:
    source = problem()
    source["tokens"][0, 1] = source["tokens"][0, 0]
    target = tmp_path / "out.npz"
    assert main(["solve", str(write(tmp_path / "a.npz", source)), "--out", str(target)]) == 3
    assert "infeasible" in capsys.readouterr().out
    with np.load(target) as archive:
        assert np.isnan(archive["W"]).all()
        assert archive["certificate"].sum() == pytest.approx(1)


def test_a_limit_exits_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    teacher = rng.standard_normal((20, 20))
    tokens, queries = rng.standard_normal((60, 12, 20)), rng.standard_normal((60, 20))
    selected = np.einsum("ntd,de,ne->nt", tokens, teacher, queries).argmax(axis=1)
    source = write(tmp_path / "a.npz", {"tokens": tokens, "queries": queries, "selected": selected})
    assert main(["solve", str(source), "--max-iter", "1", "--norm", "nuclear"]) == 4
    output = capsys.readouterr().out
    assert "limit" in output
    assert "rank     at least " in output  # of the optimum: the W at hand is far from it
    assert "support  at most " in output
    assert main(["solve", str(source), "--max-iter", "1", "--norm", "nuclear", "--json"]) == 4
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["rank"] is None
    assert numbers["support"] is None


@pytest.mark.parametrize(
    ("change", "word"),
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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, np.ndarray | None], word: str
) -> None:
    source = write(tmp_path / "a.npz", problem(**change))
    assert main(["solve", str(source), "--out", str(tmp_path / "out.npz")]) == 2
    assert word in one_sentence(capsys.readouterr())
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"labels": None}, "labels"),
        ({"labels": np.array([1, 2, 1, 2, 1, 2])}, "labels"),
        ({"labels": np.zeros(6)}, "labels"),
        ({"labels": np.ones(6)}, "labels of a.npz are all +1; -1 and +1 were expected"),
        ({name: array[:1] for name, array in data_set().items()}, "a.npz has one row"),
        ({"tokens": data_set()["tokens"][:, :1]}, "one visible token in every row"),
        ({"mask": np.eye(3)[np.zeros(6, int)]}, "one visible token in every row"),
        ({"queries": np.full((6, 4), np.inf)}, "queries"),
        ({"tokens": np.zeros((6, 5))}, "tokens"),
        ({"tokens": np.zeros((6, 3, 5))}, "tokens"),
        ({"queries": np.zeros((6, 4))}, "queries"),
        ({"head": np.ones(4)}, "head"),
    ],
)
def test_bad_data_sets_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, np.ndarray | None], word: str
) -> None:
    source = write(tmp_path / "a.npz", data_set(**change))
    assert main(["study", str(source), "--out", str(tmp_path / "out")]) == 2
    assert word in one_sentence(capsys.readouterr())
    assert not (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
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
    word: str,
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
    assert word.lower() in one_sentence(capsys.readouterr()).lower()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_the_script_refuses_without_a_traceback(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.npz", problem()).read_bytes()
    (tmp_path / "a.npz").write_bytes(whole[: len(whole) // 2])
    process = script("solve", tmp_path / "a.npz")
    assert (process.returncode, process.stdout) == (2, "")
    assert (
        process.stderr == f"attsvm: {tmp_path / 'a.npz'} is truncated or of another format; a .npz file was expected.\n"
    )


def test_version_and_help_are_quick() -> None:
    assert script("--version").stdout.strip() == attsvm.__version__
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = script("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert process.returncode == 0
        assert {"solve", "study"} <= set(process.stdout.split())
    # Half a second is the promise. Processor time, since others may be using the machine; a busy one is slower even so.
    assert min(seconds) < 0.75


def test_help_loads_nothing_heavy() -> None:
    code = "import sys; from attsvm.cli import main; main(['--help']); print(*sorted(sys.modules), file=sys.stderr)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    heavy = {"torch", "numba", "sklearn", "matplotlib", "scipy", "jinja2"}
    assert heavy.isdisjoint(process.stderr.split())


def test_solve_takes_what_python_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = problem()
    built_problem = attsvm.SelectionProblem(original["tokens"], original["queries"], original["selected"])
    source, hard = write(tmp_path / "in.npz", original), tmp_path / "hard.npz"

    def json_of(*arguments: object) -> dict:
        assert main(["solve", str(source), "--json", *map(str, arguments)]) == 0
        return json.loads(capsys.readouterr().out)

    exact = json_of("--exact", "--out", hard)
    assert exact["exact"]["proven"] is True
    assert exact["status"] == "OPTIMAL"
    soft = json_of("--C", 0.1, "--loss", "squared_hinge")
    expected = attsvm.solve(built_problem, C=0.1, loss="squared_hinge")
    # Both objectives are within their certified gaps, 1e-9 at most, of the optimum.
    assert soft["objective"] == pytest.approx(expected.objective, rel=1e-4)
    assert soft["objective"] < 0.99 * exact["objective"]
    assert "coordinate" in json_of("--method", "coordinate_newton")["method"]
    assert json_of("--prior", hard)["objective"] < 1e-6
    assert main(["solve", str(source), "--prior", str(hard)]) == 0
    assert "distance" in capsys.readouterr().out
    soft_numbers = json_of("--exact", "--C", 0.1, "--method", "auto")
    assert soft_numbers["exact"]["proven"] is True
    assert soft_numbers["primal"] == pytest.approx(
        attsvm.solve(built_problem, C=0.1).primal, rel=2e-9
    )  # two gaps of 1e-9
    assert main(["solve", str(source), "--exact", "--C", "0.1"]) == 0
    assert "plus C times the losses" in (text := capsys.readouterr().out)
    assert "proven: The smallest objective lies in" in text
    assert main(["solve", str(source), "--out", str(tmp_path / "out.txt")]) == 2
    assert ".npz was expected" in one_sentence(capsys.readouterr())


@pytest.mark.parametrize(
    ("status", "proven", "code"),
    [
        (Status.OPTIMAL, False, 4),
        (Status.INFEASIBLE, False, 4),
        (Status.CANCELLED, False, 130),
        (Status.OPTIMAL, True, 0),
        (Status.INFEASIBLE, True, 3),
    ],
)
def test_a_verdict_that_is_not_proven_has_its_exit_code(
    status: Status, proven: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solution = attsvm.solve(attsvm.SelectionProblem(*problem().values()))
    proof = replace(solution.verify(exact=True), proven=proven)
    monkeypatch.setattr(attsvm.Solution, "verify", lambda self, exact: proof)
    changed = replace(solution, status=status)
    monkeypatch.setattr("attsvm.cli.solve.solve_problem", lambda *arguments, **options: changed)
    assert main(["solve", str(write(tmp_path / "in.npz", problem())), "--exact"]) == code


def write_header(path: Path, shape: tuple[int, ...], content: int) -> Path:
    """Write a problem whose tokens declare a shape of their own."""
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "<f8", "fortran_order": False, "shape": shape})
    member.write(bytes(content))
    source = problem()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tokens.npy", member.getvalue())
        for name in ("queries", "selected"):
            stream = io.BytesIO()
            np.save(stream, source[name])
            archive.writestr(f"{name}.npy", stream.getvalue())
    return path


def test_files_that_declare_or_inflate_too_much_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["solve", str(write_header(tmp_path / "a.npz", (10**6, 10**4, 10**4), 64))]) == 2
    assert "declares 800,000,000,000,000 bytes and holds" in one_sentence(capsys.readouterr())
    inflating = write_header(tmp_path / "b.npz", (1000, 100, 10), 8 * 10**6)
    assert inflating.stat().st_size < 10**5
    sizes = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("attsvm.data.npz.os.sysconf", sizes.__getitem__)
    assert main(["solve", str(inflating)]) == 2
    assert "a quarter of this machine's memory" in one_sentence(capsys.readouterr())
    monkeypatch.delattr("attsvm.data.npz.os.sysconf")  # as on Windows
    assert main(["solve", str(write(tmp_path / "c.npz", problem()))]) == 0


def test_a_file_that_may_not_be_read_is_not_called_truncated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, open_file = write(tmp_path / "in.npz", problem()), Path.open

    def refuse(path: Path, *arguments: object, **options: object):
        if path == source:  # as for anyone but root after chmod 0
            raise PermissionError(13, "Permission denied", str(path))
        return open_file(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "open", refuse)
    assert main(["solve", str(source)]) == 2
    assert "permission denied" in one_sentence(capsys.readouterr())


def test_a_wrong_number_has_its_place_and_labels_their_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = problem()
    source["tokens"][1, 2, 3] = np.nan
    assert main(["solve", str(write(tmp_path / "a.npz", source))]) == 2
    assert "tokens in" in (output := one_sentence(capsys.readouterr()))
    assert "nan at [1, 2, 3]" in output
    labels = data_set(labels=np.array([0, 1, 0, 1, 1, 0]))
    assert main(["study", str(write(tmp_path / "b.npz", labels))]) == 2
    assert "2 * labels - 1" in one_sentence(capsys.readouterr())


@pytest.mark.slow
def test_a_reader_that_leaves_and_a_full_disk_get_no_traceback(tmp_path: Path) -> None:
    source = write(tmp_path / "in.npz", problem())
    command = [*SCRIPT, "solve", str(source)]
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False)
    os.close(writing)
    assert (process.returncode, without_progress(process.stderr)) == (141, "")
    if Path("/dev/full").exists():
        with Path("/dev/full").open("w") as full:
            run_result = subprocess.run(
                command, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False
            )
        assert run_result.returncode == 2
        assert run_result.stderr == "attsvm: the output cannot be written: No space left on device.\n"


@pytest.mark.slow
def test_files_are_written_for_a_reader_that_leaves_at_once(tmp_path: Path) -> None:
    source, out, proof = write(tmp_path / "in.npz", problem()), tmp_path / "out.npz", tmp_path / "proof.json"
    command = [*SCRIPT, "solve", str(source), "--out", str(out), "--certificate", str(proof)]
    reading, writing = os.pipe()
    os.close(reading)
    environment = ENVIRONMENT | {"PYTHONUNBUFFERED": "1"}  # the first line already finds nobody
    process = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    os.close(writing)
    assert (process.returncode, without_progress(process.stderr)) == (141, "")
    assert out.exists()
    assert main(["check", str(proof)]) == 0


@pytest.mark.slow
def test_help_for_a_reader_that_leaves_and_streams_that_are_closed_or_full() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run([*SCRIPT, "--help"], stdout=writing, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False)
    os.close(writing)
    assert (process.returncode, process.stderr) == (141, b"")
    command = " ".join(f"'{part}'" for part in SCRIPT)
    for redirection, code in ((f"{command} --version >&-", 0), (f"{command} solve none.npz 2>/dev/full", 2)):
        run_result = subprocess.run(
            ["sh", "-c", redirection], capture_output=True, text=True, env=ENVIRONMENT, check=False
        )
        assert (run_result.returncode, run_result.stderr) == (code, "")


def test_ctrl_c_in_a_command_that_shows_no_progress_has_its_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("attsvm_paper.cli.list.get_terminal_size", lambda fallback: interrupt())
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "Interrupted; nothing was written.\n"


def interrupting(function):
    """Press Ctrl-C twice before a function does its work, once."""
    presses = [signal.SIGINT] * 2

    def press(*arguments: object, **options: object):
        while presses:
            signal.raise_signal(presses.pop())
        return function(*arguments, **options)

    return press


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name"), [("study.training", "solve"), ("study.run", "controls"), ("report.study", "pictures")]
)
def test_a_second_ctrl_c_keeps_the_training_that_is_done(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    few_pictures: None,
    module: str,
    name: str,
) -> None:
    place = import_module(f"attsvm.{module}")
    monkeypatch.setattr(place, name, interrupting(getattr(place, name)))
    out = tmp_path / "out"
    assert main(["study", str(write(tmp_path / "mine.npz", data_set())), "--out", str(out), *STUDY]) == 130
    content = json.loads((out / "verdict.json").read_text(encoding="utf-8"))
    assert content["quantities"]["steps_W"]["value"] == 60
    assert (out / "report.html").exists() == (name != "pictures")
    output = capsys.readouterr()
    assert content["headline"] in output.out
    assert "nothing was written" not in output.err


@pytest.mark.slow
def test_a_study_that_dies_while_it_draws_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(study: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr("attsvm.report.study.pictures", die)
    out = tmp_path / "out"
    with pytest.raises(RuntimeError, match="killed"):
        main(["study", str(write(tmp_path / "mine.npz", data_set())), "--out", str(out), *STUDY])
    assert file_in_the_way(out) is None


def test_a_reproduction_says_what_a_second_ctrl_c_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = import_module("attsvm_paper.cli.work")
    monkeypatch.setattr(place, "finish", interrupting(place.finish))
    assert main(["reproduce", "svm-rank", "--out", str(tmp_path)]) == 130
    assert "the same command continues from there" in capsys.readouterr().err


def test_a_folder_that_may_not_be_looked_into_is_not_called_an_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", forbidden)
    assert main(["solve", "locked/in.npz"]) == 2
    assert one_sentence(capsys.readouterr()) == "attsvm: locked/in.npz: permission denied.\n"


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("share", [0.5, 0.01])
def test_a_truncated_shard_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str, share: float
) -> None:
    from safetensors.numpy import save_file

    shard = tmp_path / "shards" / f"0.{suffix}"
    shard.parent.mkdir()
    (np.savez if suffix == "npz" else lambda path, **arrays: save_file(arrays, path))(shard, **problem())
    whole = shard.read_bytes()
    shard.write_bytes(whole[: int(share * len(whole))])
    assert main(["solve", str(shard.parent)]) == 2
    assert f"{shard} " in (text := one_sentence(capsys.readouterr()))
    assert "file was expected" in text


def test_a_folder_that_nothing_selects_has_a_proof_and_one_out_of_time_a_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some, none = tmp_path / "some", tmp_path / "none"
    some.mkdir()
    none.mkdir()
    source = problem()
    write(some / "0.npz", source)
    assert main(["solve", str(some), "--time-limit", "1e-9"]) == 4
    output = capsys.readouterr().out
    assert "\nbound    the objective of every W is above 0\n" in output
    assert "\nproof " not in output
    source["tokens"][0, 1] = source["tokens"][0, 0]
    write(none / "0.npz", source)
    assert main(["solve", str(none)]) == 3
    output = capsys.readouterr().out
    assert "\nproof    1 multiplier\n" in output  # of the two equal tokens
    assert "\nbound " not in output


def test_a_shard_that_declares_petabytes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shards").mkdir()
    write_header(tmp_path / "shards" / "0.npz", (10**6, 10**4, 10**4), 64)
    assert main(["solve", str(tmp_path / "shards")]) == 2
    assert "declares 800,000,000,000,000 bytes and holds" in one_sentence(capsys.readouterr())


def test_a_port_in_use_is_refused_by_play(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert main(["play", "--no-browser", "--port", str(port)]) == 2
    assert f"port {port} cannot be used" in one_sentence(capsys.readouterr())


@pytest.mark.parametrize("port", [-1, 0, 1 << 16])
def test_a_number_that_is_no_port_is_refused_by_play(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "--no-browser", f"--port={port}"]) == 2
    assert one_sentence(capsys.readouterr()) == f"attsvm: --port is {port}; a number from 1 to 65535 was expected.\n"


def test_play_tells_its_address_before_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    from http.server import ThreadingHTTPServer

    output, told = io.BytesIO(), []

    def serve(server: ThreadingHTTPServer) -> None:
        told.append((server.server_port, output.getvalue().decode()))
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", serve)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", io.TextIOWrapper(output, encoding="utf-8"))  # a pipe: written when it is full
        assert main(["play", "--no-browser", "--port", str(port)]) == 0
    assert told == [(port, f"The playground is at http://127.0.0.1:{port}/ (Ctrl-C ends it).\n")]


def test_play_prints_the_path_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "--no-browser"]) == 0
    assert Path(capsys.readouterr().out.rstrip("\n")).read_text(encoding="utf-8").startswith("<!doctype html>")


def test_play_opens_the_page(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[str] = []
    monkeypatch.setattr("webbrowser.open", addresses.append)
    assert main(["play"]) == 0
    assert addresses[0].startswith("file://")
    assert addresses[0].endswith("index.html")


def test_play_serves_the_page_at_a_port_until_it_is_interrupted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    code = f"from attsvm.cli import main; raise SystemExit(main(['play', '--no-browser', '--port', '{port}']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert f"http://127.0.0.1:{port}/" in process.stdout.readline()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
        assert answer.read().startswith(b"<!doctype html>")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("variable", "value", "code", "text"),
    [
        ("NUMBA_NUM_THREADS", "0", 2, "NUMBA_NUM_THREADS is '0'"),
        ("ATTSVM_COMPILE", "soon", 2, "ATTSVM_COMPILE is 'soon'; one of 'background', 'later', 'first' was expected."),
        ("ATTSVM_COMPILE", "", 2, "ATTSVM_COMPILE is ''; one of"),
        pytest.param("LC_ALL", "C", 0, "", marks=pytest.mark.slow),
    ],
)
def test_settings_of_the_environment(tmp_path: Path, variable: str, value: str, code: int, text: str) -> None:
    command = [*SCRIPT, "solve", str(write(tmp_path / "in.npz", problem()))]
    process = subprocess.run(
        command, capture_output=True, timeout=120, env=ENVIRONMENT | {variable: value}, check=False
    )
    assert process.returncode == code, process.stderr
    assert text in process.stderr.decode()
    assert b"Traceback" not in process.stderr
    if code == 0:
        assert process.stdout.isascii()
        assert b"x10^-" in process.stdout or b"rounding level" in process.stdout
        assert b"?" not in process.stdout


def test_a_full_disk_still_tells_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device", "report.html")

    monkeypatch.setattr("attsvm.report.study.write_study", full)
    source = write(tmp_path / "mine.npz", data_set())
    assert main(["study", str(source), "--out", str(tmp_path / "out"), *STUDY]) == 2
    output = capsys.readouterr()
    assert "held out" in output.out
    assert output.err.endswith("attsvm: report.html: no space left on device.\n")


def test_a_full_disk_is_told_with_the_file_it_had_no_room_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    out = tmp_path / "out.npz"
    assert main(["solve", str(write(tmp_path / "in.npz", problem())), "--out", str(out)]) == 2
    output = capsys.readouterr()
    assert "optimal" in output.out
    assert output.err.endswith(f"attsvm: {out}: no space left on device.\n")


def test_every_option_of_study_has_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "--help"]) == 0
    text = capsys.readouterr().out
    assert "the name of the column of" in " ".join(text.split())
    assert "--no-" not in text


STUDY = ("--steps", "60", "--shuffles", "1", "--seed", "3")


@pytest.fixture
def few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw what FEW_PICTURES draws, in this process."""
    report = import_module("attsvm.report.study")
    pictures = report.pictures
    monkeypatch.setattr(
        report, "pictures", lambda study: {name: one for name, one in pictures(study).items() if name == "margins"}
    )


@pytest.mark.slow
def test_progress_that_nobody_reads_costs_no_study(tmp_path: Path) -> None:
    source, out = write(tmp_path / "mine.npz", data_set()), tmp_path / "out"
    reading, writing = os.pipe()
    os.close(reading)
    command = [*QUICK_SCRIPT, "study", str(source), "--out", str(out), *STUDY]
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=writing, text=True, env=ENVIRONMENT, check=False)
    os.close(writing)
    assert process.returncode == 0
    assert f"Report: {out / 'report.html'}" in process.stdout


@pytest.mark.slow
def test_a_study_of_a_file_from_the_shell(tmp_path: Path) -> None:
    source, out = write(tmp_path / "mine.npz", data_set()), tmp_path / "deep" / "out"
    process = script("study", source, "--out", out, *STUDY, MPLBACKEND="nonsense")
    assert process.returncode == 0, process.stderr
    content = json.loads((out / "verdict.json").read_text(encoding="utf-8"))
    assert content["attsvm"] == attsvm.__version__
    assert content["seed"] == 3
    assert content["complete"] is True
    assert content["parameters"]["steps"] == 60
    assert str(source) in content["command"]
    assert content["headline"] == process.stdout.splitlines()[0]
    assert f"Report: {out / 'report.html'}" in process.stdout
    # A log gets a line a stage, and no control characters of a bar.
    *lines, last = process.stderr.splitlines()
    assert last == "Drawing the report. Ctrl-C skips it and writes only the numbers."
    assert len(lines) >= 5
    assert all(line.startswith("[") and "\x1b" not in line for line in lines)
    names = {path.name for path in (out / "figures").iterdir()}
    assert {"correlation.png", "correlation.pdf", "spectrum.png", "margins.png", "precision.png"} <= names
    assert sorted(p.name for p in out.iterdir()) == ["figures", "report.html", "verdict.json"]


@pytest.mark.slow
def test_a_second_study_never_mixes_with_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], few_pictures: None
) -> None:
    source = write(tmp_path / "mine.npz", data_set())
    monkeypatch.chdir(tmp_path)
    earlier = Path("attsvm-study/verdict.json")
    earlier.parent.mkdir()
    earlier.write_text('{"files": ["figures/selection.png", "../outside.png", "verdict.json"]}')
    assert main(["study", str(source), "--steps", "5", "--shuffles", "0"]) == 0
    assert "Report: attsvm-study-2/report.html" in capsys.readouterr().out
    assert main(["study", str(source), "--steps", "6", "--shuffles", "0", "--out", "attsvm-study"]) == 2
    assert "holds a study already" in one_sentence(capsys.readouterr())
    assert "selection" in earlier.read_text()
    stale, notes = Path("attsvm-study/figures/selection.png"), Path("attsvm-study/notes.txt")
    own, outside = Path("attsvm-study/figures/holiday.png"), Path("outside.png")
    stale.parent.mkdir()
    for picture in (stale, own, outside):
        picture.write_bytes(b"a figure of another study, or of the user")
    notes.write_text("mine")
    second = ["study", str(source), "--steps", "6", "--shuffles", "0", "--out", "attsvm-study", "--overwrite"]
    assert main(second) == 0
    assert json.loads(earlier.read_text(encoding="utf-8"))["parameters"]["steps"] == 6
    assert not stale.exists()
    assert notes.read_text() == "mine"
    assert own.exists()
    assert outside.exists()
    files = json.loads(earlier.read_text(encoding="utf-8"))["files"]
    written = {str(path.relative_to(earlier.parent)) for path in earlier.parent.rglob("*") if path.is_file()}
    assert set(files) == written - {"notes.txt", "figures/holiday.png"}


def test_a_study_removes_and_replaces_no_picture_of_the_users(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], few_pictures: None
) -> None:
    source, out = write(tmp_path / "mine.npz", data_set()), tmp_path / "out"
    study = ["study", str(source), "--steps", "5", "--shuffles", "0", "--out", str(out)]
    own = [out / "figures" / name for name in ("holiday.png", "paper.pdf")]
    own[0].parent.mkdir(parents=True)
    for picture in own:
        picture.write_bytes(b"mine")
    assert main(study) == 0
    assert [picture.read_bytes() for picture in own] == [b"mine", b"mine"]
    capsys.readouterr()
    taken = tmp_path / "taken"
    (taken / "figures").mkdir(parents=True)
    (taken / "figures" / "margins.png").write_bytes(b"mine")
    assert main([*study[:-1], str(taken)]) == 2
    assert "holds figures/margins.png, which a study would replace" in one_sentence(capsys.readouterr())
    assert (taken / "figures" / "margins.png").read_bytes() == b"mine"
    names = {path.stem for path in (out / "figures").iterdir()} - {"holiday", "paper"}
    assert names <= set(FIGURE_NAMES)


@pytest.mark.slow
def test_two_studies_at_once_never_share_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], few_pictures: None
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["study", str(write(tmp_path / "mine.npz", data_set())), "--steps", "5", "--shuffles", "0"]
    with locked(tmp_path / "attsvm-study"), locked(tmp_path / "one"):  # as by a study that is at work there
        assert main(arguments) == 0
        assert "Report: attsvm-study-2/report.html" in capsys.readouterr().out
        assert main([*arguments, "--out", "one"]) == 2
    assert "one is in use by another run; wait for it, or choose another --out." in capsys.readouterr().err
    command = [sys.executable, "-c", FEW_PICTURES + TWICE, *arguments, "--out", "both"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=True)
    results = json.loads(done.stdout)
    assert sorted(code for code, _ in results) == [0, 2], done
    assert sum("Report: both/report.html" in text for _, text in results) == 1


def test_solve_does_not_overwrite_its_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.npz", problem())
    before = source.read_bytes()
    for out in (source, tmp_path / "." / "in.npz"):
        assert main(["solve", str(source), "--out", str(out)]) == 2
        assert "a file that is read" in one_sentence(capsys.readouterr())
    assert source.read_bytes() == before


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"{FEW_PICTURES}{PRESS}sys.exit(main())", "study", "digits", "--train", "10"]
    options = ["--steps", "100000000", "--out", str(tmp_path / "out")]
    running = subprocess.run([*command, *options], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    out, rest = running.stdout, running.stderr
    assert running.returncode == 130, rest
    assert "finished work will be kept" in rest
    content = json.loads((tmp_path / "out" / "verdict.json").read_text(encoding="utf-8"))
    assert content["complete"] is False
    assert content["quantities"]["steps_W"]["value"] > 0
    assert "stopped early" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert out.startswith("Interrupted while training W")
    assert "Stopped early" in out
    assert content["headline"] in out
    assert "Report:" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["solve", ""], "argument 2 is empty; a value was expected."),
        (["solve", "a.npz", "--out", ""], "--out is empty; a value was expected."),
        (["solve", "a.npz", "--out="], "--out is empty; a value was expected."),
        (["check", ""], "argument 2 is empty; a value was expected."),
        (["compare", "a", ""], "argument 3 is empty; a value was expected."),
        (["study", "digits", "--out", ""], "--out is empty; a value was expected."),
        (["reproduce", "--quick", "--out", ""], "--out is empty; a value was expected."),
        (["inspect", "gpt2", "--text", ""], "--text is empty; a value was expected."),
        (["bench", "--out", ""], "--out is empty; a value was expected."),
    ],
)
def test_an_empty_path_is_not_this_folder(arguments: list[str], sentence: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.npz", problem())
    assert main(arguments) == 2
    assert one_sentence(capsys.readouterr()) == f"attsvm: {sentence}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("classes", ["good", "good,bad,worse", "good;bad"])
def test_classes_of_a_table_are_two_labels(classes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "a.csv"
    table.write_text("a,b\none,good\ntwo,bad\nthree,worse\n", encoding="utf-8")
    assert main(["study", str(table), "--text", "a", "--label", "b", "--classes", classes]) == 2
    sentence = f"--classes is '{classes}'; two labels joined by a comma, such as good,bad, were expected."
    assert one_sentence(capsys.readouterr()) == f"attsvm: {sentence}\n"


@pytest.mark.parametrize(
    "raw", [b"\xff\xfew\x00h", b"a,b\nx\x00,1\n", b"a,a\nx,1\n", b'a,b\n"' + b"x" * 131_073 + b'",1\n']
)
def test_tables_that_cannot_be_read_are_refused(raw: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_bytes(raw)
    assert main(["study", str(tmp_path / "a.csv"), "--text", "a", "--label", "b"]) == 2
    assert "expected" in one_sentence(capsys.readouterr())


@pytest.mark.parametrize("raw", [b"one\ntwo\x00\n", b"one\n\xfftwo\n"])
def test_bytes_that_are_no_text_are_not_inspected(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(raw)
    with pytest.raises(ValueError, match=r"a\.txt is no UTF-8 text; a text file with one text per line was expected\."):
        read_lines(tmp_path / "a.txt", 9)


def test_a_byte_order_mark_is_no_word(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\rtwo\r")
    assert read_lines(tmp_path / "a.txt", 9) == ["one", "two"]
