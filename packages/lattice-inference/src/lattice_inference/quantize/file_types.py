"""The numbers under ``general.file_type``: llama.cpp's enumeration ``llama_ftype``, what most matrices of a file are."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["FILE_TYPES", "QUANTIZATION_VERSION"]

#: By the name of the type.
FILE_TYPES: Mapping[str, int] = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "BF16": 32,
}

#: Version of the block formats, under ``general.quantization_version``.
QUANTIZATION_VERSION = 2
