"""Tables of labelled texts: any common delimiter and encoding, rows without a text or label, and duplicates."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from attsvm.data.text import LabelledTexts
from attsvm.platform.summary import counted

# Suffixes of files that are read as tables.
TABLES = (".csv", ".tsv")
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
# Largest number of characters of a label in a message.
LONGEST_LABEL = 30
# Spellings of an unknown label; "none" is not among them, because it is a class in many files.
_MISSING = {"", "na", "n/a", "nan", "null", "?"}


def read_texts(path: str | Path, text: str, label: str, classes: tuple[str, str] | None = None) -> LabelledTexts:
    """Read two columns of a CSV or TSV file.

    Fields are separated by commas, semicolons or tabs, whichever gives the requested columns. Bytes that are not UTF-8
    are read as Windows-1252, which includes Latin-1. Lines end in line feeds, or in carriage returns if the file has no
    line feed. Rows with no text or no label are left out. The notes list what was left out or repeats.

    Parameters
    ----------
    path : path
        A file with a header line.
    text, label : str
        Names of the columns. The label has two values; the alphabetically later one is +1.
    classes : pair of str, optional
        Two values of the label; rows with other values are left out. Default: the label has only two.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If bytes are not text, a column is missing or occurs twice, rows are ragged, a field exceeds the csv module's
        limit of 131,072 characters, or the number of labels is not two. The message suggests a remedy.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist; a .csv or .tsv file was expected.")
    content, notes = decoded(file)
    names, rows = fields(file, content, {"text": text, "label": label}, notes)
    places = names.index(text), names.index(label)
    pairs = [(row[places[0]], row[places[1]]) for _, row in rows]
    texts = [(words.strip(), value.strip()) for words, value in pairs if words.strip()]
    if len(texts) < len(pairs):
        notes.append(f"Rows without a text are left out, {len(pairs) - len(texts):,} in all.")
    labelled = [pair for pair in texts if pair[1].lower() not in _MISSING]
    if len(labelled) < len(texts):
        notes.append(f"Rows without a label are left out, {len(texts) - len(labelled):,} in all.")
    chosen, values = two_classes(file, label, labelled, classes, notes)
    _note_repeats(chosen, notes)
    labels = np.array([1.0 if value == values[1] else -1.0 for _, value in chosen])
    return LabelledTexts(file.name, tuple(words for words, _ in chosen), labels, (values[1], values[0]), tuple(notes))


def decoded(file: Path) -> tuple[str, list[str]]:
    """Read a file as text; returns it and notes about its encoding."""
    raw = file.read_bytes()
    notes = []
    try:
        if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            content = raw.decode("utf-16")
        else:
            try:
                content = raw.decode("utf-8-sig")
            except UnicodeDecodeError:
                content = raw.decode("cp1252")
                notes.append(f"{file.name} is not in UTF-8 and was read as Windows-1252 (Latin-1).")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file} has bytes at offset {error.start} that are no text; UTF-8, UTF-16 or Windows-1252 was expected."
        ) from None
    nul = content.find("\0")
    if nul >= 0:  # text has none, most other files do
        raise ValueError(f"{file} has a NUL at character {nul:,}; text in UTF-8, UTF-16 or Windows-1252 was expected.")
    return content, notes


def fields(
    file: Path, content: str, wanted: dict[str, str], notes: list[str]
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Read a table with the delimiter that gives the wanted columns.

    Parameters
    ----------
    content : str
        Text of the file.
    wanted : dict of str to str
        Names of columns by the option that asks for them.
    notes : list of str
        Gets a sentence about an unusual delimiter or line end.

    Returns
    -------
    names : list of str
    rows : list of (int, list of str)
        The line on which each row ends, and its fields.

    Raises
    ------
    ValueError
        As for :func:`read_texts`.
    """
    usual = "\t" if file.suffix.lower() == ".tsv" else ","
    delimiters = sorted(_DELIMITERS, key=lambda delimiter: delimiter != usual)
    headers: dict[str, list[str]] = {}
    failures = []
    for delimiter in delimiters:
        try:
            _, names = next(_rows(file, content, delimiter), (0, []))
        except ValueError as error:  # quotes after another delimiter are not quotes here
            failures.append(error)
        else:
            headers[delimiter] = [name.strip() for name in names]
    delimiter = next((d for d, names in headers.items() if set(wanted.values()) <= set(names)), None)
    if delimiter is None and failures:
        raise failures[0]
    if delimiter is None:
        names = [name for name in max(headers.values(), key=len) if name]
        column, name = next((option, column) for option, column in wanted.items() if column not in names)
        columns = f"the columns {', '.join(map(_short, names))}" if len(content.splitlines()) > 1 else "no rows"
        raise ValueError(f"{file} has {columns}; a column {name!r} was expected for --{column}.")
    names = headers[delimiter]
    for name in wanted.values():
        if names.count(name) > 1:
            raise ValueError(f"{file} has {names.count(name)} columns {name!r}; different names were expected.")
    if delimiter != usual:
        notes.append(f"Fields of {file.name} are separated by {_DELIMITERS[delimiter]}.")
    if _line_end(content) == "\r":
        notes.append(f"Lines of {file.name} end in carriage returns.")
    last = max(names.index(name) for name in wanted.values())
    rows = [(line, row) for line, row in _rows(file, content, delimiter) if row][1:]
    for line, row in rows:
        if len(row) <= last:
            raise ValueError(
                f"{file} has a row that ends before a column in line {line}; "
                f"{' and '.join(map(repr, wanted.values()))} were expected in every row."
            )
    return names, rows


def _line_end(content: str) -> str:
    return "\r" if "\r" in content and "\n" not in content else "\n"


def _rows(file: Path, content: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each row's last line, and its fields."""
    reader = csv.reader(io.StringIO(content, newline=_line_end(content)), delimiter=delimiter)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise ValueError(
            f"{file} is malformed in line {reader.line_num} ({error}); fields of up to {csv.field_size_limit():,} "
            f"characters separated by {_DELIMITERS[delimiter]} were expected."
        ) from error


def two_classes(
    file: Path, label: str, rows: list[tuple[str, str]], classes: tuple[str, str] | None, notes: list[str]
) -> tuple[list[tuple[str, str]], tuple[str, str]]:
    """Select the rows with two labels; returns rows and labels in order. A row is a pair that ends with its label."""
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
    """Shorten a long label, such as a text from a column named by mistake."""
    return value if len(value) <= LONGEST_LABEL else f"{value[:LONGEST_LABEL]}…"


def _note_repeats(rows: list[tuple[str, str]], notes: list[str]) -> None:
    """Report how many rows repeat a text: a test row that was also trained on tests nothing."""
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
