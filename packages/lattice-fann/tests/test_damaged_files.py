"""Readers look at sizes before they ask for memory, and answer damage of any kind with one kind of error."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_fann import (
    Activation,
    BackpropTrainer,
    FannError,
    FormatError,
    InvalidInputError,
    InvalidNetworkError,
    Layer,
    Network,
    NetworkBuilder,
    TrainingConfig,
    TrainingState,
)
from lattice_fann.cli import main
from lattice_fann.cli.table import read_inputs, read_table
from lattice_fann.formats.npz import read_arrays

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"


def network() -> Network:
    return NetworkBuilder().input(3).hidden(4, Activation.TANH).output(2).build(seed=0)


def state() -> TrainingState:
    config = TrainingConfig(max_epochs=2, patience=5, seed=1)
    return BackpropTrainer(network(), config).train(np.eye(3), np.ones((3, 2))).state


def stored(path: Path, **changes: Any) -> Path:
    """A state's file with some of its arrays replaced, or left out where the change is None."""
    state().save(path)
    with np.load(path) as archive:
        arrays = {**archive, **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode("latin1")
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@pytest.fixture(scope="module")
def inflating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small compressed file whose array takes 70 MiB."""
    path = tmp_path_factory.mktemp("inflating") / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x.npy", "w") as member:
            member.write(npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': (1, {70 << 18}), }}"))
            for _ in range(70):
                member.write(bytes(1 << 20))
        archive.writestr("y.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1), }", bytes(4)))
    return path


def archive_of(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def test_a_state_comes_back(tmp_path: Path) -> None:
    before = state()
    before.save(tmp_path / "s.npz")
    after = TrainingState.load(tmp_path / "s.npz")
    for name in ("parameters", "moment1", "moment2", "best_parameters"):
        assert getattr(after, name).tobytes() == getattr(before, name).tobytes()
    for name in ("architecture", "seed", "epoch", "updates", "best_loss", "best_epoch", "epochs_without_gain"):
        assert getattr(after, name) == getattr(before, name)


BIG = np.int64(2**62)
CHANGES: dict[str, dict[str, Any]] = {
    "another version": {"version": np.int64(2)},
    "no version": {"version": None},
    "version of texts": {"version": np.array("1")},
    "two versions": {"version": np.array([1, 1])},
    "epoch below 0": {"epoch": np.int64(-1)},
    "epoch without end": {"epoch": BIG},
    "updates without end": {"updates": BIG},
    "updates as float": {"updates": np.float64(3)},
    "wait below 0": {"epochs_without_gain": np.int64(-1)},
    "best epoch below": {"best_epoch": np.int64(-2)},
    "best epoch alone": {"best_parameters": None},
    "best weights alone": {"best_epoch": np.int64(-1)},
    "best loss": {"best_loss": np.float64(np.nan)},
    "best losses": {"best_loss": np.zeros(2)},
    "parameters of float64": {"parameters": np.zeros(200)},
    "parameters in rows": {"parameters": np.zeros((20, 2), np.float32)},
    "parameters not finite": {"parameters": np.full(200, np.inf, np.float32)},
    "sizes that differ": {"moment1": np.zeros(3, np.float32)},
    "squares below 0": {"moment2": np.full(176, -1, np.float32)},
    "seed in words": {"seed": np.array("one")},
    "seed below 0": {"seed": np.array("-1")},
    "seed of 5000 digits": {"seed": np.array("9" * 5000)},
    "seed as number": {"seed": np.int64(3)},
    "architecture as number": {"architecture": np.int64(3)},
    "architecture missing": {"architecture": None},
}


@pytest.mark.parametrize("change", CHANGES)
def test_numbers_of_a_state_have_bounds(change: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"s\.npz: no training state"):
        TrainingState.load(stored(tmp_path / "s.npz", **CHANGES[change]))


def test_damaged_states_are_refused_or_read(tmp_path: Path) -> None:
    state().save(tmp_path / "s.npz")
    content = (tmp_path / "s.npz").read_bytes()
    generator = np.random.RandomState(5)
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randint(len(damaged))] = generator.randint(256)
        (tmp_path / "d.npz").write_bytes(damaged[: len(damaged) - generator.choice([0, 0, generator.randint(500)])])
        try:
            TrainingState.load(tmp_path / "d.npz")
        except FormatError:
            continue


READERS: dict[str, Callable[[Path], Any]] = {
    "state": TrainingState.load,
    "inputs to predict": lambda path: read_inputs(str(path), None, 3, "x", {}),
    "table": lambda path: read_table(str(path), "x", None),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_inflates_is_refused_before_it_does(reader: str, inflating: Path) -> None:
    path = inflating
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(FannError, match=r"would become 7\d+.*numpy\.savez"):
            READERS[reader](path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


LYING = {
    "shape beyond memory": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 10000000000000), }"),
    "shape below 0": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -1), }", bytes(4)),
    "shape beyond 64 bits": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1" + "0" * 400 + ", 1), }"),
    "objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1, 1), }", b"cos\nsystem\n(S'true'\ntR."),
    "no header": b"\x93NUMPY\x01\x00\xff\xff{",
    "another magic": b"GGUF" + bytes(60),
    "version 9": b"\x93NUMPY\x09\x00" + bytes(60),
    "code": npy("__import__('os').system('true')"),
    "deep": npy("(" * 5000),
    "too long": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1), }", bytes(8)),
    "too short": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }", bytes(4)),
    "empty": b"",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LYING)
@pytest.mark.parametrize("reader", READERS)
def test_arrays_that_lie_are_refused(reader: str, kind: str, tmp_path: Path) -> None:
    with pytest.raises(FannError) as caught:
        READERS[reader](archive_of(tmp_path / "x.npz", x=LYING[kind], y=LYING[kind]))
    assert "allow_pickle" not in str(caught.value)


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_archive_is_refused_with_its_kind(reader: str, tmp_path: Path) -> None:
    content = io.BytesIO()
    np.save(content, np.eye(3))
    for raw, message in [
        (b"", "begins as"), (LFS, "git lfs pull"), (content.getvalue(), r"an \.npy file"), (b"a,b\n1,2\n", "begins as"),
        (b"PK\x03\x04", "damaged"), (b"PK" * 100, "damaged"),
    ]:  # fmt: skip
        (tmp_path / "x.npz").write_bytes(raw)
        with pytest.raises(FannError, match=message):
            READERS[reader](tmp_path / "x.npz")


def test_an_archive_of_texts_or_of_one_name_twice_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.txt", "text")
    with pytest.raises(FormatError, match=r"no \.npy array"):
        TrainingState.load(tmp_path / "x.npz")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", "")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x.npy", "")
    with pytest.raises(FormatError, match="twice"):
        TrainingState.load(tmp_path / "x.npz")


@pytest.mark.parametrize("point", [0x110000, 0xFFFFFFFF, 0xD800])
@pytest.mark.parametrize("order", ["<", ">"])
def test_code_points_that_are_no_characters_are_refused(point: int, order: str, tmp_path: Path) -> None:
    texts = np.array(["ab", "c"], dtype=f"{order}U2")
    numbers = texts.view(f"{order}u4").copy()
    assert read_arrays(stored_arrays(tmp_path / "sound.npz", x=texts))["x"].tolist() == ["ab", "c"]
    numbers[1] = point
    with pytest.raises(FormatError, match=r"x\.npy holds a code point that is no character"):
        read_arrays(stored_arrays(tmp_path / "x.npz", x=numbers.view(f"{order}U2")))


def test_messages_of_damaged_files_have_an_end(tmp_path: Path) -> None:
    network = NetworkBuilder().input(2).output(1).build(seed=0)
    network.save(tmp_path / "n.safetensors")
    content = (tmp_path / "n.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = content[8 : 8 + length].replace(b'"F32"', b'"' + b"x" * 50_000 + b'"')
    (tmp_path / "n.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])
    with pytest.raises(FormatError, match=r"has dtype x+ \[\.\.\.\] .*networks are stored as F32") as caught:
        Network.load(tmp_path / "n.safetensors")
    assert len(str(caught.value)) < 3_000


def stored_arrays(path: Path, **arrays: np.ndarray[Any, Any]) -> Path:
    np.savez(path, **arrays)
    return path


def test_long_names_in_an_archive_are_cut_in_errors(tmp_path: Path) -> None:
    content = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1), }", bytes(4))
    archive_of(tmp_path / "x.npz", **{"a" * 9000: content})
    damaged = (tmp_path / "x.npz").read_bytes().replace(b"a" * 9000, b"b" * 9000, 1)
    many = {f"{number:04}" + "a" * 200: content for number in range(300)}
    for path in (archive_of(tmp_path / "many.npz", **many), tmp_path / "x.npz", tmp_path / "d.npz"):
        (tmp_path / "d.npz").write_bytes(damaged)
        for reader in READERS.values():
            with pytest.raises(FannError) as caught:
                reader(path)
            assert len(str(caught.value)) < 3_000


def test_arrays_of_any_layout_are_read(tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(4, 3)
    for same in (np.asfortranarray(x), x.astype(">f8"), x.astype(np.float16), x.astype(np.uint8)):
        np.savez_compressed(tmp_path / "x.npz", x=same)
        assert (read_inputs(str(tmp_path / "x.npz"), None, 3, None, {}) == x).all()


def test_labels_of_bytes_become_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "t.npz", x=np.eye(4), y=np.array([b"a", b"b"] * 2))
    command = ["train", str(tmp_path / "t.npz"), "--target", "y", "--epochs", "1", "--validation", "0", "--json"]
    assert main(command) == 0
    assert '"labels": ["a", "b"]' in capsys.readouterr().out
    np.savez(tmp_path / "t.npz", x=np.eye(4), y=np.array([b"\xff", b"b"] * 2))
    assert main(command) == 2
    assert "UTF-8" in capsys.readouterr().err


def test_sparse_tables_say_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    sparse.save_npz(tmp_path / "t.npz", sparse.csr_matrix(np.eye(3)))
    assert main(["train", str(tmp_path / "t.npz"), "--target", "y"]) == 2
    assert ".toarray()" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["n.fann", "n.safetensors", "n.net", "n"])
def test_git_lfs_pointers_say_what_to_do(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_bytes(LFS)
    with pytest.raises(FormatError, match="git lfs pull"):
        Network.load(tmp_path / name)
    for command in (["info"], ["bench"], ["predict"]):
        assert main([*command, str(tmp_path / name), *(["-"] if command == ["predict"] else [])]) == 1
        assert "git lfs pull" in capsys.readouterr().err
    (tmp_path / "t.csv").write_bytes(LFS)
    assert main(["train", str(tmp_path / "t.csv"), "--target", "y"]) == 2
    assert "git lfs pull" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"", "an empty file"),
        (b"GGUF\x03", "GGUF"),
        (b"PK\x03\x04", "npz"),
        (b"FAN", "FAN"),
        (b"FANN", "magic and version"),
    ],
)
def test_other_files_are_refused_by_what_they_are(head: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "n").write_bytes(head)
    with pytest.raises(FormatError, match=message):
        Network.load(tmp_path / "n")


def test_a_large_file_of_another_kind_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "n").open("wb") as file:
        file.truncate(1 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="no network"):
            Network.load(tmp_path / "n")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("suffix", [".fann", ".safetensors", ".net", ".v2"])
def test_damaged_networks_are_refused_or_read(suffix: str, tmp_path: Path) -> None:
    made = network()
    made.metadata = {"a": "b"} if suffix in (".v2", ".safetensors") else {}
    made.save(tmp_path / f"n{suffix}")
    content = (tmp_path / f"n{suffix}").read_bytes()
    generator = np.random.RandomState(6)
    for _ in range(120):
        damaged = bytearray(content)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randint(len(damaged))] = generator.randint(256)
        (tmp_path / "d").write_bytes(damaged[: len(damaged) - generator.choice([0, 0, generator.randint(50)])])
        try:
            Network.load(tmp_path / "d")
        except FannError:
            continue


def test_tensors_that_overlap_are_refused(tmp_path: Path) -> None:
    Network([Layer([[1.0]], [2.0])]).save(tmp_path / "n.safetensors")
    content = (tmp_path / "n.safetensors").read_bytes()
    (tmp_path / "n.safetensors").write_bytes(content.replace(b'"data_offsets":[4,8]', b'"data_offsets":[0,4]'))
    with pytest.raises(FormatError, match="begins at byte 0"):
        Network.load(tmp_path / "n.safetensors")


def test_layers_without_end_are_refused_before_they_are_made() -> None:
    layer = struct.pack("<IIBff", 1, 1, 0, 1.0, 0.0)
    with pytest.raises(FormatError, match="the most is 65536"):
        Network.from_bytes(b"FANN" + struct.pack("<II", 1, 65_537) + layer * 65_537)
    with pytest.raises(InvalidNetworkError, match="the most is 65536"):
        Network([Layer([[1.0]], [0.0])] * 65_537)


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", 5, None, b"bytes", 1.5, ["a"]], ids=repr)
def test_what_is_no_path_is_refused(path: Any) -> None:
    for call in (Network.load, network().save, state().save, TrainingState.load):
        with pytest.raises(InvalidInputError, match=r"path|name"):
            call(path)


def test_names_too_long_are_errors_of_the_system() -> None:
    for call in (Network.load, network().save, state().save, TrainingState.load):
        with pytest.raises(OSError):
            call("x" * 5000)
