"""Where the cache on disk is for those who name no folder."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["CACHE_VARIABLE", "default_cache_folder"]

CACHE_VARIABLE = "LATTICE_VECTOR_CACHE"
"""Environment variable that names the folder of caches made without one."""


def default_cache_folder() -> Path:
    """Return the default folder of caches: ``LATTICE_VECTOR_CACHE``, else ``~/.lattice/cache``."""
    named = os.environ.get(CACHE_VARIABLE, "").strip()
    return Path(named).expanduser() if named else Path("~/.lattice/cache").expanduser()
