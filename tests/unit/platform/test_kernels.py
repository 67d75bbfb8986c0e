"""The door to compiled code: without a cache, on a terminal, on the clock, in the interpreter, after a change."""

from __future__ import annotations

import ast
import importlib
import io
import os
import pickle
import pty
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import boolean, float64, int64, njit, typeof
from numba.core.dispatcher import Dispatcher

import attsvm
from attsvm import SelectionProblem, solve
from attsvm.platform import kernels
from attsvm.solvers.compiled.frobenius import solve_each
from attsvm.solvers.frobenius.active_set import SOLVED
from attsvm.solvers.nuclear.steps import STEP_COUNT, STEPS_PER_TEST, StepConstraints, advance, begin

PACKAGE = Path(attsvm.__file__).parent
DOUBLE = """
    import numpy as np
    from attsvm.platform.kernels import Stopwatch, kernel

    @kernel(inner=True)
    def half(x):
        return 0.5 * x

    @kernel()
    def double(x):
        return 4.0 * half(x)

    watch = Stopwatch()
"""


def _environment(**changes: str) -> dict[str, str]:
    """An environment in which neither numba's cache nor a home may be found."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_"))}
    return (
        environment
        | {"HOME": "/proc/none", "PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        | changes
    )


def _run(script: str, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script that lies in a folder whose __pycache__ is a file: no folder can be made there, not even by root."""
    (path / "__pycache__").touch()
    (path / "script.py").write_text(textwrap.dedent(script), encoding="utf-8")
    command = [sys.executable, "-W", "error", str(path / "script.py")]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=_environment(**environment))


@pytest.mark.slow
def test_solves_from_a_read_only_installation_without_a_home(tmp_path: Path) -> None:
    package = tmp_path / "attsvm"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "experiments", "pretrained"))
    for folder in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").touch()
        folder.chmod(0o555)
    script = """
        import numpy as np
        from attsvm import SelectionProblem, solve
        from attsvm.solvers.frobenius.coordinate_descent import sweeps
        random = np.random.default_rng(0)
        problem = SelectionProblem(random.standard_normal((3, 3, 4)), random.standard_normal((3, 4)), [0, 1, 2])
        solution = solve(problem, method="coordinate_newton")
        print(solution.status.name, len(sweeps.overloads), type(sweeps._cache).__name__)
    """
    try:
        process = _run(script, tmp_path, PYTHONPATH=str(tmp_path), ATTSVM_COMPILE="first")
    finally:
        for folder in [package, *(path for path in package.rglob("*") if path.is_dir())]:
            folder.chmod(0o755)
    assert (process.stdout, process.stderr) == ("OPTIMAL 1 _NoCache\n", "")


def test_compiling_is_not_on_the_clock_and_says_nothing_in_a_log(tmp_path: Path) -> None:
    script = (
        DOUBLE
        + """
    import time
    start = time.perf_counter()
    assert double(1.5) == 3.0
    print(time.perf_counter() - start, watch.seconds)
    """
    )
    process = _run(script, tmp_path)
    assert process.stderr == ""
    seconds, total = map(float, process.stdout.split())
    # Compiling two functions takes longer than a tenth of a second anywhere; on the clock it would be nearly all of it,
    # and calling them is microseconds, or a time slice or two on a busy machine.
    assert seconds > 0.1
    assert total < 0.5 * seconds


def test_a_terminal_shows_one_line_while_it_compiles_and_then_none(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").touch()
    (tmp_path / "script.py").write_text(
        textwrap.dedent(DOUBLE + "    double(1.5)\n    double(2.5)\n"), encoding="utf-8"
    )
    terminal, child = pty.openpty()
    try:
        command = [sys.executable, str(tmp_path / "script.py")]
        process = subprocess.run(command, stdout=subprocess.PIPE, stderr=child, timeout=120, env=_environment())
        os.close(child)
        display = os.read(terminal, 10_000).decode()
    finally:
        os.close(terminal)
    assert process.returncode == 0
    assert process.stdout == b""
    line, erase, rest = display.partition(kernels.ERASE_LINE)
    assert line == kernels.NOTICE.format(name="__main__")
    assert erase
    assert not rest


@pytest.mark.slow
def test_a_changed_callee_renews_its_caller(tmp_path: Path) -> None:
    """Numba's own stamp looks at the caller's file only."""
    caller = """
        from attsvm.platform.kernels import kernel
        from callee import FACTOR, shift

        @kernel()
        def scale(x):
            return FACTOR * shift(x)

        print(scale(2.0), len(scale.stats.cache_hits))
    """
    callee = """
        from attsvm.platform.kernels import kernel

        FACTOR = {factor}

        @kernel(inner=True)
        def shift(x):
            return x + {shift}
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(caller), encoding="utf-8")
    programs = []
    for factor, shift in ((1.0, 1.0), (3.0, 1.0), (3.0, 5.0), (3.0, 5.0)):
        (tmp_path / "callee.py").write_text(
            textwrap.dedent(callee).format(factor=factor, shift=shift), encoding="utf-8"
        )
        command = [sys.executable, str(tmp_path / "script.py")]
        environment = _environment(NUMBA_CACHE_DIR=str(tmp_path / "cache"))
        process = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=True)
        programs.append(process.stdout.split())
    assert programs == [["3.0", "0"], ["9.0", "0"], ["21.0", "0"], ["21.0", "1"]]


def _of_a_class_that_is_gone(content: bytes) -> bytes:
    """The version at the head of an index, and then a pickled name that this version of attsvm does not have."""
    head = io.BytesIO(content)
    pickle.load(head)
    return content[: head.tell()] + b"cattsvm.solvers.nuclear.steps\nGone\n."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "spoil"), [("*.nb?", lambda content: b""), ("*.nbi", _of_a_class_that_is_gone)], ids=["empty", "older"]
)
def test_an_unreadable_cache_is_no_error(tmp_path: Path, pattern: str, spoil: Callable[[bytes], bytes]) -> None:
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    script = DOUBLE + "    print(double(1.5))\n"
    assert _run(script, tmp_path, **environment).stdout == "3.0\n"
    cache_files = list((tmp_path / "cache").rglob(pattern))
    assert cache_files
    for path in cache_files:
        path.write_bytes(spoil(path.read_bytes()))
    process = _run(script, tmp_path, **environment)
    assert (process.stdout, process.stderr) == ("3.0\n", "")


def _instance(n: int, T: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng([n, T, d])
    tokens, queries, teacher = (random.standard_normal(shape) for shape in ((n, T, d), (n, d), (d, d)))
    selected = np.zeros((n, T), dtype=bool)
    selected[np.arange(n), np.einsum("ntd,de,ne->nt", tokens, teacher, queries).argmax(axis=1)] = True
    return tokens, queries, selected, np.ones((n, T), dtype=bool)


def _agree(one: np.ndarray, other: np.ndarray, tol: float) -> None:
    np.testing.assert_allclose(one, other, rtol=0, atol=tol * np.abs(other).max())


def test_the_interpreter_and_machine_code_solve_alike() -> None:
    n, T, d = 5, 4, 6
    answers = []
    stack = tuple(kernels.frozen(array[None]) for array in _instance(n, T, d))
    for function in (solve_each, kernels.interpreted(solve_each)):
        W, dual, margins = np.empty((1, d, d)), np.empty((1, n, T)), np.empty((1, n, T))
        norm, gap, state = np.empty(1), np.empty(1), np.empty(1, dtype=np.int64)
        function(*stack, 1e-9, True, W, dual, margins, norm, gap, state, np.empty((d, d)))
        assert state[0] == SOLVED
        answers.append((W, norm))
    for one, other in zip(*answers, strict=True):
        _agree(one, other, 1e-9)  # the certified gap is rounding, and W then within its root of the optimum


@pytest.mark.slow
def test_first_order_steps_in_numpy_are_the_compiled_ones() -> None:
    n, T, d = 5, 4, 6
    tokens, queries, selected, _ = _instance(n, T, d)
    row, column = np.nonzero(~selected)
    delta = tokens[selected][row] - tokens[row, column]
    free, lengths = np.zeros(len(row), dtype=bool), np.linalg.norm(delta, axis=1) * np.linalg.norm(queries[row], axis=1)
    constraints = StepConstraints(delta, row, queries, free, lengths)
    start = np.einsum("ka,kc->ac", delta, queries[row]), np.ones(len(row))
    answers = []
    for first, onward in ((begin, advance), (kernels.interpreted(begin), kernels.interpreted(advance))):
        memory = first(constraints, *start, 1.0)
        results = onward(constraints, memory, 1e-12, 3 * STEPS_PER_TEST)
        assert results == 3 * STEPS_PER_TEST == memory.state[STEP_COUNT]
        answers.append(memory.pairs)
    # Rotations leave cosines of 1e-9 between singular vectors, a step each.
    _agree(*answers, 3 * STEPS_PER_TEST * 1e-9)


@pytest.mark.slow
def test_small_problems_are_solved_before_anything_compiles(tmp_path: Path) -> None:
    script = """
        import time
        import numpy as np
        from attsvm import SelectionProblem, solve, solve_batch
        from attsvm.platform.kernels import KERNELS
        random = np.random.default_rng(0)
        problems = [
            SelectionProblem(random.standard_normal((4, 4, 6)), random.standard_normal((4, 6)), [0, 1, 2, 3])
            for _ in range(3)
        ]
        start = time.thread_time()
        statuses = {solve(problem, norm=norm).status.name for problem in problems for norm in ("frobenius", "nuclear")}
        statuses |= {status.name for status in solve_batch(problems).status}
        print(statuses, sum(len(function.overloads) for function in KERNELS), time.thread_time() - start < 2.0)
    """
    kernel = _run(script, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert (kernel.stdout, kernel.stderr) == ("{'OPTIMAL'} 0 True\n", "")


@pytest.mark.slow
def test_first_problems_of_every_size_are_solved_before_anything_compiles(tmp_path: Path) -> None:
    """Compiling takes 3 to 10 s here; what needs no kernel (interior points) has the same certificate in a tenth."""
    script = """
        import sys
        import numpy as np
        sys.path.insert(0, sys.argv[1])
        import problems
        from attsvm import solve, solve_batch
        from attsvm.platform.kernels import KERNELS
        for family, size in (("planted", (60, 10, 8)), ("planted", (400, 10, 10)), ("planted", (100, 32, 24))):
            problem = problems.FAMILIES[family].make(np.random.default_rng(0), *size)
            for norm, options in (("frobenius", {}), ("frobenius", {"C": 1.0}), (1, {}), ("nuclear", {})):
                assert solve(problem, norm, **options).status.name == "OPTIMAL", (family, norm, options)
        few = [problems.planted(np.random.default_rng(seed), 20, 8, 16) for seed in range(10)]
        assert {status.name for status in solve_batch(few).status} == {"OPTIMAL"}
        print(sum(len(function.overloads) for function in KERNELS))
    """
    folder = str(Path(__file__).parents[2])
    process = _run(script.replace("sys.argv[1]", repr(folder)), tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert (process.stdout, process.stderr) == ("0\n", "")


@pytest.mark.parametrize("dtype", [float64, boolean])
@pytest.mark.parametrize("dimensions", [2, 3, 4])
def test_a_frozen_array_has_the_declared_type(dtype: Any, dimensions: int) -> None:
    """Of any other type it would be compiled for once more."""
    array = np.ones((2,) * dimensions, dtype=str(dtype))
    assert typeof(kernels.frozen(array)) == kernels.read_only(dtype, dimensions)


def test_the_line_of_a_terminal_is_for_the_outermost_kernel_of_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels, "_terminal", lambda: True)
    ours, theirs = (SimpleNamespace(data={"dispatcher": one}) for one in (solve_each, njit(lambda x: x)))
    line = kernels.NOTICE.format(name="solvers.compiled.frobenius")
    notice = kernels._Notice()
    shown: list[str] = []
    for moment, compiled in (
        (notice.on_start, theirs), (notice.on_start, ours), (notice.on_start, ours), (notice.on_end, ours),
        (notice.on_end, ours), (notice.on_end, theirs), (notice.on_start, ours),
    ):  # fmt: skip
        moment(compiled)
        shown.append(capsys.readouterr().err)
    assert shown == ["", line, "", "", kernels.ERASE_LINE, "", line]


def test_a_cache_holds_a_kernel_when_it_has_code_for_all_its_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    @kernels.kernel((float64,), (int64,))
    def square(x: float) -> float:
        return x * x

    cache = kernels._Cache(square.py_func)
    keys = [cache._index_key(types, square.targetctx.codegen()) for types in ((float64,), (int64,))]
    for index, expected in (({}, False), (dict.fromkeys(keys[:1], "a"), False), (dict.fromkeys(keys, "a"), True)):
        monkeypatch.setattr(cache._cache_file, "_load_index", lambda index=index: index)
        assert cache.holds(square) is expected


def test_kernels_compile_at_their_first_call_inside_a_block_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    @kernels.kernel()
    def square(x: float) -> float:
        return x * x

    monkeypatch.setattr(square, "_cache", kernels._NoCache())
    monkeypatch.setattr(kernels, "_MOMENT", kernels._Moment("later"))
    for _ in range(2):
        assert not kernels.compiles(square, 1.0)
        with kernels.compiled_first():
            with kernels.compiled_first():
                assert kernels.compiles(square, 1.0)
            assert kernels.compiles(square, 1.0)
    with pytest.raises(KeyError), kernels.compiled_first():
        raise KeyError
    assert not kernels.compiles(square, 1.0)


def test_a_kernel_is_spared_until_doing_without_costs_what_compiling_does(monkeypatch: pytest.MonkeyPatch) -> None:
    @kernels.kernel(seconds=1.0)
    def square(x: float) -> float:
        return x * x

    monkeypatch.setattr(square, "_cache", kernels._NoCache())
    dear = 10 * kernels.RATE  # ten seconds in the interpreter
    assert not kernels.spares(square, 0.3 * kernels.RATE, 0.4)  # which is faster than the other way
    assert [kernels.spares(square, dear, 0.4) for _ in range(3)] == [True, True, False]
    assert kernels.spares(square, dear, 0.1)
    with kernels.compiled_first():
        assert not kernels.spares(square, dear, 0.05)
    assert square(3.0) == 9.0
    assert not kernels.spares(square, dear, 0.05)  # there is machine code now


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    @kernels.kernel()
    def square(x: float) -> float:
        return x * x

    monkeypatch.setattr(square, "_cache", kernels._NoCache())
    assert kernels.call(square, 1.0, 3.0) == 9.0
    assert not square.overloads
    assert kernels.call(square, kernels.RATE * kernels.KERNELS[square].seconds * 2, 3.0) == 9.0
    assert square.overloads


def test_short_calls_use_up_patience_together(monkeypatch: pytest.MonkeyPatch) -> None:
    @kernels.kernel(seconds=1.0)
    def square(x: float) -> float:
        return x * x

    monkeypatch.setattr(square, "_cache", kernels._NoCache())
    operations = 0.4 * kernels.RATE
    for _ in range(2):
        assert not kernels.compiles(square, operations)
        assert kernels.call(square, operations, 3.0) == 9.0
    assert kernels.compiles(square, operations)  # 1.2 s in all


def test_seconds_of_a_solution_leave_compiling_out(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = SelectionProblem(*_instance(3, 3, 4)[:3])
    pause = 0.2

    def slow(*arguments: object) -> tuple[bool, np.ndarray, np.ndarray, np.ndarray]:
        kernels._COMPILING.on_start(None)
        time.sleep(pause)
        kernels._COMPILING.on_end(None)
        return False, np.zeros((4, 4)), np.zeros((4, 4)), np.zeros((3, 3)), np.zeros((3, 3))

    monkeypatch.setattr("attsvm.solvers.solving.solve_compiled", slow)
    start = time.perf_counter()
    solution = solve(problem)
    assert solution.seconds < time.perf_counter() - start - pause + 1e-3


def test_kernels_without_a_wrapper_are_called_by_kernels_only() -> None:
    """From Python such a call would crash the interpreter instead of raising."""
    package = Path(attsvm.__file__).parent
    offenders = []
    for path in package.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if "kernel" not in source and "solvers" not in source:
            continue
        tree = ast.parse(source)
        kernels_of_module = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and any("kernel(" in ast.unparse(d) for d in node.decorator_list)
        ]
        compiled = {id(node) for function in kernels_of_module for node in ast.walk(function)}
        names = {
            node.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and id(node) not in compiled
        }
        module = importlib.import_module(".".join(("attsvm", *path.relative_to(package).with_suffix("").parts)))
        for name in names:
            value = getattr(module, name, None)
            if isinstance(value, Dispatcher) and value.targetoptions["no_cpython_wrapper"]:
                offenders.append(f"{path.name}: {name}")
    assert not offenders
