"""The element types of GGUF files: numbers of ggml's enumeration ``ggml_type``, block sizes.

An unsupported or unknown type is an error only when a tensor of that type is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FILE_TYPES", "GGML_TYPES", "GGML_TYPE_IDS", "QUANTIZATION_VERSION", "GgmlType"]


@dataclass(frozen=True, slots=True)
class GgmlType:
    """One element type.

    Attributes:
        type_id: its number in a file.
        name: ggml's name for it.
        elements: elements in a block, which are consecutive in a row; 1 for plain numbers.
        nbytes: bytes a block.
    """

    type_id: int
    name: str
    elements: int
    nbytes: int


#: Every type that a file may name, by its number. 4, 5, 31 to 33 and 36 to 38 were in use once and are withdrawn.
GGML_TYPES: dict[int, GgmlType] = {
    type_id: GgmlType(type_id, name, elements, nbytes)
    for type_id, name, elements, nbytes in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 36),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
    )
}

#: Their numbers by name.
GGML_TYPE_IDS: dict[str, int] = {known.name: known.type_id for known in GGML_TYPES.values()}

#: The numbers under ``general.file_type``, by the name of the type: llama.cpp's enumeration ``llama_ftype``.
#: They say what most matrices of a file are.
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
