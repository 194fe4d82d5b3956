"""Stores whose making or writing was killed: the next writer makes them, and removes what was left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lattice_embed.stores import create_store, open_store

from .damaged_stores import SPACE, documents

pytestmark = pytest.mark.slow

KILLED = """
import os, signal, sys
from damaged_stores import SPACE, documents
from lattice_embed.stores import create_store, open_store
path, call, work = sys.argv[1:]
def die(*arguments, **options): os.kill(os.getpid(), signal.SIGKILL)
setattr(os, call, die)
if work == "create":
    create_store(path, SPACE)
with open_store(path) as store:
    store.put(documents(4))
"""


def kill(path: Path, call: str, work: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), call, work], env=environment, timeout=60)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("name", "call"), [("s.db", "link"), ("s", "replace"), ("s", "fsync")])
def test_making_that_was_killed_is_begun_again(name: str, call: str, tmp_path: Path) -> None:
    for _ in range(2):
        kill(tmp_path / name, call, "create")
    with create_store(tmp_path / name, SPACE) as store:
        store.put(documents(4))
        assert store.verify() == 4
    assert os.listdir(tmp_path) == [name]
    if name == "s":
        assert not [left for left in os.listdir(tmp_path / name) if left.startswith(".")]


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_write_that_was_killed_leaves_nothing_for_long(call: str, tmp_path: Path) -> None:
    with create_store(tmp_path / "s", SPACE) as store:
        store.put(documents(3))
    for _ in range(2):
        kill(tmp_path / "s", call, "put")
    with open_store(tmp_path / "s") as store:
        assert store.verify() == 3
        store.put(documents(4))
        assert store.verify() == 4
    assert len(os.listdir(tmp_path / "s")) == 2 + 2 * 2
