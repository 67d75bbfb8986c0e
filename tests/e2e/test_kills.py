"""One random moment of kill -9 for each command; `python tests/kills.py` does twenty."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "kills.py"
NAMES = ("study", "reproduce", "inspect")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="the system has no fork")
def test_killed_runs_go_on_to_the_same_bytes() -> None:
    pytest.importorskip("transformers")
    command = [sys.executable, str(SCRIPT), "--kills", "1", *NAMES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.partition(" {")[0] for line in done.stdout.splitlines()] == list(NAMES)
