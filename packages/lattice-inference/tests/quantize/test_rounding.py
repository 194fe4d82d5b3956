"""Quantizers: the bytes of ggml's."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lattice_inference.checkpoint.blocks import BLOCK_FORMATS, dequantize_blocks
from lattice_inference.errors import InvalidInputError
from lattice_inference.quantize import QUANTIZERS, quantize_rows

BLOCK_TYPES = [name for name in QUANTIZERS if name in BLOCK_FORMATS]


def reference(values: np.ndarray, dtype: str) -> bytes:
    with np.errstate(all="ignore"):
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[dtype]).tobytes()


@pytest.mark.parametrize("dtype", QUANTIZERS)
@pytest.mark.parametrize("scale", [1e-30, 1e-7, 1e-3, 1.0, 300.0])
def test_random_numbers(dtype, scale):
    values = (np.random.default_rng(0).standard_normal((500, 64)) * scale).astype(np.float32)
    assert quantize_rows(values, dtype).tobytes() == reference(values, dtype)


@pytest.mark.parametrize("dtype", QUANTIZERS)
def test_numbers_on_the_edges_of_rounding(dtype):
    generator = np.random.default_rng(1)
    halves = generator.integers(-254, 255, (300, 32)) / 2
    halves[::3, 0], halves[1::3, 5] = 127, -127
    special = [np.zeros(32), np.ones(32), -np.ones(32), np.arange(32) - 16, np.full(32, 0.49999997)]
    special.append(np.concatenate([[0.49999997 * 127, 127], np.zeros(30)]))
    special.append(np.concatenate([[-1.0, 1.0], np.zeros(30)]))  # of equal size: the first decides the sign
    values = np.concatenate([halves, special]).astype(np.float32)
    assert quantize_rows(values, dtype).tobytes() == reference(values, dtype)


@settings(max_examples=60, deadline=None)
@given(arrays(np.float32, (2, 32), elements=st.floats(-60_000, 60_000, width=32)), st.sampled_from(list(QUANTIZERS)))
def test_any_numbers(values, dtype):
    # below this, a scale's inverse overflows, and what ggml makes of it depends on the compiler
    values = np.where(np.abs(values) < 1e-30, np.float32(0), values)
    assert quantize_rows(values, dtype).tobytes() == reference(values, dtype)


@pytest.mark.parametrize("dtype", BLOCK_TYPES)
def test_numbers_too_small_for_a_scale_become_zeros(dtype):
    values = np.full((1, 32), 1e-42, np.float32)
    blocks = quantize_rows(values, dtype)
    assert np.abs(dequantize_blocks(blocks.reshape(-1), BLOCK_FORMATS[dtype])).max() == 0


@pytest.mark.parametrize(
    ("dtype", "bound"), [("Q8_0", 1 / 254), ("Q4_0", 1 / 8), ("Q5_0", 1 / 16), ("Q4_1", 1 / 15), ("Q5_1", 1 / 31)]
)
def test_the_error_is_bounded_by_the_largest_number_of_the_block(dtype, bound):
    """Case G7: the error of a round trip keeps to what the number of levels allows."""
    values = np.random.default_rng(2).uniform(-1, 1, (1000, 32)).astype(np.float32)
    back = dequantize_blocks(quantize_rows(values, dtype).reshape(-1), BLOCK_FORMATS[dtype]).reshape(values.shape)
    largest = np.abs(values).max(axis=1, keepdims=True)
    assert (np.abs(back - values) <= largest * bound * 1.01 + 1e-3 * largest).all()


def test_shapes_are_kept_and_blocks_lie_on_the_last_axis():
    values = np.random.default_rng(3).standard_normal((2, 3, 64)).astype(np.float32)
    assert quantize_rows(values, "Q8_0").shape == (2, 3, 2)
    assert quantize_rows(values, "BF16").shape == (2, 3, 64)
    assert (quantize_rows(values, "Q8_0")[1, 2] == quantize_rows(values[1, 2], "Q8_0")).all()


@pytest.mark.parametrize(
    ("dtype", "values", "message"),
    [
        ("Q4_K", np.zeros(256), "no quantizer for 'Q4_K'"),
        ("Q4_0", np.zeros(33), "no multiple of the 32"),
        ("F16", np.full(32, 65520.0), "largest float16"),
        ("BF16", np.full(32, 3.4e38), "largest bfloat16"),
        ("Q8_0", np.full(32, 1e9), "largest float16"),
        ("Q4_0", np.full(32, 1e9), "largest float16"),
        ("Q5_1", np.linspace(-3.4e38, 3.4e38, 32), "largest float16"),
    ],
)
def test_what_does_not_fit_is_refused(dtype, values, message):
    with pytest.raises(InvalidInputError, match=message):
        quantize_rows(values.astype(np.float32), dtype)
