"""Rows as Arrow tables whose schema depends only on the rows, not on their division into shards.

Columns appear in the order of their first occurrence. A column's type is the smallest that holds all its values, in the
order nothing < integer < float; lists have the same order. Both rules are associative, so merged shards give the same
table, and Parquet the same bytes, as writing all rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attsvm_paper.judging.verdict import Row

_ROW_GROUP = 1 << 16


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Make a table of rows; missing keys are None.

    Raises
    ------
    TypeError
        If a value is not a number, string, boolean, None or flat list of numbers, or the types of a column conflict.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        values = [_plain(row.get(name)) for row in rows]
        columns[name] = pa.array(values, type=reduce(lambda a, v: _wider(name, a, _type(name, v)), values, pa.null()))
    return pa.table(columns)


def merge(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables."""
    types: dict[str, pa.DataType] = {}
    for table in tables:
        for field in table.schema:
            types[field.name] = _wider(field.name, types.get(field.name, pa.null()), field.type)
    schema = pa.schema(types.items())
    return (
        pa.concat_tables([_fitted(table, schema) for table in tables]).combine_chunks()
        if tables
        else schema.empty_table()
    )


def write(table: pa.Table, path: Path) -> None:
    """Write a Parquet file; the same table gives the same bytes."""
    pq.write_table(table, path, compression="zstd", row_group_size=_ROW_GROUP)


def read_table(path: Path) -> pa.Table:
    """Read a Parquet file.

    Raises
    ------
    OSError
        If it cannot be read or is damaged.
    """
    try:
        return pq.ParquetFile(path).read()
    except pa.ArrowInvalid as error:
        raise OSError(f"{path} is damaged: {error}") from error


def _fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _type(name: str, value: object) -> pa.DataType:
    if value is None:
        return pa.null()
    if isinstance(value, list | tuple):
        item = reduce(lambda a, v: _wider(name, a, _type(name, _plain(v))), value, pa.null())
        if not pa.types.is_nested(item):
            return pa.list_(item)
    for kind, type_ in ((bool, pa.bool_()), (int, pa.int64()), (float, pa.float64()), (str, pa.string())):
        if isinstance(value, kind):
            return type_
    raise TypeError(f"{name} of a row is {value!r}; a number, string, boolean, None or flat list was expected.")


def _wider(name: str, a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if {a, b} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(a) and pa.types.is_list(b):
        return pa.list_(_wider(name, a.value_type, b.value_type))
    raise TypeError(f"{name} is of type {a} in one row and {b} in another; one type was expected.")
