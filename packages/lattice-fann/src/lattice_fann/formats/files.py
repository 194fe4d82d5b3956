"""Networks in files: the suffix names the format to write, the content the format that is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lattice_fann.errors import FannError, FormatError, InvalidInputError
from lattice_fann.formats.atomic_write import atomic_write

if TYPE_CHECKING:
    from lattice_fann.formats.binary_v2 import WeightType
    from lattice_fann.network import Network

__all__ = ["MAX_FILE_BYTES", "load", "obstacle", "save"]

MAX_FILE_BYTES = 4 << 30


def save(network: Network, path: str | os.PathLike[str], *, weights: WeightType = "float32") -> None:
    """Write ``network`` to ``path``, whole or not at all.

    Raises:
        UnsupportedError: the format cannot express the network.
        OSError: the file cannot be written.
    """
    suffix = Path(path).suffix.lower()
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
    if suffix in (".safetensors", ".net") and weights != "float32":
        raise InvalidInputError(f"{suffix} files hold float32 weights, not {weights}: take another suffix")


def load(path: str | os.PathLike[str]) -> Network:
    """Return the network in a file of any format that this package reads.

    Raises:
        FormatError: it holds none.
        OSError: it cannot be read.
    """
    from lattice_fann.formats.binary import from_bytes

    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            raise FormatError(f"{path}: {size} bytes; no network takes more than {MAX_FILE_BYTES}")
        content = file.read(size + 1)
    try:
        if content.startswith((b"FANN_FLO", b"FANN_FIX")):
            from lattice_fann.formats.fann_text import from_fann_text

            return from_fann_text(content)
        if content.startswith(b"FANN"):
            return from_bytes(content)
        if content[8:9] == b"{":
            from lattice_fann.formats.safetensors import from_safetensors

            return from_safetensors(content)
        return from_bytes(content)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error.__cause__
