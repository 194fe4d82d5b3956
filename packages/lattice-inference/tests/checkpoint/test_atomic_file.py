"""Files and folders that are whole or not there: what killed writers leave is removed, what live ones write never is."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from lattice_inference import LatticeError, WriteError
from lattice_inference.checkpoint import atomic_file as module
from lattice_inference.checkpoint.atomic_file import (
    SUFFIX,
    atomic_directory,
    atomic_file,
    remove_leftovers,
    temporary_beside,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="locks of files and kills are those of Unix")

KILLED = """
import os, signal, sys
from pathlib import Path
from lattice_inference.checkpoint.atomic_file import *
path = Path(sys.argv[1])
for turn in range(3):
    for begin in (atomic_file, temporary_beside, atomic_directory):
        if os.fork() == 0:
            holder = begin(path)
            place = holder.__enter__()
            if begin is atomic_file:
                place.write(bytes(100_000)); place.flush()
            elif begin is atomic_directory:
                (place / "sub").mkdir(); (place / "sub" / "weights").write_bytes(bytes(100_000))
            else:
                place.with_name(place.name + "-wal").write_bytes(b"log"); place.write_bytes(bytes(100_000))
            os.kill(os.getpid(), signal.SIGKILL)
        assert os.wait()[1] == signal.SIGKILL
print(len(os.listdir(path.parent)))
"""


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_next_writer_removes_what_killed_ones_left(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "model")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "1\n", done.stderr  # each of the nine has removed what the one before it had left
    with atomic_file(tmp_path / "another") as file:
        file.write(b"new")
    assert names(tmp_path) == ["another"]


@pytest.mark.parametrize("begin", [atomic_file, temporary_beside, atomic_directory])
def test_what_a_live_writer_writes_is_left_alone(begin: object, tmp_path: Path) -> None:
    with begin(tmp_path / "one"):  # type: ignore[operator]
        (writing,) = names(tmp_path)
        with atomic_file(tmp_path / "two") as file:
            file.write(b"two")
        remove_leftovers(tmp_path)
        assert names(tmp_path) == sorted([writing, "two"])
    assert names(tmp_path) == (["two"] if begin is temporary_beside else ["one", "two"])


def test_writers_in_threads_never_take_each_others_files(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for turn in range(20):
                with atomic_file(tmp_path / f"{number}", sync=False) as file:
                    file.write(bytes([number, turn]))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == {
        str(number): bytes([number, 19]) for number in range(6)
    }


def test_a_file_taken_for_a_dead_writers_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = module.fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:  # another process looks into the folder between the making and the locking
            (path,) = tmp_path.iterdir()
            path.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(module.fcntl, "flock", late)
    with atomic_file(tmp_path / "one") as file:
        file.write(b"one")
    assert (tmp_path / "one").read_bytes() == b"one"


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    others = [
        f"model{SUFFIX}",
        f".model{SUFFIX}",
        f".model.0123{SUFFIX}",
        f"model.0123456789abcdef{SUFFIX}",
        ".model.0123456789abcdef.tmp",
        ".model.abcdefgh",
        "data-wal",
    ]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / "target").write_bytes(b"kept")
    (tmp_path / f".link.0123456789abcdef{SUFFIX}").symlink_to(tmp_path / "target")
    with atomic_file(tmp_path / "new"):
        pass
    assert set(others) <= set(names(tmp_path))
    assert (tmp_path / "target").read_bytes() == b"kept"


def test_without_locks_nothing_is_taken_for_a_dead_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f".model.0123456789abcdef{SUFFIX}").touch()

    def none(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(module.fcntl, "flock", none)
    with atomic_file(tmp_path / "new") as file:
        file.write(b"x")
    assert names(tmp_path) == [f".model.0123456789abcdef{SUFFIX}", "new"]


@pytest.mark.parametrize("length", [200, 230, 255])
def test_long_names_have_room_for_the_temporary_one(length: int, tmp_path: Path) -> None:
    with atomic_file(tmp_path / ("n" * length)) as file:
        file.write(b"x")
    with atomic_directory(tmp_path / ("d" * length)) as work:
        (work / "file").touch()
    assert names(tmp_path) == ["d" * length, "n" * length]


@pytest.mark.parametrize("mode", [0o666, 0o600])
def test_permissions_are_those_asked_for_less_the_umask(mode: int, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    umask = 0o666 & ~((tmp_path / "plain").stat().st_mode & 0o777)
    with atomic_file(tmp_path / "file", mode=mode) as file:
        file.write(b"x")
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode & ~umask


@pytest.mark.parametrize("name", ["no/such/file", "file/x", "a\0b", "n" * 5_000])
def test_what_cannot_be_written_is_a_typed_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for begin in (atomic_file, atomic_directory, *([] if len(name) > 255 else [temporary_beside])):
        with pytest.raises(WriteError, match="cannot be written") as caught, begin(tmp_path / name):  # type: ignore[operator]
            pass
        assert isinstance(caught.value, (LatticeError, OSError))


@pytest.mark.parametrize("path", ["", "/"])
@pytest.mark.parametrize("begin", [atomic_file, temporary_beside, atomic_directory])
def test_a_path_without_a_name_is_a_typed_error(
    path: str, begin: Callable[[Path], AbstractContextManager[object]]
) -> None:
    with pytest.raises(WriteError), begin(Path(path)):
        pass


def test_errors_of_the_block_pass_unchanged(tmp_path: Path) -> None:
    for begin in (atomic_file, atomic_directory, temporary_beside):
        with pytest.raises(ValueError, match="mine"), begin(tmp_path / "x"):  # type: ignore[operator]
            raise ValueError("mine")
    assert names(tmp_path) == []


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the order of what reaches the disk; all of it is done."""
    order: list[str] = []
    fsync, replace, rename = os.fsync, os.replace, os.rename

    def note_fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        name = Path(path).name.partition(".lattice")[0].rpartition(".")[0] or Path(path).name
        order.append(f"fsync {name}" if os.fstat(descriptor).st_size else f"fsync {name}, empty")
        fsync(descriptor)

    def note_replace(source: Path, target: Path) -> None:
        order.append(f"rename to {Path(target).name}")
        replace(source, target)

    def note_rename(source: Path, target: Path) -> None:
        order.append(f"rename to {Path(target).name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    monkeypatch.setattr(os, "rename", note_rename)
    return order


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which file a descriptor is")
def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = recorded(monkeypatch)
    with atomic_file(tmp_path / "file") as file:
        file.write(b"x")
    assert order == ["fsync .file", "rename to file", f"fsync {tmp_path.name}"]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which file a descriptor is")
def test_a_folder_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = recorded(monkeypatch)
    with atomic_directory(tmp_path / "model") as work:
        (work / "sub").mkdir()
        (work / "sub" / "inner").write_bytes(b"x")
        (work / "outer").write_bytes(b"y")
    assert order == [
        "fsync inner",
        "fsync sub",
        "fsync outer",
        "fsync .model",
        "rename to model",
        f"fsync {tmp_path.name}",
    ]


@pytest.mark.parametrize("in_one_step", [True, False])
def test_a_folder_replaces_another(in_one_step: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_one_step:
        monkeypatch.setattr(module, "_exchange", lambda first, second: False)
    for number in range(3):
        with atomic_directory(tmp_path / "model") as work:
            (work / f"file{number}").touch()
        assert names(tmp_path) == ["model"]
        assert names(tmp_path / "model") == [f"file{number}"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such step, or another one")
def test_two_entries_change_places_in_one_step(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").write_bytes(b"b")
    if not module._exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system has no such step")
    assert (tmp_path / "a").read_bytes() == b"b"
    assert (tmp_path / "b").is_dir()
    assert not module._exchange(tmp_path / "a", tmp_path / "none")


def test_a_replacement_in_two_steps_that_was_killed_between_them_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    os.rename(tmp_path / "model", tmp_path / ".model.lattice-old")
    with pytest.raises(ValueError, match="mine"), atomic_directory(tmp_path / "model"):
        raise ValueError("mine")
    assert names(tmp_path) == ["model"]
    assert names(tmp_path / "model") == ["old"]


def test_a_replacement_in_two_steps_that_fails_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    rename, calls = os.rename, []

    def second_fails(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(module, "_exchange", lambda first, second: False)
    monkeypatch.setattr(os, "rename", second_fails)
    with pytest.raises(WriteError, match="Input/output error"), atomic_directory(tmp_path / "model") as work:
        (work / "new").touch()
    assert names(tmp_path) == ["model"]
    assert names(tmp_path / "model") == ["old"]


@pytest.mark.parametrize("begin", [atomic_file, atomic_directory])
def test_a_device_or_pipe_is_not_replaced(
    begin: Callable[[Path], AbstractContextManager[object]], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "linked").symlink_to("pipe")
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    before = names(tmp_path)
    for name in before:
        with pytest.raises(WriteError, match="device, pipe or socket") as raised, begin(tmp_path / name):
            pass
        assert raised.value.errno == errno.EPERM
    assert names(tmp_path) == before
    assert (tmp_path / "pipe").is_fifo()
    assert all((tmp_path / name).is_symlink() for name in ("linked", "stdout"))
    (tmp_path / "plain").write_bytes(b"old")
    (tmp_path / "to_plain").symlink_to("plain")
    with atomic_file(tmp_path / "to_plain") as file:  # a link to a file is replaced, as ever
        file.write(b"new")
    assert not (tmp_path / "to_plain").is_symlink()
