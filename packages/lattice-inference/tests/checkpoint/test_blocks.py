"""Block formats: the numbers of ggml's own dequantizer, bit for bit."""

import gguf
import numpy as np
import pytest

from lattice_inference.checkpoint.blocks import BLOCK_FORMATS, dequantize_blocks
from lattice_inference.checkpoint.ggml_types import GGML_TYPES


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_random_blocks_mean_what_they_mean_to_ggml(name):
    format = BLOCK_FORMATS[name]
    raw = np.random.default_rng(0).integers(0, 256, (3_000, format.nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name]).reshape(-1)
    values = dequantize_blocks(np.frombuffer(raw.tobytes(), format.layout), format)
    same = values.view(np.uint32) == expected.view(np.uint32)
    nan = np.isnan(values) & np.isnan(expected)
    assert (same | nan).all()
    assert np.isfinite(expected).mean() > 0.9


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_a_block_unpacks_to_scales_of_its_groups(name):
    format = BLOCK_FORMATS[name]
    blocks = np.zeros(5, format.layout)
    unpacked = format.unpack(blocks)
    assert unpacked.quants.shape == (5, format.elements)
    assert unpacked.quants.dtype == np.int8
    assert unpacked.scales.shape == (5, format.elements // format.group)
    assert unpacked.scales.dtype == np.float32
    assert unpacked.offsets is None or unpacked.offsets.shape == unpacked.scales.shape


def test_the_high_nibbles_are_the_second_half_of_a_block():
    """Recorded: byte j of Q4_0 holds the elements j and j + 16, not two neighbours."""
    format = BLOCK_FORMATS["Q4_0"]
    block = np.frombuffer(bytes.fromhex("003c") + bytes(0x80 + j for j in range(16)), format.layout)
    assert dequantize_blocks(block, format).tolist() == [float(j - 8) for j in range(16)] + [0.0] * 16


def test_the_table_of_types_is_ggmls():
    sizes = {int(kind): (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    # ggml's block_q8_1 has two float16 before its numbers; the package counts two float32
    assert sizes[9] == ("Q8_1", 32, 40)
    sizes[9] = ("Q8_1", 32, 36)
    assert {known.type_id: (known.name, known.elements, known.nbytes) for known in GGML_TYPES.values()} == sizes
    assert GGML_TYPES[30].name == "BF16"
