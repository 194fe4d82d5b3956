"""Where documents and their vectors are kept: a protocol, two adapters, and exact search.

A store holds the vectors of one model (its :class:`VectorSpace`); moving to another model is a migration between two
stores (:mod:`lattice_embed.migration`).

    store = open_store("corpus.db")
    for match in store.query(service.embed_query("what is a cat?"), 5):
        print(match.id, match.score)
"""

from __future__ import annotations

from lattice_embed.stores.chunking import Chunking
from lattice_embed.stores.document import DocumentState, DocumentVersion, Match, StoredDocument
from lattice_embed.stores.document_embedder import DocumentEmbedder
from lattice_embed.stores.numpy_store import NumpyVectorStore
from lattice_embed.stores.opening import create_store, open_store
from lattice_embed.stores.skip_reason import SkipKind, SkipReason
from lattice_embed.stores.space import VectorSpace
from lattice_embed.stores.sqlite_store import SqliteVectorStore
from lattice_embed.stores.vector_store import StoreOnDisk, VectorStore

__all__ = [
    "Chunking",
    "DocumentEmbedder",
    "DocumentState",
    "DocumentVersion",
    "Match",
    "NumpyVectorStore",
    "SkipKind",
    "SkipReason",
    "SqliteVectorStore",
    "StoreOnDisk",
    "StoredDocument",
    "VectorSpace",
    "VectorStore",
    "create_store",
    "open_store",
]
