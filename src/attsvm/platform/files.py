"""Atomic writing: write a partial file, then rename it; an interrupted run leaves the old file or none.

The partial file is named `.NAME.PID.partial` and is locked while its process lives. After kill -9 the system releases
the lock, so that the next run recognises the file as abandoned. A complete folder is then moved into place; anything
else is removed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: runs are not separated, and files of a killed run stay
    fcntl = None


def check_apart(
    target: str | os.PathLike[str],
    name: str,
    files: Iterable[str | os.PathLike[str]],
    folders: Iterable[str | os.PathLike[str]] = (),
) -> None:
    """Refuse a target that is one of ``files``, lies in a directory among them, or lies directly in ``folders``.

    Links are followed. Names that differ only in case count as one file, as on some systems.

    Raises ValueError if it is; one sentence that calls the target ``name``.
    """
    place = Path(os.path.realpath(target))
    identity, parents = _identity(target), {_identity(parent) for parent in place.parents}
    for file in map(_identity, files):
        if file == identity:
            raise ValueError(f"{name} {target} is a file that is read or written; another name was expected.")
        if file in parents:
            raise ValueError(f"{name} {target} lies in a folder that is read; another folder was expected.")
    # A link is replaced at its location, so its folder counts as well.
    if {_identity(place.parent), _identity(Path(target).parent)} & set(map(_identity, folders)):
        raise ValueError(f"{name} {target} lies in a folder that is read; another folder was expected.")


def _identity(path: str | os.PathLike[str]) -> tuple[int, int] | str:
    """Device and inode of a file, or its path if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return os.path.realpath(path).casefold()
    return status.st_dev, status.st_ino


# Suffixes of folders that are completely written and being moved, and of files still being written.
_WHOLE, _PARTIAL = "whole", "partial"


def _partial_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{_PARTIAL}")


def _lock(handle: int, *, wait: bool = False) -> bool | None:
    """Lock an open file or folder for this process; None if the system has no locks for it."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextmanager
def locked(path: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """Lock a directory, created if necessary, or a file against other runs; the lock ends with the process.

    Parameters
    ----------
    wait : bool
        Wait for another run instead of refusing.

    Raises
    ------
    BlockingIOError
        If another run uses it; one sentence.
    OSError
        If the directory cannot be created or read.
    """
    if not Path(path).is_file():
        Path(path).mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        if _lock(handle, wait=wait) is False:
            raise BlockingIOError(f"{path} is in use by another run; wait for it, or choose another --out.")
        yield
    finally:
        os.close(handle)


@contextmanager
def _locked_partial(partial: Path, *, folder: bool) -> Iterator[None]:
    """Create a partial file or folder and hold its lock."""
    while True:
        partial.mkdir() if folder else partial.touch()
        if fcntl is None:
            yield
            return
        handle = os.open(partial, os.O_RDONLY)
        try:
            _lock(handle, wait=True)
            if not _is_at(partial, handle):  # another run removed it as abandoned before it was locked
                continue
            yield
            return
        finally:
            os.close(handle)


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def take_up(directory: Path, name: str) -> None:
    """Finish or remove partial files of killed runs, for files whose name matches a pattern of :meth:`Path.glob`."""
    for path in sorted(directory.glob(f".{name}.*")):
        ending = re.search(rf"\.\d+\.({_WHOLE}|{_PARTIAL})$", path.name)
        if ending is None or path.is_symlink() or fcntl is None:
            continue
        with suppress(FileNotFoundError), ExitStack() as stack:  # another run may have done the same
            handle = os.open(path, os.O_RDONLY)
            stack.callback(os.close, handle)
            if not _lock(handle) or not _is_at(path, handle):
                continue
            if path.is_dir():
                if ending[1] == _WHOLE:
                    _move(path, directory)
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


@contextmanager
def replacing_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a file to write; it replaces `path` when the block ends without an error.

    Raises OSError if the directory does not exist or cannot be written.
    """
    target = Path(path)
    partial = _partial_path(target)
    try:
        take_up(target.parent, escape(target.name))
        with _locked_partial(partial, folder=False):
            yield partial
            os.replace(partial, target)
    except OSError as error:
        error.filename = error.filename or str(target)  # a full disk does not name the file
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_files_in(directory: str | os.PathLike[str], earlier: Iterable[Path] = ()) -> Iterator[Path]:
    """Yield an empty directory to write; its files move into `directory` when the block ends without an error.

    Files with other names in `directory` stay.

    Parameters
    ----------
    earlier : iterable of Path
        Files of an earlier run, which are removed unless they are written again.

    Raises
    ------
    OSError
        If the directory cannot be made or written.
    """
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    partial = _partial_path(target / "files")
    whole = partial.with_suffix(f".{_WHOLE}")
    try:
        take_up(target, "files")
        with _locked_partial(partial, folder=True):
            yield partial
            os.rename(partial, whole)  # from here on, a run after kill -9 moves the remaining files
            written = {target / file.relative_to(whole) for file in _files(whole)}
            for file in set(earlier) - written:
                file.unlink(missing_ok=True)
            _move(whole, target)
    except OSError as error:
        error.filename = error.filename or str(target)
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(whole, ignore_errors=True)


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _move(whole: Path, target: Path) -> None:
    for file in _files(whole):
        place = target / file.relative_to(whole)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, place)
