"""Machine code is made once a machine: by which process, when, and where it is not.

Compiling the package takes most of a minute. These tests have a package of the same name that has one small kernel.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import textwrap
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import attsvm
from attsvm import compile as compilation
from attsvm.platform import background, kernels
from attsvm.platform.files import locked

PACKAGE = Path(attsvm.__file__).parent
KERNEL = """
    from numba import float64
    from attsvm.platform.kernels import kernel

    @kernel((float64,), seconds=1e9)
    def double(x):
        return x + x
"""
# Calls the kernel until there is machine code for it, or for so many seconds.
SCRIPT = """
    import json, os, sys, time
    from attsvm.platform import background
    from attsvm.platform.kernels import call
    from attsvm.tiny import double

    start, calls = time.monotonic(), 0
    while not double.overloads and time.monotonic() - start < float(sys.argv[1]):
        assert call(double, 1.0, 2.0) == 4.0
        calls += 1
        time.sleep(0.05)
    try:
        children = os.waitpid(-1, os.WNOHANG) is not None
    except ChildProcessError:
        children = False
    print(json.dumps({"compiled": len(double.overloads), "calls": calls, "children": children,
                      "hits": sum(double.stats.cache_hits.values())}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "attsvm"
    package.mkdir()
    shutil.copytree(PACKAGE / "platform", package / "platform", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "compile.py"):
        shutil.copy(PACKAGE / name, package)
    (package / "tiny.py").write_text(textwrap.dedent(KERNEL), encoding="utf-8")
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    return tmp_path


def environment(folder: Path, **changes: str) -> dict[str, str]:
    here = {"PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "cache"), "ATTSVM_COMPILE": "background"}
    return os.environ | here | changes


def run(folder: Path, seconds: float, **changes: str) -> dict[str, int]:
    """Run the script, which is to say nothing."""
    process = subprocess.run(
        [sys.executable, "-W", "error", "script.py", str(seconds)],
        cwd=folder, env=environment(folder, **changes), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert process.stderr == ""
    return json.loads(process.stdout)


def marks(folder: Path) -> list[Path]:
    return list(folder.rglob(background.MARK))


def kept(folder: Path) -> list[Path]:
    return list(folder.rglob("*double*.nbc"))


@pytest.mark.slow
def test_a_script_takes_up_what_another_process_compiles_and_the_next_has_it(folder: Path) -> None:
    first = run(folder, 200.0)
    # Interpreted at first, then read from the cache and not compiled here; nobody is left to wait for.
    assert first["calls"] > 1
    assert (first["compiled"], first["hits"], first["children"]) == (1, 1, False)
    second = run(folder, 200.0)
    assert (second["calls"], second["compiled"], second["hits"]) == (1, 1, 1)


def test_it_outlives_the_script(folder: Path) -> None:
    assert run(folder, 0.01)["compiled"] == 0
    deadline = time.monotonic() + 200.0
    while not kept(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert kept(folder)


@pytest.mark.parametrize("word", ["later", "first"])
def test_the_environment_turns_it_off(folder: Path, word: str) -> None:
    result = run(folder, 0.5, ATTSVM_COMPILE=word)
    assert not marks(folder)
    assert result["compiled"] == result["calls"] * (word == "first")
    assert result["hits"] == 0  # what there is was compiled here


def test_nothing_is_started_where_no_cache_can_be_written(folder: Path) -> None:
    for place in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        (place / "__pycache__").touch()  # a file: no folder can be made there, not even by root
    bare = dict.fromkeys(("NUMBA_CACHE_DIR", "HOME", "XDG_CACHE_HOME"), "/proc/none")
    assert run(folder, 0.5, PYTHONDONTWRITEBYTECODE="1", **bare)["compiled"] == 0
    assert not marks(folder)
    process = subprocess.run(
        [sys.executable, "-m", "attsvm.compile"], cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env=environment(folder, PYTHONDONTWRITEBYTECODE="1", **bare),
    )  # fmt: skip
    assert process.returncode == 2
    assert process.stderr == "attsvm: numba's cache has no folder that can be written; set NUMBA_CACHE_DIR to one.\n"


@pytest.mark.slow
def test_a_command_compiles_at_installation(folder: Path) -> None:
    command = [sys.executable, "-m", "attsvm.compile"]
    lines = [
        subprocess.run(
            command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=300, check=True
        ).stdout
        for _ in range(2)
    ]
    assert [line.split(" kernels")[0] for line in lines] == ["1 of 1", "0 of 1"]
    assert run(folder, 200.0)["calls"] == 1
    assert not marks(folder)


@pytest.mark.slow
def test_one_process_compiles_at_a_time(folder: Path) -> None:
    script = "from attsvm.platform.kernels import cache_folder; print(cache_folder())"
    arguments = {"cwd": folder, "env": environment(folder), "timeout": 300, "check": True}
    cache = Path(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, **arguments).stdout[:-1]
    )
    mark = cache / background.MARK
    mark.touch()
    command = [
        sys.executable,
        "-c",
        f"{background.COMPILE_SCRIPT}; import os; print(os.nice(0))",
        str(folder),
        *sys.path,
    ]
    with locked(mark):
        subprocess.run(command, stdout=subprocess.DEVNULL, **arguments)
        assert not kept(folder)
    assert subprocess.run(command, capture_output=True, text=True, **arguments).stdout == "19\n"  # the lowest priority
    assert kept(folder)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would have been started."""
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **options: started.append(command))
    return started


def test_processes_that_need_it_at_once_start_one(tmp_path: Path, commands: list[list[str]]) -> None:
    assert [background.start(tmp_path) for _ in range(3)] == [True, False, False]
    assert len(commands) == 1
    # One that was killed is started again after a while.
    earlier = time.time() - background.PAUSE - 1.0
    os.utime(tmp_path / background.MARK, (earlier, earlier))
    assert background.start(tmp_path)


@pytest.mark.parametrize("place", ["missing", "file"])
def test_a_folder_that_has_gone_is_no_error(tmp_path: Path, commands: list[list[str]], place: str) -> None:
    (tmp_path / "file").touch()
    assert not background.start(tmp_path / place)
    assert not commands


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sys.executable", "/opt/application"),  # which would start itself again
        ("sys.executable", ""),
        ("multiprocessing.parent_process", lambda: "a pool"),
    ],
)
def test_neither_workers_nor_applications_start_it(
    tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    monkeypatch.setattr(f"attsvm.platform.background.{name}", value)
    assert not background.start(tmp_path)
    assert not commands
    assert not (tmp_path / background.MARK).exists()


def test_it_runs_in_a_session_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = "import json, os, sys; path = sys.argv[1] + '/report'; "
    report += "json.dump([os.getsid(0), os.getpid(), os.getcwd()], open(path + '~', 'w')); os.rename(path + '~', path)"
    monkeypatch.setattr(background, "COMPILE_SCRIPT", report)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert background.start(tmp_path)
    deadline = time.monotonic() + 100.0
    while not (tmp_path / "report").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    session, process, cwd = json.loads((tmp_path / "report").read_text(encoding="utf-8"))
    assert session not in (os.getsid(0), process)  # the shell began the session, and has ended
    assert cwd == "/"


def test_a_terminal_is_told_once(folder: Path) -> None:
    terminal, child = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "script.py", "0.3"],
            cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=child, timeout=300, check=True,
        )  # fmt: skip
        os.close(child)
        display = os.read(terminal, 10_000).decode()
    finally:
        os.close(terminal)
    assert display.splitlines() == [background.BACKGROUND_NOTICE]


class Entry:
    """What compiles, and for which types it was asked to."""

    def __init__(self, module: str) -> None:
        self.py_func = SimpleNamespace(__module__=module)
        self.compiled: list[tuple[str, ...]] = []

    def compile(self, types: tuple[str, ...]) -> None:
        self.compiled.append(types)


def test_two_processes_share_the_modules_and_each_module_is_compiled_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pool(nullcontext[Any]):
        def __enter__(self) -> Any:
            return SimpleNamespace(map=map)

    shares: list[list[str]] = []
    monkeypatch.setattr(compilation, "ProcessPoolExecutor", lambda *_: Pool())
    monkeypatch.setattr(compilation, "_compile_modules", lambda share: shares.append(share) or (1, len(share)))
    modules = sorted(compilation._modules())
    assert compilation.compile_kernels() == (2, len(modules))
    assert len(shares) == 2
    assert all(shares)
    assert sorted(module for share in shares for module in share) == modules


def test_a_process_compiles_what_the_cache_lacks_of_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, kept, theirs = Entry("json"), Entry("json"), Entry("math")
    declared = {one: kernels.Declaration((("float",), ("int",)), 1.0, None) for one in (ours, kept, theirs)}
    monkeypatch.setattr(compilation, "KERNELS", declared)
    monkeypatch.setattr(compilation, "is_kept", lambda one: one is kept)
    assert compilation._compile_modules(["json"]) == (1, 2)
    assert [one.compiled for one in declared] == [[("float",), ("int",)], [], []]


@pytest.mark.parametrize("exists", [True, False])
def test_what_compiles_needs_a_folder_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], exists: bool
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(os, "nice", calls.append)
    monkeypatch.setattr(compilation, "cache_folder", lambda: tmp_path if exists else None)
    monkeypatch.setattr(compilation, "compile_kernels", lambda: calls.append("compiled") or (1, 3))
    compilation.run_in_background()
    assert calls == [19, "compiled"][: 1 + exists]
    times = iter([1000.0, 1007.0])
    monkeypatch.setattr(compilation, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    status, display = compilation.main(), capsys.readouterr()
    assert calls == [19, "compiled", "compiled"][: 1 + 2 * exists]
    assert status == (0 if exists else 2)
    assert bool(display.err) is not exists
    assert display.out.startswith("1 of 3 kernels were compiled in 7 s;") is exists


def test_every_kernel_that_python_calls_is_declared_with_its_signatures() -> None:
    """Compiled beforehand is what is declared: a kernel without signatures would be compiled by its first caller."""
    modules = set(compilation._modules())
    for module in modules:
        __import__(module)
    entries, declared = (
        {one.py_func.__module__ for one in some if one.py_func.__module__.startswith("attsvm.")}
        for some in (compilation._entries(), kernels.KERNELS)
    )
    assert entries <= modules <= declared
    called = {"rotate", "in_basis", "right_singular"}  # by kernels, and by tests
    lacking = {
        one.py_func.__name__
        for one, declaration in kernels.KERNELS.items()
        if one.py_func.__module__.startswith("attsvm.")
        and not (declaration.signatures or one.targetoptions["no_cpython_wrapper"])
    }
    assert lacking == called
