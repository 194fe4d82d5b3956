"""A GGUF file in a smaller type: which tensors change, to what bytes, and what stays."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from lattice_inference.checkpoint.gguf import open_gguf
from lattice_inference.checkpoint.gguf_writer import TensorToWrite, write_gguf
from lattice_inference.errors import CheckpointError, InvalidInputError, UnsupportedError
from lattice_inference.quantize import QUANTIZERS, quantize_gguf

SHAPES = {
    "token_embd.weight": (50, 64),
    "blk.0.attn_q.weight": (64, 64),
    "blk.0.attn_q.bias": (64,),
    "blk.0.attn_norm.weight": (64,),
    "blk.0.odd.weight": (8, 40),
    "blk.0.experts.weight": (2, 8, 64),
    "position_embd.weight": (10, 64),
    "token_types.weight": (2, 64),
}


@pytest.fixture
def tensors() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def write(path: Path, tensors: dict[str, np.ndarray], **metadata: object) -> Path:
    described = [
        TensorToWrite(name, array.shape, "F32", lambda array=array: [array.tobytes()])
        for name, array in tensors.items()
    ]
    write_gguf(path, {"general.architecture": "llama", "a.list": ["x"], "general.file_type": 0, **metadata}, described)
    return path


@pytest.mark.parametrize("dtype", QUANTIZERS)
def test_matrices_change_and_the_rest_stays(tmp_path, tensors, dtype):
    source = write(tmp_path / "a.gguf", tensors)
    report = quantize_gguf(source, tmp_path / "b.gguf", dtype)
    reader = gguf.GGUFReader(tmp_path / "b.gguf")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    matrix = "Q8_0" if dtype.startswith(("Q4", "Q5")) else dtype
    assert kinds == {
        "token_embd.weight": matrix,  # the output matrix, too, as the file has no other
        "blk.0.attn_q.weight": dtype,
        "blk.0.attn_q.bias": "F32",
        "blk.0.attn_norm.weight": "F32",
        "blk.0.odd.weight": "F16" if dtype.startswith("Q") else dtype,
        "blk.0.experts.weight": dtype,
        "position_embd.weight": "F32",
        "token_types.weight": "F32",
    }
    for tensor in reader.tensors:
        expected = gguf.quants.quantize(tensors[tensor.name], tensor.tensor_type)
        assert tensor.data.tobytes() == expected.tobytes()
    assert sum(report.tensors.values()) == len(SHAPES)
    assert report.file_bytes == (tmp_path / "b.gguf").stat().st_size
    assert reader.fields["a.list"].contents() == ["x"]
    assert gguf.LlamaFileType(reader.fields["general.file_type"].contents()).name.endswith(
        {"F32": "ALL_F32"}.get(dtype, f"MOSTLY_{dtype}")
    )


def test_an_output_matrix_of_its_own_frees_the_embedding(tmp_path, tensors):
    source = write(tmp_path / "a.gguf", tensors | {"output.weight": tensors["token_embd.weight"]})
    for pure, expected in ((False, ("Q4_0", "Q8_0")), (True, ("Q4_0", "Q4_0"))):
        quantize_gguf(source, tmp_path / "b.gguf", "Q4_0", pure=pure, overwrite=True)
        with open_gguf(tmp_path / "b.gguf") as checkpoint:
            found = checkpoint.info("token_embd.weight").dtype, checkpoint.info("output.weight").dtype
            assert found == expected


def test_quantizing_again_starts_from_what_the_file_means(tmp_path, tensors):
    quantize_gguf(write(tmp_path / "a.gguf", tensors), tmp_path / "q5.gguf", "Q5_1")
    quantize_gguf(tmp_path / "q5.gguf", tmp_path / "q8.gguf", "Q8_0")
    reader = gguf.GGUFReader(tmp_path / "q5.gguf")
    middle = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    for tensor in gguf.GGUFReader(tmp_path / "q8.gguf").tensors:
        if tensor.name == "blk.0.attn_q.weight":
            assert tensor.data.tobytes() == gguf.quants.quantize(middle[tensor.name], tensor.tensor_type).tobytes()


def test_parts_are_joined(tmp_path, tensors):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=3)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) == 3
    quantize_gguf(parts[1], tmp_path / "joined.gguf", "F16")
    with open_gguf(tmp_path / "joined.gguf") as checkpoint:
        assert sorted(checkpoint.names()) == sorted(tensors)
        assert not [key for key in checkpoint.metadata if key.startswith("split.")]
    with pytest.raises(InvalidInputError, match="the source itself"):
        quantize_gguf(parts[0], parts[2], "F16", overwrite=True)


def test_bad_requests_leave_no_file(tmp_path, tensors):
    source = write(tmp_path / "a.gguf", tensors)
    other = tmp_path / "b.gguf"
    with pytest.raises(InvalidInputError, match="no type 'Q4_K' to write"):
        quantize_gguf(source, other, "Q4_K")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="the source itself"):
        quantize_gguf(source, source, "F16", overwrite=True)
    with pytest.raises(InvalidInputError, match=r"the folder .* does not exist"):
        quantize_gguf(source, tmp_path / "absent" / "b.gguf", "F16")
    assert not other.exists()
    other.write_bytes(b"mine")
    with pytest.raises(InvalidInputError, match="exists"):
        quantize_gguf(source, other, "F16")
    assert other.read_bytes() == b"mine"


def test_numbers_that_do_not_fit_are_named_with_their_tensor(tmp_path, tensors):
    tensors["blk.0.attn_q.weight"][3, 3] = 1e9
    source = write(tmp_path / "a.gguf", tensors)
    with pytest.raises(CheckpointError, match=r"'blk\.0\.attn_q\.weight': .*beyond the largest float16"):
        quantize_gguf(source, tmp_path / "b.gguf", "F16")
    assert not (tmp_path / "b.gguf").exists()


def test_a_matrix_of_a_type_that_is_not_read_is_refused(tmp_path):
    raw = np.zeros((2, 66), np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("x.weight", raw, raw_dtype=gguf.GGMLQuantizationType.IQ2_XXS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises((UnsupportedError, CheckpointError), match="IQ2_XXS"):
        quantize_gguf(tmp_path / "a.gguf", tmp_path / "b.gguf", "F16")
    assert not (tmp_path / "b.gguf").exists()
