"""The error of an adapter whose library is not installed."""

from __future__ import annotations

__all__ = ["missing_library"]


def missing_library(error: ModuleNotFoundError, extra: str) -> ImportError:
    """Return an error that names the extra to install.

    ``error`` is the one of the import that failed.
    """
    return ImportError(f"{error.name} is not installed: pip install 'lattice-embed[{extra}]'", name=error.name)
