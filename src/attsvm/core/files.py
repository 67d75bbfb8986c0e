"""Write beside, then rename: an interrupted run leaves the old file or none, never half of one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def check_apart(
    target: str | os.PathLike[str],
    name: str,
    files: Iterable[str | os.PathLike[str]],
    folders: Iterable[str | os.PathLike[str]] = (),
) -> None:
    """Refuse a file to write that is one of ``files``, lies in one that is a directory, or lies directly in a folder.

    Links are followed. Names that differ in case alone are one file on some systems, so they are here.

    Raises
    ------
    ValueError
        A sentence, in which ``name`` is what the target is called.
    """
    place = Path(os.path.realpath(target))
    own, around = _identity(target), {_identity(parent) for parent in place.parents}
    for file in map(_identity, files):
        if file == own:
            raise ValueError(f"{name} {target} is a file that is read or written; another name was expected.")
        if file in around:
            raise ValueError(f"{name} {target} lies in a folder that is read; another folder was expected.")
    # A link is replaced where it stands, so its own folder counts as well.
    if {_identity(place.parent), _identity(Path(target).parent)} & set(map(_identity, folders)):
        raise ValueError(f"{name} {target} lies in a folder that is read; another folder was expected.")


def _identity(path: str | os.PathLike[str]) -> tuple[int, int] | str:
    """Device and inode of a file, or the path that it will have."""
    try:
        status = os.stat(path)
    except OSError:
        return os.path.realpath(path).casefold()
    return status.st_dev, status.st_ino


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


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
