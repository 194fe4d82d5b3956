"""GGUF files that lie: a typed error soon and cheaply, whatever they claim."""

import json
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lattice_inference import load_encoder, load_model
from lattice_inference.checkpoint import gguf_header
from lattice_inference.checkpoint.blocks import BLOCK_FORMATS
from lattice_inference.checkpoint.formats import open_weights
from lattice_inference.checkpoint.ggml_types import GGML_TYPE_IDS, GGML_TYPES
from lattice_inference.checkpoint.gguf import open_gguf, open_gguf_file
from lattice_inference.checkpoint.summary import summarize
from lattice_inference.errors import CheckpointError, ModelNotFoundError
from lattice_inference.memory.fit import estimate_memory
from lattice_inference.tokenizer import load_tokenizer
from lattice_inference.tokenizer.chat_template_file import load_chat_template

from .gguf_bytes import build

CASES = json.loads((Path(__file__).parent / "gguf_cases.json").read_text(encoding="utf-8"))

SMALL = build(
    {
        "entries": [
            ["general.architecture", "STRING", "llama"],
            ["tokenizer.ggml.tokens", "ARRAY", ["STRING", ["a", "bc", ""]]],
            ["tokenizer.ggml.scores", "ARRAY", ["FLOAT32", [0.0, -1.0, -2.0]]],
        ],
        "tensors": [["a", [4, 2], 0, 0], ["b", [32], 2, 32]],
        "data": 32 + 18,
    }
)


def refuse(path: Path, message: str) -> None:
    """Assert that a file is refused with a message that names it, within a second and 100 MB."""
    tracemalloc.start()
    start = time.thread_time()
    try:
        with pytest.raises(CheckpointError, match=message) as caught:
            open_gguf(path)
        assert time.thread_time() - start < 1
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_verdict_on_each_kind_of_file(tmp_path, case):
    path = tmp_path / "model.gguf"
    path.write_bytes(build(case))
    if case["message"] is not None:
        refuse(path, case["message"])
    else:
        with open_gguf(path) as checkpoint:
            assert list(checkpoint.names()) == [tensor[0] for tensor in case.get("tensors", [])]
            assert list(checkpoint.metadata) == [entry[0] for entry in case.get("entries", [])]


def test_what_users_of_the_peers_hit_is_among_them():
    assert {case["case"] for case in CASES if "case" in case} == {"G1", "G3", "G4", "G7", "G9", "G10"}


def test_a_file_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    for length in range(len(SMALL)):
        path.write_bytes(SMALL[:length])
        with pytest.raises(CheckpointError):
            open_gguf(path)
    path.write_bytes(SMALL)
    open_gguf(path).close()


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_blocks_are_whole(tmp_path, name):
    """Case G7: whatever the type, no block lacks a byte, and no row ends inside a block."""
    type_id = GGML_TYPE_IDS[name]
    kind = GGML_TYPES[type_id]
    path = tmp_path / "model.gguf"
    whole = build({"tensors": [["a", [3 * kind.elements, 2], type_id, 0]], "data": 6 * kind.nbytes})
    path.write_bytes(whole)
    with open_gguf(path) as checkpoint:
        assert checkpoint.float32("a").shape == (2, 3 * kind.elements)
    for missing in (1, kind.nbytes):
        path.write_bytes(whole[:-missing])
        refuse(path, "is truncated")
    for row in (1, kind.elements - 1, kind.elements + 1, 2 * kind.elements - 16):
        path.write_bytes(
            build({"tensors": [["a", [row, 2 * kind.elements], type_id, 0]], "data": 2 * row * kind.nbytes})
        )
        refuse(path, f"rows of {row}, no multiple of its blocks of {kind.elements}")


@pytest.mark.parametrize("count", [2, 100, 2**31, 2**63, 2**64 - 1])
def test_absurd_counts_in_any_place_cost_nothing(tmp_path, count):
    path = tmp_path / "model.gguf"
    for position in range(4, len(SMALL) - 50 - 8):
        content = bytearray(SMALL)
        content[position : position + 8] = struct.pack("<Q", count)
        path.write_bytes(content)
        start = time.thread_time()
        try:
            with open_gguf(path) as checkpoint:
                for name in checkpoint.names():
                    checkpoint.float32(name)
                for value in checkpoint.metadata.values():
                    repr(value), str(value)
        except CheckpointError:
            pass
        assert time.thread_time() - start < 1


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("MAX_ENTRIES", 2, "has 3 metadata entries, and at most 2"),
        ("MAX_TENSORS", 1, "has 2 tensors, and at most 1"),
        ("MAX_ARRAY_STRINGS", 2, "more than the 2 strings"),
        ("MAX_TEXT_BYTES", 40, "more than the 40 bytes"),
    ],
)
def test_each_limit_is_kept(tmp_path, monkeypatch, limit, value, message):
    path = tmp_path / "model.gguf"
    path.write_bytes(SMALL)
    monkeypatch.setattr(gguf_header, limit, value)
    refuse(path, message)


def test_a_large_array_of_empty_strings_is_walked_over_in_time(tmp_path):
    count = gguf_header.MAX_ARRAY_STRINGS
    head = build({"entries": [["a", "raw", "09000000" + "08000000" + struct.pack("<Q", count).hex()]]})
    path = tmp_path / "model.gguf"
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + 8 * count)
    start = time.thread_time()
    with open_gguf(path) as checkpoint:
        assert len(checkpoint.metadata["a"]) == count  # type: ignore[arg-type]
    assert time.thread_time() - start < 2  # alone it is a quarter of a second


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from([b"a", "é".encode(), "😀".encode(), b"\xc3", b"\xa9", b"\xff"])), max_size=5))
@example([[b"\xc3"], [b"\xa9"]])
@example([[b"a", b"\xc3"], [], [b"\xa9", b"a"]])
@example([["é".encode()], [], ["😀".encode(), b"a"], []])
@example([])
def test_each_string_of_an_array_is_judged_by_itself(tmp_path, parts):
    """A character that is cut in two by the end of a string is in neither, though the two together are UTF-8."""
    strings = [b"".join(part) for part in parts]
    body = b"".join(struct.pack("<Q", len(string)) + string for string in strings)
    head = "09000000" + "08000000" + struct.pack("<Q", len(strings)).hex()
    path = tmp_path / "model.gguf"
    path.write_bytes(build({"entries": [["a", "raw", head + body.hex()]]}))
    with open_gguf(path) as checkpoint:
        array = checkpoint.metadata["a"]
        assert isinstance(array, gguf_header.GgufArray)
        assert array.bytes_strings() == strings
        assert array.text_bytes == sum(map(len, strings))
        try:
            expected = [string.decode() for string in strings]
        except UnicodeDecodeError:
            with pytest.raises(CheckpointError, match=r"a\[\d\] is not UTF-8"):
                array.strings()
        else:
            assert array.strings() == expected


@pytest.mark.parametrize(
    ("content", "meaning"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>not found</html>", "web page"),
        (b"PK\x03\x04" + bytes(40), "zip archive"),
        (b"", "is empty"),
    ],
)
def test_usual_mix_ups_are_named(tmp_path, content, meaning):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    refuse(path, meaning)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(ModelNotFoundError):
        open_gguf(tmp_path / "absent.gguf")
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(CheckpointError, match="a directory"):
        open_gguf(tmp_path / "folder.gguf")


def test_a_file_that_shrinks_while_open_is_noticed(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(SMALL)
    with open_gguf_file(path) as file:
        with open(path, "r+b") as writable:
            writable.truncate(len(SMALL) - 10)
        with pytest.raises(CheckpointError, match="shrank"):
            file.array("b")


@pytest.mark.parametrize(("type_id", "name"), [(9, "Q8_1"), (16, "IQ2_XXS"), (34, "TQ1_0"), (77, "ggml type 77")])
def test_a_type_that_is_not_read_fails_only_its_own_tensor(tmp_path, type_id, name):
    path = tmp_path / "model.gguf"
    path.write_bytes(build({"tensors": [["a", [256], type_id, 0], ["b", [4], 0, 288]], "data": 304}))
    if type_id != 9:  # the others have another size, so the second tensor is elsewhere
        offset = {16: 96, 34: 64, 77: 288}[type_id]
        path.write_bytes(build({"tensors": [["a", [256], type_id, 0], ["b", [4], 0, offset]], "data": offset + 16}))
    with open_gguf(path) as checkpoint:
        assert checkpoint.info("a").dtype == name
        assert checkpoint.float32("b").tolist() == [0, 0, 0, 0]
        with pytest.raises(CheckpointError, match=f"tensor 'a' is {name}"):
            checkpoint.float32("a")
        with pytest.raises(CheckpointError, match=f"tensor 'a' is {name}"):
            checkpoint.array("a")


def test_a_scale_that_is_not_finite_is_named(tmp_path):
    content = bytearray(build({"tensors": [["a", [32, 2], 2, 0]], "data": 36}))
    content[-18:-16] = b"\x00\x7e"  # NaN as the second row's scale
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with open_gguf(path) as checkpoint, pytest.raises(CheckpointError, match=r"'a' \(Q4_0\) is nan at index \(1, 0\)"):
        checkpoint.float32("a")


READERS = [open_weights, summarize, estimate_memory, load_tokenizer, load_chat_template, load_encoder, load_model]


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_every_reader_has_the_same_verdict(tmp_path, read):
    """Case G3: bytes that nothing claims, or that are missing, are refused by those too who want no tensor."""
    path = tmp_path / "model.gguf"
    for change, message in ((SMALL + b"\0" * 15, "bytes follow the last tensor"), (SMALL[:-1], "is truncated")):
        path.write_bytes(change)
        with pytest.raises(CheckpointError, match=message):
            read(path)


def test_the_same_extra_byte_is_refused_in_both_formats(tmp_path, write_safetensors):
    """Case G3: trailing bytes have the same verdict whatever the format."""
    from lattice_inference.checkpoint.safetensors import open_safetensors

    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(build({"tensors": [["a", [8], 0, 0]], "data": 33}))
    refuse(gguf, "1 bytes follow the last tensor")
    path = write_safetensors({"a": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}, bytes(33))
    with pytest.raises(CheckpointError, match="1 bytes follow"):
        open_safetensors(path)
