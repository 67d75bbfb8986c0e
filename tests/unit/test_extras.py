"""Without the extras: solving, certificates and the scikit-learn faces work; everything else names what it lacks."""

import subprocess
import sys
from pathlib import Path

import pytest

from attsvm import SelectionProblem, solve
from attsvm.core.extras import EXTRAS, missing_extra

# A finder in front of all others, for which the packages of the extras do not exist.
ABSENT = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {sorted(EXTRAS)!r}:
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


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", ABSENT + code], capture_output=True, text=True, check=False)


def test_the_core_needs_no_extra() -> None:
    run = _run(CORE)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", ["train", "Attention", "functional", "regularization_path"])
def test_a_name_that_needs_torch_says_how_to_install_it(name: str) -> None:
    run = _run(f"from attsvm import {name}")
    assert f"ImportError: attsvm.{name} needs torch, which an extra installs: pip install 'attsvm[torch]'" in run.stderr


def test_the_command_line_names_its_extra_in_one_line() -> None:
    run = _run("from attsvm.cli import main; sys.exit(main(['list']))")
    assert run.returncode == 2
    assert run.stderr == "attsvm: this command needs cyclopts, which an extra installs: pip install 'attsvm[cli]'.\n"


def test_the_checker_needs_no_extra(tmp_path: Path) -> None:
    """Its command names the module that works without one, and that module runs in a plain install."""
    run = _run("from attsvm.cli import main; sys.exit(main(['check', 'c.json']))")
    assert run.returncode == 2
    assert run.stderr.endswith("pip install 'attsvm[cli]'. python -m attsvm.check FILE works without it.\n")
    solve(SelectionProblem([[[3.0, 4.0], [0.0, 0.0]]], [[2.0]], [0])).save(tmp_path / "c.json")
    arguments = [sys.executable, "-W", "error", "-m", "attsvm.check", str(tmp_path / "c.json")]
    module = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert (module.returncode, module.stderr) == (0, "")
    assert module.stdout.startswith("proven    optimal\n")
    file = str(tmp_path / "c.json")
    alone = _run(f"import runpy; sys.argv = ['check', {file!r}]; runpy.run_module('attsvm.check', run_name='__main__')")
    assert alone.returncode == 0, alone.stderr


def test_a_module_of_no_extra_is_not_explained() -> None:
    assert missing_extra("attsvm.train", ModuleNotFoundError("No module named 'missing'", name="missing")) is None
