"""An experiment in a user's file, as in ``attsvm reproduce ./own.py``.

Rows belong to the code that computes them; :mod:`attsvm_paper.engine.fingerprint` digests the file like a module of
attsvm. An edit of ``trials`` therefore starts a new run, and an edit of ``figure`` redraws the stored rows.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import traceback
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from attsvm_paper.engine.experiment import Experiment


def is_file(name: str) -> bool:
    """Return whether a word of the command line names a file; names of experiments have no dots or slashes."""
    return name.endswith(".py") or os.sep in name


def read_experiment(name: str) -> Experiment:
    """Run a file and return its ``EXPERIMENT``.

    Parameters
    ----------
    name : str
        Path of the file.

    Raises
    ------
    ValueError
        If the file fails, or defines no experiment.
    OSError
        If it cannot be read.
    """
    path = Path(name).resolve()
    Path(name).read_bytes()
    module_name = f"attsvm_experiment_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{name} is no Python file; a name that ends in .py was expected.")
    module = sys.modules[module_name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise ValueError(f"{name} cannot be run: {failure(error, path)}.") from error
    return replace(_checked(module, name), file=name)


def _checked(module: ModuleType, name: str) -> Experiment:
    experiment = getattr(module, "EXPERIMENT", None)
    if not isinstance(experiment, Experiment):
        what = "no EXPERIMENT" if experiment is None else f"EXPERIMENT as a {type(experiment).__name__}"
        raise ValueError(f"{name} defines {what}; EXPERIMENT = Experiment(...) was expected.")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", experiment.name):
        raise ValueError(f"{name} names its experiment {experiment.name!r}; lower case and hyphens were expected.")
    if set(experiment.minutes) != {"quick", "full"}:
        raise ValueError(f"{name} gives minutes for {sorted(experiment.minutes)}; quick and full were expected.")
    return experiment


def line_of(error: BaseException, file: str | Path) -> int | None:
    """Return the line of the file that raised an error, itself or in a call; None if no line did."""
    path = str(Path(file).resolve())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None


def failure(error: BaseException, file: str | Path) -> str:
    """Say what was raised, and in which line of the file."""
    line, text = line_of(error, file), error.msg if isinstance(error, SyntaxError) else str(error)
    place = "" if line is None else f"line {line}: "
    return f"{place}{type(error).__name__}{text and ': '}{text}".rstrip(".")
