"""Tables with one instance per row, a column that names its bag and a column with the label of the bag."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from attsvm.data.dataset import Dataset
from attsvm.data.passages import Passages
from attsvm.data.table import decoded, fields, two_classes
from attsvm.data.token_data import TokenData
from attsvm.platform.summary import counted


def read_bag_table(path: str | Path, bag: str, label: str, classes: tuple[str, str] | None = None) -> Dataset:
    """Read bags of instances from a CSV or TSV file.

    All other columns of numbers are features, to be standardised on the training bags. The first column of text names
    the instances; if there is none, an instance is named by its line.

    Parameters
    ----------
    path : path
        A file with a header line.
    bag, label : str
        Names of the columns. The label of a bag has two values; the alphabetically later one is +1.
    classes : pair of str, optional
        Two values of the label; bags with other values are left out.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        As for :func:`attsvm.data.table.read_texts`; also if a bag has two labels, a feature has a field that is no
        number, or there is no feature.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist; a .csv or .tsv file was expected.")
    content, notes = decoded(file)
    names, rows = fields(file, content, {"bag": bag, "label": label}, notes)
    places: dict[str, list[int]] = {}
    of_bag: dict[str, str] = {}
    for number, (line, row) in enumerate(rows):
        name, value = row[names.index(bag)].strip(), row[names.index(label)].strip()
        if of_bag.setdefault(name, value) != value:
            raise ValueError(
                f"{file} has the labels {of_bag[name]!r} and {value!r} in bag {name!r}, line {line}; one was expected."
            )
        places.setdefault(name, []).append(number)
    chosen, values = two_classes(file, label, list(of_bag.items()), classes, notes)
    texts, columns = _features(file, names, rows, {bag, label})
    instances = np.column_stack(columns)
    labels = np.array([1.0 if value == values[1] else -1.0 for _, value in chosen])
    tokens = TokenData.padded([instances[places[name]] for name, _ in chosen], np.ones((len(labels), 1)), labels)
    mask = np.asarray(tokens.mask)
    titles = np.full(mask.shape, "", dtype=object)
    for row, (name, _) in enumerate(chosen):
        titles[row, : len(places[name])] = [texts[number] for number in places[name]]
    notes.append(
        f"Instances are the rows of {file.name}, in bags by the column {bag}; their {counted(len(columns), 'feature')} "
        "are standardised on the training bags. Every bag has the same query, the number 1: W is a prompt vector."
    )
    return Dataset(
        name=file.name,
        tokens=tokens,
        classes=(values[1], values[0]),
        notes=tuple(notes),
        passages=Passages.of_names(titles, mask),
        standardise=True,
        bags=tuple(name for name, _ in chosen),
    )


def _features(
    file: Path, names: list[str], rows: list[tuple[int, list[str]]], others: set[str]
) -> tuple[list[str], list[list[float]]]:
    """Return the name of every instance and the columns of numbers."""
    titles = [f"line {line}" for line, _ in rows]
    columns, text = [], None
    for place, name in enumerate(names):
        if name in others:
            continue
        entries = [row[place].strip() if place < len(row) else "" for _, row in rows]
        numbers = [_number(entry) for entry in entries]
        if all(math.isnan(number) for number in numbers):
            text = entries if text is None else text
            continue
        gap = next((k for k, number in enumerate(numbers) if not math.isfinite(number)), None)
        if gap is not None:
            raise ValueError(
                f"column {name!r} of {file} holds {entries[gap]!r} in line {rows[gap][0]}; a number was expected."
            )
        columns.append(numbers)
    if not columns:
        raise ValueError(
            f"{file} has no column of numbers besides {', '.join(sorted(others))}; features were expected."
        )
    return titles if text is None else text, columns


def _number(entry: str) -> float:
    """Return a field as a number; NaN if it is text."""
    try:
        return float(entry)
    except ValueError:
        return math.nan
