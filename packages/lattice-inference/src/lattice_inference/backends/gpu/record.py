"""The parameters of a kernel call as a NumPy type, and as text for shading languages.

Every kernel reads the same record and uses the fields that it needs, so a step's records are one array: NumPy fills what
depends on the batch in a few assignments, and one write takes them to the device.
"""

from __future__ import annotations

import numpy as np

__all__ = ["RECORD", "RECORD_STRIDE", "VIEW_FIELDS", "wgsl_struct"]

VIEW_FIELDS = ("x", "y", "a", "b")
"""Fields that hold where a view begins in the arena, in floats; each has a field with its stride beside it."""

RECORD = np.dtype(
    [
        ("rows", "<u4"),  # of the result
        ("n", "<u4"),  # columns of the result, or rows of a table's part
        ("k", "<u4"),  # columns of a weight
        ("first", "<u4"),  # the first row of a part of a weight
        *((name + suffix, "<u4") for name in VIEW_FIELDS for suffix in ("", "_stride")),
        ("section", "<u4"),  # which part of the step's inputs is read
        ("heads", "<u4"),
        ("kv_heads", "<u4"),
        ("head_dim", "<u4"),
        ("pairs", "<u4"),  # of dimensions that are rotated
        ("window", "<u4"),
        ("scratch", "<u4"),  # where the scratch of attention begins in the arena, in floats
        ("each", "<u4"),  # experts that a row goes through
        ("experts", "<u4"),
        ("held", "<u4"),  # rows of a part of a stack of weights
        ("zero", "<u4"),  # always 0, which compilers do not know
        ("scale", "<f4"),
        ("epsilon", "<f4"),
        ("offset", "<f4"),
    ]
)

RECORD_STRIDE = 256
"""Bytes from one record to the next: devices want uniform buffers at such multiples."""

_WGSL_TYPES = {"u": "u32", "f": "f32"}


def wgsl_struct() -> str:
    """Return the record as a struct of WGSL."""
    assert RECORD.fields is not None
    fields = "".join(f"    {name}: {_WGSL_TYPES[RECORD.fields[name][0].kind]},\n" for name in RECORD.names or ())
    return f"struct Record {{\n{fields}}}\n"
