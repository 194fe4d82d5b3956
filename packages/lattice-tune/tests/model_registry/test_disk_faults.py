"""Full disks, folders that cannot be written, and other processes that hold the database."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from lattice_tune import ModelRegistry, RegistryBusyError, StorageError, TuneError
from lattice_tune.registry import blobs

from .conftest import live, staged


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    """Mount something on a folder, where this process may."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root may mount on Linux")
    folder.mkdir(exist_ok=True)
    if subprocess.run(["mount", *options, str(folder)], capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_full_disk_is_a_typed_error_and_loses_nothing(tmp_path: Path) -> None:
    """Contents and rows of all sizes, until nothing fits: by then every kind of write has failed somewhere."""
    disk = tmp_path / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        stored, refused = {}, 0
        with ModelRegistry(disk / "r") as registry:
            model = live(registry, "intent", "0.0.0")
            stored[str(model.version)] = b"intent 0.0.0"
            for number in range(1, 60):
                size = (60_000, 3_000, 10, 200_000)[number % 4]
                content = number.to_bytes(4, "little") * (size // 4)
                try:
                    made = registry.register("intent", f"0.{number}.0", content, description="d" * (size // 20))
                    stored[str(made.version)] = content
                    registry.set_status(made, "validated")
                except StorageError:
                    refused += 1
            assert refused >= 10
            assert registry.verify().is_clean
        with ModelRegistry(disk / "r", create=False) as registry:
            assert registry.verify().is_clean
            assert {str(model.version) for model in registry.list()} == set(stored)
            for made in registry.list():
                assert registry.load_weights_verified(made) == stored[str(made.version)]


def test_content_that_the_disk_refuses_leaves_the_store_intact(
    registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above where nothing may be mounted: the file layer fails at each step."""
    model = live(registry, "intent", "1.0.0")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for target, name in ((blobs, "_copy"), (os, "fsync"), (os, "replace"), (Path, "mkdir")):
        monkeypatch.setattr(target, name, full)
        with pytest.raises(StorageError, match="No space left on device") as caught:
            registry.register("intent", "1.1.0", b"another")
        assert caught.value.errno == errno.ENOSPC
        monkeypatch.undo()
        assert registry.verify().is_clean
        assert [each.reference for each in registry.list()] == [model.reference]
    assert not [path for path in registry.path.rglob("*") if path.name.endswith(".lattice-tmp")]
    registry.register("intent", "1.1.0", b"another")


def test_read_only_folder_can_be_read_and_not_changed(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with ModelRegistry(folder) as registry:
        model = live(registry, "intent", "1.0.0")
        waiting = staged(registry, "intent", "1.1.0")
        registry.delete(registry.register("intent", "1.2.0", b"for gc"))
    with mounted(folder, "--bind", "-o", "ro", str(folder)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        with ModelRegistry(folder) as registry:
            assert registry.load_weights_verified(registry.get("intent", "champion")) == b"intent 1.0.0"
            assert registry.verify().is_clean
            for call in (
                lambda: registry.register("intent", "2.0.0", b"x"),
                lambda: registry.promote(waiting),
                lambda: registry.set_status(waiting, "archived"),
                lambda: registry.delete(waiting),
                lambda: registry.gc(grace_seconds=0),
                lambda: registry.set_alias(waiting, "x"),
            ):
                with pytest.raises(StorageError):
                    call()
            assert len(registry.list()) == 2
        with pytest.raises(StorageError):
            ModelRegistry(folder / "new")
    with ModelRegistry(folder) as registry:
        assert registry.verify().is_clean
        assert registry.get_production("intent") == model


def test_busy_database_is_waited_for_then_a_typed_error(tmp_path: Path) -> None:
    with ModelRegistry(tmp_path / "r", busy_seconds=0.05) as registry:
        model = registry.register("intent", "1.0.0", b"x")
        with closing(sqlite3.connect(registry.path / "registry.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for call in (
                lambda: registry.register("intent", "1.1.0", b"y"),
                lambda: registry.set_status(model, "validated"),
                lambda: registry.delete(model),
            ):
                with pytest.raises(RegistryBusyError, match=r"held it for 0\.05 s"):
                    call()
            assert registry.get("intent", "1.0.0") == model  # readers do not wait
            other.execute("ROLLBACK")
        registry.set_status(model, "validated")
        assert [event.kind for event in registry.events()] == ["registered", "status"]
        assert registry.verify().is_clean


def test_errors_are_of_one_tree_and_of_the_builtin_kind() -> None:
    assert issubclass(RegistryBusyError, StorageError)
    assert issubclass(StorageError, OSError)
    assert issubclass(StorageError, TuneError)
