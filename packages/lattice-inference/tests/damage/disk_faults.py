"""Writers on a disk that fails at each of their steps: what is there after it is the old or the new, and the error is typed.

``run`` starts a process with the library of ``failing_disk.c`` in it; there ``fail_at_each_step`` tries a writer again and
again, failing its first operation, its second, and so on, until none is left to fail. It fails one alone, and that and all
after it, as a disk does that is full.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Writer", "fail_at_each_step", "main", "run"]

SOURCE = Path(__file__).with_name("failing_disk.c")
LIBRARY = "FAILING_DISK_LIBRARY"
MOST_STEPS = 2_000


@dataclass(frozen=True)
class Writer:
    """Something that writes into a folder.

    Attributes:
        prepare: makes what is there before.
        write: writes.
        read: returns what is there, something that can be compared.
        may_be_between: whether another state than the old and the new is right, too.
        fails: whether a failure must be an error; a cache goes on.
    """

    prepare: Callable[[Path], object]
    write: Callable[[Path], object]
    read: Callable[[Path], Any]
    may_be_between: Callable[[Any], bool] = lambda state: False
    fails: bool = True


def run(script: Path, name: str, folder: Path) -> None:
    """Run the writer ``name`` of a script under the failing disk, in a new process."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler")
    library = folder / "failing_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        LIBRARY: str(library),
        "PYTHONPATH": os.pathsep.join([str(SOURCE.parent), str(script.parent), *filter(None, sys.path)]),
    }
    (folder / "work").mkdir()
    done = subprocess.run(
        [sys.executable, str(script), name, str(folder / "work")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    assert int(done.stdout.split()[-1]) >= 3, "hardly anything was made to fail"


def main(writers: dict[str, Callable[[], Writer]]) -> None:
    """Do what the arguments of a script say: try one of its writers, and print how many steps could fail."""
    _, name, folder = sys.argv
    print(fail_at_each_step(writers[name](), Path(folder)))


def fail_at_each_step(writer: Writer, folder: Path) -> int:
    """Fail a writer at each of its steps, and return how many there are."""
    (folder / "new").mkdir()
    writer.prepare(folder / "new")
    shutil.copytree(folder / "new", folder / "old", symlinks=True)
    old = writer.read(folder / "new")
    writer.write(folder / "new")
    new = writer.read(folder / "new")
    assert old != new
    steps = 0
    while _fail_at(steps + 1, False, writer, folder / "old", folder / "one", old, new):
        steps += 1
        assert steps < MOST_STEPS
    for step in range(1, steps + 1):
        _fail_at(step, True, writer, folder / "old", folder / "all", old, new)
    return steps


def _fail_at(step: int, lasting: bool, writer: Writer, before: Path, work: Path, old: Any, new: Any) -> bool:
    """Fail one step, or it and all after it, on a copy of a folder; return whether there was such a step."""
    from lattice_inference import LatticeError
    from lattice_inference.checkpoint.atomic_file import SUFFIX, remove_leftovers

    disk = ctypes.CDLL(os.environ[LIBRARY])
    shutil.copytree(before, work, symlinks=True)
    failure: Exception | None = None
    number = errno.ENOSPC if lasting or step % 2 else errno.EIO
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        disk.failing_disk_arm(os.fsencode(work), ctypes.c_long(step), number, int(lasting))
        try:
            writer.write(work)
        except Exception as error:
            failure = error
        finally:
            has_failed = bool(disk.failing_disk_disarm())
        where = f"step {step}{' and all after it' if lasting else ''}: {failure!r}"
        assert failure is None or (has_failed and isinstance(failure, LatticeError)), where
        state = writer.read(work)
        assert state in (old, new) or writer.may_be_between(state), f"{where}: {state!r:.500}"
        if failure is None and writer.fails:
            assert state == new, where
        if state != new:
            writer.write(work)
            assert writer.read(work) == new, where
    remove_leftovers(work)
    left = [path.name for path in work.rglob("*") if SUFFIX in path.name]
    assert not left, f"{where}: {left}"
    shutil.rmtree(work)
    return has_failed
