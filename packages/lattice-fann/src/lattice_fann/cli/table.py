"""Tables from .csv and .npz files."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_fann.arrays import float32_of, lost_in_float32
from lattice_fann.cli.one_hot import expand, values_of
from lattice_fann.errors import FormatError, InvalidInputError
from lattice_fann.formats.files import git_lfs_pointer
from lattice_fann.formats.npz import array_names, listed_names, read_arrays

__all__ = ["Table", "read_inputs", "read_table"]

Float32Array = npt.NDArray[np.float32]


_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Table:
    """What a network is trained on.

    Attributes:
        inputs: (samples, inputs); a column of texts is several of them.
        columns: the columns' names.
        target: (samples,) or (samples, outputs).
        values: the texts of each column of texts.
    """

    inputs: Float32Array
    columns: list[str]
    target: npt.NDArray[Any]
    values: Mapping[str, list[str]] = field(default_factory=dict)


def read_table(
    name: str, target: str, inputs: str | None, *, drop: Sequence[str] = (), texts: Sequence[str] = ()
) -> Table:
    """Return the inputs and the target of a training file.

    Args:
        name: the file.
        target: the column or array to predict.
        inputs: the array of inputs of a .npz file.
        drop: columns that are left out.
        texts: columns whose cells are texts although they may look like numbers. So are those without any number.

    Raises:
        InvalidInputError: no such column or array, or cells that are no numbers.
        OSError: the file cannot be read.
    """
    suffix = Path(name).suffix.lower()
    if suffix == ".npz" and (drop or texts):
        raise InvalidInputError("--drop and --text name columns of a .csv file; the inputs of a .npz file are an array")
    if suffix == ".npz":
        names = _names(name)
        answers = _pick(names, target, "--target", name)
        given = _pick([key for key in names if key != target], inputs, "--inputs", name)
        arrays = _arrays(name, [answers, given])
        x = _matrix(arrays[given], name)
        return Table(x, [f"{inputs or 'x'}[{i}]" for i in range(x.shape[1])], _texts(arrays[answers], name))
    if suffix != ".csv":
        raise InvalidInputError(f"{name}: training data are .csv or .npz files")
    if inputs is not None:
        raise InvalidInputError("--inputs names an array of a .npz file; in a .csv file all other columns are inputs")
    header, rows = _rows(name)
    if header.count(target) != 1:
        hint = "; separate columns by commas" if len(header) == 1 and re.search("[;\t|]", header[0]) else ""
        raise InvalidInputError(
            f"{name} has {header.count(target)} columns named {target!r}: {listed_names(header)}{hint}"
        )
    position = header.index(target)
    for column in (*drop, *texts):
        if column == target or header.count(column) != 1:
            raise InvalidInputError(
                f"{column!r:.80} names {'the target' if column == target else f'{header.count(column)} columns'}; "
                f"the columns of {name} are {listed_names(header)}"
            )
    if both := sorted({*drop} & {*texts}):
        raise InvalidInputError(f"{listed_names(both)} is in --drop and in --text: it is one of them")
    kept = [i for i in range(len(header)) if i != position and header[i] not in drop]
    if not kept:
        raise InvalidInputError(f"{name} has no column but the target{' and what is dropped' if drop else ''}")
    target_texts = [row[position].strip() for row in rows]
    for number, text in enumerate(target_texts, start=2):
        if not text:
            raise InvalidInputError(f"{name}, line {number}: the target {target!r} is empty")
    cells = {header[i]: [row[i] for row in rows] for i in kept if header.count(header[i]) == 1}
    values = {
        column: values_of(name, column, column_cells)
        for column, column_cells in cells.items()
        if column in texts or not any(map(_is_number, column_cells))
    }
    columns = [header[i] for i in kept]
    return Table(_inputs(name, header, rows, kept, values), columns, _target(target_texts), values)


def read_inputs(
    name: str,
    columns: list[str] | None,
    width: int,
    inputs: str | None,
    values: Mapping[str, list[str]],
) -> Float32Array:
    """Return the inputs of a file to predict on.

    They are ``columns`` by name if the header has them, else all in order.

    ``values`` are the texts of each column of texts. Such columns are found by their names alone.

    Raises:
        InvalidInputError: columns are missing, or cells are no numbers.
        OSError: the file cannot be read.
    """
    if Path(name).suffix.lower() == ".npz":
        given = _pick(_names(name), inputs, "--inputs", name)
        x = _matrix(_arrays(name, [given])[given], name)
    else:
        header, rows = _rows(name)
        if columns is not None and set(columns) <= set(header):
            kept = [header.index(column) for column in columns]
        elif values:
            missing = [column for column in columns or () if column not in header]
            raise InvalidInputError(f"{name} lacks the columns {listed_names(missing)}")
        elif _is_number(header[0]):
            rows = [header, *rows]
            kept = list(range(len(header)))
        elif columns is not None and any(column in header for column in columns):
            missing = [column for column in columns if column not in header]
            raise InvalidInputError(f"{name} lacks the columns {listed_names(missing)}")
        else:
            kept = list(range(len(header)))
        x = _inputs(name, header, rows, kept, values)
    if x.shape[1] != width:
        raise InvalidInputError(f"{name} has {x.shape[1]} input columns, the network takes {width}")
    return x


def _inputs(
    name: str, header: list[str], rows: list[list[str]], kept: list[int], values: Mapping[str, list[str]]
) -> Float32Array:
    """Return the inputs that the kept columns are.

    Numbers stay as they are; a column of texts becomes one input for each value.
    """
    if not values:
        return _numbers(name, header, rows, kept)
    numbers = _numbers(name, header, rows, [i for i in kept if header[i] not in values])
    texts = {header[i]: [row[i] for row in rows] for i in kept if header[i] in values}
    return expand(name, [header[i] for i in kept], numbers.reshape(len(rows), -1), texts, values)


def _rows(name: str) -> tuple[list[str], list[list[str]]]:
    raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    if (pointer := git_lfs_pointer(raw[:64])) is not None:
        raise InvalidInputError(f"{name}: {pointer}")
    try:
        text = raw.decode("utf-8-sig")  # some editors put a byte order mark first
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(f"{name}, line {line}: not UTF-8 (byte 0x{raw[error.start]:02x}): convert it") from None
    try:
        lines = [line for line in csv.reader(io.StringIO(text, newline=""), strict=True) if line]
    except csv.Error as error:
        raise InvalidInputError(f"{name}: {error}") from None
    if not lines:
        raise InvalidInputError(f"{name} is empty")
    header, rows = [cell.strip() for cell in lines[0]], lines[1:]
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise InvalidInputError(f"{name}, line {number}: {len(row)} cells, the header has {len(header)}")
    if not rows and not _is_number(header[0]):
        raise InvalidInputError(f"{name} has a header and no rows")
    return header, rows


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(name: str, header: list[str], rows: list[list[str]], kept: list[int]) -> Float32Array:
    try:
        values = np.array([[float(row[i]) for i in kept] for row in rows], dtype=np.float64)
    except ValueError:
        values = None
    if values is not None and np.isfinite(float32_of(values)).all():
        converted = float32_of(values)
        for column, reason in lost_in_float32(values, converted).items():
            print(f"lattice-fann: warning: {name}, column {header[kept[column]]!r:.80}: {reason}", file=sys.stderr)
        return converted
    for number, row in enumerate(rows, start=2):
        for i in kept:
            if not _is_number(row[i]) or not abs(float(row[i])) <= _LARGEST:
                raise InvalidInputError(f"{name}, line {number}: {header[i]!r:.80} is {row[i]!r:.80}, no finite number")
    raise InvalidInputError(f"{name} holds a number that is not finite in float32")


def _target(texts: list[str]) -> npt.NDArray[Any]:
    for kind in (int, float):
        try:
            array = np.array([kind(text) for text in texts])
        except ValueError:
            continue
        if array.dtype.kind in "iuf" and np.isfinite(array).all():
            return array
    return np.array(texts)


def _names(name: str) -> list[str]:
    try:
        names = array_names(name)
    except FormatError as error:
        raise InvalidInputError(str(error)) from None
    if {"indptr", "format", "shape"} <= set(names):
        raise InvalidInputError(f"{name} holds a sparse matrix of SciPy: save its .toarray() with numpy.savez")
    return names


def _arrays(name: str, wanted: list[str]) -> dict[str, npt.NDArray[Any]]:
    try:
        return read_arrays(name, wanted)
    except FormatError as error:
        raise InvalidInputError(str(error)) from None


def _pick(names: list[str], key: str | None, option: str, name: str) -> str:
    if key is None:
        if len(names) != 1:
            raise InvalidInputError(f"{name} holds {listed_names(names) or 'nothing'}: name the array with {option}")
        return names[0]
    if key not in names:
        raise InvalidInputError(f"{name} holds no array {key!r}; it holds {listed_names(names) or 'nothing else'}")
    return key


def _texts(target: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """The target, bytes as texts: labels are stored as JSON, which has no bytes."""
    if target.dtype.kind != "S":
        return target
    try:
        return np.char.decode(target, "utf-8")
    except UnicodeDecodeError:
        raise InvalidInputError(f"{name}: the target holds bytes that are no UTF-8 text") from None


def _matrix(array: npt.NDArray[Any], name: str) -> Float32Array:
    if array.dtype.kind not in "biuf" or array.ndim < 2:
        raise InvalidInputError(f"{name}: inputs must be numbers, one row a sample, not {array.dtype} {array.shape}")
    x = float32_of(array.reshape(array.shape[0], -1))
    if not x.size:
        raise InvalidInputError(f"{name}: the inputs have shape {array.shape}, without a value")
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise InvalidInputError(f"{name}: the input at row {row}, column {column} is not finite in float32")
    for column, reason in lost_in_float32(array.reshape(x.shape), x).items():
        print(f"lattice-fann: warning: {name}, column {column}: {reason}", file=sys.stderr)
    return x
