"""Opens untrusted files: only regular ones, with errors that name what else they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from lattice_inference.checkpoint.read_once import remember, remembered
from lattice_inference.errors import LatticeError, ModelNotFoundError

__all__ = [
    "SNIFF_BYTES",
    "content_of",
    "file_head",
    "foreign_content",
    "is_safetensors_head",
    "is_stand_in",
    "open_model_file",
    "read_model_file",
]

#: How much of a file's beginning :func:`foreign_content` looks at.
SNIFF_BYTES = 512

_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_LONGEST_HEADER = 2**28  # of a safetensors file

# Beginnings of files that people save under a model file's name by accident.
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_FOREIGN_MAGIC = (
    (b"PK\x03\x04", "a zip archive (PyTorch's own checkpoint format is one); convert it to safetensors"),
    (
        b"\x80\x02",
        "a Python pickle (an old PyTorch checkpoint), which can run code when read; convert it to safetensors",
    ),
    (b"GGUF", "a GGUF file"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file (a TensorFlow checkpoint); convert it to safetensors"),
    (b"\x1f\x8b", "gzip-compressed; unpack it first"),
)


def open_model_file(path: Path, *, error: type[LatticeError]) -> tuple[int, int]:
    """Open ``path`` for reading and return its descriptor and its size in bytes.

    Symbolic links are followed (the Hugging Face cache is made of them). Only a regular file is accepted. A FIFO or
    device cannot make the call wait: the file is opened without blocking, and then its type is checked.

    Raises:
        ModelNotFoundError: nothing is there.
        LatticeError: of the class ``error``, when it is not a regular file or may not be read.
    """
    try:
        descriptor = os.open(path, _READ)
    except FileNotFoundError as cause:
        detail = " (a symbolic link whose target is gone)" if path.is_symlink() else ""
        raise ModelNotFoundError(f"{path}: no such file{detail}") from cause
    except NotADirectoryError as cause:
        raise error(f"{path}: cannot be opened: {_file_among(path.parents)}") from cause
    except (OSError, ValueError) as cause:
        raise error(f"{path}: cannot be opened: {getattr(cause, 'strerror', None) or cause}") from cause
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise error(f"{path}: is {kind}; a regular file is needed")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def read_model_file(path: Path, *, max_bytes: int, error: type[LatticeError]) -> bytes:
    """Return the whole content of ``path``, a regular file of at most ``max_bytes`` bytes.

    Raises:
        ModelNotFoundError: nothing is there.
        LatticeError: of the class ``error``, when it is too large, is not a regular file or cannot be read.
    """
    known = remembered(path)
    if known is not None and len(known) <= max_bytes:
        return known
    descriptor, size = open_model_file(path, error=error)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if size > max_bytes:
            raise error(f"{path}: {size:,} bytes, and at most {max_bytes:,} are read")
        try:
            # One byte more than allowed, so that a file which grows meanwhile is noticed.
            content = file.read(max_bytes + 1)
        except OSError as cause:
            raise error(f"{path}: cannot be read: {cause.strerror}") from cause
    if len(content) > max_bytes:
        raise error(f"{path}: more than the {max_bytes:,} bytes that are read at most")
    remember(path, status, content)
    return content


def file_head(path: Path) -> bytes:
    """Return the first bytes of a regular file, none of anything else; nothing is waited for."""
    try:
        descriptor = os.open(path, _READ)
    except (OSError, ValueError):
        return b""
    try:
        return os.read(descriptor, SNIFF_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def content_of(path: Path) -> str:
    """Say in words what a file is, by its first bytes."""
    head = file_head(path)
    if not head:
        return "an empty file, or none that can be read"
    if is_safetensors_head(head):
        return "a safetensors file; the model is the directory that holds it with its config.json"
    return foreign_content(head) or "a file of another kind"


def is_safetensors_head(head: bytes) -> bool:
    """Whether a file that begins with ``head`` is safetensors.

    That is the length of a header, and an object.
    """
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= _LONGEST_HEADER


def _file_among(parents: Iterable[Path]) -> str:
    """Say which of the parents of a path is a file where a directory is due."""
    file = next((parent for parent in parents if os.path.isfile(parent)), None)
    return "Not a directory" if file is None else f"{file} is no directory but {content_of(file)}"


def is_stand_in(head: bytes) -> bool:
    """Whether a file that begins with ``head`` is a placeholder: a Git LFS pointer, a web page."""
    page = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:14].lower()
    return head.startswith(_LFS_POINTER) or page.startswith((b"<!doctype html", b"<html"))


def foreign_content(head: bytes) -> str | None:
    """Describe a file that begins with ``head``, or return None if it is no usual mix-up."""
    if head.startswith(_LFS_POINTER):
        return (
            "a Git LFS pointer, not the file itself: run `git lfs pull` in the repository (or download the file again)"
        )
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:14].lower().startswith((b"<!doctype html", b"<html", b"<head", b"<?xml")):
        return "a web page (an error page saved in the file's place?): download the file again"
    for magic, meaning in _FOREIGN_MAGIC:
        if head.startswith(magic):
            return meaning
    return None
