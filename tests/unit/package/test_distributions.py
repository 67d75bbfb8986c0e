"""attsvm and attsvm-paper are two distributions of one version, and each finds the other."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from test_extras import run_without

import attsvm
from attsvm.platform.extras import EXTRAS
from attsvm_paper import registry
from attsvm_paper.cli import list as list_command
from attsvm_paper.cli import reproduce as reproduce_command

ROOT = Path(__file__).parents[3]
PROJECT, PAPER = (
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for folder in (".", "paper")
)


def test_both_have_one_version_and_one_licence() -> None:
    assert PAPER["version"] == attsvm.__version__
    assert f"attsvm[cli,cluster]=={attsvm.__version__}" in PAPER["dependencies"]
    assert PROJECT["optional-dependencies"]["experiments"] == [PAPER["name"]]
    assert PAPER["requires-python"] == PROJECT["requires-python"]
    assert (ROOT / "paper" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_its_commands_are_those_of_the_entry_points() -> None:
    found = {command.name: command.load() for command in entry_points(group="attsvm.commands")}
    assert found == {"reproduce": reproduce_command.reproduce, "list": list_command.list_experiments}


def test_the_list_imports_no_experiment() -> None:
    code = (
        "import sys; from attsvm.cli import main; main(['list']); "
        "print([name for name in sys.modules if name == 'matplotlib' or name.startswith("
        "('attsvm_paper.figures', 'attsvm_paper.beyond', 'attsvm_paper.plots'))])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("earlier", "home"),
    [
        ("registry", "registry"),
        ("experiment", "engine.experiment"),
        ("runner", "engine.runner"),
        ("workers", "engine.workers"),
        ("comparison", "judging.comparison"),
        ("joint", "judging.joint"),
        ("readings", "judging.readings"),
    ],
)
def test_earlier_names_are_the_same_modules(earlier: str, home: str) -> None:
    assert import_module(f"attsvm.experiments.{earlier}") is import_module(f"attsvm_paper.{home}")
    assert attsvm.experiments.registry is registry


@pytest.mark.parametrize("command", ["list", "reproduce --full"])
def test_where_it_is_not_installed_its_commands_say_what_to_install(command: str) -> None:
    alone = "import attsvm.cli.paper; attsvm.cli.paper.entry_points = lambda **selection: ()"
    code = f"{alone}; from attsvm.cli import main; sys.exit(main({command.split()}))"
    process = run_without(code, tuple(EXTRAS.keys() - {"attsvm_paper"}))
    assert process.returncode == 2
    sentence = "this command needs attsvm-paper, which an extra installs: pip install 'attsvm[experiments]'."
    assert process.stderr == f"attsvm: {sentence}\n"
