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

        def write(rows: Sequence[Mapping[str, Any]], vectors: Float32Array) -> None:
            nonlocal writer
            for row in rows:
                _check_free(row)
            flat = arrow.array(vectors.reshape(-1), arrow.float32())
            column = arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
            try:
                schema = None if writer is None else writer.schema.remove(writer.schema.get_field_index(VECTOR))
                table = arrow.Table.from_pylist([dict(row) for row in rows], schema=schema)
                table = table.append_column(VECTOR, column)
            except (arrow.ArrowException, TypeError, ValueError) as error:
                raise InvalidInputError(
                    f"--output {path}: the rows are no table of one type a column ({error})"
                ) from None
            if writer is None:
                writer = parquet.ParquetWriter(file, table.schema)
            writer.write_table(table)

        try:
            yield write
        finally:
            if writer is not None:
                writer.close()


def _check_free(row: Mapping[str, Any]) -> None:
    if VECTOR in row:
        raise InvalidInputError(f"a row has a column {VECTOR!r} already; rename it")
