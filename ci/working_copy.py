"""Copies the packages' sources for a separate build, so that checks may run side by side."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

__all__ = ["copy_sources"]

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("packages", "tools")


def copy_sources(target: Path) -> None:
    """Copy the packages and tools as git knows them below ``target``.

    Files that a build left are not copied.
    """
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *FOLDERS]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    for folder in FOLDERS:
        shutil.rmtree(target / folder, ignore_errors=True)
    for name in map(os.fsdecode, filter(None, names)):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
