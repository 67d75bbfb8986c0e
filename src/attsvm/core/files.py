"""Write beside, then rename: an interrupted run leaves the old file or none, never half of one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[bool]:
    """Lock a file or directory that exists against other processes; yields whether none of them has it.

    The system releases the lock when the process ends. On Windows processes are not kept apart.
    """
    try:
        import fcntl
    except ImportError:
        yield True
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        is_ours = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            is_ours = False
        yield is_ours
    finally:
        os.close(handle)


@contextmanager
def replacing_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a file to write; it takes the place of `path` when the block ends without an error.

    Raises
    ------
    OSError
        If the directory does not exist or cannot be written.
    """
    target = Path(path)
    beside = _partial(target)
    try:
        beside.touch()
        yield beside
        os.replace(beside, target)
    except OSError as error:
        error.filename = error.filename or str(target)  # a full disk does not say what it had no room for
        raise
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def replacing_files_in(directory: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty directory to write; its files move into `directory` when the block ends without an error.

    Files of other names that `directory` already holds stay there.

    Raises
    ------
    OSError
        If the directory cannot be made or written.
    """
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    beside = _partial(target / "files")
    try:
        beside.mkdir()
        yield beside
        for file in sorted(p for p in beside.rglob("*") if p.is_file()):
            place = target / file.relative_to(beside)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)
    except OSError as error:
        error.filename = error.filename or str(target)
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
