"""Kill commands at random moments and let them go on: `python tests/kills.py [--kills N] [--seed S] [NAME ...]`.

The results must be those of a run that was left alone, byte for byte but for the seconds that it took, and nothing else
may lie beside them. Runs are forks of one process that has imported everything, so that moments fall into the work.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")

import numpy as np

from attsvm.platform.kernels import KERNELS, is_kept

# What a command prints when an earlier run, killed after its last file was complete, leaves nothing to do.
COMPLETE = "holds a study already"
_TIMES = re.compile(rb"\b\d+(\.\d+)? (s|min|h)\b|(\"seconds\": )[\d.e-]+")


def study(folder: Path) -> list[str]:
    """Write a data set and return the command that studies it."""
    rng = np.random.default_rng(0)
    labels = np.where(np.arange(12) % 2, 1.0, -1.0)
    arrays: dict[str, Any] = {"tokens": rng.standard_normal((12, 4, 6)), "queries": rng.standard_normal((12, 5))}
    np.savez(folder / "data.npz", **arrays, labels=labels)
    return ["study", "data.npz", "--steps", "200", "--max-steps", "200", "--shuffles", "2", "--out", "out"]


def reproduce(folder: Path) -> list[str]:
    """Return the command of a short reproduction."""
    return ["reproduce", "gd-paths", "mirror-descent", "--set", "trials=1", "--set", "steps=200", "--out", "out"]


def inspect(folder: Path) -> list[str]:
    """Write a model with random weights and return the command that inspects it."""
    import torch
    import transformers as tf

    from pretrained_models import SENTENCES, minilm

    _, tokenizer = minilm()
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 32}
    tf.BertModel(tf.BertConfig(vocab_size=tokenizer.vocab_size, **shape)).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "texts.txt").write_text("\n".join(SENTENCES[:12]), encoding="utf-8")
    return ["inspect", "model", "--text", "texts.txt", "--queries", "8", "--memory", "0.001", "--out", "out"]


COMMANDS: dict[str, Callable[[Path], list[str]]] = {"study": study, "reproduce": reproduce, "inspect": inspect}


def launch(command: list[str], folder: Path) -> int:
    """Run a command in a fork, in a folder, with what it prints in the file `log` there; return its process."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.chdir(folder)
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        from attsvm.cli import main

        code = main(command)
    finally:
        os._exit(code)


def finish(process: int) -> int:
    """Wait for a process and return its exit code, negative for the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def results(folder: Path) -> dict[str, bytes]:
    """Read everything that lies in the report's directory, without the times that are told in it."""
    out = folder / "out"
    files = {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    return {name: _TIMES.sub(b"", content) for name, content in files.items()}


def links(folder: Path, source: Path) -> Path:
    """Make a folder in which a command finds its inputs."""
    folder.mkdir()
    for path in source.iterdir():
        if path.name not in ("out", "log"):
            (folder / path.name).symlink_to(path)
    return folder


def kill(name: str, kills: int, seed: int, place: Path) -> dict[str, int]:
    """Kill a command at random moments; return how many runs were killed, and how many of these went on from something.

    Raises
    ------
    AssertionError
        If a run that goes on ends otherwise than one that was left alone.
    """
    source = place / name
    source.mkdir()
    command = COMMANDS[name](source)
    kept = all(is_kept(one) for one, declaration in KERNELS.items() if declaration.signatures)
    for run in ("whole",) if kept else ("first", "whole"):  # the first one compiles
        folder = links(place / f"{name}-{run}", source)
        start = time.monotonic()
        assert finish(launch(command, folder)) == 0, (folder / "log").read_text()
    seconds, expected = time.monotonic() - start, results(folder)
    moments, counts = random.Random(f"{name} {seed}"), {"killed": 0, "left something": 0}
    for number in range(kills):
        folder = links(place / f"{name}-{number}", source)
        process = launch(command, folder)
        moment = seconds * moments.random()
        time.sleep(moment)
        os.kill(process, signal.SIGKILL)
        counts["killed"] += finish(process) == -signal.SIGKILL
        counts["left something"] += any(path.is_file() for path in (folder / "out").rglob("*"))
        code = finish(launch(command, folder))
        log = (folder / "log").read_text(encoding="utf-8")
        assert code == 0 or (code == 2 and COMPLETE in log), (name, moment, code, log)
        found = results(folder)
        assert set(found) == set(expected), (name, moment, sorted(set(found) ^ set(expected)))
        differing = [file for file in expected if found[file] != expected[file]]
        assert not differing, (name, moment, differing)
    return counts


def main() -> None:
    """Run the commands that are named, all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COMMANDS))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    import attsvm.pretrained
    import attsvm.report.page
    import attsvm.report.study
    import attsvm.study.run
    import attsvm.training
    import attsvm_paper.report.reproduction  # noqa: F401

    # Drawing six pictures, and each again for telephones, would take most of a short run, and most of the kills.
    pictures = attsvm.report.study.pictures
    attsvm.report.study.pictures = lambda study: dict(list(pictures(study).items())[:1])
    attsvm.report.page.Picture.narrow = None  # type: ignore[assignment]

    for name in arguments.names or COMMANDS:
        with tempfile.TemporaryDirectory() as place:
            print(name, json.dumps(kill(name, arguments.kills, arguments.seed, Path(place))), flush=True)


if __name__ == "__main__":
    main()
