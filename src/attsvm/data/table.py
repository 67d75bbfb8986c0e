"""Two columns of a file of labelled texts as people have it: with commas or tabs, in UTF-8 or not, gaps and repeats."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path

import numpy as np

from attsvm.core.summary import counted
from attsvm.data.text import LabelledTexts

# Suffixes of files that are read as tables.
TABLES = (".csv", ".tsv")
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
# Characters of a label that a sentence quotes.
LONGEST_LABEL = 30
# How an unknown label is written; "none" is left alone, which is a class in many files.
_MISSING = {"", "na", "n/a", "nan", "null", "?"}


def read_texts(path: str | Path, text: str, label: str, classes: tuple[str, str] | None = None) -> LabelledTexts:
    """Read two columns of a CSV or TSV file.

    Fields are separated by commas, semicolons or tabs, whichever gives the columns asked for; bytes that are no UTF-8
    are read as Windows-1252, which holds Latin-1. Rows without a text or a label are left out. What was left out or
    repeats is said in the notes.

    Parameters
    ----------
    path : path
        With a header line.
    text, label : str
        Names of the columns. The label has two values; the later one in the alphabet is +1.
    classes : pair of str, optional
        Two values of the label, rows with another being left out. Default: the label has two.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a column is missing, rows are ragged, or the labels are not two; the sentence says what helps.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist; a .csv or .tsv file was expected.")
    content, notes = _decode(file)
    pairs = _columns(file, content, text, label, notes)
    texts = [(words.strip(), value.strip()) for words, value in pairs if words.strip()]
    if len(texts) < len(pairs):
        notes.append(f"Rows without a text are left out, {len(pairs) - len(texts):,} in all.")
    labelled = [pair for pair in texts if pair[1].lower() not in _MISSING]
    if len(labelled) < len(texts):
        notes.append(f"Rows without a label are left out, {len(texts) - len(labelled):,} in all.")
    rows, values = _two_classes(file, label, labelled, classes, notes)
    _note_repeats(rows, notes)
    labels = np.array([1.0 if value == values[1] else -1.0 for _, value in rows])
    return LabelledTexts(file.name, tuple(words for words, _ in rows), labels, (values[1], values[0]), tuple(notes))


def _decode(file: Path) -> tuple[str, list[str]]:
    raw = file.read_bytes()
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return raw.decode("utf-16"), []
    try:
        return raw.decode("utf-8-sig"), []
    except UnicodeDecodeError:
        note = f"{file.name} is not in UTF-8 and was read as Windows-1252 (Latin-1)."
        return raw.decode("cp1252", errors="replace"), [note]


def _columns(file: Path, content: str, text: str, label: str, notes: list[str]) -> list[tuple[str, str]]:
    """Read the two columns under the delimiter that gives them."""
    header = content.partition("\n")[0]
    usual = "\t" if file.suffix.lower() == ".tsv" else ","
    delimiters = sorted(_DELIMITERS, key=lambda delimiter: delimiter != usual)
    for delimiter in delimiters:
        names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])]
        if text in names and label in names:
            break
    else:
        best = max(delimiters, key=lambda delimiter: len(next(csv.reader([header], delimiter=delimiter), [])))
        names = [name for name in next(csv.reader([header], delimiter=best), []) if name]
        column, name = next((c, n) for c, n in (("text", text), ("label", label)) if n not in names)
        columns = f"the columns {', '.join(names)}" if len(content.splitlines()) > 1 else "no rows"
        raise ValueError(f"{file} has {columns}; a column {name!r} was expected for --{column}.")
    if delimiter != usual:
        notes.append(f"Fields of {file.name} are separated by {_DELIMITERS[delimiter]}.")
    places = names.index(text), names.index(label)
    pairs = []
    try:
        reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter)
        next(reader)
        for row in reader:
            if row and len(row) <= max(places):
                raise ValueError(
                    f"{file} has a row that ends before a column in line {reader.line_num}; {text!r} and "
                    f"{label!r} were expected in every row."
                )
            if row:
                pairs.append((row[places[0]], row[places[1]]))
    except csv.Error as error:
        raise ValueError(
            f"{file} is malformed ({error}); fields separated by {_DELIMITERS[delimiter]} were expected."
        ) from error
    return pairs


def _two_classes(
    file: Path, label: str, rows: list[tuple[str, str]], classes: tuple[str, str] | None, notes: list[str]
) -> tuple[list[tuple[str, str]], tuple[str, str]]:
    """Keep the rows of two labels."""
    counts = Counter(value for _, value in rows)
    some = ", ".join(f"{_short(value)!r} ({counted(count, 'row')})" for value, count in counts.most_common(5)) or "none"
    if classes is not None:
        absent = [name for name in classes if name not in counts]
        if absent or classes[0] == classes[1]:
            raise ValueError(
                f"--classes is {','.join(classes)}; two of the labels in {label!r}, {some}, were expected."
            )
        labelled = [pair for pair in rows if pair[1] in classes]
        if len(labelled) < len(rows):
            notes.append(f"Rows with another label are left out, {len(rows) - len(labelled):,} in all.")
        first, second = sorted(classes)
        return labelled, (first, second)
    if len(counts) != 2:
        remedy = ""
        names = [value for value, _ in counts.most_common(2)]
        if len(counts) > 2 and not any("," in name or name != _short(name) for name in names):
            remedy = f"; --classes {','.join(names)} keeps two of them"
        has = counted(len(counts), "value")
        raise ValueError(f"column {label!r} of {file} has {has}, {some}; two were expected{remedy}.")
    first, second = sorted(counts)
    return rows, (first, second)


def _short(value: str) -> str:
    """Cut a label that is a text, as of a column that was named by mistake."""
    return value if len(value) <= LONGEST_LABEL else f"{value[:LONGEST_LABEL]}…"


def _note_repeats(rows: list[tuple[str, str]], notes: list[str]) -> None:
    """Say how many rows repeat a text: one that is trained on and held out alike is no test."""
    labels: dict[str, set[str]] = {}
    for words, value in rows:
        labels.setdefault(words, set()).add(value)
    repeats = len(rows) - len(labels)
    if repeats:
        contrary = sum(len(values) > 1 for values in labels.values())
        also = f"; {contrary:,} of these texts have both labels" if contrary else ""
        notes.append(
            f"Duplicates: {repeats:,} of {len(rows):,} rows repeat the text of another{also}. A text that is both "
            "trained on and held out makes accuracy look better than it is."
        )
