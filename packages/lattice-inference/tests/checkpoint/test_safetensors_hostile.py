"""Files that lie. Whatever the reference implementation refuses is refused, and nothing crashes, hangs or balloons."""

import json
import os
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice_inference.checkpoint import safetensors_header
from lattice_inference.checkpoint.safetensors import open_safetensors
from lattice_inference.checkpoint.safetensors_header import MAX_RANK
from lattice_inference.errors import CheckpointError, ModelNotFoundError

CASES = json.loads((Path(__file__).parent / "safetensors_cases.json").read_text())

SMALL_FILE = safetensors.numpy.save(
    {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "ids": np.arange(3, dtype=np.int16)}, {"format": "pt"}
)


def reference_accepts(content: bytes) -> bool:
    try:
        safetensors.deserialize(content)
    except safetensors.SafetensorError:
        return False
    return True


def our_tensors(path: Path) -> dict[str, bytes] | None:
    """Every tensor's bytes, or None if the file is refused; any other error than ours fails the test."""
    try:
        with open_safetensors(path) as file:
            return {
                name: file.array(name).tobytes()
                for name in file.names()
                if file.info(name).dtype[:2] not in ("F4", "F6")
            }
    except CheckpointError:
        return None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_verdict_on_each_kind_of_file(write_safetensors, case):
    path = write_safetensors(case["header"], bytes(case["data_bytes"]))
    assert reference_accepts(path.read_bytes()) == (case["reference"] == "accept")
    if case["ours"] == "accept":
        assert our_tensors(path) is not None
    else:
        with pytest.raises(CheckpointError, match=case["message"]) as caught:
            open_safetensors(path)
        assert str(path) in str(caught.value)
        assert len(str(caught.value)) < 2_000


def test_every_case_where_we_are_stricter_says_why():
    for case in CASES:
        assert (case["reference"], case["ours"]) != ("refuse", "accept")
        assert ("note" in case) == (case["reference"] != case["ours"])


def test_metadata_without_tensors_is_readable(write_safetensors):  # G1
    with open_safetensors(write_safetensors({"__metadata__": {"crc": "12"}})) as file:
        assert file.names() == ()
        assert file.metadata == {"crc": "12"}


def test_a_file_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    for length in range(len(SMALL_FILE)):
        path.write_bytes(SMALL_FILE[:length])
        with pytest.raises(CheckpointError):
            open_safetensors(path)
    path.write_bytes(SMALL_FILE)
    assert our_tensors(path) is not None


mutations = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, len(SMALL_FILE) - 1), st.integers(0, 255)),
        st.tuples(st.just("set"), st.integers(8, 170), st.sampled_from(b'{}[]":,0123456789-\\ FIBU')),
        st.tuples(st.just("insert"), st.integers(0, len(SMALL_FILE)), st.sampled_from(b'{}[]":,019-\\ \0')),
        st.tuples(st.just("delete"), st.integers(0, len(SMALL_FILE) - 1), st.integers(1, 9)),
    ),
    min_size=1,
    max_size=4,
)


def mutate(content: bytes, steps: list[tuple[str, int, int]], *, mend_length: bool) -> bytes:
    changed = bytearray(content)
    header_end = 8 + int.from_bytes(content[:8], "little")
    grown_header = 0
    for kind, position, value in steps:
        if kind == "set" and position < len(changed):
            changed[position] = value
        elif kind == "insert":
            changed.insert(position, value)
            grown_header += position < header_end
        elif kind == "delete":
            grown_header -= max(0, min(position + value, header_end) - position)
            del changed[position : position + value]
    if mend_length:
        # Otherwise nearly every change of length is caught by the first check alone.
        changed[:8] = max(0, header_end - 8 + grown_header).to_bytes(8, "little")
    return bytes(changed)


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=mutations, mend_length=st.booleans())
def test_mutated_files_never_crash_and_are_refused_where_the_reference_refuses(tmp_path, steps, mend_length):
    content = mutate(SMALL_FILE, steps, mend_length=mend_length)
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    ours = our_tensors(path)
    if not reference_accepts(content):
        assert ours is None
    elif ours is not None:
        reference = {name: bytes(tensor["data"]) for name, tensor in safetensors.deserialize(content)}
        assert ours == {name: reference[name] for name in ours}


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_random_bytes_are_refused_where_the_reference_refuses(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert our_tensors(path) is None or reference_accepts(content)


@pytest.mark.parametrize("claimed", [2**16, 2**30, 2**40, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_claimed_header_size_costs_no_memory(tmp_path, claimed):
    path = tmp_path / "model.safetensors"
    path.write_bytes(claimed.to_bytes(8, "little") + b"{}" + bytes(100))
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="header claims"):
            open_safetensors(path)
        assert tracemalloc.get_traced_memory()[1] < 256 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("beyond", [1, 7, 8, 9])
def test_a_header_that_ends_a_few_bytes_beyond_the_file_is_refused(tmp_path, beyond):
    """The length does not count its own eight bytes: a check against the whole file's size would let eight pass."""
    path = tmp_path / "model.safetensors"
    path.write_bytes((2 + beyond).to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointError, match=f"header claims {2 + beyond} bytes, but only 2 follow"):
        open_safetensors(path)


def test_as_many_dimensions_are_read_as_promised(write_safetensors):
    for rank in (MAX_RANK, MAX_RANK + 1):
        path = write_safetensors({"a": {"dtype": "F32", "shape": [1] * rank, "data_offsets": [0, 4]}}, bytes(4))
        if rank == MAX_RANK:
            with open_safetensors(path) as file:
                assert file.float32("a").shape == (1,) * 32
        else:
            with pytest.raises(CheckpointError, match="33 dimensions, and at most 32"):
                open_safetensors(path)


@pytest.mark.parametrize("shape", [[2**40], [2**31, 2**31], [2**20, 0, 2**20]])
def test_a_claimed_tensor_size_costs_no_memory(write_safetensors, shape):
    size = 4 * int(np.prod([float(length) for length in shape]))
    path = write_safetensors({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}, bytes(16))
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError):
            open_safetensors(path)
        assert tracemalloc.get_traced_memory()[1] < 256 * 1024
    finally:
        tracemalloc.stop()


def test_a_zero_length_tensor_of_any_shape_costs_no_memory(write_safetensors):
    shape = [2**28, 0, 2**28]
    path = write_safetensors({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}})
    with open_safetensors(path) as file:
        assert file.array("a").shape == tuple(shape)
        assert file.float32("a").shape == tuple(shape)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":['])
def test_nesting_is_refused_without_recursion(write_safetensors, opening):
    path = write_safetensors(opening * 500_000)
    started = time.thread_time()
    with pytest.raises(CheckpointError, match="nested deeper"):
        open_safetensors(path)
    assert time.thread_time() - started < 5, "seconds of CPU"


@pytest.mark.slow
def test_a_header_as_large_as_the_largest_legitimate_one_is_read(write_safetensors):
    header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    with open_safetensors(write_safetensors(header.ljust(132_095_296), b"\x07")) as file:
        assert file.array("a").tolist() == [7]


def test_a_header_over_the_cap_is_refused_unread(tmp_path):
    path = tmp_path / "model.safetensors"
    with open(path, "wb") as file:
        file.write((safetensors_header.MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
        file.truncate(2 * safetensors_header.MAX_HEADER_BYTES)  # sparse
    with pytest.raises(CheckpointError, match="at most 268,435,456"):
        open_safetensors(path)


def test_caps_on_count_and_metadata_are_enforced(write_safetensors, monkeypatch):  # G4
    monkeypatch.setattr(safetensors_header, "MAX_TENSORS", 3)
    monkeypatch.setattr(safetensors_header, "MAX_METADATA_CHARACTERS", 10)
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    assert our_tensors(write_safetensors(dict.fromkeys("abc", entry))) is not None
    with pytest.raises(CheckpointError, match="4 tensors, and at most 3"):
        open_safetensors(write_safetensors(dict.fromkeys("abcd", entry)))
    assert our_tensors(write_safetensors({"__metadata__": {"12345": "67890"}})) is not None
    with pytest.raises(CheckpointError, match="11 characters, and at most 10"):
        open_safetensors(write_safetensors({"__metadata__": {"12345": "67890x"}}))


@pytest.mark.slow
def test_many_tensors_are_read(write_safetensors):
    header = {f"t{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(20_000)}
    with open_safetensors(write_safetensors(header, bytes(20_000))) as file:
        assert len(file) == 20_000
        assert file.info("t19999").offset == file.info("t0").offset + 19_999


def test_not_utf8_is_refused(write_safetensors):
    with pytest.raises(CheckpointError, match="not UTF-8"):
        open_safetensors(write_safetensors(b'{"\xff":1}'))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:53aa\nsize 90868376\n", "git lfs pull"),
        (b"<!DOCTYPE html>\n<html><body>404</body></html>", "web page"),
        (b"\n <HTML lang=en>" + bytes(100), "web page"),
        (b"PK\x03\x04\x00\x00\x00\x00" + bytes(100), "convert it to safetensors"),
        (b"\x80\x02}q\x00" + bytes(100), "pickle"),
        (b"GGUF\x03\x00\x00\x00" + bytes(100), "GGUF"),
    ],
)
def test_files_of_another_kind_are_named(tmp_path, content, message):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        open_safetensors(path)


def test_an_empty_file_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    path.touch()
    with pytest.raises(CheckpointError, match="is empty"):
        open_safetensors(path)


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="is a directory"):
        open_safetensors(tmp_path)


def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path):
    path = tmp_path / "model.safetensors"
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_safetensors(path)


def test_a_device_is_refused():
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_safetensors("/dev/zero")


def test_a_missing_file_and_a_broken_link_are_told_apart(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"no such file$"):
        open_safetensors(tmp_path / "absent")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match="target is gone"):
        open_safetensors(tmp_path / "link")


def test_a_refused_file_leaks_no_descriptor(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(SMALL_FILE[:-1])
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(50):
        with pytest.raises(CheckpointError):
            open_safetensors(path)
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after <= before + 1
