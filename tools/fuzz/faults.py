"""A reader with every fault that a run must find.

Only the fuzzer's tests use it.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

from target import Target

__all__ = ["TARGETS"]

KINDS = ("crash", "memory", "message", "none", "refused", "time", "untyped")


def make(folder: Path) -> None:
    """Write a sound input for each fault."""
    for kind in KINDS:
        (folder / kind).mkdir()
        (folder / kind / kind).write_text("sound")


def damage(folder: Path, draw: random.Random) -> None:
    """Damage the only file."""
    next(folder.iterdir()).write_text(f"damaged {draw.random()}")


def use(folder: Path) -> None:
    """Show the fault that the file's name says."""
    path = next(folder.iterdir())
    if path.read_text() == "sound" or path.name == "none":
        return
    if path.name == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif path.name == "memory":
        bytearray(3 << 30)
    elif path.name == "time":
        while True:
            pass
    elif path.name == "untyped":
        raise KeyError(path.name)
    raise ValueError("x" * (20_000 if path.name == "message" else 10))


TARGETS = [Target("faults", make, damage, use, (ValueError,))]
