"""An experiment in a file of one's own: what it may be, what is said of a bad one, and how it runs."""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path

import pytest

from attsvm_paper import registry
from attsvm_paper.engine import runner
from attsvm_paper.engine.compute import compute, compute_packed, cut, pack, task_of
from attsvm_paper.engine.fingerprint import code_hash
from attsvm_paper.engine.own_file import failure, is_file, line_of, read_experiment
from attsvm_paper.report.finished import finished_in

TINY = Path(__file__).parents[2] / "tiny_experiment.py"
TEXT = TINY.read_text(encoding="utf-8")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(TEXT, encoding="utf-8")
    return path


def changed(own: Path, old: str, new: str) -> Path:
    assert TEXT.count(old) == 1
    own.write_text(TEXT.replace(old, new), encoding="utf-8")
    return own


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1\n", "defines no EXPERIMENT; EXPERIMENT = Experiment"),
        ("EXPERIMENT = 'tiny'\n", "defines EXPERIMENT as a str; EXPERIMENT = Experiment"),
        ("\n1 / 0\n", r"cannot be run: line 2: ZeroDivisionError: division by zero\.$"),
        ("\n\ndef f(:\n", r"cannot be run: line 3: SyntaxError: "),
        ("import no_such_module\n", r"cannot be run: line 1: ModuleNotFoundError: No module named 'no_such_module'\.$"),
        ("import sys\nsys.exit()\n", r"cannot be run: line 2: SystemExit\.$"),
        (TEXT.replace('name="tiny"', 'name="../up"'), "names its experiment '../up'; lower case and hyphens"),
        (TEXT.replace('name="tiny"', 'name="svm-rank"'), "calls its experiment 'svm-rank', as attsvm does"),
        (TEXT.replace('"full": 0.2', '"long": 0.2'), r"gives minutes for \['long', 'quick'\]; quick and full"),
    ],
)
def test_a_file_without_an_experiment_is_a_sentence(own: Path, text: str, sentence: str) -> None:
    own.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=sentence):
        registry.get(str(own))


def test_a_missing_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    for path in (tmp_path / "none.py", tmp_path):
        with pytest.raises(OSError, match=r"none\.py|directory"):
            registry.get(str(path))


def test_an_error_inside_the_file_has_the_line_that_caused_it(own: Path) -> None:
    experiment = registry.get(str(changed(own, "positive = x[0] > 0", "positive = x[99] > 0")))
    line = own.read_text(encoding="utf-8").splitlines().index("        positive = x[99] > 0") + 1
    with pytest.raises(IndexError) as raised:
        runner.run(experiment)
    assert failure(raised.value, own).startswith(f"line {line}: IndexError: index 99")
    assert failure(ValueError("elsewhere."), own) == "ValueError: elsewhere"


def test_its_rows_outlive_a_new_figure_and_no_new_trials(own: Path) -> None:
    first = code_hash(registry.get(str(own)))
    assert code_hash(registry.get(str(changed(own, 'ax.set_ylabel("trials")', 'ax.set_ylabel("count")')))) == first
    assert code_hash(registry.get(str(changed(own, "x[0] > 0", "x[0] > 1")))) != first


def test_it_resumes_and_is_shown_where_its_file_is_named(own: Path, tmp_path: Path) -> None:
    experiment, out = registry.get(str(own)), tmp_path / "out"
    settings = {"pause": 0.002}
    with pytest.raises(runner.Interruption):
        runner.run(experiment, out=out / "tiny", overrides=settings, progress=lambda *_: True, interval=0.0)
    rows = runner.run(experiment, out=out / "tiny", overrides=settings)
    assert rows == runner.run(experiment, overrides=settings)
    assert finished_in(out) == []
    (run,) = finished_in(out, [experiment])
    assert run.command == f"attsvm reproduce {own} --quick --set pause=0.002"
    assert not run.published


def test_a_worker_without_the_file_computes_the_same_rows(own: Path) -> None:
    experiment = registry.get(str(own))
    task = task_of(experiment, 3, cut(experiment.sweep("quick"), experiment.batch))
    rows = compute(task, 60.0).rows
    packed = pack(task)
    del sys.modules[experiment.trials.__module__]
    own.unlink()
    assert repr(compute_packed(packed, 60.0).rows) == repr(rows)


@pytest.mark.parametrize(("word", "file"), [("own.py", True), ("a/own", True), ("svm-rank", False), ("py", False)])
def test_a_word_with_a_suffix_or_a_folder_is_a_file(word: str, file: bool) -> None:
    assert is_file(word) is file


def test_a_file_that_fails_leaves_no_module(own: Path) -> None:
    experiment = read_experiment(str(own))
    name = experiment.trials.__module__
    assert name == f"attsvm_experiment_{sha256(str(own.resolve()).encode()).hexdigest()[:12]}"
    assert experiment.file == str(own)
    assert sys.modules[name].EXPERIMENT.file == ""
    own.write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(ValueError, match="cannot be run"):
        read_experiment(str(own))
    assert name not in sys.modules


def test_what_is_no_python_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text(TEXT, encoding="utf-8")
    with pytest.raises(ValueError, match=r"own\.txt is no Python file; a name that ends in \.py was expected\.$"):
        read_experiment(str(path))


@pytest.mark.parametrize(("name", "fine"), [("a", True), ("a-b-2", True), ("a--b", False), ("-a", False), ("A", False)])
def test_a_name_is_of_lower_case_words_and_hyphens(own: Path, name: str, fine: bool) -> None:
    changed(own, 'name="tiny"', f'name="{name}"')
    if fine:
        assert read_experiment(str(own)).name == name
        return
    with pytest.raises(ValueError, match=f"names its experiment '{name}'; lower case and hyphens were expected"):
        read_experiment(str(own))


def test_an_error_is_told_with_its_last_line_in_the_file(own: Path) -> None:
    own.write_text("def f(x):\n    return 1 / x\n\n\nf(0)\n", encoding="utf-8")
    code = compile(own.read_text(encoding="utf-8"), str(own), "exec")
    with pytest.raises(ZeroDivisionError) as raised:
        exec(code, {})
    assert (line_of(raised.value, own), line_of(raised.value, "other.py")) == (2, None)
    assert failure(raised.value, own) == "line 2: ZeroDivisionError: division by zero"
    assert failure(raised.value, "other.py") == "ZeroDivisionError: division by zero"
    assert failure(KeyError(), own) == "KeyError"
    assert failure(ValueError("wrong..."), own) == "ValueError: wrong"
    syntax = SyntaxError("bad word", (str(own), 7, 1, "x"))
    assert failure(syntax, own) == "line 7: SyntaxError: bad word"
