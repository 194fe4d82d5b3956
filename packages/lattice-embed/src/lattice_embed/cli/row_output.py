"""Writes rows with their vectors to a JSONL or Parquet file while they are computed.

The file is complete or absent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from lattice_embed.errors import InvalidInputError, LatticeEmbedError
from lattice_embed.result import Float32Array
from lattice_inference.checkpoint.atomic_file import atomic_file

__all__ = ["VECTOR", "WriteRows", "row_output"]

VECTOR = "embedding"
"""The column that the vectors are written to."""

WriteRows = Callable[[Sequence[Mapping[str, Any]], Float32Array], None]
"""Writes rows and their vectors, one of each."""


def row_output(path: Path) -> AbstractContextManager[WriteRows]:
    """Return what writes rows to ``path``, by its suffix: ``.jsonl`` or ``.parquet``.

    Raises:
        InvalidInputError: a row has a column ``embedding`` already.
        LatticeEmbedError: Parquet is wanted, and pyarrow is not installed.
        WriteError: it cannot be written.
    """
    return _parquet(path) if path.suffix == ".parquet" else _json_lines(path)


@contextmanager
def _json_lines(path: Path) -> Iterator[WriteRows]:
    with atomic_file(path) as file:
        yield lambda rows, vectors: _write_json_lines(file, rows, vectors)


def _write_json_lines(file: BinaryIO, rows: Sequence[Mapping[str, Any]], vectors: Float32Array) -> None:
    # nine digits are the least that give every float32 back; one format for a whole vector is three times as fast as
    # json's own loop over its numbers
    numbers = ", ".join(["%.9g"] * vectors.shape[1])
    for row, vector in zip(rows, vectors, strict=True):
        _check_free(row)
        head = json.dumps(row, ensure_ascii=False)[:-1]
        comma = ", " if row else ""
        file.write(
            f'{head}{comma}"{VECTOR}": [{numbers % tuple(vector.tolist())}]}}\n'.encode("utf-8", "surrogatepass")
        )


@contextmanager
def _parquet(path: Path) -> Iterator[WriteRows]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise LatticeEmbedError(f"--output {path}: Parquet files need pyarrow: pip install pyarrow") from None
    with atomic_file(path) as file:
        writer: Any = None
        first = 0

        def write(rows: Sequence[Mapping[str, Any]], vectors: Float32Array) -> None:
            nonlocal writer, first
            for row in rows:
                _check_free(row)
            # of rows as they are, Arrow takes the columns of the first, and leaves the others' further ones out
            names = list(dict.fromkeys(name for row in rows for name in row))
            if writer is not None and (new := [name for name in names if name not in writer.schema.names]):
                raise InvalidInputError(
                    f"--output {path}: a row has the column {new[0]!r}, which none of the first {first} rows has, and a "
                    "Parquet file takes no columns later: add it, as null, to the first row, or write .jsonl"
                )
            flat = arrow.array(vectors.reshape(-1), arrow.float32())
            column = arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
            try:
                wide = [{name: row.get(name) for name in names} for row in rows]
                table = arrow.Table.from_pylist(wide)
                if writer is not None:
                    schema = writer.schema.remove(writer.schema.get_field_index(VECTOR))
                    for field in table.schema:
                        _check_fits(field.name, field.type, schema.field(field.name).type, arrow.types)
                    table = arrow.Table.from_pylist(wide, schema=schema)
                table = table.append_column(VECTOR, column)
            except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise InvalidInputError(
                    f"--output {path}: the rows are no table of one type a column ({error})"
                ) from None
            if writer is None:
                writer, first = parquet.ParquetWriter(file, table.schema), len(rows)
            writer.write_table(table)

        try:
            yield write
        finally:
            if writer is not None:
                writer.close()


def _check_fits(name: str, found: Any, held: Any, types: Any) -> None:
    """Refuse values that Arrow would change, or leave out, to store them as the first rows are.

    Raises:
        TypeError: of these values.
    """
    if found == held or types.is_null(found) or (types.is_integer(found) and types.is_floating(held)):
        return
    if types.is_list(found) and types.is_list(held):
        _check_fits(name, found.value_type, held.value_type, types)
        return
    if not (types.is_struct(found) and types.is_struct(held)):
        raise TypeError(f"{name!r} holds {found}, and {held} in the first rows")
    for field in found:
        place = held.get_field_index(field.name)
        if place < 0:
            raise TypeError(f"{name!r} holds a field {field.name!r}, which none of the first rows has")
        _check_fits(f"{name}.{field.name}", field.type, held.field(place).type, types)


def _check_free(row: Mapping[str, Any]) -> None:
    if VECTOR in row:
        raise InvalidInputError(f"a row has a column {VECTOR!r} already; rename it")
