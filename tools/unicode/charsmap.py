"""Compiles replacement rules into SentencePiece's precompiled form, for probes and tests.

The form is a little-endian count of bytes, that many bytes of a double-array trie over UTF-8, and the replacements,
each ended by a NUL. The trie has 32-bit units in darts-clone's layout. SentencePiece packs the trie; this one gives
each node a separate block, which is simpler and good for a few hundred rules.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

__all__ = ["compile_charsmap"]


@dataclass
class _Node:
    children: dict[int, _Node] = field(default_factory=dict)
    value: int | None = None


def compile_charsmap(rules: dict[str, str]) -> bytes:
    """Return the precompiled form of ``rules``: what each key becomes."""
    replacements = b""
    root = _Node()
    for key, replacement in rules.items():
        node = root
        for byte in key.encode():
            node = node.children.setdefault(byte, _Node())
        node.value = len(replacements)
        replacements += replacement.encode() + b"\0"
    units = [0] * 256
    pending = [(0, root)]
    while pending:
        position, node = pending.pop()
        base = len(units)
        units += [0] * 256
        offset = position ^ base
        if offset >= 1 << 21:
            raise ValueError(f"{len(rules)} rules are too many for this simple compiler")
        units[position] |= offset << 10
        if node.value is not None:
            units[position] |= 1 << 8
            units[base] = node.value | 1 << 31
        for byte, child in node.children.items():
            units[base ^ byte] = byte
            pending.append((base ^ byte, child))
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + replacements
