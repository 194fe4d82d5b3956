"""GGUF files written byte by byte, right or wrong, without our own writer."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

KINDS = {
    "UINT8": (0, "<B"),
    "INT8": (1, "<b"),
    "UINT16": (2, "<H"),
    "INT16": (3, "<h"),
    "UINT32": (4, "<I"),
    "INT32": (5, "<i"),
    "FLOAT32": (6, "<f"),
    "BOOL": (7, "<B"),
    "STRING": (8, ""),
    "ARRAY": (9, ""),
    "UINT64": (10, "<Q"),
    "INT64": (11, "<q"),
    "FLOAT64": (12, "<d"),
}


def string(text: str) -> bytes:
    """Return a string with its length before it."""
    return struct.pack("<Q", len(text.encode())) + text.encode()


def value(kind: str, content: Any) -> bytes:
    """Return a value without its type; an array's ``content`` is ``[kind, values]``."""
    if kind == "STRING":
        return string(content)
    if kind == "ARRAY":
        element, values = content
        return struct.pack("<IQ", KINDS[element][0], len(values)) + b"".join(value(element, item) for item in values)
    return struct.pack(KINDS[kind][1], content)


def entry(key: str, kind: str, content: Any) -> bytes:
    """Return a metadata entry; ``kind`` "raw" has type and value as hexadecimal digits."""
    if kind == "raw":
        return string(key) + bytes.fromhex(content)
    return string(key) + struct.pack("<I", KINDS[kind][0]) + value(kind, content)


def tensor(name: str, dimensions: Sequence[int], type_id: int, offset: int) -> bytes:
    """Return a tensor's entry; dimensions are in the file's order."""
    return string(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, type_id, offset)


def build(case: Mapping[str, Any]) -> bytes:
    """Return the file that ``case`` describes; the fields that it leaves out are right."""
    entries, tensors = case.get("entries", []), case.get("tensors", [])
    header = case.get("magic", "GGUF").encode() + struct.pack(
        "<IQQ",
        case.get("version", 3),
        case.get("tensor_count", len(tensors)),
        case.get("entry_count", len(entries)),
    )
    content = header + b"".join(entry(*item) for item in entries) + b"".join(tensor(*item) for item in tensors)
    if tensors or case.get("data"):
        content += bytes(-len(content) % case.get("alignment", 32))
    return content + bytes(case.get("data", 0)) + bytes.fromhex(case.get("behind", ""))
