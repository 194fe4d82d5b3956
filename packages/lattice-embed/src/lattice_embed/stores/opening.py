"""Opening a store by its path alone."""

from __future__ import annotations

import os

from lattice_embed.errors import StoreError
from lattice_embed.stores.durable_files import place_of
from lattice_embed.stores.numpy_store import NumpyVectorStore
from lattice_embed.stores.space import VectorSpace
from lattice_embed.stores.sqlite_store import SqliteVectorStore
from lattice_embed.stores.vector_store import StoreOnDisk

__all__ = ["SQLITE_SUFFIXES", "create_store", "open_store"]

SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")


def open_store(path: str | os.PathLike[str]) -> StoreOnDisk:
    """Open the store at ``path``: a :class:`NumpyVectorStore` or :class:`SqliteVectorStore`.

    A folder is the former, a file the latter.

    Raises:
        StoreError: there is none.
        StoreCorruptError: it is damaged, or something else.
    """
    place = place_of(path)
    if place.is_dir():
        return NumpyVectorStore(place)
    if place.is_file():
        return SqliteVectorStore(place)
    raise StoreError(
        f"there is no vector store {os.fspath(path)}: create one, for instance by `lattice-embed store import`"
    )


def create_store(path: str | os.PathLike[str], space: VectorSpace | None = None) -> StoreOnDisk:
    """Create an empty store: an SQLite file or a folder.

    The name of an SQLite file ends in ``.db``, ``.sqlite`` or ``.sqlite3``.

    Raises:
        StoreError: there is something at ``path`` already, or it cannot be written.
    """
    if place_of(path).suffix.lower() in SQLITE_SUFFIXES:
        return SqliteVectorStore.create(path, space)
    return NumpyVectorStore.create(path, space)
