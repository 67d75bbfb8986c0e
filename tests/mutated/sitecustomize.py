"""Run first in every process that a test starts under tests/mutation.py: it sees the mutant, or notes its lines."""

from __future__ import annotations

import atexit
import json
import marshal
import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any
from uuid import uuid4


class Finder(MetaPathFinder):
    """Loads one module with other code; its file is still the module's."""

    def __init__(self, module: str, code: CodeType) -> None:
        self.module, self.code = module, code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == self.module else None
        if spec is not None and spec.origin:
            spec.loader = Loader(fullname, spec.origin, self.code)
        return spec


class Loader(SourceFileLoader):
    """Loads the code it is given."""

    def __init__(self, module: str, path: str, code: CodeType) -> None:
        super().__init__(module, path)
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return self.code


def note_lines(reached: dict[str, set[int]]) -> Callable[[], None]:
    """Add the lines that are reached from now on, by file, in those files that are keys; return how to end it."""

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        lines = reached.get(frame.f_code.co_filename)
        if lines is None:
            return None

        def note_line(frame: FrameType, event: str, argument: Any) -> Any:
            lines.add(frame.f_lineno)
            return note_line

        return note_line

    def end() -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    threading.settrace(note)
    sys.settrace(note)
    return end


def begin(folder: Path) -> None:
    """Do what the files of a folder say, at the start of a process."""
    mutant, files = folder / "mutant", folder / "files"
    if mutant.exists():
        sys.meta_path.insert(0, Finder(*marshal.loads(mutant.read_bytes())))
    if files.exists():
        reached: dict[str, set[int]] = {file: set() for file in json.loads(files.read_text(encoding="utf-8"))}
        end = note_lines(reached)

        def write() -> None:
            end()
            found = {file: sorted(lines) for file, lines in reached.items() if lines}
            (folder / f"{uuid4().hex}.lines").write_text(json.dumps(found), encoding="utf-8")

        atexit.register(write)


if "MUTATION_FOLDER" in os.environ:
    begin(Path(os.environ["MUTATION_FOLDER"]))
