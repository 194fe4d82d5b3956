"""GGUF files made by the reference writer: every value and tensor as it was given."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from lattice_inference.checkpoint.blocks import BLOCK_FORMATS
from lattice_inference.checkpoint.checkpoint_group import open_checkpoint_group
from lattice_inference.checkpoint.formats import open_weights
from lattice_inference.checkpoint.gguf import open_gguf, open_gguf_file
from lattice_inference.errors import CheckpointError, ModelNotFoundError

PLAIN = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "I8": np.int8, "I16": np.int16, "I32": np.int32}


def write(path: Path, tensors: dict[str, np.ndarray], **options) -> Path:
    writer = gguf.GGUFWriter(path, "llama", **options)
    writer.add_block_count(2)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", PLAIN)
def test_plain_types(tmp_path, name):
    array = np.arange(-6, 6).reshape(3, 4).astype(PLAIN[name])
    with open_gguf(write(tmp_path / "a.gguf", {"x": array})) as checkpoint:
        info = checkpoint.info("x")
        assert (info.dtype, info.shape) == (name, (3, 4))
        stored = checkpoint.array("x")
        assert stored.dtype == array.dtype
        assert stored.tobytes() == array.tobytes()
        if name.startswith("F"):
            assert checkpoint.float32("x").tolist() == array.tolist()
        else:
            with pytest.raises(CheckpointError, match=name):
                checkpoint.float32("x")


@pytest.mark.parametrize("name", ["BF16", *BLOCK_FORMATS])
def test_types_of_fewer_bits(tmp_path, name):
    kind = gguf.GGMLQuantizationType[name]
    elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(1)
    raw = generator.integers(0, 256, (2, 3, 512 // elements * nbytes), dtype=np.uint8)
    raw &= 0xBF  # bit 6 of a float16's upper byte: without it, none is infinite or NaN
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("x", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(tmp_path / "a.gguf") as checkpoint:
        assert checkpoint.info("x").dtype == name
        assert checkpoint.info("x").shape == (2, 3, 512)
        assert checkpoint.array("x").tobytes() == raw.tobytes()
        if name in BLOCK_FORMATS:
            assert checkpoint.array("x").shape == (2, 3, 512 // elements)
            assert checkpoint.array("x").dtype == BLOCK_FORMATS[name].layout
        expected = gguf.quants.dequantize(raw, kind)
        assert checkpoint.float32("x").tobytes() == expected.reshape(2, 3, 512).tobytes()


def test_metadata_of_every_type(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    values = {
        "uint8": 255,
        "int8": -128,
        "uint16": 65535,
        "int16": -32768,
        "uint32": 2**32 - 1,
        "int32": -(2**31),
        "float32": 0.5,
        "uint64": 2**64 - 1,
        "int64": -(2**63),
        "float64": 0.1,
        "bool": True,
        "string": "zwölf 🧭\0\x1b[31m",
    }
    for kind, value in values.items():
        getattr(writer, f"add_{kind}")(f"k.{kind}", value)
    writer.add_array("a.words", ["one", "", "zwei 🦆"])
    writer.add_array("a.floats", [0.5, -1.0])
    writer.add_array("a.integers", [1, -2, 3])
    writer.add_array("a.flags", [True, False])
    writer.add_array("a.bytes", b"\0\xff\x80")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf_file(tmp_path / "a.gguf") as file:
        assert file.version == 3
        for kind, value in values.items():
            assert file.metadata[f"k.{kind}"] == value
            assert type(file.metadata[f"k.{kind}"]) is type(value)
        arrays = {key: value for key, value in file.metadata.items() if key.startswith("a.")}
        assert list(arrays["a.words"]) == ["one", "", "zwei 🦆"]
        assert arrays["a.words"].first(2) == ("one", "")
        assert arrays["a.floats"].numbers().tolist() == [0.5, -1.0]
        assert arrays["a.integers"][1] == -2
        assert list(arrays["a.flags"]) == [True, False]
        assert arrays["a.bytes"].numbers().tobytes() == b"\0\xff\x80"
        assert [value.kind for value in arrays.values()] == ["STRING", "FLOAT32", "INT32", "BOOL", "UINT8"]
        with pytest.raises(CheckpointError, match=r"a\.words is an array of STRING; expected numbers"):
            arrays["a.words"].numbers()
        with pytest.raises(CheckpointError, match=r"a\.floats is an array of FLOAT32; expected strings"):
            arrays["a.floats"].strings()
    with pytest.raises(CheckpointError, match="closed"):
        arrays["a.words"].strings()


def test_alignment_is_the_files(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_custom_alignment(256)
    for name in ("x", "y"):
        writer.add_tensor(name, np.full(3, ord(name), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf_file(tmp_path / "a.gguf") as file:
        assert file.alignment == 256
        assert file.info("y").offset % 256 == 0
        assert file.float32("y").tolist() == [ord("y")] * 3


def test_a_big_endian_file_is_refused_as_such(tmp_path):
    path = write(tmp_path / "a.gguf", {"x": np.ones(4, np.float32)}, endianess=gguf.GGUFEndian.BIG)
    with pytest.raises(CheckpointError, match="big-endian"):
        open_gguf(path)


def test_arrays_outlive_the_file(tmp_path):
    checkpoint = open_gguf(write(tmp_path / "a.gguf", {"x": np.ones((4, 8), np.float32)}))
    array = checkpoint.array("x")
    checkpoint.close()
    assert array.sum() == 32
    assert not array.flags.writeable
    with pytest.raises(CheckpointError, match="closed"):
        checkpoint.array("x")


def test_a_checkpoint_group_takes_a_gguf_file(tmp_path):
    with open_checkpoint_group(write(tmp_path / "a.gguf", {"x": np.ones(4, np.float32)})) as group:
        assert group.float32("x").tolist() == [1] * 4


# Split models


@pytest.fixture
def parts(tmp_path) -> list[Path]:
    tensors = {f"blk.{i}.w": np.full((4, 8), i, np.float32) for i in range(5)}
    write(tmp_path / "m.gguf", tensors, split_max_tensors=2)
    found = sorted(tmp_path.glob("*.gguf"))
    assert [path.name for path in found] == [f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    return found


def test_any_part_opens_all(parts):
    for part in parts:
        with open_gguf(part) as checkpoint:
            assert [file.path for file in checkpoint.files] == parts
            assert sorted(checkpoint.names()) == [f"blk.{i}.w" for i in range(5)]
            assert [int(checkpoint.float32(f"blk.{i}.w")[0, 0]) for i in range(5)] == [0, 1, 2, 3, 4]
            assert checkpoint.metadata["general.architecture"] == "llama"


def test_a_missing_part_is_named(parts):
    parts[1].unlink()
    with pytest.raises(ModelNotFoundError, match="m-00002-of-00003"):
        open_gguf(parts[0])


def test_a_part_under_another_name_is_refused(parts, tmp_path):
    parts[0].rename(tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match="one of 3 parts, which are found by their names"):
        open_gguf(tmp_path / "model.gguf")


def test_parts_that_changed_places_are_refused(parts, tmp_path):
    for source, target in ((0, "x"), (1, parts[0].name), ("x", parts[1].name)):
        path = parts[source] if isinstance(source, int) else tmp_path / source
        path.rename(tmp_path / target)
    with pytest.raises(CheckpointError, match=r"split\.no and split\.count are"):
        open_gguf(parts[0])


@pytest.mark.parametrize(
    ("names", "part", "message"),
    [("0 1 2 4", 2, r"'blk.2.w' is in m-00002-of"), ("0 1 2 3 7 8", 3, r"the parts hold 6 tensors, not the 5")],
)
def test_a_part_of_another_model_is_refused(parts, tmp_path, names, part, message):
    (tmp_path / "other").mkdir()
    tensors = {f"blk.{i}.w": np.ones((4, 8), np.float32) for i in names.split()}
    write(tmp_path / "other" / "m.gguf", tensors, split_max_tensors=2)
    other = sorted((tmp_path / "other").glob("*.gguf"))[part - 1]
    content = other.read_bytes()
    if part == 2:  # say that it is the third of three
        content = content.replace(b"split.count" + bytes([2, 0, 0, 0, 2]), b"split.count" + bytes([2, 0, 0, 0, 3]))
        content = content.replace(b"split.no" + bytes([2, 0, 0, 0, 1]), b"split.no" + bytes([2, 0, 0, 0, 2]))
    parts[2].write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        open_gguf(parts[0])


# The real model


@pytest.mark.slow
def test_a_real_model(smollm2: Path):
    reader = gguf.GGUFReader(smollm2)
    with open_weights(smollm2) as checkpoint:
        assert list(checkpoint.names()) == [tensor.name for tensor in reader.tensors]
        for tensor in [*reader.tensors[1:20], reader.tensors[-1]]:
            expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert checkpoint.float32(tensor.name).tobytes() == expected.tobytes()
        for key, value in checkpoint.metadata.items():
            field = reader.fields[key]
            if field.types[0] == gguf.GGUFValueType.ARRAY:  # 49,152 tokens: the reader takes its time over each
                assert list(value)[::97] == field.contents(slice(None, None, 97))
                assert len(value) == len(field.data)
            else:
                assert value == field.contents()
