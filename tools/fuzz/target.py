"""A target: valid inputs of one reader, their damage, and the reader."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Target", "add_tests"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Target:
    """One reader and what is tried on it.

    Attributes:
        name: what ``--target`` calls it.
        make: writes sound inputs, each a folder of the folder it gets.
        damage: changes a copy of one of them where it lies.
        use: does with a folder all that a caller would; what it raises on purpose are errors of ``errors``.
        errors: the typed tree of the package.
        is_changed: whether ``use`` writes into the folder, so that it gets a copy.
    """

    name: str
    make: Callable[[Path], None]
    damage: Callable[[Path, random.Random], object]
    use: Callable[[Path], object]
    errors: tuple[type[Exception], ...]
    is_changed: bool = False


def add_tests(package: str, folder: str) -> Path:
    """Return a folder of a package's tests and make its modules importable.

    Targets share their writers.
    """
    path = ROOT / "packages" / f"lattice-{package}" / "tests" / folder
    if str(path) not in sys.path:
        sys.path.append(str(path))
    return path
