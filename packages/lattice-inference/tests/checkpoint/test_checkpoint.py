"""A model's weights as one checkpoint: single or sharded, opened, advised and closed."""

import json
import mmap
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from lattice_inference.checkpoint import mapped_tensors
from lattice_inference.checkpoint.safetensors import open_checkpoint, open_safetensors, read_shard_index
from lattice_inference.errors import CheckpointError, InvalidInputError, ModelNotFoundError
from lattice_inference.memory.resident import resident_bytes

FIRST = {"a": np.arange(4, dtype=np.float32), "b": np.full((2, 2), 2, dtype=np.float16)}
SECOND = {"c": np.arange(3, dtype=np.int64)}
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def write_index(directory: Path, weight_map: object) -> Path:
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 48}, "weight_map": weight_map}))
    return path


@pytest.fixture
def sharded(tmp_path):
    safetensors.numpy.save_file(FIRST, tmp_path / SHARDS[0], {"format": "pt"})
    safetensors.numpy.save_file(SECOND, tmp_path / SHARDS[1], {"format": "np", "part": "2"})
    write_index(tmp_path, {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1]})
    return tmp_path


def test_shards_read_as_one_checkpoint(sharded):
    with open_checkpoint(sharded) as checkpoint:
        assert sorted(checkpoint.names()) == ["a", "b", "c"]
        assert len(checkpoint) == 3
        assert "c" in checkpoint
        assert "d" not in checkpoint
        for name, value in (FIRST | SECOND).items():
            assert np.array_equal(checkpoint.array(name), value)
        assert checkpoint.info("c").file == sharded / SHARDS[1]
        assert checkpoint.float32("b").tolist() == [[2, 2], [2, 2]]
        assert checkpoint.metadata == {"format": "pt", "part": "2"}
        checkpoint.drop_pages("a")


def test_a_single_file_wins_over_an_index(sharded):
    safetensors.numpy.save_file({"only": FIRST["a"]}, sharded / "model.safetensors")
    with open_checkpoint(sharded) as checkpoint:
        assert checkpoint.names() == ("only",)


def test_shards_may_be_links_to_elsewhere_as_in_the_hugging_face_cache(sharded, tmp_path_factory):
    blobs = tmp_path_factory.mktemp("blobs")
    snapshot = tmp_path_factory.mktemp("snapshot")
    for number, name in enumerate((*SHARDS, "model.safetensors.index.json")):
        os.replace(sharded / name, blobs / str(number))
        (snapshot / name).symlink_to(os.path.relpath(blobs / str(number), snapshot))
    with open_checkpoint(snapshot) as checkpoint:
        assert np.array_equal(checkpoint.array("c"), SECOND["c"])


def test_one_bad_file_is_refused_the_same_way_in_every_loader(tmp_path):
    content = safetensors.numpy.save(FIRST) + b"\0"
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="1 bytes follow"):
        open_safetensors(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="1 bytes follow"):
        open_checkpoint(tmp_path)
    os.replace(tmp_path / "model.safetensors", tmp_path / SHARDS[0])
    write_index(tmp_path, {"a": SHARDS[0]})
    with pytest.raises(CheckpointError, match="1 bytes follow"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../model.safetensors",
        "x/../../model.safetensors",
        "/etc/model.safetensors",
        "..\\model.safetensors",
        "C:\\model.safetensors",
        "C:model.safetensors",
        "a\0.safetensors",
        "",
        ".",
        "a//b.safetensors",
        "model.bin",
        5,
        None,
        ["model.safetensors"],
    ],
)
def test_an_index_cannot_name_files_elsewhere(tmp_path, name):
    write_index(tmp_path, {"a": name})
    with pytest.raises(CheckpointError, match=r"index\.json: tensor 'a'"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("weight_map", [None, {}, [], "x"])
def test_an_index_needs_a_weight_map(tmp_path, weight_map):
    path = write_index(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match="weight_map"):
        read_shard_index(path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "[" * 100]
)
def test_a_malformed_index_is_a_checkpoint_error(tmp_path, text):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        open_checkpoint(tmp_path)


def test_a_missing_shard_is_named(sharded):
    (sharded / SHARDS[1]).unlink()
    with pytest.raises(ModelNotFoundError, match=SHARDS[1]):
        open_checkpoint(sharded)


def test_a_tensor_that_its_shard_lacks_is_named(sharded):
    write_index(sharded, {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[1]})
    with pytest.raises(CheckpointError, match=f"'b' in {SHARDS[1]}"):
        open_checkpoint(sharded)


def test_a_tensor_in_two_shards_is_refused(sharded):
    safetensors.numpy.save_file(SECOND | {"a": FIRST["a"]}, sharded / SHARDS[1])
    with pytest.raises(CheckpointError, match=r"both .* hold tensor 'a'"):
        open_checkpoint(sharded)


def test_a_directory_without_weights_says_what_it_looked_for(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"neither model.safetensors nor model.safetensors.index.json"):
        open_checkpoint(tmp_path)
    with pytest.raises(ModelNotFoundError, match="no such directory"):
        open_checkpoint(tmp_path / "absent")


def test_an_unknown_tensor_is_an_error(sharded):
    with open_checkpoint(sharded) as checkpoint:
        for method in (checkpoint.info, checkpoint.array, checkpoint.float32, checkpoint.drop_pages):
            with pytest.raises(CheckpointError, match="no tensor 'z'"):
                method("z")
    with open_safetensors(sharded / SHARDS[0]) as file, pytest.raises(CheckpointError, match="no tensor 'z'"):
        file.array("z")


def test_arrays_outlive_the_checkpoint_and_reading_after_close_is_an_error(sharded):
    checkpoint = open_checkpoint(sharded)
    array = checkpoint.array("a")
    checkpoint.close()
    checkpoint.close()
    assert np.array_equal(array, FIRST["a"])
    for method in (checkpoint.array, checkpoint.float32, checkpoint.drop_pages):
        with pytest.raises(CheckpointError, match="closed"):
            method("a")
    assert checkpoint.info("a").shape == (4,)
    assert "closed" in repr(checkpoint.files[0])


def test_the_map_is_let_go_with_the_last_array(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(FIRST, path)
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc/self/maps")
    file = open_safetensors(path)
    array = file.array("a")
    file.close()
    assert str(path) in maps.read_text()
    del array
    assert str(path) not in maps.read_text()


def test_a_file_that_shrinks_while_open_is_an_error_not_a_crash(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({"a": np.zeros(1 << 16, dtype=np.float32)}, path)
    with open_safetensors(path) as file:
        os.truncate(path, 4096)
        for method in (file.array, file.float32, file.drop_pages):
            with pytest.raises(CheckpointError, match="shrank"):
                method("a")


def test_a_file_replaced_by_rename_stays_readable(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(FIRST, path)
    with open_safetensors(path) as file:
        safetensors.numpy.save_file(SECOND, tmp_path / "new")
        os.replace(tmp_path / "new", path)
        assert np.array_equal(file.array("a"), FIRST["a"])


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="this system has no such advice")
def test_dropped_pages_leave_memory_and_come_back_right(tmp_path):
    def resident_kib() -> int:
        mapped, resident = False, 0
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if "-" in line.split(" ")[0]:
                mapped = str(path) in line
            elif mapped and line.startswith("Rss:"):
                resident += int(line.split()[1])
        return resident

    path = tmp_path / "model.safetensors"
    if not Path("/proc/self/smaps").exists():
        pytest.skip("needs /proc/self/smaps")
    values = np.arange(4 << 20, dtype=np.float32)
    safetensors.numpy.save_file({"a": values, "b": values}, path)
    with open_safetensors(path) as file:
        assert file.float32("a").sum() == file.float32("b").sum()
        before = resident_kib()
        file.drop_pages("a")
        assert resident_kib() <= before - 15 * 1024
        assert np.array_equal(file.array("a"), values)


def test_tensor_info_pickles(sharded):
    with open_checkpoint(sharded) as checkpoint:
        info = checkpoint.info("a")
    assert pickle.loads(pickle.dumps(info)) == info


def test_names_that_the_system_cannot_take_are_our_errors():
    for name in ("a" * 5000, "a\0b"):
        with pytest.raises(CheckpointError, match="cannot be opened"):
            open_safetensors(name)
        with pytest.raises(ModelNotFoundError):
            open_checkpoint(name)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such advice")
def test_preloaded_tensors_are_in_memory(tmp_path):
    path = tmp_path / "model.safetensors"
    tensors = {name: np.full(1 << 22, number, np.float32) for number, name in enumerate("ab")}
    safetensors.numpy.save_file(tensors, path)
    with open_checkpoint(tmp_path) as checkpoint:
        before = resident_bytes()
        checkpoint.advise("sequential")
        checkpoint.advise("will-need")
        assert resident_bytes() - before < 4e6, "nothing was read into this process"
        try:
            checkpoint.files[0]._open_mapping().madvise(22)
        except OSError:
            pytest.skip("this kernel is older than 5.14")
        checkpoint.drop_pages("a")
        checkpoint.drop_pages("b")
        before = resident_bytes()
        checkpoint.advise("preload", ["b"])
        assert 15e6 < resident_bytes() - before < 20e6
        assert (checkpoint.float32("a") == 0).all()
        assert (checkpoint.float32("b") == 1).all()


def test_preloading_is_reading_ahead_where_the_kernel_knows_no_better(sharded, monkeypatch):
    monkeypatch.setitem(mapped_tensors._ADVICE, "preload", 9_999)
    with open_checkpoint(sharded) as checkpoint:
        checkpoint.advise("preload")
        assert np.array_equal(checkpoint.array("a"), FIRST["a"])


def test_advice_is_checked(sharded):
    checkpoint = open_checkpoint(sharded)
    with pytest.raises(InvalidInputError, match="'sequential', 'will-need', 'preload'"):
        checkpoint.advise("random")  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="no tensor 'z'"):
        checkpoint.advise("will-need", ["a", "z"])
    checkpoint.close()
    with pytest.raises(CheckpointError, match="closed"):
        checkpoint.advise("will-need")
