"""attsvm, attsvm-pretrained and attsvm-paper are distributions of one version, and each finds the others."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from test_extras import run_without

import attsvm
from attsvm.cli.entry_points import PACKAGES as command_packages
from attsvm.platform.extras import EXTRAS
from attsvm_paper import registry
from attsvm_paper.cli import list as list_command
from attsvm_paper.cli import reproduce as reproduce_command
from attsvm_pretrained import cli as inspect_command

ROOT = Path(__file__).parents[3]
PROJECT, PAPER, PRETRAINED = (
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for folder in (".", "paper", "pretrained")
)


@pytest.mark.parametrize(
    ("folder", "part", "extra", "needs"),
    [("paper", PAPER, "experiments", "cli,cluster"), ("pretrained", PRETRAINED, "pretrained", "cli")],
)
def test_all_have_one_version_and_one_licence(folder: str, part: dict[str, Any], extra: str, needs: str) -> None:
    assert part["version"] == attsvm.__version__
    assert f"attsvm[{needs}]=={attsvm.__version__}" in part["dependencies"]
    assert PROJECT["optional-dependencies"][extra] == [part["name"]]
    assert part["requires-python"] == PROJECT["requires-python"]
    assert (ROOT / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_their_commands_are_those_of_the_entry_points() -> None:
    found = {command.name: command.load() for command in entry_points(group="attsvm.commands")}
    commands = {"reproduce": reproduce_command.reproduce, "list": list_command.list_experiments}
    assert found == {**commands, "inspect": inspect_command.inspect}
    assert {name: value.__module__.split(".")[0] for name, value in found.items()} == command_packages


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


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        ("list", "attsvm_paper", "experiments"),
        ("reproduce --full", "attsvm_paper", "experiments"),
        ("inspect gpt2 --text FILE", "attsvm_pretrained", "pretrained"),
    ],
)
def test_where_it_is_not_installed_its_commands_say_what_to_install(command: str, package: str, extra: str) -> None:
    alone = "import attsvm.cli.entry_points; attsvm.cli.entry_points.entry_points = lambda **selection: ()"
    code = f"{alone}; from attsvm.cli import main; sys.exit(main({command.split()}))"
    process = run_without(code, tuple(EXTRAS.keys() - {package}))
    assert process.returncode == 2
    name = package.replace("_", "-")
    sentence = f"this command needs {name}, which an extra installs: pip install 'attsvm[{extra}]'."
    assert process.stderr == f"attsvm: {sentence}\n"


@pytest.mark.slow
def test_a_study_of_hidden_states_says_what_to_install(tmp_path: Path) -> None:
    file = tmp_path / "texts.csv"
    file.write_text("text,label\n" + "".join(f"{'good' if i % 2 else 'bad'} word {i},{i % 2}\n" for i in range(12)))
    arguments = [
        "study",
        str(file),
        "--text",
        "text",
        "--label",
        "label",
        "--model",
        "gpt2",
        "--out",
        str(tmp_path / "o"),
    ]
    code = f"from attsvm.cli import main; sys.exit(main({arguments}))"
    process = run_without(code, tuple(EXTRAS.keys() - {"attsvm_pretrained"}))
    assert process.returncode == 2
    sentence = "--model needs attsvm-pretrained, which an extra installs: pip install 'attsvm[pretrained]'."
    assert process.stderr.splitlines()[-1] == f"attsvm: {sentence}"
