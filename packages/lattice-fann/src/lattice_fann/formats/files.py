"""Networks in files: the suffix selects the format to write, the content the one to read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lattice_fann.errors import FannError, FormatError, InvalidInputError
from lattice_fann.formats.atomic_write import atomic_write

if TYPE_CHECKING:
    from lattice_fann.formats.binary_v2 import WeightType
    from lattice_fann.network import Network

__all__ = ["MAX_FILE_BYTES", "checked_path", "git_lfs_pointer", "load", "obstacle", "save"]

MAX_FILE_BYTES = 4 << 30
_HEAD_BYTES = 64


def save(network: Network, path: str | os.PathLike[str], *, weights: WeightType = "float32") -> None:
    """Write ``network`` to ``path``, whole or not at all.

    Raises:
        UnsupportedError: the format cannot express the network.
        OSError: the file cannot be written.
    """
    path = checked_path(path)
    suffix = path.suffix.lower()
    _check_weights(suffix, weights)
    if suffix == ".safetensors":
        from lattice_fann.formats.safetensors import to_safetensors

        content = to_safetensors(network)
    elif suffix == ".net":
        from lattice_fann.formats.fann_text import to_fann_text

        content = to_fann_text(network).encode("ascii")
    else:
        content = network.to_bytes(weights=weights)
    with atomic_write(path) as file:
        file.write(content)


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` as a Path.

    Raises:
        InvalidInputError: it is no path, is empty, or holds a character that no file name can have.
    """
    try:
        name = os.fspath(path)
        if not isinstance(name, str):
            raise InvalidInputError(f"the path is of type {type(name).__name__}; give a str or a pathlib.Path")
        if not name or b"\0" in os.fsencode(name):
            raise InvalidInputError(f"{name[:200]!r} is no file name")
        return Path(name)
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidInputError(f"no file can have the path given: {error}") from None


def git_lfs_pointer(head: bytes) -> str | None:
    """Return what to do if a file that begins with ``head`` is a Git LFS pointer, else None."""
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return "this is a Git LFS pointer, not the file itself: run 'git lfs pull' where it was cloned"
    return None


def _what(head: bytes) -> str:
    if not head:
        return "an empty file"
    kinds = {b"PK\x03\x04": "an .npz or .zip file", b"GGUF": "a GGUF file", b"\x93NUMPY": "an .npy file"}
    return next(
        (kind for magic, kind in kinds.items() if head.startswith(magic)), f"a file that begins with {head[:8]!r}"
    )


def obstacle(network: Network, path: str | os.PathLike[str], weights: WeightType) -> str | None:
    """Return why :func:`save` would refuse ``network`` whatever its weights are, or None."""
    suffix = Path(path).suffix.lower()
    try:
        _check_weights(suffix, weights)
        if suffix == ".safetensors":
            from lattice_fann.formats.safetensors import check_header

            check_header(network)
        elif suffix == ".net":
            from lattice_fann.formats.fann_text import check_expressible

            check_expressible(network)
        else:
            from lattice_fann.formats import binary_v1, binary_v2

            if weights != "float32" or binary_v1.obstacle(network) is not None:
                binary_v2.encoded_header(network, weights)
    except FannError as error:
        return str(error)
    return None


def _check_weights(suffix: str, weights: WeightType) -> None:
    from lattice_fann.formats.binary_v2 import check_weight_type

    check_weight_type(weights)
    if suffix in (".safetensors", ".net") and weights != "float32":
        raise InvalidInputError(f"{suffix} files hold float32 weights, not {weights}: take another suffix")


def load(path: str | os.PathLike[str]) -> Network:
    """Return the network in a file of any format that this package reads.

    Raises:
        FormatError: it holds none.
        OSError: it cannot be read.
    """
    from lattice_fann.formats.binary import from_bytes

    with checked_path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEAD_BYTES)
        if (pointer := git_lfs_pointer(head)) is not None:
            raise FormatError(f"{path}: {pointer}")
        if not head.startswith(b"FANN") and head[8:9] != b"{":
            raise FormatError(f"{path}: {_what(head)} is no network")
        if size > MAX_FILE_BYTES:
            raise FormatError(f"{path}: {size} bytes; no network takes more than {MAX_FILE_BYTES}")
        content = head + file.read(max(0, size + 1 - len(head)))
    try:
        if content.startswith((b"FANN_FLO", b"FANN_FIX")):
            from lattice_fann.formats.fann_text import from_fann_text

            return from_fann_text(content)
        if content.startswith(b"FANN"):
            return from_bytes(content)
        from lattice_fann.formats.safetensors import from_safetensors

        return from_safetensors(content)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error.__cause__
