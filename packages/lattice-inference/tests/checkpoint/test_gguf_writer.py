"""The GGUF writer, read back by the reference reader."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from lattice_inference.checkpoint.atomic_file import atomic_file
from lattice_inference.checkpoint.gguf import open_gguf, open_gguf_file
from lattice_inference.checkpoint.gguf_writer import EncodedEntry, TensorToWrite, write_gguf
from lattice_inference.errors import InvalidInputError

VALUES = {
    "general.architecture": "llama",
    "a.flag": True,
    "an.integer": 7,
    "a.negative": -7,
    "a.large": 2**40,
    "a.very.negative": -(2**40),
    "a.float": 0.25,
    "a.double": np.float64(0.1),
    "a.byte": np.uint8(200),
    "words": ["x", "", "ü🦆"],
    "no.words": [],
    "integers": [1, -2],
    "floats": [0.5, 1],
    "bytes": np.frombuffer(b"\0\xff", np.uint8),
    "flags": np.array([True, False]),
}
KINDS = {
    "a.flag": "BOOL",
    "an.integer": "UINT32",
    "a.negative": "INT32",
    "a.large": "UINT64",
    "a.very.negative": "INT64",
    "a.float": "FLOAT32",
    "a.double": "FLOAT64",
    "a.byte": "UINT8",
}


def tensor(name: str, array: np.ndarray, dtype: str = "F32") -> TensorToWrite:
    rows = [memoryview(np.ascontiguousarray(part)) for part in np.array_split(array.reshape(-1), 3)]
    return TensorToWrite(name, array.shape, dtype, lambda: [row.cast("B") for row in rows if row.nbytes])


def test_the_reference_reader_reads_what_is_written(tmp_path):
    arrays = {"x": np.arange(24, dtype=np.float32).reshape(2, 3, 4), "s": np.float32([3]), "y": np.ones(5, np.float32)}
    written: list[str] = []
    path = tmp_path / "a.gguf"
    write_gguf(path, VALUES, [tensor(*item) for item in arrays.items()], on_tensor=written.append)
    assert written == list(arrays)
    reader = gguf.GGUFReader(path)
    assert [item.name for item in reader.tensors] == list(arrays)
    for item in reader.tensors:
        assert item.data.tolist() == arrays[item.name].tolist()
    for key, value in VALUES.items():
        found = reader.fields[key]
        contents = found.contents() if key != "no.words" else []
        assert contents == (value.tolist() if isinstance(value, np.ndarray) else value)
        assert found.types[0].name == KINDS.get(key, "STRING" if isinstance(value, str) else "ARRAY")


def test_entries_are_carried_over_as_they_are(tmp_path):
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_gguf(first, VALUES, [])
    with open_gguf_file(first) as file:
        write_gguf(second, {key: EncodedEntry(file.encoded_entry(key)) for key in file.metadata}, [])
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"": 1}, "a metadata key has 1 to 1024 bytes"),
        ({"k" * 1025: 1}, "a metadata key has 1 to 1024 bytes"),
        ({"k": 2**64}, "out of the range"),
        ({"k": [1, "x"]}, "mixed"),
        ({"k": [2**31]}, "not an array of int32"),
        ({"k": 1j}, "no form"),
        ({"k": np.zeros((2, 2))}, "one dimension"),
    ],
)
def test_what_has_no_form_is_refused(tmp_path, metadata, message):
    with pytest.raises(InvalidInputError, match=message):
        write_gguf(tmp_path / "a.gguf", metadata, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([TensorToWrite("x", (3,), "Q9_9", list)], "no type 'Q9_9'"),
        ([TensorToWrite("x", (3, 0), "F32", list)], "GGUF does not have"),
        ([TensorToWrite("x", (1, 1, 1, 1, 1), "F32", list)], "GGUF does not have"),
        ([TensorToWrite("x", (2, 33), "Q4_0", list)], "rows of 33"),
        ([TensorToWrite("x", (1,), "F32", lambda: [bytes(4)])] * 2, "two tensors"),
        ([TensorToWrite("x", (2,), "F32", lambda: [bytes(4)])], "has 8 bytes; 4 were given"),
    ],
)
def test_impossible_tensors_are_refused_and_leave_nothing(tmp_path, tensors, message):
    with pytest.raises(InvalidInputError, match=message):
        write_gguf(tmp_path / "a.gguf", {}, tensors)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.gguf"
    write_gguf(path, {"k": 1}, [])

    def fail() -> list[bytes]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_gguf(path, {"k": 2}, [TensorToWrite("x", (1,), "F32", fail)])
    assert [item.name for item in tmp_path.iterdir()] == ["a.gguf"]
    with open_gguf(path) as checkpoint:
        assert checkpoint.metadata["k"] == 1


def test_a_new_file_may_be_read_by_whom_the_umask_allows(tmp_path: Path):
    (tmp_path / "plain").touch()
    with atomic_file(tmp_path / "atomic") as file:
        file.write(b"x")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode
