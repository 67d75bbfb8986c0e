"""Parts shared by commands: exit codes, one-sentence refusals, progress, and Ctrl-C that keeps finished work."""

from __future__ import annotations

import codecs
import io
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType, TracebackType
from typing import TextIO

import numpy as np


class Exit(IntEnum):
    """Exit codes."""

    DONE = 0
    REJECTED = 1
    BAD_INPUT = 2
    INFEASIBLE = 3
    UNDECIDED = 4
    INTERRUPTED = 130
    PIPE_CLOSED = 141


# Replacements for characters that the terminal cannot show.
PLAIN = {
    "×": "x",
    "–": "-",
    "−": "-",
    "✓": "+",
    "✗": "x",
    "‖": "||",
    "…": "...",
    "“": '"',
    "”": '"',
    "≤": "<=",
    "≥": ">=",
}
_SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_POWER = re.compile("[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks with ASCII: 7×10⁻¹⁵ becomes 7x10^-15, an unknown character ?."""
    assert isinstance(error, UnicodeEncodeError)
    power = _POWER.match(error.object, error.end - 1)  # Latin-1 has ¹ but not ⁻: the whole power is replaced
    plain, end = "", error.end if power is None else power.end()
    for place, character in enumerate(error.object[error.start : end], error.start):
        digit = character.translate(_SUPERSCRIPTS)
        if digit != character:
            is_raised = place > 0 and error.object[place - 1].translate(_SUPERSCRIPTS) != error.object[place - 1]
            plain += digit if is_raised else f"^{digit}"
        else:
            plain += PLAIN.get(character, "?")
    return plain, end


codecs.register_error("attsvm.plain", _plain)


def prepare_stream(stream: object) -> None:
    """Make a standard stream replace characters that its encoding lacks, instead of failing.

    Under an explicit C or POSIX locale, where Python itself would write UTF-8, output is ASCII.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return
    locale = next(filter(None, (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    named_by_user = any(os.environ.get(name) for name in ("PYTHONIOENCODING", "PYTHONUTF8"))
    if locale in ("C", "POSIX") and not named_by_user:
        stream.reconfigure(encoding="ascii", errors="attsvm.plain")
    else:
        stream.reconfigure(errors="attsvm.plain")


class BadInput(Exception):
    """An error that the user can correct; the message is one sentence."""


def refuse(message: str) -> int:
    """Print one line on stderr and return the exit code of bad input."""
    print("attsvm: " + " ".join(message.split()), file=sys.stderr)
    return Exit.BAD_INPUT


def tell(line: str, stream: TextIO | None = None) -> None:
    """Print a line during work; a closed reader or a full disk does not stop the work.

    The stream is stdout by default. After a failure, further output is discarded.
    """
    target = sys.stdout if stream is None else stream
    try:
        print(line, file=target, flush=True)
    except BrokenPipeError:
        discard(target)
    except OSError as error:
        discard(target)
        if target is not sys.stderr:
            tell(f"attsvm: the output cannot be written: {error.strerror or error}.", sys.stderr)


def discard(stream: TextIO) -> None:
    """Redirect a stream to nowhere, so that the interpreter's flush at exit cannot fail."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # captured, not a file
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


@contextmanager
def refusing(*, values: bool = True) -> Iterator[None]:
    """Turn the ValueError and OSError of the block into :class:`BadInput`; LinAlgError passes.

    If `values` is False, ValueError passes too: no input can cause it, so it is a bug.
    """
    try:
        yield
    except np.linalg.LinAlgError:
        raise
    except ValueError as error:
        if not values:
            raise
        raise BadInput(str(error)) from error
    except OSError as error:
        raise BadInput(_sentence(error)) from error


def _sentence(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    where = f"{error.filename}: " if error.filename is not None else ""
    return f"{where}{error.strerror[0].lower()}{error.strerror[1:]}."


def check_writable(target: Path, *, directory: bool, option: str = "--out") -> None:
    """Refuse an output that cannot be written, before any work is done.

    Raises BadInput if the file's directory, or the directory itself, cannot be created or written.
    """
    parent = target if directory else target.parent
    try:
        if not directory and target.is_dir():
            raise BadInput(f"{target} is a directory; the name of a file was expected for {option}.")
        parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=parent):  # leaves no file behind
            pass
    except OSError as error:
        if Path(str(error.filename)).parent == parent:
            error.filename = str(parent)
        raise BadInput(f"{option} {target} cannot be written: {_sentence(error)}") from error


class Progress:
    """A bar on a terminal, plain lines in a log; the first Ctrl-C requests a stop.

    Call it with the sentence of the current stage and the fraction done; it returns True once Ctrl-C was pressed. A
    second Ctrl-C interrupts at once. ``outcome`` says what a second Ctrl-C leaves, by default that nothing was written.
    """

    def __init__(self, outcome: str = "nothing was written.") -> None:
        self.interrupted = False
        self._outcome = outcome
        self._terminal = sys.stderr.isatty()
        self._start = time.perf_counter()
        self._stage = ""
        self._previous_handler = signal.SIG_DFL
        self._bar = None
        self._task = None

    @property
    def interval(self) -> float:
        """Seconds between two progress sentences, so that logs stay short."""
        return 0.5 if self._terminal else 15.0

    def __enter__(self) -> Progress:
        if self._terminal:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(bar_width=32), TimeElapsedColumn())
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=1.0)
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._previous_handler)

    def __call__(self, stage: str, share: float) -> bool:
        """Show the progress; return whether to stop."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=stage, completed=share)
        elif stage != self._stage:
            tell(f"[{time.perf_counter() - self._start:4.0f} s] {stage}", sys.stderr)
        self._stage = stage
        return self.interrupted

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt(f"Interrupted; {self._outcome}")
        self.interrupted = True
        tell("Stopping: finished work will be kept. Ctrl-C again quits at once.", sys.stderr)
