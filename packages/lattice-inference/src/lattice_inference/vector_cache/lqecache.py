"""Reads ``LQECACHE`` files: the embedding cache of the reference implementation.

A file has the magic, a u32 length, a JSON manifest of that length, and one record a vector: u64 key, u32 dimension,
float32 numbers; integers little-endian. A key is only 64 bits (FNV-1a) of the token ids, and nothing in a record can tell
two texts with one key apart. That is why these files are read, and vectors of ours are never looked up in them.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.model_file import open_model_file
from lattice_inference.errors import InvalidInputError, ModelNotFoundError, VectorCacheError

__all__ = ["LqeCacheFile", "lqecache_key", "read_lqecache"]

MAGIC = b"LQECACHE"
VERSION = 1
MAX_MANIFEST_BYTES = 65_536
MAX_ENTRIES = 10_000
MAX_DIMENSION = 2**20

_HEAD_BYTES = len(MAGIC) + 4
_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3


@dataclass(frozen=True)
class LqeCacheFile:
    """The contents of such a file.

    Attributes:
        base_model_rev, tokenizer_rev: which weights and tokenizer its writer had, in its own words.
        dimension: length of every vector.
        vectors: read-only float32 vectors of shape (dimension,) by key.
    """

    base_model_rev: str
    tokenizer_rev: str
    dimension: int
    vectors: Mapping[int, npt.NDArray[np.float32]]

    def __len__(self) -> int:
        return len(self.vectors)

    def find(self, token_ids: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.float32] | None:
        """Return the vector of a text with these token ids, or None.

        The ids include the end-of-text token. Two texts may have one key: about one wrong answer in 2**64 / entries.
        """
        return self.vectors.get(lqecache_key(token_ids))


def lqecache_key(token_ids: Sequence[int] | npt.NDArray[np.integer]) -> int:
    """Return the 64-bit FNV-1a hash over the token ids, as four little-endian bytes each.

    Raises:
        InvalidInputError: they are no integers from 0 to 2**32 - 1.
    """
    try:
        ids = np.asarray(token_ids)
        if ids.size and (ids.dtype.kind not in "iu" or not 0 <= ids.min() <= ids.max() < 2**32):
            raise ValueError("out of range")
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInputError(f"token_ids is {token_ids!r:.80}; it must hold integers from 0 to 2**32 - 1") from error
    key = _FNV_OFFSET
    for byte in ids.astype("<u4").tobytes():
        key = (key ^ byte) * _FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return key


def read_lqecache(
    path: str | os.PathLike[str], *, base_model_rev: str | None = None, tokenizer_rev: str | None = None
) -> LqeCacheFile:
    """Read a file, or refuse all of it.

    Args:
        path: the file.
        base_model_rev, tokenizer_rev: what the file must have been written with; None for anything.

    Raises:
        ModelNotFoundError: there is no such file.
        VectorCacheError: it is damaged, malformed, of another version, or of other revisions than asked for.
    """
    path = Path(path)
    try:
        descriptor, size_of_file = open_model_file(path, error=VectorCacheError)
    except ModelNotFoundError:
        raise ModelNotFoundError(f"there is no file {path}") from None
    except VectorCacheError as error:
        raise VectorCacheError(f"{path} cannot be read: {error}") from error
    try:
        with os.fdopen(descriptor, "rb") as file:
            manifest, end = _read_manifest(path, file.read(_HEAD_BYTES + MAX_MANIFEST_BYTES))
            count, dimension = _integer(path, manifest, "entry_count"), _integer(path, manifest, "embedding_dim")
            if not 1 <= dimension <= MAX_DIMENSION or not 0 <= count <= MAX_ENTRIES:
                raise VectorCacheError(f"{path}: {count} vectors of {dimension} dimensions are more than is read")
            record = np.dtype([("key", "<u8"), ("dimension", "<u4"), ("vector", "<f4", (dimension,))])
            file.seek(end)
            size = count * record.itemsize
            if size_of_file != end + size:  # before memory is taken for what a manifest promises
                raise VectorCacheError(
                    f"{path}: {count} vectors of {dimension} dimensions are {size} bytes, and "
                    f"{'more' if size_of_file > end + size else f'only {size_of_file - end}'} follow the manifest"
                )
            payload = file.read(size)
    except OSError as error:
        raise VectorCacheError(f"{path} cannot be read: {error.strerror}") from error
    if len(payload) != size:
        raise VectorCacheError(f"{path}: it became shorter while it was read")
    if hashlib.sha256(payload).hexdigest() != manifest.get("payload_sha256"):
        raise VectorCacheError(f"{path}: the SHA-256 of the vectors is not that of the manifest: the file is damaged")
    for name, wanted in (("base_model_rev", base_model_rev), ("tokenizer_rev", tokenizer_rev)):
        if not isinstance(manifest.get(name), str):
            raise VectorCacheError(f"{path}: the manifest's {name} is {manifest.get(name)!r:.80}, not a string")
        if wanted is not None and manifest[name] != wanted:
            raise VectorCacheError(f"{path} was written with {name} {manifest[name]!r}, not {wanted!r}")
    records = np.frombuffer(payload, record)
    if not (records["dimension"] == dimension).all():
        raise VectorCacheError(f"{path}: a vector has another dimension than the {dimension} of the manifest")
    vectors = np.ascontiguousarray(records["vector"], np.float32)
    if not np.isfinite(vectors).all():
        raise VectorCacheError(f"{path}: a vector holds NaN or infinity")
    vectors.flags.writeable = False
    found = dict(zip(records["key"].tolist(), vectors, strict=True))
    return LqeCacheFile(manifest["base_model_rev"], manifest["tokenizer_rev"], dimension, MappingProxyType(found))


def _read_manifest(path: Path, head: bytes) -> tuple[dict[str, Any], int]:
    """Return the manifest, and where the records begin."""
    if head[: len(MAGIC)] != MAGIC:
        raise VectorCacheError(f"{path} does not begin with {MAGIC.decode()}: it is no such cache")
    if len(head) < _HEAD_BYTES:
        raise VectorCacheError(f"{path} ends after {len(head)} bytes")
    (length,) = struct.unpack_from("<I", head, len(MAGIC))
    if length > MAX_MANIFEST_BYTES or _HEAD_BYTES + length > len(head):
        raise VectorCacheError(
            f"{path}: a manifest of {length:,} bytes; at most {MAX_MANIFEST_BYTES:,} are read, and the file must hold them"
        )
    try:
        manifest = json.loads(head[_HEAD_BYTES : _HEAD_BYTES + length])
    except (ValueError, RecursionError) as error:
        raise VectorCacheError(f"{path}: the manifest is no JSON: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("version") != VERSION or type(manifest["version"]) is not int:
        raise VectorCacheError(f"{path}: the manifest is not of version {VERSION}")
    return manifest, _HEAD_BYTES + length


def _integer(path: Path, manifest: Mapping[str, object], name: str) -> int:
    value = manifest.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise VectorCacheError(f"{path}: the manifest's {name} is {value!r:.80}, not an integer")
    return value
