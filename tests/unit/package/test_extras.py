"""Without the extras: solving, certificates and the scikit-learn faces work; everything else names what it lacks."""

import subprocess
import sys
from pathlib import Path

import pytest

from attsvm import SelectionProblem, solve
from attsvm.platform.extras import EXTRAS, MissingExtra, extra_for, missing_extra

# A finder in front of all others, for which some packages do not exist.
ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""

CORE = """
import numpy as np
import attsvm

random = np.random.default_rng(0)
tokens, queries = random.normal(size=(6, 5, 8)), random.normal(size=(6, 8))
problem = attsvm.SelectionProblem(tokens, queries, np.zeros(6, int))
for norm in ("frobenius", "nuclear", 1.5):
    assert attsvm.solve(problem, norm=norm).verify()
assert attsvm.solve(problem).verify(exact=True)
assert attsvm.solve(problem, C=1.0).verify()
assert attsvm.margin_report(attsvm.solve(problem).W, problem)
assert all(solution.verify() for solution in attsvm.solve_batch([problem, problem]))
y = np.arange(20) % 3
inputs = random.normal(size=(20, 30))
assert attsvm.MarginClassifier().fit(inputs, y).score(inputs, y) == 1.0
W = random.normal(size=(8, 8))
selected = np.einsum("ntd,de,ne->nt", tokens, W, tokens[:, 0]).argmax(1)
assert attsvm.AttentionSVM().fit(tokens, selected).solution_.verify()
"""


# matplotlib needs pillow, and installs it.
PLOTS = """
import numpy as np
import attsvm
from attsvm import MarginReport, Solution, plots
from matplotlib.figure import Figure

problem = attsvm.SelectionProblem([[[1.0, 0.5], [0.0, 0.0]], [[0.0, 2.0], [0.5, 0.0]]], np.eye(2), [0, 0])
solution = attsvm.solve(problem)
report = attsvm.margin_report(solution.W, problem, ("frobenius", "max"))
for draw in (plots.margins, plots.plane, Solution.plot):
    assert draw(solution, ax=Figure().subplots()).has_data()
for draw in (plots.matrix, plots.spectrum):
    assert draw(solution.W, ax=Figure().subplots()).has_data()
for draw in (plots.shares, MarginReport.plot):
    assert draw(report, Figure().subplots()).has_data()
assert solution.plot().has_data()
assert plots.path
assert "torch" not in sys.modules
"""


def run_without(code: str, present: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    absent = ABSENT.format(packages=sorted(EXTRAS.keys() - set(present)))
    return subprocess.run([sys.executable, "-c", absent + code], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_core_needs_no_extra() -> None:
    run = run_without(CORE)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", ["train", "Attention", "functional", "regularization_path"])
def test_a_name_that_needs_torch_says_how_to_install_it(name: str) -> None:
    run = run_without(f"from attsvm import {name}")
    assert (
        f"MissingExtra: attsvm.{name} needs torch, which an extra installs: pip install 'attsvm[torch]'" in run.stderr
    )
    assert issubclass(MissingExtra, ImportError)


@pytest.mark.parametrize(
    ("statement", "present", "sentence"),
    [
        ("from attsvm.functional import max_margin", (), "attsvm.functional needs torch, ... 'attsvm[torch]'"),
        ("from attsvm.functional import exact_softmax", (), "attsvm.functional needs torch, ... 'attsvm[torch]'"),
        ("import attsvm.functional", (), "attsvm.functional needs torch, ... 'attsvm[torch]'"),
        ("import attsvm.training", (), "attsvm.training needs torch, ... 'attsvm[torch]'"),
        ("from attsvm.training.run.loop import train", (), "attsvm.training needs torch, ... 'attsvm[torch]'"),
        (
            "from attsvm.pretrained import extract_head", (),
            "attsvm.pretrained.extract_head needs attsvm-pretrained, ... 'attsvm[pretrained]'",
        ),
        (
            "from attsvm import pretrained; pretrained.AttentionHead", ("attsvm_pretrained",),
            "attsvm.pretrained.AttentionHead needs torch, ... 'attsvm[pretrained]'",
        ),
        pytest.param(
            "from attsvm_pretrained.heads.loading import load; load('gpt2')", ("attsvm_pretrained", "torch"),
            "attsvm.pretrained needs transformers, ... 'attsvm[pretrained]'", marks=pytest.mark.slow,
        ),
        ("from attsvm.plots import margins", (), "attsvm.plots.margins needs matplotlib, ... 'attsvm[plots]'"),
        (
            "from attsvm import plots; plots.head", (),
            "attsvm.plots.head needs attsvm-pretrained, ... 'attsvm[pretrained]'",
        ),
        ("import attsvm.experiments", (), "attsvm.experiments needs attsvm-paper, ... 'attsvm[experiments]'"),
        ("import attsvm; attsvm.Playground", ("torch",), "attsvm.Playground needs anywidget, ... 'attsvm[playground]'"),
    ],
)  # fmt: skip
def test_a_module_names_the_extra_that_it_needs(statement: str, present: tuple[str, ...], sentence: str) -> None:
    for package in present:
        pytest.importorskip(package)  # which the statement has, and the others are hidden from it
    run = run_without(statement, present)
    sentence = sentence.replace("...", "which an extra installs: pip install")
    assert f"MissingExtra: {sentence}" in run.stderr.splitlines()[-1]


@pytest.mark.slow
def test_the_extra_plots_is_enough_to_plot() -> None:
    pytest.importorskip("matplotlib")
    run = run_without(PLOTS, ("matplotlib", "PIL"))
    assert run.returncode == 0, run.stderr


def test_a_package_that_is_there_and_fails_is_not_called_missing() -> None:
    error = ImportError("cannot import name 'x' from 'torch'", name="torch")
    with pytest.raises(ImportError, match="cannot import name 'x'"), extra_for("attsvm.train"):
        raise error


def test_the_command_line_names_its_extra_in_one_line() -> None:
    run = run_without("from attsvm.cli import main; sys.exit(main(['list']))")
    assert run.returncode == 2
    assert run.stderr == "attsvm: this command needs cyclopts, which an extra installs: pip install 'attsvm[cli]'.\n"


def test_the_checker_needs_no_extra(tmp_path: Path) -> None:
    """Its command names the module that works without one, and that module runs in a plain install."""
    run = run_without("from attsvm.cli import main; sys.exit(main(['check', 'c.json']))")
    assert run.returncode == 2
    assert run.stderr.endswith("pip install 'attsvm[cli]'. python -m attsvm.check FILE works without it.\n")
    solve(SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])).save(tmp_path / "c.json")
    arguments = [sys.executable, "-W", "error", "-m", "attsvm.check", str(tmp_path / "c.json")]
    module = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert (module.returncode, module.stderr) == (0, "")
    assert module.stdout.startswith("proven    optimal\n")
    file = str(tmp_path / "c.json")
    alone = run_without(
        f"import runpy; sys.argv = ['check', {file!r}]; runpy.run_module('attsvm.check', run_name='__main__')"
    )
    assert alone.returncode == 0, alone.stderr


def test_a_module_of_no_extra_is_not_explained() -> None:
    assert missing_extra("attsvm.train", ModuleNotFoundError("No module named 'missing'", name="missing")) is None
