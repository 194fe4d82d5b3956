"""What reaches the disk, and in which order: nothing here leaves forcing to the disk out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lattice_tune import ModelRegistry

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc says which file a descriptor is")


def test_content_and_its_name_are_on_the_disk_before_the_version_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ModelRegistry(tmp_path / "r") as registry:
        order: list[str] = []
        fsync, replace = os.fsync, os.replace

        def note_fsync(descriptor: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            order.append(f"fsync {'temporary' if path.name.endswith('.lattice-tmp') else path.name}")
            fsync(descriptor)

        def note_replace(source: Path, target: Path) -> None:
            order.append("rename")
            replace(source, target)

        execute = registry.store.database.execute

        def note_execute(statement: str, values: tuple[object, ...] = ()) -> object:
            if statement.startswith("INSERT INTO models"):
                order.append("row")
            return execute(statement, values)

        monkeypatch.setattr(os, "fsync", note_fsync)
        monkeypatch.setattr(os, "replace", note_replace)
        monkeypatch.setattr(registry.store.database, "execute", note_execute)
        model = registry.register("intent", "1.0.0", b"x")
        folder = model.digest[:2]
        assert order == ["fsync blobs", "fsync temporary", "rename", f"fsync {folder}", "row"]
        # a content that is there already may have been renamed by a writer that was killed before it forced the name
        del order[:]
        registry.register("intent", "1.1.0", b"x")
        assert order == ["fsync blobs", f"fsync {folder}", "row"]


def test_every_commit_is_forced_to_the_disk(tmp_path: Path) -> None:
    with ModelRegistry(tmp_path / "r") as registry:
        database = registry.store.database
        assert database.rows("PRAGMA synchronous") == [(2,)]
        assert database.rows("PRAGMA journal_mode") == [("wal",)]
        assert database.rows("PRAGMA foreign_keys") == [(1,)]
