"""Tensors come out as they were written: type by type, against the safetensors package and the types' definitions."""

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from lattice_inference.checkpoint.safetensors import open_safetensors
from lattice_inference.errors import CheckpointError

FLOAT8_VALUES = json.loads((Path(__file__).parent / "float8_values.json").read_text())

NUMPY_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}


def bits_of(value: float) -> int:
    """The float32 pattern, with every NaN the same."""
    return 0x7FC00000 if math.isnan(value) else struct.unpack("<I", struct.pack("<f", value))[0]


@pytest.mark.parametrize(("name", "numpy_name"), NUMPY_DTYPES.items())
def test_arrays_equal_what_the_reference_wrote(tmp_path, name, numpy_name):
    raw = np.random.default_rng(7).integers(0, 256, size=(3, 5, 16), dtype=np.uint8)
    values = raw % 2 == 0 if name == "BOOL" else raw.view(numpy_name)
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"a": values, "b": values[:0]}, path, metadata={"k": "v"})
    with open_safetensors(path) as file:
        assert file.names() == tuple(sorted(("a", "b"), key=lambda n: file.info(n).offset)) or len(file) == 2
        assert file.metadata == {"k": "v"}
        assert file.info("a").dtype == name
        assert file.info("a").shape == values.shape
        array = file.array("a")
        assert array.dtype == values.dtype
        assert array.tobytes() == values.tobytes()
        assert file.array("b").shape == values[:0].shape
        assert not file.array("b").flags.writeable


def test_arrays_are_read_only_views_of_the_map(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"a": np.arange(1 << 20, dtype=np.float32)}, path)
    with open_safetensors(path) as file:
        first, second = file.array("a"), file.array("a")
        assert np.shares_memory(first, second)
        assert not first.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            first[0] = 1


def test_bf16_is_handed_out_raw_and_widens_exactly(write_safetensors):
    patterns = np.arange(65536, dtype=np.uint16)
    finite = patterns[(patterns & 0x7F80) != 0x7F80]
    path = write_safetensors(
        {"a": {"dtype": "BF16", "shape": [len(finite)], "data_offsets": [0, 2 * len(finite)]}}, finite.tobytes()
    )
    with open_safetensors(path) as file:
        assert np.array_equal(file.array("a"), finite)
        assert file.array("a").dtype == np.uint16
        expected = [struct.unpack("<f", struct.pack("<I", int(p) << 16))[0] for p in finite]
        assert file.float32("a").view(np.uint32).tolist() == [bits_of(value) for value in expected]


def test_f16_widens_exactly(write_safetensors):
    patterns = np.arange(65536, dtype=np.uint16)
    finite = patterns[(patterns & 0x7C00) != 0x7C00]
    path = write_safetensors(
        {"a": {"dtype": "F16", "shape": [len(finite)], "data_offsets": [0, 2 * len(finite)]}}, finite.tobytes()
    )
    with open_safetensors(path) as file:
        expected = [struct.unpack("<e", struct.pack("<H", int(p)))[0] for p in finite]
        assert file.float32("a").view(np.uint32).tolist() == [bits_of(value) for value in expected]


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
def test_8_bit_floats_widen_to_the_values_of_torch(write_safetensors, dtype):
    values = [float.fromhex(text) for text in FLOAT8_VALUES[dtype]]
    finite = bytes(code for code in range(256) if math.isfinite(values[code]))
    path = write_safetensors({"a": {"dtype": dtype, "shape": [len(finite)], "data_offsets": [0, len(finite)]}}, finite)
    with open_safetensors(path) as file:
        assert file.array("a").tobytes() == finite
        assert file.float32("a").view(np.uint32).tolist() == [bits_of(values[code]) for code in finite]


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
def test_every_8_bit_pattern_that_is_no_number_is_refused(write_safetensors, dtype):
    values = [float.fromhex(text) for text in FLOAT8_VALUES[dtype]]
    wrong = [code for code in range(256) if not math.isfinite(values[code])]
    assert wrong == ([0x7F, 0xFF] if dtype == "F8_E4M3" else [*range(0x7C, 0x80), *range(0xFC, 0x100)])
    for code in wrong:
        path = write_safetensors({"a": {"dtype": dtype, "shape": [3], "data_offsets": [0, 3]}}, bytes([0, code, 0]))
        with open_safetensors(path) as file, pytest.raises(CheckpointError, match=r"'a' .* index \(1,\)"):
            file.float32("a")


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["F64", "F32", "F16"])
def test_non_finite_weights_are_refused_by_name_and_first_index(tmp_path, dtype, poison):
    values = np.zeros((300, 1000), dtype=NUMPY_DTYPES[dtype])
    values[217, 993] = values[299, 0] = poison
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"layer.weight": values}, path)
    with open_safetensors(path) as file, pytest.raises(CheckpointError, match=r"'layer.weight' .* index \(217, 993\)"):
        file.float32("layer.weight")


def test_float32_is_a_new_writable_array_of_any_shape(tmp_path):
    values = {
        "many": np.random.default_rng(1).standard_normal((517, 611)).astype(np.float32),
        "scalar": np.array(1.5, dtype=np.float32),
        "none": np.zeros((0, 4), dtype=np.float32),
        "double": np.array([1 / 3, 1e-50]),
    }
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(values, path)
    with open_safetensors(path) as file:
        for name, value in values.items():
            result = file.float32(name)
            assert result.dtype == np.float32
            assert result.flags.c_contiguous
            assert result.flags.writeable
            np.testing.assert_array_equal(result, value.astype(np.float32))


def test_a_double_beyond_float32_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"a": np.array([1.0, 1e39])}, path)
    with open_safetensors(path) as file, pytest.raises(CheckpointError, match=r"index \(1,\)"):
        file.float32("a")


@pytest.mark.parametrize("dtype", ["I64", "BOOL", "F8_E8M0", "C64"])
def test_only_float_types_widen(write_safetensors, dtype):
    path = write_safetensors({"a": {"dtype": dtype, "shape": [0], "data_offsets": [0, 0]}})
    with open_safetensors(path) as file, pytest.raises(CheckpointError, match=f"is {dtype}; only F64"):
        file.float32("a")


def test_packed_types_are_listed_but_not_read(write_safetensors):
    path = write_safetensors({"a": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}, b"\0\0")
    with open_safetensors(path) as file:
        assert file.info("a").nbytes == 2
        with pytest.raises(CheckpointError, match="'a' is F4"):
            file.array("a")


@pytest.mark.parametrize("padding", range(8))
def test_unaligned_tensors_are_right_and_aligned_in_memory(write_safetensors, padding):
    values = np.arange(6, dtype=np.float64)
    header = '{"a":{"dtype":"F64","shape":[2,3],"data_offsets":[0,48]}}' + " " * padding
    with open_safetensors(write_safetensors(header, values.tobytes())) as file:
        array = file.array("a")
        assert array.flags.aligned
        assert not array.flags.writeable
        assert np.array_equal(array, values.reshape(2, 3))


@pytest.mark.model
def test_real_model_equals_the_reference_reader(minilm_directory):
    path = minilm_directory / "model.safetensors"
    reference = safetensors.numpy.load_file(path)
    with open_safetensors(path) as file:
        assert set(file.names()) == set(reference)
        assert len(file) == 104
        for name, expected in reference.items():
            array = file.array(name)
            assert array.dtype == expected.dtype
            assert np.array_equal(array, expected)
            if expected.dtype == np.float32:
                assert file.float32(name).tobytes() == expected.tobytes()
