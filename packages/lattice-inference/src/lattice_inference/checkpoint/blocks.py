"""ggml's block formats: their bytes as NumPy structured types, and what they mean.

A row of a matrix is cut into blocks of 32 or 256 consecutive elements, and an element is ``scale * q + offset`` with a
small integer q. In a block of 32 all elements have one scale. A block of 256 (the K types) has a scale for each group
of 16 or 32. Such a scale is a small integer times one float16 for the block. So every format unpacks to the same
three arrays (:class:`UnpackedBlocks`), and kernels need not know more of a format than that.

How bits are packed, in ggml's order (``ggml-common.h``, ``ggml-quants.c`` of https://github.com/ggml-org/ggml): a run of
bytes holds the elements of several equally long runs, one in each bit field, the lowest bits first. In a block of Q4_0
byte j holds the elements j (low nibble) and j + 16 (high nibble); it does not hold neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lattice_inference.checkpoint.ggml_types import GGML_TYPE_IDS, GGML_TYPES

__all__ = ["BLOCK_FORMATS", "BlockArray", "BlockFormat", "UnpackedBlocks", "dequantize_blocks"]

BlockArray = npt.NDArray[np.void]
"""Blocks as a structured array: one element a block."""

Float32Array = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class UnpackedBlocks:
    """n unpacked blocks.

    Element e of a block is ``scales[e // group] * quants[e] + offsets[e // group]``.

    Attributes:
        quants: (n, elements) int8.
        scales: (n, elements // group) float32.
        offsets: of the same shape, or None where the format has none.
    """

    quants: npt.NDArray[np.int8]
    scales: Float32Array
    offsets: Float32Array | None = None


@dataclass(frozen=True)
class BlockFormat:
    """One format.

    Attributes:
        name: ggml's name, such as ``"Q4_K"``.
        elements: elements a block.
        group: consecutive elements that share a scale; all of the block, or 16 or 32 of it.
        layout: the bytes of a block. Floats are little-endian, as GGUF files are.
        unpack: blocks (n,) of that layout to their meaning.
    """

    name: str
    elements: int
    group: int
    layout: np.dtype[np.void]
    unpack: Callable[[BlockArray], UnpackedBlocks]

    @property
    def nbytes(self) -> int:
        """Bytes a block."""
        return self.layout.itemsize


def dequantize_blocks(blocks: BlockArray, format: BlockFormat, out: Float32Array | None = None) -> Float32Array:
    """Return the elements of ``blocks`` as float32, bit-identical to ggml's reference code.

    Args:
        blocks: (n,) of ``format.layout``.
        format: their format.
        out: (n * format.elements,) C-contiguous float32 to be written; a new array by default.
    """
    if out is None:
        out = np.empty(blocks.size * format.elements, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # a damaged scale is for the caller to find
        unpacked = format.unpack(blocks)
        grouped = out.reshape(*unpacked.scales.shape, format.group)
        np.multiply(unpacked.scales[..., None], unpacked.quants.reshape(grouped.shape), out=grouped, dtype=np.float32)
        if unpacked.offsets is not None:
            grouped += unpacked.offsets[..., None]
    return out


def _bit_fields(packed: ByteArray, bits: int, run: int) -> ByteArray:
    """Unpack bytes (n, m): each run of ``run`` bytes gives 8 / ``bits`` runs of numbers.

    The lowest bits come first.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = packed.reshape(len(packed), -1, 1, run) >> shifts[:, None]
    return (fields & np.uint8(2**bits - 1)).reshape(len(packed), -1)


def _half(values: npt.NDArray[np.generic]) -> Float32Array:
    """Return float16 numbers (n,) as float32 (n, 1)."""
    return values.astype(np.float32)[:, None]


def _signed(numbers: ByteArray, middle: int) -> npt.NDArray[np.int8]:
    """Return numbers from 0 on as signed ones around ``middle``."""
    return numbers.view(np.int8) - np.int8(middle)


def _fifth_bits(packed: ByteArray) -> ByteArray:
    """Return bit e of 32 bits (n, 4 bytes) as 16 or 0 for element e."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _q4_0(blocks: BlockArray) -> UnpackedBlocks:
    return UnpackedBlocks(_signed(_bit_fields(blocks["quants"], 4, 16), 8), _half(blocks["scale"]))


def _q4_1(blocks: BlockArray) -> UnpackedBlocks:
    quants = _bit_fields(blocks["quants"], 4, 16).view(np.int8)
    return UnpackedBlocks(quants, _half(blocks["scale"]), _half(blocks["offset"]))


def _q5_0(blocks: BlockArray) -> UnpackedBlocks:
    quants = _bit_fields(blocks["quants"], 4, 16) | _fifth_bits(blocks["high_bits"])
    return UnpackedBlocks(_signed(quants, 16), _half(blocks["scale"]))


def _q5_1(blocks: BlockArray) -> UnpackedBlocks:
    quants = _bit_fields(blocks["quants"], 4, 16) | _fifth_bits(blocks["high_bits"])
    return UnpackedBlocks(quants.view(np.int8), _half(blocks["scale"]), _half(blocks["offset"]))


def _q8_0(blocks: BlockArray) -> UnpackedBlocks:
    return UnpackedBlocks(blocks["quants"], _half(blocks["scale"]))


def _q2_k(blocks: BlockArray) -> UnpackedBlocks:
    small = blocks["scales"]  # low nibble: the scale of a group of 16; high nibble: its minimum
    return UnpackedBlocks(
        _bit_fields(blocks["quants"], 2, 32).view(np.int8),
        _half(blocks["scale"]) * (small & np.uint8(15)),
        -(_half(blocks["minimum"]) * (small >> np.uint8(4))),
    )


def _q3_k(blocks: BlockArray) -> UnpackedBlocks:
    # Twelve bytes hold sixteen scales of six bits around 32: bytes 0 to 7 their low four bits, bytes 8 to 11 the rest.
    packed = blocks["scales"]
    scales = _bit_fields(packed[:, :8], 4, 8) | _bit_fields(packed[:, 8:], 2, 4) << np.uint8(4)
    # An element is its two low bits, less 4 unless its bit in the mask is set.
    quants = _bit_fields(blocks["quants"], 2, 32) | _bit_fields(blocks["high_bits"], 1, 32) << np.uint8(2)
    return UnpackedBlocks(_signed(quants, 4), _half(blocks["scale"]) * _signed(scales, 32))


def _eight_scales_and_minima(packed: ByteArray) -> tuple[ByteArray, ByteArray]:
    """Unpack the twelve bytes of Q4_K and Q5_K: eight scales and eight minima of six bits.

    Bytes 0 to 3 hold scales 0 to 3 and bytes 4 to 7 minima 0 to 3 in their low six bits. Bytes 8 to 11 hold the low four
    bits of scales (low nibbles) and minima (high nibbles) 4 to 7, whose upper two bits fill the tops of bytes 0 to 7.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    six, top = np.uint8(63), np.uint8(0b11_0000)
    scales = np.concatenate([first & six, third & np.uint8(15) | first >> np.uint8(2) & top], axis=1)
    minima = np.concatenate([second & six, third >> np.uint8(4) | second >> np.uint8(2) & top], axis=1)
    return scales, minima


def _q4_k(blocks: BlockArray) -> UnpackedBlocks:
    scales, minima = _eight_scales_and_minima(blocks["scales"])
    quants = _bit_fields(blocks["quants"], 4, 32).view(np.int8)
    return UnpackedBlocks(quants, _half(blocks["scale"]) * scales, -(_half(blocks["minimum"]) * minima))


def _q5_k(blocks: BlockArray) -> UnpackedBlocks:
    scales, minima = _eight_scales_and_minima(blocks["scales"])
    quants = _bit_fields(blocks["quants"], 4, 32) | _bit_fields(blocks["high_bits"], 1, 32) << np.uint8(4)
    return UnpackedBlocks(quants.view(np.int8), _half(blocks["scale"]) * scales, -(_half(blocks["minimum"]) * minima))


def _q6_k(blocks: BlockArray) -> UnpackedBlocks:
    quants = _bit_fields(blocks["quants"], 4, 64) | _bit_fields(blocks["high_bits"], 2, 32) << np.uint8(4)
    return UnpackedBlocks(_signed(quants, 32), _half(blocks["scale"]) * blocks["scales"])


# The sixteen values of the non-linear types, and those of a four-bit float (E2M1), doubled to be whole.
_NON_LINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
_E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def _iq4_nl(blocks: BlockArray) -> UnpackedBlocks:
    return UnpackedBlocks(_NON_LINEAR[_bit_fields(blocks["quants"], 4, 16)], _half(blocks["scale"]))


def _iq4_xs(blocks: BlockArray) -> UnpackedBlocks:
    # Eight scales of six bits around 32: a nibble each in low order, and two bits each of one 16-bit number.
    low = blocks["low_scales"][:, :, None] >> np.array([0, 4], np.uint8) & np.uint8(15)
    high = blocks["high_scales"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    scales = np.asarray(low.reshape(len(blocks), 8) | high.astype(np.uint8) << np.uint8(4), np.uint8)
    return UnpackedBlocks(
        _NON_LINEAR[_bit_fields(blocks["quants"], 4, 16)], _half(blocks["scale"]) * _signed(scales, 32)
    )


def _mxfp4(blocks: BlockArray) -> UnpackedBlocks:
    # The scale is 2**(exponent - 127), halved because the values are doubled; 2**-127 and 2**-128 are subnormal.
    exponent = blocks["exponent"].astype(np.int32)
    scales = np.ldexp(np.float32(1), exponent - 128).astype(np.float32)
    return UnpackedBlocks(_E2M1_DOUBLED[_bit_fields(blocks["quants"], 4, 16)], scales[:, None])


def _format(
    name: str,
    group: int,
    unpack: Callable[[BlockArray], UnpackedBlocks],
    *fields: tuple[str, str] | tuple[str, str, int],
) -> BlockFormat:
    size = GGML_TYPES[GGML_TYPE_IDS[name]]
    layout = np.dtype(list(fields))
    if layout.itemsize != size.nbytes:
        raise AssertionError(f"{name}: the fields have {layout.itemsize} bytes, a block {size.nbytes}")
    return BlockFormat(name, size.elements, group, layout, unpack)


_SCALE = ("scale", "<f2")
_OFFSET = ("offset", "<f2")
_MINIMUM = ("minimum", "<f2")
_NIBBLES = ("quants", "u1", 16)
_FIFTH_BITS = ("high_bits", "u1", 4)

#: Every block format that is read, by ggml's name.
BLOCK_FORMATS: dict[str, BlockFormat] = {
    format.name: format
    for format in (
        _format("Q4_0", 32, _q4_0, _SCALE, _NIBBLES),
        _format("Q4_1", 32, _q4_1, _SCALE, _OFFSET, _NIBBLES),
        _format("Q5_0", 32, _q5_0, _SCALE, _FIFTH_BITS, _NIBBLES),
        _format("Q5_1", 32, _q5_1, _SCALE, _OFFSET, _FIFTH_BITS, _NIBBLES),
        _format("Q8_0", 32, _q8_0, _SCALE, ("quants", "i1", 32)),
        _format("Q2_K", 16, _q2_k, ("scales", "u1", 16), ("quants", "u1", 64), _SCALE, _MINIMUM),
        _format("Q3_K", 16, _q3_k, ("high_bits", "u1", 32), ("quants", "u1", 64), ("scales", "u1", 12), _SCALE),
        _format("Q4_K", 32, _q4_k, _SCALE, _MINIMUM, ("scales", "u1", 12), ("quants", "u1", 128)),
        _format(
            "Q5_K", 32, _q5_k, _SCALE, _MINIMUM, ("scales", "u1", 12), ("high_bits", "u1", 32), ("quants", "u1", 128)
        ),
        _format("Q6_K", 16, _q6_k, ("quants", "u1", 128), ("high_bits", "u1", 64), ("scales", "i1", 16), _SCALE),
        _format("IQ4_NL", 32, _iq4_nl, _SCALE, _NIBBLES),
        _format("IQ4_XS", 32, _iq4_xs, _SCALE, ("high_scales", "<u2"), ("low_scales", "u1", 4), ("quants", "u1", 128)),
        _format("MXFP4", 32, _mxfp4, ("exponent", "u1"), _NIBBLES),
    )
}
