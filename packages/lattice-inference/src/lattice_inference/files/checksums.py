"""SHA-256 of model files, and the memory of which files have been checked.

Hashing 90 MB takes longer than loading them, so a file that matched is remembered by its path, size, times, inode and
digest in ``<model cache>/.verified``. A stamp is believed only if every one of these still agrees.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_inference.checkpoint.json_file import load_json_object
from lattice_inference.checkpoint.model_file import SNIFF_BYTES, foreign_content, open_model_file
from lattice_inference.errors import ChecksumError, LatticeError
from lattice_inference.files.environment import model_cache_root

__all__ = ["STAMP_FOLDER", "FileIdentity", "check_digest", "file_identity", "remembered_sha256", "sha256_of_file"]

#: Folder under the model cache's root that holds the stamps, one small JSON file a verified file.
STAMP_FOLDER = ".verified"

_STAMP_MAX_BYTES = 64 * 1024

#: Files below this size are hashed faster than a stamp is read and written.
_LEAST_STAMPED_BYTES = 1024 * 1024

FileIdentity = tuple[int, int, int, int, int]
"""Size, times, device and inode of a file: what changes when its content does."""


def file_identity(path: Path) -> FileIdentity | None:
    """Return what tells a file from a later one of the same name, or None if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    # A change of content always changes the time of the last change, even if the modification time is set back afterwards.
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino


def remembered_sha256(path: Path) -> str:
    """Return the SHA-256 of a regular file in hex.

    A large file may have a stamp that still agrees; then it is not read.

    Raises:
        ModelNotFoundError: it does not exist.
        ChecksumError: it is not a regular file or cannot be read.
    """
    identity = file_identity(path)
    if identity is None or identity[0] < _LEAST_STAMPED_BYTES:
        return sha256_of_file(path)
    stamp_path = _stamp_path(path, model_cache_root())
    stamp = _read_stamp(stamp_path)
    known = stamp.get("sha256") if stamp is not None else None
    if isinstance(known, str) and stamp == _identity(path, known):
        return known
    actual = sha256_of_file(path)
    after = _identity(path, actual)
    if after is not None and file_identity(path) == identity:
        _write_stamp(stamp_path, after)
    return actual


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a regular file in hex.

    Raises:
        ModelNotFoundError: it does not exist.
        ChecksumError: it is not a regular file or cannot be read.
    """
    descriptor, _ = open_model_file(path, error=ChecksumError)
    with os.fdopen(descriptor, "rb") as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as cause:
            raise ChecksumError(f"{path}: cannot be read: {cause.strerror}") from cause


def check_digest(path: Path, expected: str, *, cache_root: Path, remedy: str) -> None:
    """Check that the file's SHA-256 is ``expected``, or believe a stamp that says so.

    A stamp is written when the file matches; where the cache's root cannot be written, the file is hashed every time.

    Args:
        path: the file. It is only ever read.
        expected: the digest on record, in lower-case hex.
        cache_root: root of the model cache, where the stamps are.
        remedy: what the user can do about a mismatch, for the message.

    Raises:
        ChecksumError: it differs; the message names the file, both digests and the remedy.
    """
    stamp_path = _stamp_path(path, cache_root)
    before = _identity(path, expected)
    if before is not None and _read_stamp(stamp_path) == before:
        return
    actual = sha256_of_file(path)
    if actual != expected:
        raise ChecksumError(
            f"{path}: SHA-256 is {actual}, but {expected} is on record{_content_hint(path)}. "
            f"The file was left as it is. {remedy}"
        )
    # Only a file that did not change while it was hashed is remembered.
    if before is not None and _identity(path, expected) == before:
        _write_stamp(stamp_path, before)


def _stamp_path(path: Path, cache_root: Path) -> Path:
    return cache_root / STAMP_FOLDER / f"{hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()}.json"


def _identity(path: Path, digest: str) -> dict[str, object] | None:
    identity = file_identity(path)
    if identity is None:
        return None
    names = ("size", "mtime_ns", "ctime_ns", "device", "inode")
    return {"path": os.path.realpath(path), **dict(zip(names, identity, strict=True)), "sha256": digest}


def _read_stamp(path: Path) -> dict[str, object] | None:
    try:
        return load_json_object(path, max_bytes=_STAMP_MAX_BYTES)
    except LatticeError:
        # Absent, torn or meddled with: as good as none.
        return None


def _write_stamp(path: Path, stamp: dict[str, object]) -> None:
    # Best effort: a read-only or full disk costs a hash at the next load, nothing else.
    with contextlib.suppress(OSError, UnicodeError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path, mode=0o600) as file:
            file.write(json.dumps(stamp).encode())


def _content_hint(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            meaning = foreign_content(file.read(SNIFF_BYTES))
    except OSError:
        return ""
    return f" (it is {meaning})" if meaning else ""
