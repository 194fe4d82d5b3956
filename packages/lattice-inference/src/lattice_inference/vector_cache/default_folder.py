"""Where the cache on disk is for those who name no folder."""

from __future__ import annotations

import os
from pathlib import Path

from lattice_inference.errors import InvalidInputError

__all__ = ["CACHE_VARIABLE", "default_cache_folder"]

CACHE_VARIABLE = "LATTICE_VECTOR_CACHE"
"""Environment variable that names the folder of caches made without one."""


def default_cache_folder() -> Path:
    """Return the default folder of caches: ``LATTICE_VECTOR_CACHE``, else ``~/.lattice/cache``.

    Raises:
        InvalidInputError: the variable names the home of a user that does not exist, or this user has none.
    """
    named = os.environ.get(CACHE_VARIABLE, "").strip() or "~/.lattice/cache"
    try:
        return Path(named).expanduser()
    except RuntimeError as error:
        raise InvalidInputError(f"the folder of the vector cache is {named!r}: {error} ({CACHE_VARIABLE})") from None
