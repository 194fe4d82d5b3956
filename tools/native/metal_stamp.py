"""What a library of Metal kernels says of itself.

It is read at build time, and from wheels on any system.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = ["LIBRARY_NAME", "Stamp", "read_stamp"]

LIBRARY_NAME = "lattice.metallib"

_MAGIC = b"MTLB"
_HEADER = struct.Struct("<4sHHHBBHHQ")
_MACOS_MARK = 0x81


@dataclass(frozen=True)
class Stamp:
    """What a library says of itself.

    Attributes:
        is_macos: whether it is for macOS.
        version: the oldest version of the system that loads it.
        nbytes: its size.
    """

    is_macos: bool
    version: tuple[int, int]
    nbytes: int


def read_stamp(data: bytes) -> Stamp:
    """Return the stamp of a library.

    Raises:
        ValueError: it is no whole library of Metal.
    """
    if len(data) < _HEADER.size:
        raise ValueError(f"it has {len(data)} bytes, fewer than the header of a Metal library")
    magic, _, _, _, _, system, major, minor, nbytes = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError(f"it begins with {magic!r}, and a Metal library with {_MAGIC!r}")
    if nbytes != len(data):
        raise ValueError(f"it has {len(data)} bytes and says {nbytes}")
    return Stamp(system == _MACOS_MARK, (major, minor), nbytes)
