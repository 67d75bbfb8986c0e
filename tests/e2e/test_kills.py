"""One random moment of kill -9 for each command; `python tests/kills.py` does twenty."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "kills.py"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="the system has no fork")
@pytest.mark.parametrize("name", ["study", "reproduce", "inspect"])
def test_a_killed_run_goes_on_to_the_same_bytes(name: str) -> None:
    if name == "inspect":
        pytest.importorskip("transformers")
    command = [sys.executable, str(SCRIPT), "--kills", "1", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{name} {{")
