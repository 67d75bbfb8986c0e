"""Storage of a run's rows, during the run and after it.

::

    NAME/manifest.json                      which run this is; once it is done, the seconds it took
    NAME/shards/00000012-00000040.parquet   the rows of batches 12 to 39
    NAME/rows.parquet                       all rows, once all shards are there; the shards are then removed

Every file is written under a temporary name and renamed, so every shard on disk is complete; kill -9 loses the current
one. The seconds of a shard are in its metadata, not in its rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from attsvm.platform.files import locked, replacing_file, take_up
from attsvm_paper.engine import tables
from attsvm_paper.judging.verdict import Row

_SHARDS = "????????-????????.parquet"

IDENTITY = {
    "experiment": "experiment",
    "attsvm": "version of attsvm",
    "code": "code of the experiment",
    "seed": "root seed",
    "parameters": "set of cells (--quick, --full, --set)",
}
"""Entries of the manifest in which two runs must agree for one to continue the other, in words."""


class Store:
    """The rows of one run of one experiment, in a directory.

    Parameters
    ----------
    directory : path
    manifest : mapping
        Identifies the run: the entries of :data:`IDENTITY`, and further records.
    fresh : bool
        Discard the contents of the directory when it is opened, whichever run they belong to.

    Raises
    ------
    ValueError
        If the directory holds another run, or files that do not belong to a run.
    OSError
        If it cannot be read.
    """

    def __init__(self, directory: Path, manifest: Mapping[str, Any], fresh: bool = False) -> None:
        self.directory = directory
        self._shards = directory / "shards"
        self._manifest = dict(manifest)
        self._fresh = fresh
        if fresh:
            return
        earlier = read_manifest(directory)
        if not (self.rows_file.exists() or any(self._shards.glob(_SHARDS))):
            return  # a run that computed nothing does not block another
        remedy = "choose another --out, or start over with --fresh."
        if earlier is None:
            raise ValueError(f"{directory} holds rows without a manifest.json; {remedy}")
        differing = [words for key, words in IDENTITY.items() if earlier.get(key) != manifest[key]]
        if differing:
            verb = "differs" if len(differing) == 1 else "differ"
            raise ValueError(f"{directory} holds another run: its {' and its '.join(differing)} {verb}; {remedy}")
        if self.rows_file.exists():
            self._manifest = earlier

    @property
    def rows_file(self) -> Path:
        """All rows, once they are complete."""
        return self.directory / "rows.parquet"

    @property
    def seconds(self) -> float:
        """Seconds of computation for the rows of a finished run."""
        return float(self._manifest["seconds"])

    @property
    def finished_at(self) -> datetime | None:
        """When an earlier run completed the rows, local time; None if there is none, or it is to be discarded."""
        if self._fresh or not self.rows_file.exists():
            return None
        return datetime.fromtimestamp(self.rows_file.stat().st_mtime)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Create the directory and lock it against other runs.

        Raises
        ------
        OSError
            If another process is writing there, or it cannot be written.
        """
        with locked(self.directory):
            if self._fresh:
                discard(self.directory)
            take_up(self._shards, _SHARDS)
            yield

    def missing(self, batches: int) -> list[tuple[int, int]]:
        """List the ranges of batches that no shard covers."""
        gaps, end = [], 0
        for start, stop, _ in self._shard_paths():
            if start > end:
                gaps.append((end, start))
            end = stop
        return [*gaps, (end, batches)] if end < batches else gaps

    def add(self, start: int, stop: int, rows: Sequence[Row], seconds: float) -> None:
        """Store the rows of batches `start` to `stop`."""
        table = tables.table_of(rows).replace_schema_metadata({"seconds": repr(seconds)})
        if not self._shard_paths():
            self._save_manifest()
            self._shards.mkdir(exist_ok=True)
        with replacing_file(self._shards / f"{start:08d}-{stop:08d}.parquet") as temporary:
            tables.write(table, temporary)

    def finish(self) -> list[Row]:
        """Merge the shards into rows.parquet, unless already done, and return all rows."""
        if not self.rows_file.exists():
            shards = [tables.read_table(path) for *_, path in self._shard_paths()]
            seconds = sum(float((shard.schema.metadata or {})[b"seconds"]) for shard in shards)
            self._manifest |= {"seconds": round(seconds, 3)}
            self._save_manifest()
            with replacing_file(self.rows_file) as temporary:
                tables.write(tables.merge([shard.replace_schema_metadata() for shard in shards]), temporary)
        _remove_shards(self.directory)
        return tables.read_table(self.rows_file).to_pylist()

    def _shard_paths(self) -> list[tuple[int, int, Path]]:
        names = sorted(self._shards.glob(_SHARDS))
        return [(int(path.stem[:8]), int(path.stem[9:]), path) for path in names]

    def _save_manifest(self) -> None:
        with replacing_file(self.directory / "manifest.json") as temporary:
            temporary.write_text(json.dumps(self._manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """Read the manifest of a directory; None if there is none.

    Raises
    ------
    ValueError
        If its manifest cannot be read.
    """
    path = directory / "manifest.json"
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as JSON; start over with --fresh.") from error
    if not isinstance(manifest, dict):
        raise ValueError(f"{path} is no manifest of a run; start over with --fresh.")
    return manifest


def discard(directory: Path) -> None:
    """Remove the files of an experiment's run from its directory, and nothing else.

    Figures and explanations belong to a run only if its manifest is in the same directory.
    """
    with suppress(ValueError):
        if read_manifest(directory) is not None:
            for name in ("figure.png", "figure.pdf", "explanation.json"):
                (directory / name).unlink(missing_ok=True)
    for name in ("rows.parquet", "manifest.json"):
        (directory / name).unlink(missing_ok=True)
    _remove_shards(directory)


def _remove_shards(directory: Path) -> None:
    shards = directory / "shards"
    take_up(shards, _SHARDS)
    for shard in shards.glob(_SHARDS):
        shard.unlink()
    with suppress(OSError):  # there is none, or it holds the user's files
        shards.rmdir()
