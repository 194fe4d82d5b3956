"""Files are written whole or not at all; what killed writers left is removed by the next writer of the same file."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lattice_fann import Layer, Network
from lattice_fann.formats import atomic_write as module
from lattice_fann.formats.atomic_write import atomic_write


def network() -> Network:
    return Network([Layer([[1.0]], [0.0])])


def killed_writer(target: Path) -> Path:
    """Run a writer of ``target`` that dies by SIGKILL in the middle; return the file that it left."""
    code = (
        "import os, signal, sys\nfrom lattice_fann.formats.atomic_write import atomic_write\n"
        "with atomic_write(sys.argv[1]) as file:\n    file.write(b'half')\n    file.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    before = set(target.parent.iterdir())
    done = subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert done.returncode == -9
    (left,) = set(target.parent.iterdir()) - before
    return left


def dead_process() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


@pytest.mark.parametrize("name", ["n.fann", "n.safetensors", "n.net", "ä b.fann", "n" * 250])
def test_the_next_writer_removes_what_a_killed_one_left(name: str, tmp_path: Path) -> None:
    left = killed_writer(tmp_path / name)
    assert left.name.endswith(".tmp")
    network().save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_every_kind_of_file_is_written_so(tmp_path: Path) -> None:
    from lattice_fann import BackpropTrainer, TrainingConfig

    left = tmp_path / f".s.npz.{dead_process()}-0123456789ab.tmp"
    left.write_bytes(b"half")
    BackpropTrainer(network(), TrainingConfig(max_epochs=0)).train([[1.0]], [1.0]).state.save(tmp_path / "s.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["s.npz"]


def test_files_of_others_stay(tmp_path: Path) -> None:
    dead = dead_process()
    names = [
        f".n.fann.{os.getppid()}-0123456789ab.tmp",  # its process lives
        ".n.fann.1-0123456789ab.tmp",  # another user's process
        f".n.fann.{dead}-0123456789ab",  # no temporary name
        f".n.fann.{dead}-0123456789AB.tmp",
        f".n.fann.{dead}.tmp",
        f".n.fann.x{dead}-0123456789ab.tmp",
        f".m.fann.{dead}-0123456789ab.tmp",  # of another target
        f"n.fann.{dead}-0123456789ab.tmp",
        ".n.fann.abcdefgh.tmp",
        ".n.fann.99999999999999-0123456789ab.tmp",
        "n.fann.tmp",
    ]
    for name in names:
        (tmp_path / name).write_bytes(b"keep")
    network().save(tmp_path / "n.fann")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "n.fann"])


def test_a_locked_file_stays(tmp_path: Path) -> None:
    """Its writer may run in a container that shares the folder, where its process id says nothing."""
    path = tmp_path / f".n.fann.{dead_process()}-0123456789ab.tmp"
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        network().save(tmp_path / "n.fann")
        assert path.exists()
    network().save(tmp_path / "n.fann")
    assert not path.exists()


def test_a_file_of_this_process_id_in_a_former_life_is_removed(tmp_path: Path) -> None:
    """In containers every run may have the same process id."""
    (tmp_path / f".n.fann.{os.getpid()}-0123456789ab.tmp").write_bytes(b"half")
    network().save(tmp_path / "n.fann")
    assert [path.name for path in tmp_path.iterdir()] == ["n.fann"]


def test_two_writers_of_one_process_do_not_disturb_each_other(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "n") as first:
        first.write(b"first")
        with atomic_write(tmp_path / "n") as second:
            second.write(b"second")
        assert (tmp_path / "n").read_bytes() == b"second"
    assert (tmp_path / "n").read_bytes() == b"first"
    assert not module._WRITING


def test_links_and_folders_that_look_like_leftovers_stay(tmp_path: Path) -> None:
    dead = dead_process()
    (tmp_path / "precious").write_bytes(b"keep")
    (tmp_path / f".n.fann.{dead}-00000000000a.tmp").symlink_to(tmp_path / "precious")
    (tmp_path / f".n.fann.{dead}-00000000000b.tmp").mkdir()
    network().save(tmp_path / "n.fann")
    assert (tmp_path / "precious").read_bytes() == b"keep"
    assert len(list(tmp_path.iterdir())) == 4


def test_a_block_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "n").write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), atomic_write(tmp_path / "n") as file:
        file.write(b"new" * (1 // 0))
    assert [path.name for path in tmp_path.iterdir()] == ["n"]
    assert (tmp_path / "n").read_bytes() == b"old"
    assert not module._WRITING


def test_a_file_is_on_the_disk_whole_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power failure may leave an empty file in the place of the former one, or undo the rename."""
    steps: list[object] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        fsync(descriptor)
        status = os.fstat(descriptor)
        steps.append(status.st_ino if stat.S_ISDIR(status.st_mode) else status.st_size)

    def note_replace(source: Path, target: Path) -> None:
        steps.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    for name in ("n.fann", "n.safetensors", "n.net", "n.npz"):
        network().save(tmp_path / name)
        assert steps == [(tmp_path / name).stat().st_size, name, tmp_path.stat().st_ino]
        steps.clear()


def test_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        network().save(tmp_path / "n.fann")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "n.fann").stat().st_mode) == 0o640


def test_a_folder_that_cannot_be_forced_to_the_disk_is_told_and_the_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> None:
        raise OSError(5, "Input/output error", str(folder))

    monkeypatch.setattr(module, "_sync_folder", refuse)
    with pytest.raises(OSError, match="Input/output error"), atomic_write(tmp_path / "n") as file:
        file.write(b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["n"]
    assert (tmp_path / "n").read_bytes() == b"content"


def test_a_device_or_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.fann")
    (tmp_path / "stdout.fann").symlink_to("/proc/self/fd/1")
    before = sorted(tmp_path.iterdir())
    for path in before:
        for write in (network().save, module.check_writable):
            with pytest.raises(OSError, match="device, pipe or socket"):
                write(path)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "pipe.fann").is_fifo()
    assert (tmp_path / "stdout.fann").is_symlink()
