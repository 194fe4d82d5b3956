"""Tells the binary formats apart."""

from __future__ import annotations

import struct

from lattice_fann.arguments import shown
from lattice_fann.errors import FormatError, InvalidInputError
from lattice_fann.formats import binary_v1, binary_v2
from lattice_fann.network import Network

__all__ = ["MAGIC", "from_bytes"]

MAGIC = b"FANN"


def from_bytes(content: bytes | bytearray | memoryview) -> Network:
    """Return the network in ``content``, version 1 or 2.

    Raises:
        FormatError: it is none.
    """
    try:
        view = memoryview(content).cast("B")
    except TypeError:
        raise InvalidInputError(f"content is {shown(content)}; bytes are needed, all in one piece") from None
    if len(view) < 8:
        raise FormatError(f"{len(view)} bytes are no network: magic and version alone take 8")
    if bytes(view[:4]) != MAGIC:
        raise FormatError(f"these bytes begin with {bytes(view[:4])!r}; a network begins with {MAGIC!r}")
    (version,) = struct.unpack_from("<I", view, 4)
    if version == 1:
        return binary_v1.from_view(view)
    if version == 2:
        return binary_v2.from_view(view)
    raise FormatError(f"version {version} of the format is unknown; this package reads 1 and 2")
