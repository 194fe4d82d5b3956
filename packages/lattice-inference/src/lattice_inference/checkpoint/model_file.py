"""Opening files that somebody else wrote: only regular ones, and with a word about what they are instead."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from lattice_inference.errors import LatticeError, ModelNotFoundError

__all__ = ["SNIFF_BYTES", "foreign_content", "open_model_file", "read_model_file"]

#: How much of a file's beginning :func:`foreign_content` looks at.
SNIFF_BYTES = 512

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

    Symbolic links are followed (the Hugging Face cache is made of them). Anything that is not a regular file in the end
    is refused, and a FIFO or device cannot make the call wait: the file is opened without blocking and then asked what
    it is.

    Raises:
        ModelNotFoundError: nothing is there.
        LatticeError: of the class ``error``, when it is not a regular file or may not be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError as cause:
        detail = " (a symbolic link whose target is gone)" if path.is_symlink() else ""
        raise ModelNotFoundError(f"{path}: no such file{detail}") from cause
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
    descriptor, size = open_model_file(path, error=error)
    with os.fdopen(descriptor, "rb") as file:
        if size > max_bytes:
            raise error(f"{path}: {size:,} bytes, and at most {max_bytes:,} are read")
        try:
            # One byte more than allowed, so that a file which grows meanwhile is noticed.
            content = file.read(max_bytes + 1)
        except OSError as cause:
            raise error(f"{path}: cannot be read: {cause.strerror}") from cause
    if len(content) > max_bytes:
        raise error(f"{path}: more than the {max_bytes:,} bytes that are read at most")
    return content


def foreign_content(head: bytes) -> str | None:
    """Say in words what a file that begins with ``head`` is, or None if it is none of the usual mix-ups."""
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
