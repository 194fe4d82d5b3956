"""Rows of stored tensors by name: of matrices, of stacks of them, and of stacks whose axes are stored swapped."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from lattice_inference.checkpoint.gguf import open_gguf
from lattice_inference.checkpoint.safetensors import open_checkpoint
from lattice_inference.checkpoint.tensor_rows import TensorRows, parse_rows, rows_name
from lattice_inference.errors import CheckpointError

STACK = np.arange(4 * 6 * 5, dtype=np.float32).reshape(4, 6, 5)


@pytest.fixture
def checkpoint(tmp_path):
    tensors = {"stack": STACK, "halves": STACK.astype(np.float16), "vector": STACK[0, 0].copy()}
    save_file(tensors, tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path) as opened:
        yield opened


def test_names_are_read_as_they_were_made():
    for name in (rows_name("a.b", 3, 4), rows_name("a.b", 0, 1, swapped=True)):
        rows = parse_rows(name)
        assert rows_name(rows.tensor, rows.first, rows.end - rows.first, swapped=rows.swapped) == name
    assert parse_rows("a[1:2][3:4]") == TensorRows("a[1:2]", 3, 4)
    assert parse_rows("a^T[3:4]") == TensorRows("a", 3, 4, True)
    assert parse_rows("a") is None


@pytest.mark.parametrize("name", ["stack", "halves"])
def test_a_stack_has_the_rows_of_all_its_matrices(checkpoint, name):
    flat = STACK.reshape(24, 5)
    for first, count in ((0, 6), (6, 3), (9, 3), (5, 2), (0, 24)):
        rows = rows_name(name, first, count)
        assert checkpoint.info(rows).shape == (count, 5)
        assert (checkpoint.float32(rows) == flat[first : first + count]).all()
        assert (checkpoint.array(rows) == flat[first : first + count]).all()
        checkpoint.drop_pages(rows)


@pytest.mark.parametrize("name", ["stack", "halves"])
def test_rows_of_swapped_matrices_are_their_columns(checkpoint, name):
    for matrix in range(4):
        for first, count in ((0, 5), (0, 2), (2, 3)):
            rows = rows_name(name, 5 * matrix + first, count, swapped=True)
            assert checkpoint.info(rows).shape == (count, 6)
            assert (checkpoint.float32(rows) == STACK[matrix].T[first : first + count]).all()
            checkpoint.drop_pages(rows)


@pytest.mark.parametrize(
    "name",
    [
        "stack[0:25]",
        "stack[24:25]",
        "stack[3:3]",
        "stack[4:3]",
        "stack^T[0:21]",
        "stack^T[4:6]",
        "vector^T[0:1]",
        "x[0:1]",
    ],
)
def test_rows_that_are_not_there_are_no_tensor(checkpoint, name):
    assert name not in checkpoint
    with pytest.raises(CheckpointError, match="holds no tensor"):
        checkpoint.info(name)


def test_rows_of_stacks_of_blocks_are_those_of_the_file(tmp_path):
    values = np.random.default_rng(0).standard_normal((3, 4, 64)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q8_0
    blocks = np.stack([gguf.quants.quantize(matrix, kind) for matrix in values])
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "made-up")
    writer.add_tensor("stack", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(tmp_path / "m.gguf") as opened:
        assert opened.info("stack[4:8]").shape == (4, 64)
        assert opened.array("stack[4:8]").tobytes() == blocks[1].tobytes()
        assert (opened.float32("stack[8:12]") == gguf.quants.dequantize(blocks[2], kind)).all()
        assert "stack^T[0:64]" not in opened
