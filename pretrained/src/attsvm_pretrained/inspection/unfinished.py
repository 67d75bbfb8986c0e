"""Store the finished heads of an inspection on disk, from which an interrupted inspection continues.

A folder has `heads.jsonl`, one line per head, and `survey.npz`, the numbers of texts that are read once. The first line
of `heads.jsonl` identifies the model, texts and settings; files of another inspection are overwritten.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

import attsvm
from attsvm.core.status import Status
from attsvm.platform.files import replacing_file, take_up
from attsvm_pretrained.heads.extract import RefusedHead
from attsvm_pretrained.heads.media import Parts
from attsvm_pretrained.inspection.finding import Example, HeadFinding, NextTokens
from attsvm_pretrained.selection.audit import MarginAudit
from attsvm_pretrained.selection.null import Standing
from attsvm_pretrained.selection.probe import SelectionProbe
from attsvm_pretrained.selection.rank import HeadRank
from attsvm_pretrained.selection.selectivity import SelectionReport
from attsvm_pretrained.selection.span import Direction
from attsvm_pretrained.selection.support_tokens import SupportToken
from attsvm_pretrained.selection.types import HeadTypes, TypeScore

HEADS_FILE, SURVEY_FILE = "heads.jsonl", "survey.npz"
# Classes whose instances a line may contain.
_SELECTION = (SelectionReport, MarginAudit, Direction, SelectionProbe, SupportToken, HeadRank)
_HELD = (HeadFinding, NextTokens, RefusedHead, Example, Parts, HeadTypes, TypeScore, Standing, *_SELECTION)
_CLASSES = {one.__name__: one for one in _HELD}


def fingerprint(model: Any, texts: Sequence[str], settings: tuple[int | str, ...]) -> str:
    """Compute a digest of everything that the numbers of a head depend on."""
    digest = hashlib.sha256(repr((attsvm.__version__, type(model).__name__, settings)).encode())
    for text in texts:
        digest.update(text.encode() + b"\0")
    for name, parameter in model.named_parameters():
        total = float(parameter.detach().float().abs().sum())
        digest.update(repr((name, str(parameter.dtype), tuple(parameter.shape), total)).encode())
    return digest.hexdigest()


class ResumeFile:
    """The part of an inspection that is on disk.

    Parameters
    ----------
    folder : Path, optional
        Default: nothing is written.
    key : str
        Digest of the model, texts and settings.

    Raises
    ------
    ValueError
        If the folder has files of these names that no inspection wrote.
    """

    def __init__(self, folder: Path | None, key: str) -> None:
        self._folder = folder
        if folder is None:
            return
        first = _first_line(folder / HEADS_FILE)
        if set(first) != {"key"}:
            strange = next((name for name in (HEADS_FILE, SURVEY_FILE) if (folder / name).exists()), None)
            if strange is not None:
                raise ValueError(f"{folder} holds {strange} of no inspection; another --out was expected.")
        if first != {"key": key}:
            remove(folder)
            folder.mkdir(parents=True, exist_ok=True)
            self._write_heads(json.dumps({"key": key}) + "\n")

    def _write_heads(self, content: str) -> None:
        assert self._folder is not None
        with replacing_file(self._folder / HEADS_FILE) as temporary:
            temporary.write_text(content, encoding="utf-8")

    def heads(self) -> list[HeadFinding | RefusedHead]:
        """Read the finished heads; an incomplete last line is removed."""
        if self._folder is None:
            return []
        lines = (self._folder / HEADS_FILE).read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        if len(whole) < len(lines):
            self._write_heads("".join(whole))
        return [_decode(json.loads(line)) for line in whole[1:]]

    def add(self, head: HeadFinding | RefusedHead) -> None:
        """Append a finished head."""
        if self._folder is not None:
            with (self._folder / HEADS_FILE).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(_encode(head)) + "\n")

    def survey(self) -> dict[str, np.ndarray]:
        """Read the numbers of :meth:`write_survey`; empty if there are none."""
        if self._folder is None or not (self._folder / SURVEY_FILE).is_file():
            return {}
        with np.load(self._folder / SURVEY_FILE) as arrays:
            return dict(arrays)

    def write_survey(self, arrays: dict[str, np.ndarray]) -> None:
        """Write the numbers of a survey."""
        if self._folder is not None:
            with replacing_file(self._folder / SURVEY_FILE) as temporary, temporary.open("wb") as file:
                np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]


def remove(folder: Path) -> None:
    """Remove the files of :class:`ResumeFile` from a folder, and the folder if it is then empty."""
    for name in (SURVEY_FILE, HEADS_FILE):
        take_up(folder, name)
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _first_line(path: Path) -> dict[str, Any]:
    """Read the key of a file; empty if there is none."""
    try:
        with path.open(encoding="utf-8") as lines:
            first = json.loads(next(lines, "null"))
    except (OSError, ValueError):
        return {}
    return first if isinstance(first, dict) else {}


def _encode(value: Any) -> Any:
    """Convert results to JSON values, with the names of types that JSON does not have."""
    if is_dataclass(value) and not isinstance(value, type):
        content = {field.name: _encode(getattr(value, field.name)) for field in fields(value)}
        return {"of": type(value).__name__, "fields": content}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    if isinstance(value, Enum):
        return {"status": value.name}
    if isinstance(value, tuple):
        return {"tuple": [_encode(one) for one in value]}
    if isinstance(value, dict):
        return {"map": {name: _encode(one) for name, one in value.items()}}
    return value.item() if isinstance(value, np.generic) else value


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.array(value["array"], dtype=value["dtype"])
    if "status" in value:
        return Status[value["status"]]
    if "tuple" in value:
        return tuple(_decode(one) for one in value["tuple"])
    if "map" in value:
        return {name: _decode(one) for name, one in value["map"].items()}
    content = {name: _decode(one) for name, one in value["fields"].items()}
    # Files of earlier versions name a class with its module.
    return _CLASSES[value["of"].rpartition(".")[2]](**content)
