"""Odd folders: each ends in a refusal that names the file and the row, or in the answer of the same data in memory."""

from __future__ import annotations

import io
import json
import re
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from safetensors.numpy import save, save_file

from attsvm import SelectionProblem, ShardedProblem, Status, solve
from attsvm.cli import main
from attsvm.data import shards as shards_module
from attsvm.data.shard_files import describe

TOL = 1e-9
N, T, D = 8, 4, 3
Arrays = dict[str, Any]
# Writes a second shard, or more, into a folder, and returns the data it holds where that is to be solved.
Writer = Callable[[Path, Arrays], Arrays | None]


def make(seed: int) -> Arrays:
    """One random matrix selects, whatever the seed, so that a W exists for any of them together."""
    rng, W = np.random.default_rng([77, seed]), np.random.default_rng(D).standard_normal((D, D))
    tokens, queries = rng.standard_normal((N, T, D)), rng.standard_normal((N, D))
    return {"tokens": tokens, "queries": queries, "selected": (tokens @ W @ queries[..., None])[..., 0].argmax(axis=1)}


def npz(path: Path, arrays: Arrays) -> None:
    with path.open("wb") as stream:
        np.savez(stream, **arrays)


def npy(path: Path, arrays: Arrays) -> None:
    path.mkdir()
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)


def parquet(path: Path, arrays: Arrays, **options: Any) -> None:
    columns = {name: pa.array(list(a) if isinstance(a, list) else a.tolist()) for name, a in arrays.items()}
    pq.write_table(pa.table(columns), path, **options)


def in_memory(*parts: Arrays) -> float:
    """Objective of the same data, solved without files; each part's sequences are renumbered."""
    parts = tuple({"mask": np.ones((N, T), bool), "sequence": np.arange(N), **part} for part in parts)
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name != "sequence"}
    before = np.cumsum([0] + [len(part["tokens"]) for part in parts])
    joined["sequence"] = np.concatenate([part["sequence"] + k for part, k in zip(parts, before, strict=False)])
    solution = solve(SelectionProblem(**joined), tol=TOL)
    assert solution.status is Status.OPTIMAL
    return solution.objective


def changed(write: Callable[[Path, Arrays], None], name: str, **changes: Callable[[Any], Any]) -> Writer:
    """Write a shard of which some arrays are changed; None leaves one out."""

    def odd(folder: Path, arrays: Arrays) -> None:
        arrays = dict(arrays)
        for key, change in changes.items():
            arrays[key] = change(arrays.get(key))
        write(folder / name, {key: array for key, array in arrays.items() if array is not None})

    return odd


def at(index: Any, value: Any) -> Callable[[Any], Any]:
    """Put a value somewhere into a copy."""

    def put(array: Any) -> Any:
        array = np.array(array)
        array[index] = value
        return array

    return put


def mask_with(value: Any, dtype: Any = float) -> Callable[[Any], Any]:
    return lambda _: at((5, 0), value)(np.ones((N, T), dtype))


def ragged(folder: Path, arrays: Arrays) -> None:
    """Move a token from one row to the next: the total is that of lists of one length."""
    rows = arrays["tokens"].tolist()
    rows[3].append(rows[2].pop())
    parquet(folder / "b.parquet", {**arrays, "tokens": rows})


def ragged_vectors(folder: Path, arrays: Arrays) -> None:
    rows = arrays["tokens"].tolist()
    rows[6][1].append(rows[6][0].pop())
    parquet(folder / "b.parquet", {**arrays, "tokens": rows})


def hole(key: str, row: int) -> Writer:
    def odd(folder: Path, arrays: Arrays) -> None:
        rows = arrays[key].tolist()
        rows[row] = None
        parquet(folder / "b.parquet", {**arrays, key: rows})

    return odd


def many_groups(folder: Path, arrays: Arrays) -> Arrays:
    parquet(folder / "b.parquet", arrays, row_group_size=3)
    return arrays


def fixed_lists(folder: Path, arrays: Arrays) -> Arrays:
    flat = pa.array(arrays["tokens"].ravel())
    tokens = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(flat, D), T)
    queries = pa.LargeListArray.from_arrays(np.arange(0, N * D + 1, D), pa.array(arrays["queries"].ravel()))
    table = pa.table({"tokens": tokens, "queries": queries, "selected": pa.array(arrays["selected"])})
    pq.write_table(table, folder / "b.parquet")
    return arrays


def tampered(change: Callable[[dict[str, Any]], None]) -> Writer:
    """Change the header of a safetensors file."""

    def odd(folder: Path, arrays: Arrays) -> None:
        data = save(arrays)
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        (folder / "b.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    return odd


def overlap(header: dict[str, Any]) -> None:
    start, stop = header["queries"]["data_offsets"]
    header["queries"]["data_offsets"] = [start - 8, stop - 8]


def elsewhere(header: dict[str, Any]) -> None:
    start, stop = header["selected"]["data_offsets"]
    header["selected"]["data_offsets"] = [start + 4096, stop + 4096]


def swapped(header: dict[str, Any]) -> None:
    header["tokens"]["shape"] = [N, T, D + 1]


def flipped(write: Callable[[Path, Arrays], None], copies: int = 100) -> Writer:
    """Flip a bit in the numbers of one array, which opening the file does not read unless it is small."""

    def odd(folder: Path, arrays: Arrays) -> None:
        write(folder / "b.npz", {key: np.concatenate([array] * copies) for key, array in arrays.items()})
        data = bytearray((folder / "b.npz").read_bytes())
        with zipfile.ZipFile(folder / "b.npz") as archive:
            info = archive.getinfo("tokens.npy")
        data[info.header_offset + 30 + len("tokens.npy") + info.compress_size // 2] ^= 1 << 3
        (folder / "b.npz").write_bytes(bytes(data))

    return odd


def compressed(path: Path, arrays: Arrays) -> None:
    with path.open("wb") as stream:
        np.savez_compressed(stream, **arrays)


def twice(folder: Path, arrays: Arrays) -> None:
    npz(folder / "b.npz", arrays)
    buffer = io.BytesIO()
    np.save(buffer, arrays["tokens"] + 1.0)
    with zipfile.ZipFile(folder / "b.npz", "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("tokens.npy", buffer.getvalue())


def still_copied(missing: str, *, hidden: bool = False) -> Writer:
    """A folder one of whose files has not arrived, or has a name of a copying program."""

    def odd(folder: Path, arrays: Arrays) -> None:
        npy(folder / "b", arrays)
        if hidden:
            (folder / "b" / f"{missing}.npy").rename(folder / "b" / f".{missing}.npy.Xq3z")
        else:
            (folder / "b" / f"{missing}.npy").unlink()

    return odd


def half_copied(folder: Path, arrays: Arrays) -> None:
    npy(folder / "b", arrays)
    data = (folder / "b" / "queries.npy").read_bytes()
    (folder / "b" / "queries.npy").write_bytes(data[: len(data) - 24])


def two_files_in_one(folder: Path, arrays: Arrays) -> None:
    npy(folder / "b", arrays)
    with (folder / "b" / "queries.npy").open("ab") as stream:
        np.save(stream, arrays["queries"])


def of_type(dtype: Any) -> Callable[[Any], Any]:
    return lambda array: np.asarray(array).astype(dtype)


def rows(count: int) -> Callable[[Any], Any]:
    """Leave some rows, or repeat the first ones behind the last."""
    return lambda array: np.concatenate([array, array])[:count]


def words_and_tokens(folder: Path, arrays: Arrays) -> None:
    np.save(folder / "tokens.npy", arrays["tokens"][0])
    npz(folder / "b.npz", arrays)


def no_shape(folder: Path, arrays: Arrays) -> None:
    npz(folder / "b.npz", {**arrays, "tokens": np.empty((N, T, D), dtype=object)})


REFUSALS: dict[str, tuple[Writer, str]] = {
    "queries one row short": (
        changed(npz, "b.npz", queries=rows(7)),
        r"b\.npz has 8 rows, and queries has no row 7; 7,",
    ),
    "selected one row longer": (
        changed(npz, "b.npz", selected=rows(9)),
        r"selected of .*b\.npz has 9 rows, and queries has no row 8;",
    ),
    "selected one row short": (
        changed(npz, "b.npz", selected=rows(7)),
        r"selected of .*b\.npz has 7 rows, and selected has no row 7;",
    ),
    "mask one row longer": (
        changed(npz, "b.npz", mask=lambda _: np.ones((N + 1, T), bool)),
        r"mask of .*b\.npz has 9 ",
    ),
    "mask of other width": (
        changed(npz, "b.npz", mask=lambda _: np.ones((N, T + 1), bool)),
        r"mask of .*b\.npz has shape",
    ),
    "tokens one row short": (
        changed(npz, "b.npz", tokens=rows(7)),
        r"tokens of .*b\.npz has 7 rows, and tokens has no row 7;",
    ),
    "one sequence for all": (
        changed(npz, "b.npz", tokens=rows(1)),
        r"tokens of .*b\.npz has 1 rows, and tokens has no row 1;",
    ),
    "npy with queries short": (changed(npy, "b", queries=rows(7)), r"b has 8 rows, and queries has no row 7; 7,"),
    "no dimension": (changed(npz, "b.npz", tokens=lambda a: a[:, :, :0]), r"tokens of .*b\.npz has float64 of shape"),
    "no query dimension": (
        changed(npz, "b.npz", queries=lambda a: a[:, :0]),
        r"queries of .*b\.npz has float64 of shape \(8, 0\);",
    ),
    "other dimension": (changed(npz, "b.npz", tokens=lambda a: a[:, :, :2]), r"dimensions \(d, dz\) of .*b\.npz"),
    "ragged lists whose total divides": (ragged, r"tokens of .*b\.parquet has a list of length 3 in row 2; length 4"),
    "ragged vectors": (ragged_vectors, r"tokens of .*b\.parquet has a list of length 2 in row 6; length 3"),
    "no query in a row": (hole("queries", 4), r"queries of .*b\.parquet has no value in row 4;"),
    "no selected token in a row": (hole("selected", 5), r"selected of .*b\.parquet has no value in row 5;"),
    "text in a column": (
        changed(parquet, "b.parquet", mask=lambda _: np.full((N, T), "yes")),
        r"mask of .*b\.parquet has type string",
    ),
    "float selected": (changed(npz, "b.npz", selected=of_type(float)), r"selected of .*b\.npz has float64"),
    "float sequence": (
        changed(npz, "b.npz", sequence=lambda _: np.arange(N) + 0.5),
        r"sequence of .*b\.npz has float64",
    ),
    "sequence beyond": (
        changed(npz, "b.npz", sequence=lambda _: at(6, N)(np.arange(N))),
        r"sequence of .*b\.npz has 8 in row 6;",
    ),
    "negative sequence": (
        changed(npz, "b.npz", sequence=lambda _: at(2, -1)(np.arange(N))),
        r"sequence of .*b\.npz has -1 in row 2;",
    ),
    "NaN mask": (changed(npz, "b.npz", mask=mask_with(np.nan)), r"mask of .*b\.npz has nan in row 5;"),
    "mask of twos": (changed(npz, "b.npz", mask=mask_with(2, int)), r"mask of .*b\.npz has 2 in row 5;"),
    "text mask": (changed(npz, "b.npz", mask=lambda _: np.full((N, T), "True")), r"mask of .*b\.npz has <U4"),
    "hidden selected token": (
        lambda folder, a: npz(folder / "b.npz", {**a, "mask": at((4, a["selected"][4]), False)(np.ones((N, T), bool))}),
        r"selected of .*b\.npz has a token hidden by mask in row 4;",
    ),
    "complex queries": (changed(npz, "b.npz", queries=of_type(complex)), r"queries of .*b\.npz has complex128"),
    "text queries": (changed(npz, "b.npz", queries=of_type(str)), r"queries of .*b\.npz has <U"),
    "infinite query": (changed(npz, "b.npz", queries=at((3, 1), np.inf)), r"queries of .*b\.npz has NaN .* in row 3;"),
    "NaN token": (changed(npz, "b.npz", tokens=at((5, 1, 2), np.nan)), r"tokens of .*b\.npz has NaN .* in row 5;"),
    "NaN token that sequence names": (
        changed(npz, "b.npz", tokens=at((5, 1, 2), np.nan), sequence=lambda _: np.arange(N)[::-1]),
        r"tokens of .*b\.npz has NaN or infinity in row 5;",
    ),
    "selected beyond": (changed(npz, "b.npz", selected=at(6, T)), r"selected of .*b\.npz has 4 in row 6;"),
    "one of two selected beyond": (
        changed(npz, "b.npz", selected=lambda a: at((6, 1), T)(np.column_stack([a, np.full(N, -1)]))),
        r"selected of .*b\.npz has 4 in row 6;",
    ),
    "selected below": (changed(npz, "b.npz", selected=at(1, -2)), r"selected of .*b\.npz has -2 in row 1;"),
    "nothing selected": (changed(npz, "b.npz", selected=at(7, -1)), r"selected of .*b\.npz has no token in row 7;"),
    "objects": (no_shape, r"tokens in .*b\.npz holds Python objects;"),
    "a flipped bit": (flipped(npz), r"tokens of .*b\.npz has the checksum .* its bytes have changed"),
    "a flipped bit of sequences that are named": (
        flipped(lambda path, a: npz(path, {**a, "sequence": np.arange(len(a["queries"]))})),
        r"tokens of .*b\.npz has the checksum .* its bytes have changed",
    ),
    "a flipped bit, compressed": (
        flipped(compressed),
        r"tokens of .*b\.npz cannot be read in rows 0 to 799 \(Bad CRC-32",
    ),
    "a flipped bit of few": (flipped(npz, 1), r"tokens of .*b\.npz is damaged \(Bad CRC-32"),
    "an array twice": (twice, r"b\.npz holds two arrays tokens;"),
    "queries still copied": (still_copied("queries"), r"b holds selected, tokens; queries \(n, dz\) were expected\.$"),
    "queries under a hidden name": (still_copied("queries", hidden=True), r"b holds selected, tokens; queries"),
    "tokens still copied": (still_copied("tokens"), r"b holds queries, selected; tokens \(n, T, d\) were expected\.$"),
    "queries half copied": (half_copied, r"queries in .*b/queries\.npy declares 192 bytes and holds 168;"),
    "queries twice in a file": (two_files_in_one, r"queries in .*b/queries\.npy declares 192 bytes and holds 512;"),
    "overlapping tensors": (tampered(overlap), r"b\.safetensors is damaged"),
    "tensors elsewhere": (tampered(elsewhere), r"b\.safetensors is damaged"),
    "a tensor of another shape": (tampered(swapped), r"b\.safetensors is damaged"),
    "tokens twice": (words_and_tokens, r"npz holds tokens as well as .*tokens\.npy;"),
    "a folder named as a file": (lambda folder, a: npy(folder / "b.npz", a), r"b\.npz is a folder; a \.npz file"),
    "a file named as a group": (
        lambda folder, a: npz(folder / "b.zarr", a),
        r"b\.zarr is damaged or of another format",
    ),
    "no parquet": (lambda folder, a: npz(folder / "b.parquet", a), r"b\.parquet is damaged or of another format"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_an_odd_folder_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write, sentence = REFUSALS[name]
    npz(tmp_path / "a.npz", make(0))
    write(tmp_path, make(1))
    with pytest.raises(ValueError, match=sentence) as refusal:
        solve(tmp_path)
    assert re.search(r"expected\.$", str(refusal.value))
    assert main(["solve", str(tmp_path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def capitals(folder: Path, arrays: Arrays) -> Arrays:
    npz(folder / "b.NPZ", arrays)
    return arrays


def hidden_files(folder: Path, arrays: Arrays) -> None:
    (folder / ".b.npz.Xq3z").write_bytes(b"half of a file")
    (folder / "._a.npz").write_bytes(b"what a Mac leaves")
    (folder / ".b.npz").write_bytes(b"PK")


def left_out(folder: Path, arrays: Arrays) -> None:
    (folder / "b.h5").write_bytes(b"another format")
    (folder / "README").write_text("words", encoding="utf-8")
    (folder / "more").mkdir()
    np.save(folder / "labels.npy", np.zeros(3))


def strange_array(folder: Path, arrays: Arrays) -> Arrays:
    npz(folder / "b.npz", {**arrays, "masks": np.zeros((N, T), bool)})
    return arrays


def kinds_of_numbers(folder: Path, arrays: Arrays) -> Arrays:
    npz(
        folder / "b.npz",
        {**arrays, "tokens": arrays["tokens"].astype(">f4"), "selected": arrays["selected"].astype("u1")},
    )
    return {**arrays, "tokens": arrays["tokens"].astype("f4").astype(float)}


def fortran(write: Callable[[Path, Arrays], None], name: str) -> Writer:
    def odd(folder: Path, arrays: Arrays) -> Arrays:
        write(folder / name, {key: np.asfortranarray(array) for key, array in arrays.items()})
        return arrays

    return odd


def masked(value: type) -> Writer:
    def odd(folder: Path, arrays: Arrays) -> Arrays:
        mask = np.arange(T) != (arrays["selected"][:, None] + 1) % T
        npz(folder / "b.npz", {**arrays, "mask": mask.astype(value)})
        return {**arrays, "mask": mask}

    return odd


def named_sequences(write: Callable[[Path, Arrays], None], name: str) -> Writer:
    """Sequences in another order than their queries, with one that none reads."""

    def odd(folder: Path, arrays: Arrays) -> Arrays:
        order = np.random.default_rng(0).permutation(N + 1)[:N]
        tokens = np.zeros((N + 1, T, D))
        tokens[order] = arrays["tokens"]
        write(folder / name, {**arrays, "tokens": tokens, "sequence": order})
        return arrays

    return odd


def group(folder: Path, arrays: Arrays) -> Arrays:
    store = zarr.open_group(str(folder / "b.zarr"), mode="w")
    for key, array in arrays.items():
        store.create_array(key, data=array, chunks=(3, *array.shape[1:]))
    return arrays


def tensors(folder: Path, arrays: Arrays) -> Arrays:
    save_file({**arrays, "selected": arrays["selected"].astype("i2")}, folder / "b.safetensors")
    return arrays


def empty(folder: Path, arrays: Arrays) -> None:
    npz(folder / "b.npz", {key: array[:0] for key, array in arrays.items()})


ANSWERS: dict[str, tuple[Writer, tuple[str, ...]]] = {
    "a suffix in capitals": (capitals, ()),
    "hidden files": (hidden_files, ()),
    "things that are no shards": (left_out, ("README", "b.h5", "labels.npy", "more")),
    "an array without meaning": (strange_array, ("masks of b.npz",)),
    "row groups of three": (many_groups, ()),
    "lists of fixed size, and large ones": (fixed_lists, ()),
    "big-endian single precision, and bytes": (kinds_of_numbers, ()),
    "first axis fastest, npz": (fortran(npz, "b.npz"), ()),
    "first axis fastest, npy": (fortran(npy, "b"), ()),
    "first axis fastest, compressed": (fortran(compressed, "b.npz"), ()),
    "compressed": (lambda folder, a: compressed(folder / "b.npz", a) or a, ()),
    "a mask of booleans": (masked(bool), ()),
    "a mask of ones": (masked(float), ()),
    "sequences in another order": (named_sequences(npz, "b.npz"), ()),
    "sequences in another order, compressed": (named_sequences(compressed, "b.npz"), ()),
    "sequences in another order, parquet": (changed(parquet, "b.parquet", sequence=lambda _: np.arange(N)), ()),
    "a group of chunks": (group, ()),
    "tensors": (tensors, ()),
    "a shard without rows": (empty, ()),
}
SEQUENCES = "sequences in another order, parquet"


@pytest.mark.parametrize("piece", [None, 3], ids=["whole", "cut"])
@pytest.mark.parametrize("name", ANSWERS)
def test_an_odd_folder_has_the_answer_of_its_data(
    name: str, piece: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if piece is not None:
        monkeypatch.setattr(shards_module, "PIECE_BYTES", piece * T * D * 8)
    write, others = ANSWERS[name]
    npz(tmp_path / "a.npz", make(0))
    data = write(tmp_path, make(1))
    parts = [make(0)] + ([make(1)] if name == SEQUENCES else [data] if data is not None else [])
    solution = solve(tmp_path, tol=TOL)
    assert solution.objective == pytest.approx(in_memory(*parts), rel=2.5 * TOL)
    assert solution.verify()
    assert solution.problem.left_out == others
    assert all(word in str(solution) for word in others)


def test_rows_are_read_from_the_row_groups_that_hold_them(tmp_path: Path) -> None:
    arrays = many_groups(tmp_path, make(1))
    column = describe(tmp_path / "b.parquet").arrays["queries"]
    for start in range(N):
        for stop in range(start + 1, N + 1):
            np.testing.assert_array_equal(column.rows(start, stop), arrays["queries"][start:stop])


@pytest.mark.parametrize("form", ["places", "booleans"])
def test_a_query_may_select_fewer_tokens_than_another(form: str, tmp_path: Path) -> None:
    arrays, even = make(0), np.arange(0, N, 2)
    first = arrays["selected"]
    second = (first + 1) % T
    # Equal tokens tie under every W.
    arrays["tokens"][even, second[even]] = arrays["tokens"][even, first[even]]
    places = np.column_stack([np.where(np.arange(N) % 2, -1, second), first])
    booleans = np.eye(T, dtype=bool)[first]
    booleans[even, second[even]] = True
    npz(tmp_path / "a.npz", {**arrays, "selected": places if form == "places" else booleans})
    assert solve(tmp_path, tol=TOL).objective == pytest.approx(
        in_memory({**arrays, "selected": booleans}), rel=2.5 * TOL
    )


@pytest.mark.parametrize(
    "name",
    [
        "a flipped bit",
        "a flipped bit of sequences that are named",
        "a flipped bit, compressed",
        "ragged lists whose total divides",
    ],
)
def test_pieces_of_a_file_are_checked_as_the_whole_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards_module, "PIECE_BYTES", 3 * T * D * 8)
    write, _ = REFUSALS[name]
    write(tmp_path, make(1))
    with pytest.raises(ValueError, match=r"^tokens of .*b\.(npz|parquet) (has|cannot be read)"):
        solve(tmp_path)


def test_what_was_left_out_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    npz(tmp_path / "a.npz", make(0))
    left_out(tmp_path, make(1))
    assert main(["solve", str(tmp_path)]) == 0
    assert "left out README, b.h5, labels.npy, more\n" in capsys.readouterr().out
    assert main(["solve", str(tmp_path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["left_out"] == ["README", "b.h5", "labels.npy", "more"]
    assert printed["digests"] == list(solve(tmp_path).digests)


def test_a_folder_of_nothing_but_shards_without_rows_is_refused(tmp_path: Path) -> None:
    empty(tmp_path, make(1))
    with pytest.raises(ValueError, match=r"holds shards without rows; one row per query was expected\.$"):
        ShardedProblem.from_folder(tmp_path)


def test_safetensors_without_the_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors(tmp_path, make(1))
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(
        ImportError, match=r"\.safetensors files needs? safetensors, which an extra installs: .*pretrained"
    ):
        ShardedProblem.from_folder(tmp_path)
