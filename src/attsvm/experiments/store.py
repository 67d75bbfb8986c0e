"""Where the rows of a run live while it runs, and after.

::

    NAME/manifest.json                      which run this is; once it is done, the seconds it took
    NAME/shards/00000012-00000040.parquet   the rows of batches 12 to 39
    NAME/rows.parquet                       all rows, once all shards are there; the shards are then removed

Every file is written beside its place and renamed, so every shard on disk is complete; kill -9 loses the one under way.
The seconds of a shard are in its metadata, not in its rows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from attsvm.core.files import locked, replacing_file
from attsvm.experiments.experiment import Row

IDENTITY = {
    "experiment": "experiment",
    "attsvm": "version of attsvm",
    "code": "code of the experiment",
    "seed": "root seed",
    "parameters": "set of cells (--quick, --full, --set)",
}
"""Entries of the manifest that two runs must share for one to continue the other, in words."""


class Store:
    """The rows of one run of one experiment, in a directory.

    Parameters
    ----------
    directory : path
    manifest : mapping
        Says which run this is: the entries of :data:`IDENTITY`, and what else should be on record.
    fresh : bool
        Discard what the directory holds once it is opened, whatever that is.

    Raises
    ------
    ValueError
        If the directory holds another run, or files that are no run at all; a sentence.
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
        remedy = "choose another --out, or start over with --fresh."
        if earlier is None:
            if any(self._shards.glob("*.parquet")) or self.rows_file.exists():
                raise ValueError(f"{directory} holds rows without a manifest.json; {remedy}")
            return
        differing = [words for key, words in IDENTITY.items() if earlier.get(key) != manifest[key]]
        if differing:
            verb = "differs" if len(differing) == 1 else "differ"
            raise ValueError(f"{directory} holds another run: its {' and its '.join(differing)} {verb}; {remedy}")
        if self.rows_file.exists():
            self._manifest = earlier

    @property
    def rows_file(self) -> Path:
        """All rows, once they are done."""
        return self.directory / "rows.parquet"

    @property
    def seconds(self) -> float:
        """Seconds of computation behind the rows of a finished run."""
        return float(self._manifest["seconds"])

    @property
    def finished_at(self) -> datetime | None:
        """When an earlier run completed the rows, local time; None where there is none, or it is to be discarded."""
        if self._fresh or not self.rows_file.exists():
            return None
        return datetime.fromtimestamp(self.rows_file.stat().st_mtime)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Make the directory and keep other runs out of it.

        Raises
        ------
        OSError
            If another process is writing there, or it cannot be written.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with locked(self.directory) as is_ours:
            if not is_ours:
                raise OSError(f"{self.directory} is in use by another run; wait for it, or choose another --out.")
            if self._fresh:
                discard(self.directory)
            if not self.rows_file.exists():
                self._save_manifest()
                self._shards.mkdir(exist_ok=True)
                for partial in self._shards.glob(".*.partial"):
                    partial.unlink()
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
        """Keep the rows of batches `start` to `stop`."""
        from attsvm.experiments import tables

        table = tables.table_of(rows).replace_schema_metadata({"seconds": repr(seconds)})
        with replacing_file(self._shards / f"{start:08d}-{stop:08d}.parquet") as beside:
            tables.write(table, beside)

    def finish(self) -> list[Row]:
        """Merge the shards into rows.parquet, unless that was done before, and return all rows."""
        from attsvm.experiments import tables

        if not self.rows_file.exists():
            shards = [tables.read_table(path) for *_, path in self._shard_paths()]
            seconds = sum(float((shard.schema.metadata or {})[b"seconds"]) for shard in shards)
            self._manifest |= {"seconds": round(seconds, 3)}
            self._save_manifest()
            with replacing_file(self.rows_file) as beside:
                tables.write(tables.merge([shard.replace_schema_metadata() for shard in shards]), beside)
        shutil.rmtree(self._shards, ignore_errors=True)
        return tables.read_table(self.rows_file).to_pylist()

    def _shard_paths(self) -> list[tuple[int, int, Path]]:
        names = sorted(self._shards.glob("????????-????????.parquet"))
        return [(int(path.stem[:8]), int(path.stem[9:]), path) for path in names]

    def _save_manifest(self) -> None:
        with replacing_file(self.directory / "manifest.json") as beside:
            beside.write_text(json.dumps(self._manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """Read what a directory says it holds, None where it says nothing.

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
    """Remove what a run of an experiment left in its directory, and nothing else."""
    for name in ("rows.parquet", "manifest.json", "figure.png", "figure.pdf", "explanation.json"):
        (directory / name).unlink(missing_ok=True)
    shutil.rmtree(directory / "shards", ignore_errors=True)
