"""Writes GGUF files of version 3."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_inference.checkpoint.ggml_types import GGML_TYPE_IDS, GGML_TYPES
from lattice_inference.checkpoint.gguf_header import MAGIC, MAX_DIMENSIONS, MAX_NAME_BYTES, VALUE_TYPES
from lattice_inference.errors import InvalidInputError

__all__ = ["EncodedEntry", "TensorToWrite", "encode_entry", "write_gguf"]

VERSION = 3
ALIGNMENT = 32

_TYPE_IDS = {kind: type_id for type_id, (kind, _) in VALUE_TYPES.items()}
_KINDS_OF_ARRAYS = {dtype: kind for kind, dtype in VALUE_TYPES.values() if dtype is not None}


@dataclass(frozen=True)
class EncodedEntry:
    """A metadata entry from another file.

    See :meth:`lattice_inference.checkpoint.gguf.GgufFile.encoded_entry`.
    """

    content: bytes


@dataclass(frozen=True)
class TensorToWrite:
    """One tensor.

    Attributes:
        name: its name.
        shape: its dimensions in NumPy's order, none of them 0.
        dtype: ggml's name of its type.
        chunks: gives its bytes, in pieces of any length; called when it is its turn, so that a model need not be in memory.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    chunks: Callable[[], Iterable[bytes | memoryview]]

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        kind = GGML_TYPES[GGML_TYPE_IDS[self.dtype]]
        return math.prod(self.shape) // kind.elements * kind.nbytes


def write_gguf(
    path: Path,
    metadata: Mapping[str, object],
    tensors: Sequence[TensorToWrite],
    *,
    on_tensor: Callable[[str], object] = lambda name: None,
) -> None:
    """Write a GGUF file in one go; on failure ``path`` is what it was.

    Args:
        path: the file.
        metadata: values by key; see :func:`encode_entry`.
        tensors: the tensors, in their order in the file.
        on_tensor: told of each tensor that was written, by its name.

    Raises:
        InvalidInputError: something has no form in a GGUF file.
        WriteError: the file cannot be written.
    """
    _check_tensors(tensors)
    header = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    header += [encode_entry(key, value) for key, value in metadata.items()]
    offset = 0
    for tensor in tensors:
        dimensions = tensor.shape[::-1]
        fields = struct.pack(
            f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, GGML_TYPE_IDS[tensor.dtype], offset
        )
        header.append(_string(tensor.name) + fields)
        offset += tensor.nbytes + _padding(tensor.nbytes)
    with atomic_file(path) as file:
        file.write(b"".join(header))
        file.write(bytes(_padding(file.tell())))
        for tensor in tensors:
            written = 0
            for chunk in tensor.chunks():
                file.write(chunk)
                written += memoryview(chunk).nbytes
            if written != tensor.nbytes:
                raise InvalidInputError(
                    f"tensor {tensor.name!r} of shape {tensor.shape} in {tensor.dtype} has {tensor.nbytes:,} bytes; "
                    f"{written:,} were given"
                )
            file.write(bytes(_padding(written)))
            on_tensor(tensor.name)


def encode_entry(key: str, value: object) -> bytes:
    """Return a metadata entry as it is written.

    A ``bool`` is BOOL, a ``str`` STRING, a ``float`` FLOAT32, an ``int`` UINT32, or INT32 if negative, or UINT64 or INT64 if
    it does not fit; a NumPy scalar keeps its type. A NumPy array is an array of its type; a sequence of strings, of
    floats or of integers is one of STRING, FLOAT32 or INT32. An :class:`EncodedEntry` is taken as it is.

    Raises:
        InvalidInputError: the key or value has no such form.
    """
    if isinstance(value, EncodedEntry):
        return value.content
    if not key or len(key.encode()) > MAX_NAME_BYTES:
        raise InvalidInputError(f"{key!r:.60}: a metadata key has 1 to {MAX_NAME_BYTES} bytes")
    return _string(key) + _typed(key, value)


def _typed(key: str, value: Any) -> bytes:
    if isinstance(value, (list, tuple)):
        value = _as_array(key, value)
    if isinstance(value, np.ndarray):
        kind, content = _array(key, value)
        return struct.pack("<IIQ", _TYPE_IDS["ARRAY"], _TYPE_IDS[kind], len(value)) + content
    if isinstance(value, str):
        return struct.pack("<I", _TYPE_IDS["STRING"]) + _string(value)
    if isinstance(value, (bool, np.bool_)):
        scalar = np.asarray(value, np.bool_)
    elif isinstance(value, int):
        scalar = np.asarray(value, _integer_type(key, value))
    elif type(value) is float:
        scalar = np.asarray(value, np.float32)
    else:
        scalar = np.asarray(value)
    kind, content = _array(key, scalar.reshape(1))
    return struct.pack("<I", _TYPE_IDS[kind]) + content


def _integer_type(key: str, value: int) -> str:
    for dtype in ("<u4", "<i4", "<u8", "<i8"):
        if np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
            return dtype
    raise InvalidInputError(f"{key!r}: {value} is out of the range of 64-bit integers")


def _as_array(key: str, values: Sequence[Any]) -> npt.NDArray[Any]:
    if all(isinstance(value, str) for value in values):
        return np.asarray(values, object)
    if any(isinstance(value, (str, bool)) for value in values):
        raise InvalidInputError(f"{key!r}: an array of mixed or boolean values; give a NumPy array")
    wanted = np.int32 if all(isinstance(value, int) for value in values) else np.float32
    try:
        return np.asarray(values, wanted)
    except (OverflowError, TypeError, ValueError) as cause:
        raise InvalidInputError(f"{key!r}: the values are not an array of {wanted.__name__}: {cause}") from cause


def _array(key: str, values: npt.NDArray[Any]) -> tuple[str, bytes]:
    """Return the type's name and the bytes of a 1-D array."""
    if values.ndim != 1:
        raise InvalidInputError(f"{key!r}: arrays have one dimension, not {values.ndim}")
    if values.dtype == object:
        return "STRING", b"".join(map(_string, values.tolist()))
    little = values.dtype.newbyteorder("<")
    if little not in _KINDS_OF_ARRAYS:
        raise InvalidInputError(f"{key!r}: values of type {values.dtype} have no form in a GGUF file")
    return _KINDS_OF_ARRAYS[little], values.astype(little).tobytes()


def _string(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def _padding(length: int) -> int:
    return -length % ALIGNMENT


def _check_tensors(tensors: Sequence[TensorToWrite]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.dtype not in GGML_TYPE_IDS:
            raise InvalidInputError(f"tensor {tensor.name!r}: there is no type {tensor.dtype!r}")
        kind = GGML_TYPES[GGML_TYPE_IDS[tensor.dtype]]
        row = tensor.shape[-1] if tensor.shape else 1
        if len(tensor.shape) > MAX_DIMENSIONS or not all(tensor.shape):
            raise InvalidInputError(f"tensor {tensor.name!r} has the shape {tensor.shape}, which GGUF does not have")
        if row % kind.elements:
            raise InvalidInputError(
                f"tensor {tensor.name!r} has rows of {row}, no multiple of the {kind.elements} of a block of {kind.name}"
            )
        if tensor.name in seen:
            raise InvalidInputError(f"two tensors are called {tensor.name!r}")
        seen.add(tensor.name)
